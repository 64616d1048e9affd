"""The log's tables: reading entries, tiles and checkpoints, and the transaction that integrates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from engine.store import HeadRow, tables
from verifiable.errors import StoreError

_HEAD = (tables.head.c.session, tables.head.c.size, tables.head.c.signed, tables.head.c.idx)
_SIZE = select(func.coalesce(func.max(tables.head.c.idx) + 1, 0))
_TILE = select(tables.tile.c.data).where(
    tables.tile.c.level == bindparam("level"), tables.tile.c.idx == bindparam("index")
)


class SqlLogReader:
    """Reads of the log, each from a connection of its own."""

    def __init__(self, reading: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._reading = reading

    def size(self) -> int:
        with self._reading() as connection:
            return int(connection.execute(_SIZE).scalar_one())

    def entries(self, first: int, count: int) -> list[bytes]:
        index = tables.head.c.idx
        query = select(index, tables.head.c.signed).where(index >= first, index < first + count).order_by(index)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        entries = []
        for at, (stored, signed) in enumerate(rows, first):
            if stored != at:
                break
            entries.append(signed)
        return entries

    def index_of(self, session: bytes, size: int) -> int | None:
        query = select(tables.head.c.idx).where(tables.head.c.session == session, tables.head.c.size == size)
        with self._reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else row[0]

    def entry(self, index: int) -> HeadRow | None:
        with self._reading() as connection:
            row = connection.execute(select(*_HEAD).where(tables.head.c.idx == index)).first()
        return None if row is None else HeadRow(*row)

    def tile(self, level: int, index: int) -> bytes | None:
        with self._reading() as connection:
            row = connection.execute(_TILE, {"level": level, "index": index}).first()
        return None if row is None else row[0]

    def tiles(self) -> list[tuple[int, int]]:
        with self._reading() as connection:
            return [(row[0], row[1]) for row in connection.execute(select(tables.tile.c.level, tables.tile.c.idx))]

    def checkpoint(self, size: int | None = None) -> tuple[int, bytes] | None:
        table = tables.checkpoint.c
        query = select(table.size, table.note)
        query = query.order_by(table.size.desc()).limit(1) if size is None else query.where(table.size == size)
        with self._reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else (row[0], row[1])

    def checkpoints(self) -> list[tuple[int, bytes]]:
        table = tables.checkpoint.c
        with self._reading() as connection:
            return [(row[0], row[1]) for row in connection.execute(select(table.size, table.note).order_by(table.size))]


class SqlLogTransaction:
    """See `engine.store.LogTransaction`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def pending(self, limit: int) -> list[HeadRow]:
        query = select(*_HEAD).where(tables.head.c.idx.is_(None)).order_by(tables.head.c.number).limit(limit)
        return [HeadRow(*row) for row in self._connection.execute(query)]

    def size(self) -> int:
        return int(self._connection.execute(_SIZE).scalar_one())

    def tile(self, level: int, index: int) -> bytes | None:
        row = self._connection.execute(_TILE, {"level": level, "index": index}).first()
        return None if row is None else row[0]

    def manifest(self, digest: bytes) -> bytes | None:
        query = select(tables.manifest.c.signed).where(tables.manifest.c.digest == digest)
        row = self._connection.execute(query).first()
        return None if row is None else row[0]

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
    there = int(connection.execute(_SIZE).scalar_one())
    last = connection.execute(select(func.max(tables.checkpoint.c.size))).scalar_one()
    if size > there or (last is not None and size <= last):
        raise StoreError(
            "a checkpoint that the log can't make now",
            expected=f"a size above {last} and at most {there}",
            found=size,
            hint="Another sequencer was faster, or the store is older than what was published.",
        )
