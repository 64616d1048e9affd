"""PostgreSQL, through psycopg 3: several engine machines write sessions; one at a time sequences the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, create_engine, event, exc, insert, select, text
from sqlalchemy.engine import make_url

from engine.store import tables
from engine.store.sql import SqlStore
from verifiable.errors import PolicyError, StoreError

_LOCK = 0x7665726966696162
"""Advisory lock of the log's transactions ("verifiab" in ASCII), on this database."""


def open_store(url: str, writer: bytes = b"") -> SqlStore:
    """Open the store at a URL (`postgresql://user@host/database`), making its tables where there are none.

    `writer` tells this machine from the others: after a crash it signs what it left behind itself, and no more.

    Raises PolicyError for another kind of URL, StoreError where the server can't be used.
    """
    try:
        parsed = make_url(url)
    except exc.ArgumentError as error:
        raise PolicyError("the store's URL", expected="postgresql://user@host/database") from error
    if parsed.get_backend_name() != "postgresql":
        raise PolicyError(
            "the store's URL", expected="postgresql://user@host/database", found=parsed.render_as_string()
        )
    try:
        return SqlStore(PostgresDatabase(parsed.set(drivername="postgresql+psycopg").render_as_string(False)), writer)
    except exc.SQLAlchemyError as error:
        raise StoreError(
            f"the store at {parsed.render_as_string()} can't be opened",
            found=str(getattr(error, "orig", error)),
            hint="Is the server up, and may this user make tables in that database?",
        ) from error


class PostgresDatabase:
    """Implements `engine.store.sql.Database` over a small pool of connections."""

    shared = True

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, pool_size=4, max_overflow=4, pool_pre_ping=True)

        @event.listens_for(self._engine, "connect")
        def durable(connection: object, record: object) -> None:
            with connection.cursor() as cursor:  # type: ignore[attr-defined]
                # Whatever the server's default: an acknowledged receipt must survive a power cut.
                cursor.execute("SET synchronous_commit = on")
            connection.commit()  # type: ignore[attr-defined]

        self._reader = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        with self.writing(alone=True) as connection:
            tables.metadata.create_all(connection)
            version = connection.execute(select(tables.meta.c.value).where(tables.meta.c.name == "version")).scalar()
            if version is None:
                connection.execute(insert(tables.meta), {"name": "version", "value": tables.SCHEMA_VERSION})
            elif version in tables.UPGRADES:
                tables.upgrade(connection)
            elif version != tables.SCHEMA_VERSION:
                raise StoreError("the store's version", expected=tables.SCHEMA_VERSION, found=version)
            tables.prepare_newest(connection)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._reader.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, alone: bool = False) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            if alone:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            yield connection

    def damage(self) -> list[str]:
        return []  # the server checks its pages by itself (data checksums, pg_amcheck)

    def close(self) -> None:
        self._engine.dispose()
