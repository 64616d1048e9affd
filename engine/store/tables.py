"""The tables, in SQLAlchemy Core's words, so that SQLite and PostgreSQL get the same ones."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION = 2

metadata = MetaData()
_Number = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only where the type is spelt INTEGER."""

meta = Table("meta", metadata, Column("name", Text, primary_key=True), Column("value", BigInteger, nullable=False))

manifest = Table(
    "manifest",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("signed", LargeBinary, nullable=False),
)

session = Table(
    "session",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("session", LargeBinary, nullable=False, unique=True),
    Column("secret", LargeBinary, nullable=False),
    Column("capability", LargeBinary, nullable=False),
    Column("manifest_digest", LargeBinary, nullable=False),
    Column("opened", BigInteger, nullable=False),
    Column("erased", BigInteger),
    Column("dropped", BigInteger),
    Column("checksum", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

request = Table(
    "request",
    metadata,
    Column("session", LargeBinary, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("canonical", LargeBinary, nullable=False),
    PrimaryKeyConstraint("session", "turn"),
)

leaf = Table(
    "leaf",
    metadata,
    Column("session", LargeBinary, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("data", LargeBinary),
    Column("hash", LargeBinary),  # only where the data was dropped: otherwise it follows from the data
    PrimaryKeyConstraint("session", "seq"),
    sqlite_with_rowid=False,
)

packed = Table(
    "packed",
    metadata,
    Column("session", LargeBinary, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("tokens", LargeBinary, nullable=False),
    PrimaryKeyConstraint("session", "turn"),
)

head = Table(
    "head",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("session", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("signed", LargeBinary, nullable=False),
    Column("idx", BigInteger, unique=True),
    UniqueConstraint("session", "size"),
    sqlite_autoincrement=True,
)
Index("head_pending", head.c.number, sqlite_where=head.c.idx.is_(None), postgresql_where=head.c.idx.is_(None))

tile = Table(
    "tile",
    metadata,
    Column("level", Integer, nullable=False),
    Column("idx", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("level", "idx"),
)

checkpoint = Table(
    "checkpoint",
    metadata,
    Column("size", BigInteger, primary_key=True, autoincrement=False),
    Column("note", LargeBinary, nullable=False),
)
