"""From emitted tokens to signed, durable commitments: one recorder per turn that is being generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.store import SessionRow, Store
from verifiable.errors import StoreError
from verifiable.keys import PrivateKey
from verifiable.logits import Entries
from verifiable.opening import Opening
from verifiable.receipt import Receipt
from verifiable.records import Finish, Source
from verifiable.request import Request
from verifiable.session import SessionLog, TurnFacts

Clock = Callable[[], int]
"""Milliseconds since 1970 (UTC)."""


Ended = Callable[[bytes | None, StoreError | None], None]
"""Takes the encoded receipt, or the error that kept the turn from becoming durable."""


class Recorder(Protocol):
    """What the scheduler tells about a turn. `SessionRecorder` commits to it; `NoRecorder` keeps nothing."""

    def begin(self, facts: TurnFacts) -> None: ...

    def abandon(self) -> None:
        """The turn never began, and never will."""
        ...

    def drafted(self, count: int) -> None: ...

    def token(self, token: int, source: Source, new_step: bool, entries: Entries) -> None: ...

    def step(self) -> None:
        """A decode step is over: hand what it brought to the store."""
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
        manifest: bytes,
        key: PrivateKey,
        store: Store,
        clock: Clock,
        release: Callable[[], None],
    ) -> None:
        self.row = row
        self.log = log
        self._request = request
        self._keep_open = keep_open
        self._manifest = manifest
        self._key = key
        self._store = store
        self._clock = clock
        self._release = release
        self._pending: list[bytes] = []
        self._stored = log.size

    def begin(self, facts: TurnFacts) -> None:
        if self.log.size == 0:
            self._store.add_session(self.row)
            self._pending.append(self.log.open(self.row.opened))
        self._store.add_request(self.row.session, self.log.turns, self._request.canonical)
        self._pending.append(self.log.begin_turn(facts))
        self.step()

    def abandon(self) -> None:
        self._release()

    def drafted(self, count: int) -> None:
        self.log.drafted(count)

    def token(self, token: int, source: Source, new_step: bool, entries: Entries) -> None:
        self._pending.append(self.log.token(token, source, new_step, entries))

    def step(self) -> None:
        if self._pending:
            self._store.add_leaves(self.row.session, self._stored, self._pending)
            self._stored += len(self._pending)
            self._pending = []

    def end(self, finish: Finish, text_digest: bytes, done: Ended) -> None:
        turn = self.log.turns
        self._pending.append(self.log.end_turn(finish, text_digest))
        if not self._keep_open:
            self._pending.append(self.log.close())
        self.step()
        head = self.log.head(max(self._clock(), self.row.opened)).sign(self._key)
        self._store.add_head(self.row.session, self.log.size, head)
        opening = Opening.of(self.log.tree, self.log.landmarks)
        receipt = Receipt(head, self._manifest, opening, turn, self.row.capability).encode()
        self._release()
        self._store.barrier(lambda error: done(receipt if error is None else None, error))


class NoRecorder:
    """For requests that ask for no commitments."""

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

    def end(self, finish: Finish, text_digest: bytes, done: Ended) -> None:
        done(None, None)
