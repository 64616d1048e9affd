"""HTTP bodies that arrive in parts, from the other side of a wire: no more of them is kept than a bound."""

from __future__ import annotations

from collections.abc import AsyncIterable


async def join_parts(parts: AsyncIterable[bytes], most: int) -> bytes | None:
    """The parts in one piece; None as soon as they are more than `most` bytes."""
    data = bytearray()
    async for part in parts:
        data += part
        if len(data) > most:
            return None
    return bytes(data)
