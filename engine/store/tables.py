"""The tables, in SQLAlchemy Core's words, so that SQLite and PostgreSQL get the same ones."""

from __future__ import annotations

import contextlib
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    insert,
    select,
    update,
)
from sqlalchemy.types import TypeDecorator

from verifiable.errors import MalformedError
from verifiable.session.head import Head

SCHEMA_VERSION = 4
UPGRADES = frozenset({3})
"""Older versions that lack nothing but tables, which are made where they are opened."""
NEWEST = "newest head"
"""Names the latest time of a head in `meta`."""

metadata = MetaData()


def _typed(value: Any, kind: type) -> Any:
    if value is not None and type(value) is not kind:  # in a damaged SQLite file any value can be of any type
        raise ValueError(f"a column of {kind.__name__} holds {type(value).__name__}")
    return value


class Blob(TypeDecorator[bytes]):
    """Bytes, and nothing else."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: Any, dialect: object) -> bytes | None:
        return _typed(value, bytes)  # type: ignore[no-any-return]


class Word(TypeDecorator[str]):
    """Text, and nothing else."""

    impl = Text
    cache_ok = True

    def process_result_value(self, value: Any, dialect: object) -> str | None:
        return _typed(value, str)  # type: ignore[no-any-return]


class Number(TypeDecorator[int]):
    """A whole number of 63 bits, and nothing else. SQLite numbers rows by itself only where it is spelt INTEGER."""

    impl = BigInteger().with_variant(Integer, "sqlite")
    cache_ok = True

    def process_result_value(self, value: Any, dialect: object) -> int | None:
        return _typed(value, int)  # type: ignore[no-any-return]


meta = Table("meta", metadata, Column("name", Text, primary_key=True), Column("value", Number, nullable=False))

manifest = Table(
    "manifest",
    metadata,
    Column("number", Number, primary_key=True),
    Column("digest", Blob, nullable=False, unique=True),
    Column("signed", Blob, nullable=False),
)

session = Table(
    "session",
    metadata,
    Column("number", Number, primary_key=True),
    Column("session", Blob, nullable=False, unique=True),
    Column("secret", Blob, nullable=False),
    Column("capability", Blob, nullable=False),
    Column("manifest_digest", Blob, nullable=False),
    Column("opened", Number, nullable=False),
    Column("erased", Number),
    Column("dropped", Number),
    Column("checksum", Blob, nullable=False),
    Column("writer", Blob, nullable=False),  # which of the machines that share a store writes this session
    sqlite_autoincrement=True,
)

request = Table(
    "request",
    metadata,
    Column("session", Blob, primary_key=True),
    Column("turn", Number, primary_key=True),
    Column("canonical", Blob, nullable=False),
)

leaf = Table(
    "leaf",
    metadata,
    Column("session", Blob, primary_key=True),
    Column("seq", Number, primary_key=True),
    Column("data", Blob),
    Column("hash", Blob),  # only where the data was dropped: otherwise it follows from the data
    sqlite_with_rowid=False,
)

packed = Table(
    "packed",
    metadata,
    Column("session", Blob, primary_key=True),
    Column("turn", Number, primary_key=True),
    Column("tokens", Blob, nullable=False),
)

head = Table(
    "head",
    metadata,
    Column("number", Number, primary_key=True),
    Column("session", Blob, nullable=False),
    Column("size", Number, nullable=False),
    Column("signed", Blob, nullable=False),
    Column("idx", Number, unique=True),
    UniqueConstraint("session", "size"),
    sqlite_autoincrement=True,
)
Index("head_pending", head.c.number, sqlite_where=head.c.idx.is_(None), postgresql_where=head.c.idx.is_(None))

statement = Table(  # what the log holds besides heads; its indices are in the same row of numbers as theirs
    "statement",
    metadata,
    Column("number", Number, primary_key=True),
    Column("kind", Word, nullable=False),
    Column("about", Blob, nullable=False),  # whom a verdict is about: a thumbprint; else empty
    Column("hash", Blob, nullable=False, unique=True),  # the leaf hash of `signed`
    Column("signed", Blob, nullable=False),
    Column("idx", Number, unique=True),
    sqlite_autoincrement=True,
)
Index(
    "statement_pending",
    statement.c.number,
    sqlite_where=statement.c.idx.is_(None),
    postgresql_where=statement.c.idx.is_(None),
)
Index("statement_about", statement.c.about, statement.c.idx)

tile = Table(
    "tile",
    metadata,
    Column("level", Number, primary_key=True),
    Column("idx", Number, primary_key=True),
    Column("data", Blob, nullable=False),
)

checkpoint = Table(
    "checkpoint",
    metadata,
    Column("size", Number, primary_key=True, autoincrement=False),
    Column("note", Blob, nullable=False),
)


def keep_newest(connection: Connection, time: int) -> None:
    """Remember the time of a head, where it is the latest."""
    connection.execute(update(meta).where(meta.c.name == NEWEST, meta.c.value < time).values(value=time))


def prepare_newest(connection: Connection) -> None:
    """Have a store that was made before the latest time was kept keep it: by its last heads, for all are in order."""
    if connection.execute(select(meta.c.value).where(meta.c.name == NEWEST)).scalar() is None:
        latest = 0
        for signed in connection.execute(select(head.c.signed).order_by(head.c.number.desc()).limit(1000)).scalars():
            with contextlib.suppress(MalformedError):
                latest = max(latest, Head.peek(signed).time)
        connection.execute(insert(meta), {"name": NEWEST, "value": latest})


def upgrade(connection: Connection) -> None:
    """Bring a store of one of `UPGRADES` to this version."""
    metadata.create_all(connection)
    connection.execute(update(meta).where(meta.c.name == "version").values(value=SCHEMA_VERSION))
