"""How long records are kept: after a window a session's token records go, and two bytes or three a token stay.

A record is what the log commits to of one token: some 370 bytes at k = 40. Packed token ids and marks are enough for an
exact audit by whoever has the model; with `keep="digests"` they go too, and the requests with them. Leaf hashes and
signed heads always stay, so every receipt, every proof and the log still verify.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from engine.sessions.evidence import pack
from engine.store import SessionRow, Store
from verifiable.errors import PolicyError, VerifiableError
from verifiable.session import records
from verifiable.session.head import Head
from verifiable.session.records import End, Leaf, Token
from verifiable.wire import encoding

log = logging.getLogger(__name__)

KEEP = ("tokens", "digests")
_DAY = 86_400_000  # milliseconds


def drop_expired(store: Store, vocabulary: int, opened_before: int, now: int, keep: str = "tokens") -> int:
    """Drop the records of sessions that were last signed before a time (ms since 1970); returns how many sessions.

    Sessions with a turn that has no end are passed over: they are being answered, or show that they were not.
    """
    if keep not in KEEP:
        raise PolicyError("what to keep of old sessions", expected=" or ".join(KEEP), found=keep)
    count = 0
    for session in store.expired(opened_before):
        row = store.session(session)
        head = store.head(session)
        # A conversation's age counts from its last turn: its owner may be about to go on with it.
        recent = head is not None and Head.peek(head[1]).time >= opened_before
        if row is not None and not recent and _drop(store, row, vocabulary, now, keep):
            count += 1
    return count


def _drop(store: Store, row: SessionRow, vocabulary: int, now: int, keep: str) -> bool:
    leaves: dict[int, Leaf] = {}
    for seq, leaf in enumerate(store.stored_leaves(row.session)):
        if leaf.data is not None:
            leaves[seq] = records.parse(leaf.data)
    if not leaves or isinstance(leaves[max(leaves)], records.Turn | Token):
        return False
    tokens = [leaf for leaf in leaves.values() if isinstance(leaf, Token)]
    packed = _packed(leaves, tokens, vocabulary) if keep == "tokens" else {}
    store.drop_records(row, [token.seq for token in tokens], packed, now)
    return True


def _packed(leaves: Mapping[int, Leaf], tokens: list[Token], vocabulary: int) -> dict[int, bytes]:
    turns = [leaf.turn for leaf in leaves.values() if isinstance(leaf, End)]
    of = {turn: [token for token in tokens if token.turn == turn] for turn in turns}
    return {turn: encoding.encode(pack(of[turn], vocabulary).to_cbor()) for turn in turns}


def milliseconds() -> int:
    """Now, in milliseconds since 1970 (UTC)."""
    return time.time_ns() // 1_000_000


class Retention:
    """Drops what has expired, once an hour, in a thread of its own."""

    def __init__(self, store: Store, days: float, keep: str, clock: Callable[[], int] = milliseconds) -> None:
        if days <= 0:
            raise PolicyError("days that records are kept", expected="more than 0", found=days)
        if keep not in KEEP:
            raise PolicyError("what to keep of old sessions", expected=" or ".join(KEEP), found=keep)
        self._store, self._keep, self._clock = store, keep, clock
        self._window = int(days * _DAY)
        self._vocabulary = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                now = self._clock()
                drop_expired(self._store, self._vocabulary, now - self._window, now, self._keep)
            except VerifiableError as error:
                log.error("records that have expired can't be dropped: %s", error)
            if self._stopping.wait(3600):
                return
