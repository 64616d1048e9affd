"""Taking signed heads and statements into the log: an index for each, and the tiles that hold them, at once."""

from __future__ import annotations

from collections.abc import Callable

from engine.log.frontier import Frontier, grown
from engine.log.tree import LogTree, read_hashes
from engine.store import FSCK, DamagedLogError, EntryRow, HeadRow, LogStore, LogTransaction, StatementRow
from verifiable import limits
from verifiable.tlog.entry import kind_of, subject_of
from verifiable.tlog.merkle import leaf_hash

MAX_BATCH = 2048
"""Entries in one transaction: at some 20 µs each, answers' own commits wait no more than a moment for it."""

CheckHead = Callable[[HeadRow, Callable[[bytes], bytes | None]], None]
"""Raises DamagedLogError unless a stored head is what a session key signed; it looks manifests up by digest."""


def integrate(store: LogStore, check: CheckHead, limit: int = MAX_BATCH) -> int:
    """Sequence and integrate what waits, at most `limit` entries, statements before heads: a manifest stands in the log
    before what is signed under it. Returns how many. Durable when it returns.

    Raises DamagedLogError where an entry or a tile is damaged: then nothing was changed.
    """
    with store.integration() as transaction:
        rows: list[EntryRow] = list(transaction.pending_statements(limit))
        rows += transaction.pending(limit - len(rows)) if len(rows) < limit else []
        if not rows:
            return 0
        size = transaction.size()
        for row in rows:
            if isinstance(row, HeadRow):
                check(row, transaction.manifest)
            else:
                check_statement(row)
            if len(row.signed) > limits.ENTRY_BYTES:
                raise DamagedLogError("too long for a log entry", expected=limits.ENTRY_BYTES, found=len(row.signed))
        frontier = Frontier.read(size, LogTree(transaction).node)
        added = grown(frontier, (leaf_hash(row.signed) for row in rows))
        for (level, index), hashes in added.items():
            transaction.put_tile(level, index, _extended(transaction, level, index, hashes))
        transaction.assign([(row, size + at) for at, row in enumerate(rows)])
        return len(rows)


def check_statement(row: StatementRow) -> None:
    """Raise DamagedLogError unless a stored statement is what was given, and of the kind that it is stored as."""
    found = StatementRow(kind_of(row.signed), subject_of(row.signed), leaf_hash(row.signed), row.signed, row.index)
    if found != row:
        raise DamagedLogError(
            f"a statement is damaged: the {row.kind} with leaf hash {row.hash.hex()}",
            expected=f"{row.kind} about {row.about.hex() or 'nobody'}",
            found=f"{found.kind} about {found.about.hex() or 'nobody'}, with leaf hash {found.hash.hex()}",
            hint=FSCK,
        )


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
