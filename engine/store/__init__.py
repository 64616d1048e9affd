"""Durable storage behind one Protocol: sessions, their leaves and heads, and the provider-wide log's entries and tiles.

Writes of answers are queued and committed together; a barrier tells when they are safe. What the log does (take
entries in, publish, erase) is a transaction of its own and waits for the disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from verifiable.errors import StoreError
from verifiable.wire import encoding

FSCK = "`verifiable log fsck` lists everything that is damaged."
"""What to do next wherever something stored is damaged."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """What is kept of a session besides its leaves. `secret` salts the leaves, `capability` is its owner's.

    `erased` is when its content was erased on request (milliseconds since 1970), `dropped` when its records were
    dropped after the retention window; None where they were not.
    """

    session: bytes
    secret: bytes = field(repr=False)
    capability: bytes = field(repr=False)
    manifest_digest: bytes
    opened: int
    erased: int | None = None
    dropped: int | None = None

    def checksum(self) -> bytes:
        """SHA-256 over the row: no signature covers a capability, and a damaged one must be told from a wrong one."""
        fields: list[encoding.Value] = [self.session, self.secret, self.capability, self.manifest_digest]
        return hashlib.sha256(encoding.encode([*fields, self.opened, self.erased, self.dropped])).digest()


@dataclass(frozen=True, slots=True)
class StoredLeaf:
    """A leaf: its bytes, or only its hash once they were dropped."""

    data: bytes | None
    hash: bytes


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A signed head. `index` is its place in the provider-wide log, None until it was sequenced."""

    session: bytes
    size: int
    signed: bytes
    index: int | None


@dataclass(frozen=True, slots=True)
class StatementRow:
    """What the log holds besides heads: one of the kinds of `verifiable.tlog.entry`. `about` is the thumbprint of whom
    a verdict is about, else empty; `hash` the leaf hash of `signed`; `index` as in `HeadRow`.
    """

    kind: str
    about: bytes
    hash: bytes
    signed: bytes
    index: int | None


EntryRow = HeadRow | StatementRow
"""An entry of the log, or one to be."""


class InUseError(StoreError):
    """Another process has the store."""


class ErasedError(StoreError):
    """The content was erased or dropped: it is gone for good, by intent."""


class DamagedLogError(StoreError):
    """What is stored contradicts itself or what was published: nothing may be signed, and trying again is no use."""


Barrier = Callable[[StoreError | None], None]
"""Called once everything queued before it is durable (None), or has failed."""


class LogTransaction(Protocol):
    """One integration: everything in it becomes durable together, or nothing does. No two run at once.

    Whoever holds one reads through it: the store itself may wait for the transaction to end.
    """

    def pending(self, limit: int) -> list[HeadRow]:
        """Heads that are not in the log yet, in the order in which they came."""

    def pending_statements(self, limit: int) -> list[StatementRow]:
        """Statements that are not in the log yet, in the order in which they came."""

    def size(self) -> int:
        """How many entries have been integrated."""

    def tile(self, level: int, index: int) -> bytes | None: ...

    def manifest(self, digest: bytes) -> bytes | None: ...

    def assign(self, entries: Sequence[tuple[EntryRow, int]]) -> None:
        """Give heads and statements their indices."""

    def put_tile(self, level: int, index: int, data: bytes) -> None: ...


