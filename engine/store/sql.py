"""The store over a SQL database: one writer thread that commits in groups, and the log's transactions.

Callers queue statements; the writer takes all that has gathered, commits it in one transaction, and then runs the
barriers. A commit that fails makes the store refuse everything after it: what was acknowledged stays true, and
nothing is built on what was lost.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection, Executable, Table, exc, func, insert, select

from engine.store import (
    FSCK,
    Barrier,
    EntryRow,
    ErasedError,
    HeadRow,
    LogTransaction,
    SessionRow,
    StatementRow,
    StoredLeaf,
    tables,
)
from engine.store.changes import drop_records, erase
from engine.store.logs import HEAD, SIZE, STATEMENT, TILE, SqlLogTransaction, add_statement, entries, sequenced
from verifiable import limits
from verifiable.errors import MalformedError, PolicyError, StoreError
from verifiable.session.head import Head
from verifiable.tlog.merkle import leaf_hash


class Database(Protocol):
    """How SQLite and PostgreSQL differ. Both raise sqlalchemy.exc.SQLAlchemyError.

    `shared`: other processes may write to it as well.
    """

    shared: bool

    def reading(self) -> AbstractContextManager[Connection]: ...

    def writing(self, alone: bool = False) -> AbstractContextManager[Connection]:
        """A transaction that is durable when the block ends. `alone`: no other such block runs, on any machine."""

    def damage(self) -> list[str]: ...

    def close(self) -> None: ...


_Work = tuple[Table, Sequence[Mapping[str, Any]]]

_LINGER = 0.01
"""Seconds that rows wait for what comes with them, unless somebody waits for them: all that one step of the scheduler
brings then shares a transaction, and the writer does not take Python's lock in the middle of that step."""


