"""Tiled logs (c2sp.org/tlog-tiles): paths, hash tiles and entry bundles, and trees read from tiles.

A tile holds up to 256 consecutive hashes of one level of the tree, a level being 8 heights: level 0 the leaf
hashes, level 1 the hashes of full level-0 tiles, and so on. The rightmost tile of a level may be partial. So every
proof of a log can be computed by whoever reads a few static files, and nothing here reads any: the caller passes a
function that returns a tile's bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from verifiable import limits
from verifiable.errors import MalformedError
from verifiable.tlog.merkle import HASH_SIZE, Node, node_hash, range_hash

HEIGHT: Final = 8
WIDTH: Final = 1 << HEIGHT
MAX_LEVEL: Final = 63
MAX_BUNDLE: Final = WIDTH * (limits.ENTRY_BYTES + 2)
"""Longest entry bundle in bytes."""

ENTRIES: Final = -1
"""The `level` of an entry bundle: its path says `entries` where a tile's says a level."""

_PATH = re.compile(
    r"tile/(entries|[0-9]|[1-5][0-9]|6[0-3])/((?:x[0-9]{3}/)*[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Tile:
    """Which tile: its level (or `ENTRIES`), its index in the level, and its width, 256 when full."""

    level: int
    index: int
    width: int = WIDTH

    def __post_init__(self) -> None:
        if not ENTRIES <= self.level <= MAX_LEVEL or self.index < 0 or not 1 <= self.width <= WIDTH:
            raise MalformedError("tile", expected="level 0 to 63, width 1 to 256", found=(self.level, self.width))

    def path(self) -> str:
        """The path below a log's prefix, e.g. `tile/0/x001/067` or `tile/entries/000.p/12`."""
        digits = str(self.index)
        digits = digits.zfill(-(-len(digits) // 3) * 3)
        groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
        parts = [*(f"x{group}" for group in groups[:-1]), groups[-1]]
        level = "entries" if self.level == ENTRIES else str(self.level)
        suffix = "" if self.width == WIDTH else f".p/{self.width}"
        return f"tile/{level}/{'/'.join(parts)}{suffix}"

    @classmethod
    def parse(cls, path: str) -> Tile:
        """Parse a path; `path` gives the same one back."""
        match = _PATH.fullmatch(path) if len(path) <= 64 else None
        if match is None:
            raise MalformedError("tile path", expected="tile/<level>/<index>[.p/<width>]", found=path)
        level, index, width = match.groups()
        number = int(index.replace("x", "").replace("/", ""))
        tile = cls(ENTRIES if level == "entries" else int(level), number, WIDTH if width is None else int(width))
        if tile.path() != path:
            raise MalformedError("tile path", expected=tile.path(), found=path)
        return tile


def tile_of(level: int, index: int, size: int) -> Tile:
    """The tile at this place in the log of `size` entries, as wide as that size makes it."""
    hashes = size >> (HEIGHT * max(level, 0))
    width = min(WIDTH, hashes - index * WIDTH)
    if width < 1:
        raise MalformedError("tile", expected=f"one within the tree of {size} leaves", found=f"{level}/{index}")
    return Tile(level, index, width)


def tiles_for(size: int, since: int = 0) -> Iterator[Tile]:
    """The hash tiles of a tree of `size` leaves that the tree of `since` leaves does not have, lowest level first."""
    level = 0
    while size >> (HEIGHT * level):
        old, new = since >> (HEIGHT * level), size >> (HEIGHT * level)
        if new > old:
            for index in range(old // WIDTH, -(-new // WIDTH)):
                yield tile_of(level, index, size)
        level += 1


def bundles_for(size: int, since: int = 0) -> Iterator[Tile]:
    """The entry bundles of a log of `size` entries that the log of `since` entries does not have."""
    if size > since:
        for index in range(since // WIDTH, -(-size // WIDTH)):
            yield tile_of(ENTRIES, index, size)


def check_tile(tile: Tile, data: bytes) -> bytes:
    """Refuse a tile's bytes of another length than its width says."""
    if len(data) != tile.width * HASH_SIZE:
        raise MalformedError(
            f"tile {tile.path()}", expected=f"{tile.width * HASH_SIZE} bytes", found=f"{len(data)} bytes"
        )
    return data


def tile_node(size: int, read: Callable[[Tile], bytes]) -> Node:
    """A source of node hashes for the tree of `size` leaves, from its tiles.

    With it `merkle.range_hash`, `inclusion_path`, `consistency_path` and `multi_path` work on a tiled log. Each
    tile is read once. What comes out is worth what was read: compare the root with a signed one first
    (`root_from_tiles`). The size comes from a signed checkpoint.
    """
    tiles: dict[Tile, bytes] = {}

    def node(height: int, index: int) -> bytes:
        level, above = divmod(height, HEIGHT)
        # The subtree is 2^above hashes wide within one tile: subtrees are aligned, so it never crosses two.
        tile = tile_of(level, (index << above) // WIDTH, size)
        if tile not in tiles:
            tiles[tile] = check_tile(tile, read(tile))
        data = tiles[tile]
        first = (index << above) % WIDTH
        if first + (1 << above) > tile.width:
            raise MalformedError("node hash", expected=f"a complete subtree of {size} leaves", found=(height, index))
        hashes = [data[at * HASH_SIZE : (at + 1) * HASH_SIZE] for at in range(first, first + (1 << above))]
        while len(hashes) > 1:
            hashes = [node_hash(hashes[at], hashes[at + 1]) for at in range(0, len(hashes), 2)]
        return hashes[0]

    return node


def root_from_tiles(size: int, read: Callable[[Tile], bytes]) -> bytes:
    """The root of the first `size` leaves, from the rightmost tiles. Reads no more than one tile for each level."""
    return range_hash(tile_node(size, read), 0, size)


def encode_bundle(entries: Iterable[bytes]) -> bytes:
    """An entry bundle: each entry after its length as two bytes, big-endian."""
    parts = []
    for entry in entries:
        if len(entry) > limits.ENTRY_BYTES:
            raise MalformedError(
                "log entry", expected=f"at most {limits.ENTRY_BYTES} bytes", found=f"{len(entry)} bytes"
            )
        parts.append(len(entry).to_bytes(2, "big") + entry)
    return b"".join(parts)


def decode_bundle(data: bytes, width: int) -> list[bytes]:
    """The entries of a bundle, which must be exactly `width` and fill it."""
    entries: list[bytes] = []
    at = 0
    while at < len(data) and len(entries) < width:
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if at + 2 > len(data) or end > len(data):
            raise MalformedError("entry bundle", expected=f"{end} bytes or more", found=f"{len(data)} bytes")
        entries.append(data[at + 2 : end])
        at = end
    if at != len(data) or len(entries) != width:
        raise MalformedError(
            "entry bundle", expected=f"{width} entries", found=f"{len(entries)}, then {len(data) - at} bytes"
        )
    return entries
