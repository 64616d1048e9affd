"""The log's tree, read from stored tiles: nodes, roots and proofs of every size that it has had."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

from engine.log.errors import DamagedLogError
from verifiable.merkle import HASH_SIZE, consistency_path, inclusion_path, node_hash, range_hash
from verifiable.tiles import HEIGHT, WIDTH, Tile

_KEPT = 2048
"""Tiles kept in memory with the nodes inside them, at about 30 kB each."""


class Tiles(Protocol):
    """Where tiles come from: the store, or a transaction on it."""

    def tile(self, level: int, index: int) -> bytes | None: ...


def read_hashes(tiles: Tiles, level: int, index: int) -> list[bytes]:
    """The hashes of a stored tile. Raises DamagedLogError where it is missing or no tile."""
    data = tiles.tile(level, index)
    if data is None or not data or len(data) % HASH_SIZE or len(data) > WIDTH * HASH_SIZE:
        raise DamagedLogError(
            f"tile {Tile(level, index).path()} of the log is missing or damaged",
            expected=f"1 to {WIDTH} hashes of {HASH_SIZE} bytes",
            found="nothing" if data is None else f"{len(data)} bytes",
            hint="`verifiable log fsck` lists everything that is damaged.",
        )
    return [data[at : at + HASH_SIZE] for at in range(0, len(data), HASH_SIZE)]


class LogTree:
    """Node hashes of the stored tree; tiles that were read are kept in memory. Safe to use from several threads.

    `size` arguments are sizes that a checkpoint was signed for: nothing here knows how far the log goes. A tile only
    ever grows, so what was read of it once stays right; whoever looks for damage on the disk takes a new LogTree.
    """

    def __init__(self, tiles: Tiles, kept: int = _KEPT) -> None:
        self._tiles = tiles
        self._kept = kept
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[int, int], list[list[bytes]]] = OrderedDict()

    def node(self, height: int, index: int) -> bytes:
        """The hash of the complete subtree of leaves [index·2^height, (index + 1)·2^height)."""
        level, above = divmod(height, HEIGHT)
        tile, place = divmod(index << above, WIDTH)
        return self._rows(level, tile, place + (1 << above))[above][place >> above]

    def root(self, size: int) -> bytes:
        """The root of the first `size` entries."""
        return range_hash(self.node, 0, size)

    def inclusion_proof(self, index: int, size: int) -> list[bytes]:
        """The audit path of an entry, leaf end first."""
        return inclusion_path(self.node, index, size)

    def consistency_proof(self, m: int, n: int) -> list[bytes]:
        """The proof that the first n entries extend the first m."""
        return consistency_path(self.node, m, n)

    def _rows(self, level: int, index: int, width: int) -> list[list[bytes]]:
        """A tile of `width` hashes or more, and the nodes above them within it."""
        key = (level, index)
        with self._lock:
            rows = self._cache.get(key)
            if rows is not None and len(rows[0]) >= width:
                self._cache.move_to_end(key)
                return rows
        rows = _grow(read_hashes(self._tiles, level, index))
        if len(rows[0]) < width:
            raise DamagedLogError(
                f"tile {Tile(level, index).path()} of the log is too short",
                expected=f"{width} hashes",
                found=len(rows[0]),
                hint="`verifiable log fsck` lists everything that is damaged.",
            )
        with self._lock:
            self._cache[key] = rows
            while len(self._cache) > self._kept:
                self._cache.popitem(last=False)
        return rows


def _grow(hashes: list[bytes]) -> list[list[bytes]]:
    """A tile's hashes, and above them those of the complete subtrees within the tile."""
    rows = [hashes]
    while len(rows[-1]) > 1:
        last = rows[-1]
        rows.append([node_hash(last[at], last[at + 1]) for at in range(0, len(last) - 1, 2)])
    return rows
