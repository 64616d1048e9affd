"""The store in one SQLite file: one process, one connection, one writer thread, commits in groups.

Callers queue statements; the writer takes all that has gathered, commits it in one transaction with synchronous=FULL,
and then runs the barriers. A lock file keeps a second process out. A commit that fails makes the store refuse
everything after it: what was acknowledged stays true, and nothing is built on what was lost.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engine.store import Barrier, SessionRow
from verifiable.errors import StoreError

SCHEMA_VERSION = 1
_WAL_SAFE = (3, 51, 3)
"""The first SQLite without the WAL-reset bug; older ones get a rollback journal."""

_SCHEMA = """
CREATE TABLE manifest (digest BLOB PRIMARY KEY, signed BLOB NOT NULL, number INTEGER NOT NULL UNIQUE) WITHOUT ROWID;
CREATE TABLE session (
    number INTEGER PRIMARY KEY AUTOINCREMENT, session BLOB NOT NULL UNIQUE, secret BLOB NOT NULL, capability BLOB NOT
    NULL, manifest_digest BLOB NOT NULL, opened INTEGER NOT NULL);
CREATE TABLE request (
    session BLOB NOT NULL, turn INTEGER NOT NULL, canonical BLOB NOT NULL, PRIMARY KEY (session, turn)) WITHOUT ROWID;
