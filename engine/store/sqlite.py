"""SQLite: one file, one process, one connection, synchronous to the disk. A lock file keeps a second process out."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, create_engine, exc, insert, select
from sqlalchemy.pool import StaticPool

from engine.store import InUseError, tables
from engine.store.sql import SqlStore
from verifiable.errors import StoreError

FILE = "provider.sqlite"
_WAL_SAFE = (3, 51, 3)
"""The first SQLite without the WAL-reset bug; older ones get a rollback journal."""


def open_store(folder: Path) -> SqlStore:
    """Open the store in a folder, or make it. Raises InUseError, or StoreError: unreadable or of another version."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder / "lock")
        try:
            return SqlStore(SqliteDatabase(folder / FILE, lock))
        except BaseException:
            os.close(lock)
            raise
    except (OSError, exc.SQLAlchemyError, sqlite3.Error) as error:
        raise StoreError(
            f"the store in {folder} can't be opened",
            found=str(getattr(error, "orig", error)),
            hint="Check the folder's rights and free space; a damaged file has to come back from a backup.",
        ) from error


class SqliteDatabase:
    """Implements `engine.store.sql.Database`. One connection, used by one thread at a time.

    SQLAlchemy is kept in its autocommit mode and transactions are spelt out: its own would begin one for each read.
    """

    shared = False

    def __init__(self, path: Path, lock: int) -> None:
        self._lock_file = lock
        self._mutex = threading.Lock()
        self._broken = False
        wal = sqlite3.sqlite_version_info >= _WAL_SAFE
        raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            os.chmod(path, 0o600)
            raw.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
            # FULL does not sync the folder after it has deleted a rollback journal; a power cut there would bring the
            # journal back, and undo what was acknowledged. EXTRA does.
            raw.execute(f"PRAGMA synchronous = {'FULL' if wal else 'EXTRA'}")
            raw.execute("PRAGMA secure_delete = ON")  # what is erased is overwritten, not only unlinked
            raw.execute("PRAGMA cache_size = -65536")  # 64 MiB
        except BaseException:
            raw.close()
            raise
        self._raw = raw
        self._engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool, pool_reset_on_return=None)
        self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            _prepare(self, raw)
        except BaseException:
            self._shut()
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._mutex:
            self._check_whole()
            yield self._connection

    @contextmanager
    def writing(self, alone: bool = False) -> Iterator[Connection]:
        with self._mutex:  # there is one connection, so every transaction is alone
            self._check_whole()
            self._connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.exec_driver_sql("COMMIT")
            except BaseException:
                self._rollback()
                raise

    def damage(self) -> list[str]:
        with self._mutex:
            try:
                rows = self._connection.exec_driver_sql("PRAGMA integrity_check(100)").scalars().all()
            except exc.SQLAlchemyError as error:
                return [str(getattr(error, "orig", error))]
        return [] if rows == ["ok"] else [str(row) for row in rows]

    def close(self) -> None:
        with self._mutex:
            self._shut()
            os.close(self._lock_file)

    def _check_whole(self) -> None:
        if self._broken:
            raise StoreError("the store failed in the middle of a change", hint="Start the provider again.")

    def _shut(self) -> None:
        self._connection.close()
        self._engine.dispose()
        self._raw.close()

    def _rollback(self) -> None:
        # After some errors (a full disk) SQLite has rolled back already. Where it can't, it will when the file is next
        # opened, from its journal; until then nothing is read here, for it would not be what the disk holds.
        try:
            if self._raw.in_transaction:
                self._connection.exec_driver_sql("ROLLBACK")
        except exc.SQLAlchemyError:
            self._broken = True


def _prepare(database: SqliteDatabase, raw: sqlite3.Connection) -> None:
    """Make the tables in a new file, and refuse another version's."""
    names = raw.execute("SELECT name FROM sqlite_master WHERE name IN ('meta', 'leaf')").fetchall()
    if not names:
        with database.writing() as connection:
            tables.metadata.create_all(connection)
            connection.execute(insert(tables.meta), {"name": "version", "value": tables.SCHEMA_VERSION})
            tables.prepare_newest(connection)
        return
    version: int | None = 1
    if ("meta",) in names:
        query = select(tables.meta.c.value).where(tables.meta.c.name == "version")
        with database.reading() as connection:
            version = connection.execute(query).scalar()
    if version in tables.UPGRADES:
        with database.writing() as connection:
            tables.upgrade(connection)
    elif version != tables.SCHEMA_VERSION:
        raise StoreError(
            "the store's version", expected=tables.SCHEMA_VERSION, found=version, hint="Use the release that made it."
        )
    with database.writing() as connection:
        tables.prepare_newest(connection)


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise InUseError(
            f"{path.parent} is in use by another provider",
            hint="Stop the other one, or give this one a folder of its own with --data.",
        ) from error
    return handle
