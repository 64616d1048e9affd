"""Durable storage behind one Protocol. Writes are queued and committed together; a barrier tells when they are safe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from verifiable.errors import StoreError


@dataclass(frozen=True, slots=True)
class SessionRow:
    """What is kept of a session besides its leaves. `secret` salts the leaves, `capability` lets a client read."""

    session: bytes
    secret: bytes
    capability: bytes
    manifest_digest: bytes
    opened: int


Barrier = Callable[[StoreError | None], None]
"""Called once everything queued before it is durable (None), or has failed."""


class Store(Protocol):
    """Queued writes never block on the disk. Reads see what is committed."""

    def add_manifest(self, digest: bytes, signed: bytes) -> None: ...

    def add_session(self, row: SessionRow) -> None: ...

    def add_request(self, session: bytes, turn: int, canonical: bytes) -> None: ...

    def add_leaves(self, session: bytes, first: int, leaves: Sequence[bytes]) -> None: ...

    def add_head(self, session: bytes, size: int, signed: bytes) -> None: ...

    def barrier(self, done: Barrier) -> None: ...

    def flush(self) -> None:
        """Wait until everything queued is durable. Raises StoreError."""
        ...

    def failure(self) -> StoreError | None:
        """Why nothing can be stored any more, or None."""
        ...

    def manifests(self) -> list[bytes]:
        """All signed manifests, newest first."""
        ...

    def manifest(self, digest: bytes) -> bytes | None: ...

    def session(self, session: bytes) -> SessionRow | None: ...

    def sessions(self, limit: int, before: int | None = None) -> list[tuple[int, SessionRow]]:
        """The newest sessions, each with its running number; `before` continues a listing."""
        ...

    def leaves(self, session: bytes, size: int | None = None) -> list[bytes]: ...

    def requests(self, session: bytes) -> dict[int, bytes]: ...

    def head(self, session: bytes, size: int | None = None) -> tuple[int, bytes] | None:
        """The newest signed head and its size, or the head of exactly that size."""
        ...

    def unsigned(self) -> Iterable[bytes]:
        """Sessions whose stored leaves go past their newest head: what a crash leaves behind."""
        ...

    def close(self) -> None: ...
