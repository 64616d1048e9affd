"""Taking signed heads into the log: an index for each, and the tiles that hold them, in one transaction."""

from __future__ import annotations

from collections.abc import Callable

from engine.log.frontier import Frontier, grown
from engine.log.tree import LogTree, read_hashes
from engine.store import FSCK, DamagedLogError, HeadRow, LogStore, LogTransaction
from verifiable import limits
from verifiable.tlog.merkle import leaf_hash

MAX_BATCH = 2048
"""Heads in one transaction: at some 20 µs each, answers' own commits wait no more than a moment for it."""

CheckHead = Callable[[HeadRow, Callable[[bytes], bytes | None]], None]
"""Raises DamagedLogError unless a stored head is what a session key signed; it looks manifests up by digest."""


def integrate(store: LogStore, check: CheckHead, limit: int = MAX_BATCH) -> int:
    """Sequence and integrate heads that wait, at most `limit`; returns how many. Durable when it returns.

    Raises DamagedLogError where a head or a tile is damaged: then nothing was changed.
    """
    with store.integration() as transaction:
        heads = transaction.pending(limit)
        if not heads:
            return 0
        size = transaction.size()
        for head in heads:
            check(head, transaction.manifest)
            if len(head.signed) > limits.ENTRY_BYTES:
                raise DamagedLogError(
                    "a head is too long for a log entry", expected=limits.ENTRY_BYTES, found=len(head.signed)
                )
        frontier = Frontier.read(size, LogTree(transaction).node)
        added = grown(frontier, (leaf_hash(head.signed) for head in heads))
        for (level, index), hashes in added.items():
            transaction.put_tile(level, index, _extended(transaction, level, index, hashes))
        transaction.assign([(head, size + at) for at, head in enumerate(heads)])
        return len(heads)


def _extended(transaction: LogTransaction, level: int, index: int, hashes: list[tuple[int, bytes]]) -> bytes:
    first = hashes[0][0]
    old = read_hashes(transaction, level, index) if first else []
    if len(old) != first:
        raise DamagedLogError(
            f"a tile of the log has another width than the log's size says: level {level}, tile {index}",
            expected=f"{first} hashes",
            found=len(old),
            hint=FSCK,
        )
    return b"".join([*old, *(value for _, value in hashes)])
