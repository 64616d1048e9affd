"""What a monitor saw of a log: every head that its entries held, by session and size, and the digests of full tiles.

Where a second head of a place shows, the two are compared. Two of two sizes wait until one is shown to continue the
other.

An SQLite file in the monitor's folder, since a log may hold more heads than fit in memory. Signatures are not checked
here: what stands in a log is what its key signed for, and whoever checks the file that comes of it checks the heads'.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from verifiable.errors import MalformedError, PolicyError
from verifiable.session.head import TYPE, Head
from verifiable.wire.cose import peek1

_TABLES = """
CREATE TABLE IF NOT EXISTS heads (session BLOB, size BLOB, entry BLOB, PRIMARY KEY (session, size)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pairs (session BLOB, old BLOB, new BLOB, PRIMARY KEY (session, old, new)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tiles (path TEXT PRIMARY KEY, digest BLOB) WITHOUT ROWID;
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
                self._pair(*place)
                return None
        known = _head(bytes(row[0]))
        return bytes(row[0]) if known is not None and known.root != head.root else None

    def _pair(self, session: bytes, size: bytes) -> None:
        """Note that a new head has to be shown to stand between those that are next to it."""
        for query, first in (
            ("SELECT max(size) FROM heads WHERE session = ? AND size < ?", False),
            ("SELECT min(size) FROM heads WHERE session = ? AND size > ?", True),
        ):
            (other,) = self._database.execute(query, (session, size)).fetchone()
            if other is not None:
                pair = (size, other) if first else (other, size)
                self._database.execute("INSERT OR IGNORE INTO pairs VALUES (?, ?, ?)", (session, *pair))

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Entries of two heads next to each other by size, of which none is shown yet to continue the other."""
        query = (
            "SELECT a.entry, b.entry FROM pairs JOIN heads a ON a.session = pairs.session AND a.size = old "
            "JOIN heads b ON b.session = pairs.session AND b.size = new"
        )
        with self._usable():
            return [(bytes(old), bytes(new)) for old, new in self._database.execute(query)]

    def settle(self, session: bytes, old: int, new: int) -> None:
        """Two heads were shown to tell one history."""
        sizes = (size.to_bytes(8, "big") for size in (old, new))
        with self._usable(), self._database:
            query = "DELETE FROM pairs WHERE session = ? AND old = ? AND new = ?"
            self._database.execute(query, (session, *sizes))

    def tile(self, path: str) -> bytes | None:
        """The digest of a full tile as it was seen first."""
        with self._usable():
            row = self._database.execute("SELECT digest FROM tiles WHERE path = ?", (path,)).fetchone()
        return None if row is None else bytes(row[0])

    def keep(self, tiles: Mapping[str, bytes]) -> None:
        """Remember full tiles by the digests of their bytes."""
        with self._usable(), self._database:
            self._database.executemany("INSERT OR IGNORE INTO tiles VALUES (?, ?)", tiles.items())

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
