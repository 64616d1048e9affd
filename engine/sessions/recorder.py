"""From emitted tokens to signed, durable commitments: one recorder per turn that is being generated."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from engine.generation import StepProof
from engine.sessions.dates import Dates
from engine.sessions.manifests import Signed
from engine.store import SessionRow, Store
from verifiable.errors import EngineError, PolicyError, StoreError
from verifiable.request.request import Request
from verifiable.sampling.logits import Entries
from verifiable.session import room
from verifiable.session.log import SessionLog
from verifiable.session.opening import Opening
from verifiable.session.receipt import Receipt, reader_capability
from verifiable.session.records import Finish, Source, TurnFacts
from verifiable.wire.keys import PrivateKey

Ended = Callable[[bytes | None, EngineError | StoreError | None], None]
"""Takes the encoded receipt, or the error that kept the turn from becoming durable."""


Proved = Callable[[StepProof], None]
"""Takes the proof of a step, from any thread, once everything in it is durable."""

HAND_OVER = 0.25
"""Seconds between two hand-overs of records to the store, for all turns at the same moment. Each makes the store's
thread work and the disk sync, which costs the scheduler time; nothing is acknowledged before a barrier anyway."""
MAX_PENDING = 512
"""Records that are handed over at once, whatever the time."""


class BusySessionError(PolicyError):
    """The session can't take this turn now (or any more)."""


class Recorder(Protocol):
    """What the scheduler tells about a turn. `SessionRecorder` commits to it; `NoRecorder` keeps nothing."""

    proves: bool
    """Whether `prove` is to be called for each step."""

    def begin(self, facts: TurnFacts) -> None: ...

    def abandon(self) -> None:
        """The turn never began, and never will."""
        ...

    def drafted(self, count: int) -> None: ...

    def token(self, token: int, source: Source, new_step: bool, entries: Entries) -> None: ...

    def step(self) -> None:
        """A decode step is over: hand what has gathered to the store, when it is time."""
        ...

    def prove(self, done: Proved) -> None:
        """Commit to the tokens since the last call. `done` is not called where that fails: the end tells."""
        ...

    def end(self, finish: Finish, text_digest: bytes, done: Ended) -> None:
        """The turn is over. `done` is called, from any thread, once everything is durable."""
        ...


class SessionRecorder:
    """Writes one turn into a session's log and store. `release` is called when the turn has ended."""

    def __init__(
        self,
        row: SessionRow,
        log: SessionLog,
        request: Request,
        *,
        keep_open: bool,
        manifest: Signed,
        key: PrivateKey,
        store: Store,
        dates: Dates,
        release: Callable[[], None],
    ) -> None:
        self.row = row
        self.log = log
        self._request = request
        self._keep_open = keep_open
        self._manifest = manifest
        self._key = key
        self._store = store
        self._dates = dates
        self._begun = row.opened
        self._release = release
        self._tokens: list[tuple[int, Source, bool, Entries]] = []
        self._pending: list[bytes] = []
        self._stored = self._proved = log.size
        self._window = 0
        self.proves = request.stream_heads

    def check_room(self, tokens: int, k: int) -> None:
        """Raise BusySessionError where the session has no room for a turn of so many tokens, of `k` entries each."""
        full = room.lacking(self.log, len(self._request.canonical), tokens, k)
        if full is not None:
            raise BusySessionError(
                "the session can't take this turn",
                expected=f"at most {full.most:,} {full.what}",
                found=f"it could have {full.found:,}",
                hint="This session is full: open a new one.",
                parameter="verifiable.session",
            )

    def begin(self, facts: TurnFacts) -> None:
        self._begun = max(self._dates.clock(), self._begun)
        if self.log.size == 0:
            self._store.add_session(self.row)
            self._pending.append(self.log.open(self.row.opened))
        self._store.add_request(self.row.session, self.log.turns, self._request.canonical)
        self.log.requests += len(self._request.canonical)
        self._pending.append(self.log.begin_turn(facts))
        self._hand_over()
        self._proved = self.log.size

    def abandon(self) -> None:
        self._release()

    def drafted(self, count: int) -> None:
        self.log.drafted(count)

    def token(self, token: int, source: Source, new_step: bool, entries: Entries) -> None:
        # Written when they are handed over: one by one, each would pay for the cache that llama.cpp has emptied.
        self._tokens.append((token, source, new_step, entries))

    def step(self) -> None:
        window = int(time.monotonic() / HAND_OVER)
        if window != self._window or len(self._tokens) >= MAX_PENDING:
            self._window = window
            self._hand_over()

    def prove(self, done: Proved) -> None:
        self._write()
        first, self._proved = self._proved, self.log.size
        hashes = tuple(self.log.tree.leaf(index) for index in range(first, self.log.size))
        head = self._head(interim=True)
        self._hand_over()
        if head is not None:
            proof = StepProof(first, hashes, head)
            self._store.barrier(lambda error: done(proof) if error is None else None)

    def _head(self, *, interim: bool = False) -> bytes | None:
        """The signed head; None where the clock has left the manifest's validity, and nobody would take its word, or
        where it would break the log's order."""
        time = max(self._dates.clock(), self._begun)
        if not self._manifest.covers(time) or not (interim or self._dates.keeps_order(time)):
            return None
        return self.log.head(time, interim=interim).sign(self._key)

    def _write(self) -> None:
        """Append the records of the tokens that have gathered to the session's log."""
        tokens, self._tokens = self._tokens, []
        for each in tokens:
            self._pending.append(self.log.token(*each))

    def _hand_over(self) -> None:
        self._write()
        if self._pending:
            self._store.add_leaves(self.row.session, self._stored, self._pending)
            self._stored += len(self._pending)
            self._pending = []

    def end(self, finish: Finish, text_digest: bytes, done: Ended) -> None:
        turn = self.log.turns
        self._write()
        self._pending.append(self.log.end_turn(finish, text_digest))
        if not self._keep_open:
            self._pending.append(self.log.close())
        self._hand_over()
        head = self._head()
        if head is None:
            self._release()
            done(
                None,
                EngineError("the answer ended at a time that can't be signed", hint="Is the provider's clock right?"),
            )
            return
        self._store.add_head(self.row.session, self.log.size, head)
        opening = Opening.of(self.log.tree, self.log.landmarks)
        readers = reader_capability(self.row.capability)
        receipt = Receipt(head, self._manifest.envelope, opening, turn, readers).encode()
        self._release()
        self._store.barrier(lambda error: done(receipt if error is None else None, error))


class NoRecorder:
    """For requests that ask for no commitments."""

    proves = False

    def begin(self, facts: TurnFacts) -> None:
        """Nothing is kept."""

    def abandon(self) -> None:
        """Nothing was kept."""

    def drafted(self, count: int) -> None:
        """Nothing is kept."""

    def token(self, token: int, source: Source, new_step: bool, entries: Entries) -> None:
        """Nothing is kept."""

    def step(self) -> None:
        """Nothing is kept."""

    def prove(self, done: Proved) -> None:
        """Nothing is proved."""

    def end(self, finish: Finish, text_digest: bytes, done: Ended) -> None:
        done(None, None)
