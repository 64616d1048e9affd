"""The log's tables: the transaction that integrates, and what it reads as the store does."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, Select, bindparam, case, delete, func, insert, select, union_all, update

from engine.store import EntryRow, HeadRow, StatementRow, tables
from verifiable.errors import StoreError
from verifiable.tlog.entry import subject_of
from verifiable.tlog.merkle import leaf_hash

HEAD = (tables.head.c.session, tables.head.c.size, tables.head.c.signed, tables.head.c.idx)
STATEMENT = tuple(tables.statement.c[name] for name in ("kind", "about", "hash", "signed", "idx"))
_LAST = (select(func.max(table.c.idx)).scalar_subquery() for table in (tables.head, tables.statement))
_LAST_HEAD, _LAST_STATEMENT = (func.coalesce(last, -1) for last in _LAST)
SIZE = select(case((_LAST_HEAD > _LAST_STATEMENT, _LAST_HEAD), else_=_LAST_STATEMENT) + 1)
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

    def pending_statements(self, limit: int) -> list[StatementRow]:
        table = tables.statement.c
        query = select(*STATEMENT).where(table.idx.is_(None)).order_by(table.number).limit(limit)
        return [StatementRow(*row) for row in self._connection.execute(query)]

    def size(self) -> int:
        return int(self._connection.execute(SIZE).scalar_one())

    def tile(self, level: int, index: int) -> bytes | None:
        return self._connection.scalar(TILE, {"level": level, "index": index})

    def manifest(self, digest: bytes) -> bytes | None:
        return self._connection.scalar(select(tables.manifest.c.signed).where(tables.manifest.c.digest == digest))

    def assign(self, entries: Sequence[tuple[EntryRow, int]]) -> None:
        head, statement = tables.head, tables.statement
        heads, statements = [], []
        for row, index in entries:
            if isinstance(row, HeadRow):
                heads.append({"at_session": row.session, "at_size": row.size, "index": index})
            else:
                statements.append({"at_hash": row.hash, "index": index})
        at_head = (head.c.session == bindparam("at_session"), head.c.size == bindparam("at_size"))
        at_statement = (statement.c.hash == bindparam("at_hash"),)
        for table, at, rows in ((head, at_head, heads), (statement, at_statement, statements)):
            if rows:
                self._connection.execute(update(table).where(*at).values(idx=bindparam("index")), rows)

    def put_tile(self, level: int, index: int, data: bytes) -> None:
        table = tables.tile
        self._connection.execute(delete(table).where(table.c.level == level, table.c.idx == index))
        self._connection.execute(insert(table), {"level": level, "idx": index, "data": data})


def entries(first: int, count: int) -> Select[tuple[int, bytes]]:
    """The query for the entries from index `first` on: index and bytes, in order."""
    parts = [
        select(table.c.idx, table.c.signed).where(table.c.idx >= first, table.c.idx < first + count)
        for table in (tables.head, tables.statement)
    ]
    both = union_all(*parts).subquery()
    return select(both.c.idx, both.c.signed).order_by(both.c.idx)


def add_statement(connection: Connection, kind: str, signed: bytes) -> int:
    """Keep a statement, or find it; its number."""
    table, value = tables.statement, leaf_hash(signed)
    known = connection.scalar(select(table.c.number).where(table.c.hash == value))
    if known is None:
        row = {"kind": kind, "about": subject_of(signed), "hash": value, "signed": signed}
        (known,) = connection.execute(insert(table).returning(table.c.number), row).one()
    return int(known)


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