class SqlStore:
    """See `engine.store.Store`. Made by `engine.store.sqlite.open_store` and `engine.store.postgres.open_store`."""

    def __init__(self, database: Database, writer: bytes = b"") -> None:
        self._database = database
        self._writer_id = writer
        self._wake = threading.Condition()
        self._queue: list[_Work] = []
        self._barriers: list[Barrier] = []
        self._failure: StoreError | None = None
        self._newest = 0
        self._stored: int | None = None
        self._stopping = self._closed = False
        self._writer = threading.Thread(target=self._write, name="store-writer", daemon=True)
        self._writer.start()

    # What an answer writes.

    def add_manifest(self, digest: bytes, signed: bytes) -> None:
        self._add(tables.manifest, [{"digest": digest, "signed": signed}])

    def add_session(self, row: SessionRow) -> None:
        values: dict[str, Any] = {name: getattr(row, name) for name in row.__slots__}
        self._add(tables.session, [{**values, "checksum": row.checksum(), "writer": self._writer_id}])

    def add_request(self, session: bytes, turn: int, canonical: bytes) -> None:
        self._add(tables.request, [{"session": session, "turn": turn, "canonical": canonical}])

    def add_leaves(self, session: bytes, first: int, leaves: Sequence[bytes]) -> None:
        rows = [{"session": session, "seq": first + index, "data": data} for index, data in enumerate(leaves)]
        self._add(tables.leaf, rows)

    def add_head(self, session: bytes, size: int, signed: bytes) -> None:
        with contextlib.suppress(MalformedError):
            self._newest = max(self._newest, Head.peek(signed).time)
        self._add(tables.head, [{"session": session, "size": size, "signed": signed}])

    def barrier(self, done: Barrier) -> None:
        with self._wake:
            if self._failure is None and not self._stopping:
                self._barriers.append(done)
                self._wake.notify()
                return
            failure = self._failure or StoreError("the store is closed")
        done(failure)

    def flush(self) -> None:
        reached: Future[StoreError | None] = Future()
        self.barrier(reached.set_result)
        error = reached.result()
        if error is not None:
            raise error

    def failure(self) -> StoreError | None:
        return self._failure

    # What is read back.

    def manifests(self) -> list[bytes]:
        return self._column(select(tables.manifest.c.signed).order_by(tables.manifest.c.number.desc()))

    def manifest(self, digest: bytes) -> bytes | None:
        return self._value(select(tables.manifest.c.signed).where(tables.manifest.c.digest == digest))

    def session(self, session: bytes) -> SessionRow | None:
        rows = self._read(select(*_SESSION).where(tables.session.c.session == session))
        return _session(rows[0]) if rows else None

    def sessions(self, limit: int, before: int | None = None) -> list[tuple[int, SessionRow]]:
        number = tables.session.c.number
        query = select(number, *_SESSION).order_by(number.desc()).limit(limit)
        rows = self._read(query if before is None else query.where(number < before))
        return [(row[0], _session(row[1:])) for row in rows]

    def session_ids(self) -> list[bytes]:
        return self._column(select(tables.session.c.session).order_by(tables.session.c.number))

    def strays(self) -> dict[str, list[bytes]]:
        known = select(tables.session.c.session)
        strays = {}
        for table in (tables.request, tables.leaf, tables.packed, tables.head):
            query = select(table.c.session).where(table.c.session.not_in(known)).distinct()
            strays[table.name] = self._column(query)
        return {name: sessions for name, sessions in strays.items() if sessions}

    def expired(self, opened_before: int) -> list[bytes]:
        table = tables.session.c
        query = select(table.session).where(
            table.opened < opened_before, table.dropped.is_(None), table.erased.is_(None)
        )
        return self._column(query.order_by(table.number))

    def leaves(self, session: bytes, size: int | None = None) -> list[bytes]:
        leaves = []
        for leaf in self.stored_leaves(session, size):
            if leaf.data is None:
                raise ErasedError("the session's content is gone", hint="It was erased, or its time had passed.")
            leaves.append(leaf.data)
        return leaves

    def stored_leaves(self, session: bytes, size: int | None = None, first: int = 0) -> list[StoredLeaf]:
        table = tables.leaf.c
        query = select(table.seq, table.data, table.hash).where(table.session == session, table.seq >= first)
        query = query.order_by(table.seq)
        rows = self._read(query if size is None else query.where(table.seq < size))
        leaves = []
        for index, (seq, data, kept) in enumerate(rows, first):
            if seq != index or (data is None) == (kept is None):
                raise StoreError(
                    f"leaf {index} of session {session.hex()} is missing or damaged in the store",
                    found=f"leaf {seq}",
                    hint=FSCK,
                )
            leaves.append(StoredLeaf(data, leaf_hash(data) if kept is None else kept))
        return leaves

    def requests(self, session: bytes) -> dict[int, bytes]:
        table = tables.request.c
        return dict(self._read(select(table.turn, table.canonical).where(table.session == session)))

    def packed(self, session: bytes) -> dict[int, bytes]:
        table = tables.packed.c
        return dict(self._read(select(table.turn, table.tokens).where(table.session == session)))

    def head(self, session: bytes, size: int | None = None) -> tuple[int, bytes] | None:
        table = tables.head.c
        query = select(table.size, table.signed).where(table.session == session).order_by(table.size.desc()).limit(1)
        rows = self._read(query if size is None else query.where(table.size == size))
        return tuple(rows[0]) if rows else None

    def heads(self, session: bytes) -> list[HeadRow]:
        query = select(*HEAD).where(tables.head.c.session == session).order_by(tables.head.c.size)
        return [HeadRow(*row) for row in self._read(query)]

    def newest_head(self) -> int:
        if self._stored is None or self._database.shared:
            self._stored = self._value(_NEWEST) or 0
        return max(self._newest, self._stored)

    def unsigned(self) -> Iterable[bytes]:
        leaf, head, session = tables.leaf.c, tables.head.c, tables.session.c.session
        mine = tables.session.c.writer == self._writer_id  # another machine may be in the middle of its own
        last = select(func.max(leaf.seq)).where(leaf.session == session).scalar_subquery()
        signed = select(func.coalesce(func.max(head.size), 0)).where(head.session == session).scalar_subquery()
        return self._column(select(session).where(last >= signed, mine))

    # The log.

    @contextmanager
    def integration(self) -> Iterator[LogTransaction]:
        with self._transaction(alone=True) as connection:
            yield SqlLogTransaction(connection)

    def log_size(self) -> int:
        return int(self._column(SIZE)[0])

    def entries(self, first: int, count: int) -> list[bytes]:
        found = []
        for at, (stored, signed) in enumerate(self._read(entries(first, count)), first):
            if stored != at:
                break
            found.append(signed)
        return found

    def add_statement(self, kind: str, signed: bytes) -> int:
        if len(signed) > limits.ENTRY_BYTES:
            raise PolicyError(
                f"a {kind} that is too long for the log",
                expected=f"at most {limits.ENTRY_BYTES:,} bytes",
                found=f"{len(signed):,}",
            )
        with self._transaction(alone=True) as connection:
            return add_statement(connection, kind, signed)

    def statement(self, leaf_hash: bytes) -> StatementRow | None:
        rows = self._read(select(*STATEMENT).where(tables.statement.c.hash == leaf_hash))
        return StatementRow(*rows[0]) if rows else None

    def every_statement(self) -> list[StatementRow]:
        return [StatementRow(*row) for row in self._read(select(*STATEMENT).order_by(tables.statement.c.number))]

    def statements(self, kind: str, about: bytes, first: int, size: int, limit: int) -> list[StatementRow]:
        table = tables.statement.c
        mine = (table.kind == kind, table.about == about, table.idx >= first, table.idx < size)
        query = select(*STATEMENT).where(*mine).order_by(table.idx).limit(limit)
        return [StatementRow(*row) for row in self._read(query)]

    def index_of(self, entry_session: bytes, size: int) -> int | None:
        table = tables.head.c
        return self._value(select(table.idx).where(table.session == entry_session, table.size == size))

    def entry(self, index: int) -> EntryRow | None:
        rows = self._read(select(*HEAD).where(tables.head.c.idx == index))
        if rows:
            return HeadRow(*rows[0])
        rows = self._read(select(*STATEMENT).where(tables.statement.c.idx == index))
        return StatementRow(*rows[0]) if rows else None

    def tile(self, level: int, index: int) -> bytes | None:
        return self._value(TILE, {"level": level, "index": index})

    def tiles(self) -> list[tuple[int, int]]:
        return [tuple(row) for row in self._read(select(tables.tile.c.level, tables.tile.c.idx))]

    def checkpoint(self, size: int | None = None) -> tuple[int, bytes] | None:
        table = tables.checkpoint.c
        query = select(table.size, table.note).order_by(table.size.desc()).limit(1)
        rows = self._read(query if size is None else query.where(table.size == size))
        return tuple(rows[0]) if rows else None

    def checkpoints(self) -> list[tuple[int, bytes]]:
        table = tables.checkpoint.c
        return [tuple(row) for row in self._read(select(table.size, table.note).order_by(table.size))]

    def add_checkpoint(self, size: int, note: bytes) -> None:
        with self._transaction() as connection:
            sequenced(connection, size)
            connection.execute(insert(tables.checkpoint), {"size": size, "note": note})

    # What takes content away.

    def erase(self, row: SessionRow, time: int) -> None:
        with self._transaction() as connection:
            erase(connection, row, time)

    def drop_records(self, row: SessionRow, leaves: Sequence[int], packed: dict[int, bytes], time: int) -> None:
        with self._transaction() as connection:
            drop_records(connection, row, leaves, packed, time)

    def damage(self) -> list[str]:
        return self._database.damage()

    def close(self) -> None:
        """Write what is queued, then close. Safe to call twice."""
        if self._closed:
            return
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._writer.join()
        self._database.close()
        self._closed = True

    def _add(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        with self._wake:
            if self._failure is None:
                self._queue.append((table, rows))
                if len(self._queue) == 1:
                    self._wake.notify()

    def _read(self, statement: Executable) -> list[Any]:
        with self._reading() as connection:
            return list(connection.execute(statement))

    def _column(self, statement: Executable) -> list[Any]:
        """The first column of what is read."""
        return [row[0] for row in self._read(statement)]

    def _value(self, statement: Executable, values: Mapping[str, int] | None = None) -> Any | None:
        """The first column of the first row; None where there is no row."""
        with self._reading() as connection:
            return connection.scalar(statement, values)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        if self._closed:
            raise StoreError("the store is closed")
        try:
            with self._database.reading() as connection:
                yield connection
        except _UNREADABLE as error:
            raise StoreError("the store can't be read", found=_reason(error), hint=FSCK) from error

    @contextmanager
    def _transaction(self, alone: bool = False) -> Iterator[Connection]:
        """A transaction of the log's. Where it fails at the database, the store fails as a whole."""
        if self._failure is not None or self._closed:
            raise self._failure or StoreError("the store is closed")
        try:
            with self._database.writing(alone) as connection:
                yield connection
        except exc.IntegrityError as error:  # refused, with nothing written: the database itself is well
            raise StoreError("the store holds something else already", found=_reason(error)) from error
        except exc.SQLAlchemyError as error:
            raise self._failed(error) from error
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError("the store can't be read", found=_reason(error), hint=FSCK) from error

    def _failed(self, error: exc.SQLAlchemyError) -> StoreError:
        failure = StoreError(
            "the store could not write",
            found=_reason(error),
            hint="Nothing after this is accepted. Free space or repair the disk, then start again.",
        )
        with self._wake:
            self._failure = self._failure or failure
            self._queue = []
        return failure

    def _write(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._barriers or self._stopping)
                self._wake.wait_for(lambda: self._barriers or self._stopping, _LINGER)
                work, self._queue = self._queue, []
                barriers, self._barriers = self._barriers, []
                if not work and not barriers and self._stopping:
                    return
            failure = self._failure or self._commit(work)
            for done in barriers:
                done(failure)

    def _commit(self, work: list[_Work]) -> StoreError | None:
        if not work:
            return None
        try:
            with self._database.writing() as connection:
                for table, rows in _grouped(work):
                    connection.execute(insert(table), rows)
                    if table is tables.head:
                        tables.keep_newest(connection, self._newest)
            return None
        except exc.SQLAlchemyError as error:
            return self._failed(error)


_NEWEST = select(tables.meta.c.value).where(tables.meta.c.name == tables.NEWEST)
_SESSION = [tables.session.c[name] for name in (*SessionRow.__slots__, "checksum")]


def _session(values: Sequence[Any]) -> SessionRow:
    row = SessionRow(*values[:-1])
    if row.checksum() != values[-1]:
        raise StoreError("a session's row is damaged in the store", found=f"session {row.session.hex()}", hint=FSCK)
    return row


def _grouped(work: list[_Work]) -> list[_Work]:
    """One statement for each table: tables don't refer to each other, so only the order within each matters."""
    grouped: dict[Table, list[Mapping[str, Any]]] = {}
    for table, rows in work:
        grouped.setdefault(table, []).extend(rows)
    return list(grouped.items())


_UNREADABLE = (exc.SQLAlchemyError, TypeError, ValueError, OverflowError)
"""What reading raises; the latter three where a damaged row holds another type than its column's."""


def _reason(error: Exception) -> str:
    """The database's own words. SQLAlchemy's message would show the rows, which hold people's content."""
    return str(error.orig) if isinstance(error, exc.DBAPIError) else type(error).__name__