class LogStore(Protocol):
    """The provider-wide log's part of the store."""

    def integration(self) -> AbstractContextManager[LogTransaction]: ...

    def log_size(self) -> int: ...

    def entries(self, first: int, count: int) -> list[bytes]:
        """The entries' bytes with indices from `first`, as stored. Fewer where they end or one is missing."""

    def add_statement(self, kind: str, signed: bytes) -> int:
        """Have the log take in a statement; its number. Durable when it returns; the same bytes are taken in once.

        Raises PolicyError for what no entry can be.
        """

    def statement(self, leaf_hash: bytes) -> StatementRow | None: ...

    def every_statement(self) -> list[StatementRow]:
        """All, in the order in which they came."""

    def statements(self, kind: str, about: bytes, first: int, size: int, limit: int) -> list[StatementRow]:
        """The statements of a kind about somebody in the log of `size` entries, from index `first` on."""

    def index_of(self, entry_session: bytes, size: int) -> int | None: ...

    def entry(self, index: int) -> EntryRow | None: ...

    def tile(self, level: int, index: int) -> bytes | None: ...

    def tiles(self) -> list[tuple[int, int]]:
        """Level and index of every stored tile."""

    def add_checkpoint(self, size: int, note: bytes) -> None:
        """Remember a checkpoint before it is published. Raises StoreError where another has this size."""

    def checkpoint(self, size: int | None = None) -> tuple[int, bytes] | None:
        """The remembered checkpoint of a size, or the largest."""

    def checkpoints(self) -> list[tuple[int, bytes]]:
        """All, smallest first."""


class Store(LogStore, Protocol):
    """Queued writes never block on the disk. Reads see what is committed."""

    def add_manifest(self, digest: bytes, signed: bytes) -> None: ...

    def add_session(self, row: SessionRow) -> None: ...

    def add_request(self, session: bytes, turn: int, canonical: bytes) -> None: ...

    def add_leaves(self, session: bytes, first: int, leaves: Sequence[bytes]) -> None: ...

    def add_head(self, session: bytes, size: int, signed: bytes) -> None: ...

    def barrier(self, done: Barrier) -> None: ...

    def flush(self) -> None:
        """Wait until everything queued is durable. Raises StoreError."""

    def failure(self) -> StoreError | None:
        """Why nothing can be stored any more, or None."""

    def manifests(self) -> list[bytes]:
        """All signed manifests, newest first."""

    def manifest(self, digest: bytes) -> bytes | None: ...

    def session(self, session: bytes) -> SessionRow | None:
        """The session's row. Raises StoreError where its checksum does not fit."""

    def sessions(self, limit: int, before: int | None = None) -> list[tuple[int, SessionRow]]:
        """The newest sessions, each with its running number; `before` continues a listing."""

    def session_ids(self) -> list[bytes]:
        """Every session, oldest first, whether or not its row is well."""

    def strays(self) -> dict[str, list[bytes]]:
        """Sessions that other tables speak of and the table of sessions does not, by table."""

    def expired(self, opened_before: int) -> list[bytes]:
        """Sessions opened before a time that still have their records."""

    def leaves(self, session: bytes, size: int | None = None) -> list[bytes]:
        """The leaves' bytes. Raises ErasedError where one has been dropped."""

    def stored_leaves(self, session: bytes, size: int | None = None, first: int = 0) -> list[StoredLeaf]:
        """The leaves from `first` on, whether or not their bytes are kept. Raises StoreError where one is missing."""

    def requests(self, session: bytes) -> dict[int, bytes]: ...

    def packed(self, session: bytes) -> dict[int, bytes]:
        """What was kept of the turns whose records were dropped: packed tokens in CBOR, by turn."""

    def head(self, session: bytes, size: int | None = None) -> tuple[int, bytes] | None:
        """The newest signed head and its size, or the head of exactly that size."""

    def heads(self, session: bytes) -> list[HeadRow]:
        """All signed heads of a session, smallest first."""

    def newest_head(self) -> int:
        """The latest time of the heads that were added, by whichever machine; 0 where there is none."""

    def unsigned(self) -> Iterable[bytes]:
        """This writer's sessions whose stored leaves go past their newest head: what a crash leaves behind."""

    def erase(self, row: SessionRow, time: int) -> None:
        """Erase a session's content for good; hashes and heads stay."""

    def drop_records(self, row: SessionRow, leaves: Sequence[int], packed: dict[int, bytes], time: int) -> None:
        """Drop the bytes of some leaves, keeping their hashes, and what is to be kept in their place."""

    def damage(self) -> list[str]:
        """What the database says about its own files; empty where it finds nothing wrong."""

    def close(self) -> None: ...