CREATE TABLE leaf (session BLOB NOT NULL, seq INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (session, seq))
WITHOUT ROWID; CREATE TABLE head (session BLOB NOT NULL, size INTEGER NOT NULL, signed BLOB NOT NULL, PRIMARY KEY
(session, size)) WITHOUT ROWID;
"""


class SqliteStore:
    """See `engine.store.Store`. Opening raises StoreError: the folder is in use, unreadable or of another version."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock_file = _lock(folder / "lock")
            self._database = _open(folder / "provider.sqlite")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"the store in {folder} can't be opened",
                found=str(error),
                hint="Check the folder's rights and free space.",
            ) from error
        self._reading = threading.Lock()
        self._wake = threading.Condition()
        self._queue: list[tuple[str, Sequence[Sequence[Any]]]] = []
        self._barriers: list[Barrier] = []
        self._failure: StoreError | None = None
        self._stopping = False
        self._writer = threading.Thread(target=self._write, name="store-writer", daemon=True)
        self._writer.start()

    def add_manifest(self, digest: bytes, signed: bytes) -> None:
        self._add(
            "INSERT INTO manifest VALUES (?, ?, (SELECT coalesce(max(number), 0) + 1 FROM manifest))",
            [(digest, signed)],
        )

    def add_session(self, row: SessionRow) -> None:
        self._add(
            "INSERT INTO session (session, secret, capability, manifest_digest, opened) VALUES (?, ?, ?, ?, ?)",
            [(row.session, row.secret, row.capability, row.manifest_digest, row.opened)],
        )

    def add_request(self, session: bytes, turn: int, canonical: bytes) -> None:
        self._add("INSERT INTO request VALUES (?, ?, ?)", [(session, turn, canonical)])

    def add_leaves(self, session: bytes, first: int, leaves: Sequence[bytes]) -> None:
        self._add(
            "INSERT INTO leaf VALUES (?, ?, ?)", [(session, first + index, data) for index, data in enumerate(leaves)]
        )

    def add_head(self, session: bytes, size: int, signed: bytes) -> None:
        self._add("INSERT INTO head VALUES (?, ?, ?)", [(session, size, signed)])

    def barrier(self, done: Barrier) -> None:
        with self._wake:
            if self._failure is None and not self._stopping:
                self._barriers.append(done)
                self._wake.notify()
                return
            failure = self._failure or StoreError("the store is closed")
        done(failure)

    def flush(self) -> None:
        reached = threading.Event()
        found: list[StoreError | None] = []

        def done(error: StoreError | None) -> None:
            found.append(error)
            reached.set()

        self.barrier(done)
        reached.wait()
        if found[0] is not None:
            raise found[0]

    def failure(self) -> StoreError | None:
        return self._failure

    def manifests(self) -> list[bytes]:
        return [row[0] for row in self._read("SELECT signed FROM manifest ORDER BY number DESC")]

    def manifest(self, digest: bytes) -> bytes | None:
        rows = self._read("SELECT signed FROM manifest WHERE digest = ?", digest)
        return rows[0][0] if rows else None

    def session(self, session: bytes) -> SessionRow | None:
        rows = self._read(
            "SELECT session, secret, capability, manifest_digest, opened FROM session WHERE session = ?", session
        )
        return SessionRow(*rows[0]) if rows else None

    def sessions(self, limit: int, before: int | None = None) -> list[tuple[int, SessionRow]]:
        rows = self._read(
            "SELECT number, session, secret, capability, manifest_digest, opened FROM session"
            " WHERE number < ? ORDER BY number DESC LIMIT ?",
            2**62 if before is None else before,
            limit,
        )
        return [(row[0], SessionRow(*row[1:])) for row in rows]

    def leaves(self, session: bytes, size: int | None = None) -> list[bytes]:
        rows = self._read(
            "SELECT data FROM leaf WHERE session = ? AND seq < ? ORDER BY seq", session, 2**62 if size is None else size
        )
        return [row[0] for row in rows]

    def requests(self, session: bytes) -> dict[int, bytes]:
        return dict(self._read("SELECT turn, canonical FROM request WHERE session = ?", session))

    def head(self, session: bytes, size: int | None = None) -> tuple[int, bytes] | None:
        if size is None:
            rows = self._read("SELECT size, signed FROM head WHERE session = ? ORDER BY size DESC LIMIT 1", session)
        else:
            rows = self._read("SELECT size, signed FROM head WHERE session = ? AND size = ?", session, size)
        return (rows[0][0], rows[0][1]) if rows else None

    def unsigned(self) -> Iterable[bytes]:
        rows = self._read(
            "SELECT s.session FROM session s WHERE (SELECT max(seq) FROM leaf l WHERE l.session = s.session) >="
            " coalesce((SELECT max(size) FROM head h WHERE h.session = s.session), 0)"
        )
        return [row[0] for row in rows]

    def close(self) -> None:
        """Write what is queued, then close. Safe to call twice."""
        if self._lock_file < 0:
            return
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._writer.join()
        with self._reading:
            self._database.close()
        os.close(self._lock_file)
        self._lock_file = -1

    def _add(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._wake:
            if self._failure is None:
                self._queue.append((statement, rows))
                self._wake.notify()

    def _read(self, statement: str, *values: Any) -> list[Any]:
        with self._reading:
            try:
                return self._database.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise StoreError("the store can't be read", found=str(error)) from error

    def _write(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._barriers or self._stopping)
                work, self._queue = self._queue, []
                barriers, self._barriers = self._barriers, []
                if not work and not barriers and self._stopping:
                    return
            failure = self._failure or self._commit(work)
            if failure is not None:
                with self._wake:
                    self._failure = failure
                    self._queue = []
            for done in barriers:
                done(failure)

    def _commit(self, work: list[tuple[str, Sequence[Sequence[Any]]]]) -> StoreError | None:
        if not work:
            return None
        with self._reading:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                for statement, rows in work:
                    self._database.executemany(statement, rows)
                self._database.execute("COMMIT")
                return None
            except sqlite3.Error as error:
                if self._database.in_transaction:
                    self._database.rollback()
                return StoreError(
                    "the store could not write",
                    found=str(error),
                    hint="Nothing after this is accepted. Free space or repair the disk, then start again.",
                )


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StoreError(
            f"{path.parent} is in use by another provider",
            hint="Stop the other one, or give this one a folder of its own with --data.",
        ) from error
    return handle


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    os.chmod(path, 0o600)
    wal = sqlite3.sqlite_version_info >= _WAL_SAFE
    database.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
    database.execute("PRAGMA synchronous = FULL")
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    elif version != SCHEMA_VERSION:
        database.close()
        raise StoreError(
            "the store's version", expected=SCHEMA_VERSION, found=version, hint="Use the release that made it."
        )
    return database
