"""The log's tables: the transaction that integrates, and what it reads as the store does."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from engine.store import HeadRow, tables
from verifiable.errors import StoreError

HEAD = (tables.head.c.session, tables.head.c.size, tables.head.c.signed, tables.head.c.idx)
SIZE = select(func.coalesce(func.max(tables.head.c.idx) + 1, 0))
TILE = select(tables.tile.c.data).where(
    tables.tile.c.level == bindparam("level"), tables.tile.c.idx == bindparam("index")
)


class SqlLogTransaction:
    """See `engine.store.LogTransaction`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def pending(self, limit: int) -> list[HeadRow]:
        query = select(*HEAD).where(tables.head.c.idx.is_(None)).order_by(tables.head.c.number).limit(limit)
        return [HeadRow(*row) for row in self._connection.execute(query)]

    def size(self) -> int:
        return int(self._connection.execute(SIZE).scalar_one())

    def tile(self, level: int, index: int) -> bytes | None:
        return self._connection.scalar(TILE, {"level": level, "index": index})

    def manifest(self, digest: bytes) -> bytes | None:
        return self._connection.scalar(select(tables.manifest.c.signed).where(tables.manifest.c.digest == digest))

    def assign(self, heads: Sequence[tuple[HeadRow, int]]) -> None:
        table = tables.head
        statement = (
            update(table)
            .where(table.c.session == bindparam("at_session"), table.c.size == bindparam("at_size"))
            .values(idx=bindparam("index"))
        )
        rows = [{"at_session": head.session, "at_size": head.size, "index": index} for head, index in heads]
        self._connection.execute(statement, rows)

    def put_tile(self, level: int, index: int, data: bytes) -> None:
        table = tables.tile
        self._connection.execute(delete(table).where(table.c.level == level, table.c.idx == index))
        self._connection.execute(insert(table), {"level": level, "idx": index, "data": data})


def sequenced(connection: Connection, size: int) -> None:
    """Refuse a checkpoint over entries that are not in the log, or below one that is already remembered."""
    there = int(connection.execute(SIZE).scalar_one())
    last = connection.execute(select(func.max(tables.checkpoint.c.size))).scalar_one()
    if size > there or (last is not None and size <= last):
        raise StoreError(
            "a checkpoint that the log can't make now",
            expected=f"a size above {last} and at most {there}",
            found=size,
            hint="Another sequencer was faster, or the store is older than what was published.",
        )
