"""Token ids: packed as bytes, and how far two sequences of them agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import eq

from verifiable.errors import MalformedError


def pack(ids: Iterable[int]) -> bytes:
    """Token ids as little-endian u32, one after another. Raises OverflowError for what is no u32."""
    return b"".join([token.to_bytes(4, "little") for token in ids])


def unpack(data: bytes) -> list[int]:
    """The inverse of `pack`. Raises MalformedError."""
    if len(data) % 4:
        raise MalformedError("packed token ids", expected="4 bytes each", found=f"{len(data)} bytes")
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many token ids two sequences begin with alike."""
    return sum(takewhile(bool, map(eq, one, other)))
