"""Every head that a log's entries held, by session and size: where a second one of a place shows, they are compared.

An SQLite file in the monitor's folder, since a log may hold more heads than fit in memory. Signatures are not checked
here: what stands in a log is what its key signed for, and whoever checks the file that comes of it checks the heads'.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verifiable.errors import MalformedError, PolicyError
from verifiable.session.head import TYPE, Head
from verifiable.wire.cose import peek1

_TABLES = """
CREATE TABLE IF NOT EXISTS heads (session BLOB, size BLOB, entry BLOB, PRIMARY KEY (session, size)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS progress (one INTEGER PRIMARY KEY CHECK (one = 1), entries INTEGER NOT NULL);
INSERT OR IGNORE INTO progress VALUES (1, 0);
"""


class HeadBook:
    """The file; use it in a `with` statement. Raises PolicyError where it can't be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._usable():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, isolation_level="IMMEDIATE")
            self._database.executescript(_TABLES)

    def read(self) -> int:
        """How many of the log's entries were read."""
        with self._usable():
            (count,) = self._database.execute("SELECT entries FROM progress").fetchone()
        return int(count)

    def add(self, entry: bytes) -> bytes | None:
        """Note an entry. Returns an earlier one that contradicts it: a head of the same place with another root.

        An entry that is no head is passed over.
        """
        head = _head(entry)
        if head is None:
            return None
        place = (head.session, head.size.to_bytes(8, "big"))
        with self._usable():
            row = self._database.execute("SELECT entry FROM heads WHERE session = ? AND size = ?", place).fetchone()
            if row is None:
                self._database.execute("INSERT INTO heads VALUES (?, ?, ?)", (*place, entry))
                return None
        known = _head(bytes(row[0]))
        return bytes(row[0]) if known is not None and known.root != head.root else None

    def advance(self, entries: int) -> None:
        """Keep what was noted: the first `entries` of the log were read."""
        with self._usable(), self._database:
            self._database.execute("UPDATE progress SET entries = max(entries, ?)", (entries,))

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise PolicyError(f"the monitor's file {self._path} can't be used", found=str(error)) from error

    def __enter__(self) -> HeadBook:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()


def _head(entry: bytes) -> Head | None:
    try:
        signed = peek1(entry)
        return Head.parse(signed.payload) if signed.typ == TYPE else None
    except MalformedError:
        return None
