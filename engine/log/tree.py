"""The log's tree, read from stored tiles: nodes, roots and proofs of every size that it has had."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Protocol

from engine.store import FSCK, DamagedLogError
from verifiable.tlog.merkle import HASH_SIZE, consistency_path, inclusion_path, multi_path, range_hash
from verifiable.tlog.tiles import HEIGHT, WIDTH, Tile

_KEPT = 4096
"""Tiles kept in memory with the nodes inside them, at 16 kB each: 64 MiB, and all of a log of a million entries."""


class Tiles(Protocol):
    """Where tiles come from: the store, or a transaction on it."""

    def tile(self, level: int, index: int) -> bytes | None: ...


def read_tile(tiles: Tiles, level: int, index: int) -> bytes:
    """The bytes of a stored tile. Raises DamagedLogError where it is missing or no tile."""
    data = tiles.tile(level, index)
    if data is None or not data or len(data) % HASH_SIZE or len(data) > WIDTH * HASH_SIZE:
        raise DamagedLogError(
            f"tile {Tile(level, index).path()} of the log is missing or damaged",
            expected=f"1 to {WIDTH} hashes of {HASH_SIZE} bytes",
            found="nothing" if data is None else f"{len(data)} bytes",
            hint=FSCK,
        )
    return data


def read_hashes(tiles: Tiles, level: int, index: int) -> list[bytes]:
    """The hashes of a stored tile, one by one."""
    data = read_tile(tiles, level, index)
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
        self._cache: OrderedDict[tuple[int, int], list[bytes]] = OrderedDict()

    def node(self, height: int, index: int) -> bytes:
        """The hash of the complete subtree of leaves [index·2^height, (index + 1)·2^height)."""
        return self._node(height, index, self.rows)

    def root(self, size: int) -> bytes:
        """The root of the first `size` entries."""
        return range_hash(self.node, 0, size)

    def inclusion_proof(self, index: int, size: int) -> list[bytes]:
        """The audit path of an entry, leaf end first."""
        return inclusion_path(self.node, index, size)

    def quick_inclusion_proof(self, index: int, size: int) -> list[bytes] | None:
        """The same without a look at the store; None where a tile is not in memory."""
        try:
            return inclusion_path(lambda height, at: self._node(height, at, self._kept_rows), index, size)
        except _NotKeptError:
            return None

    def consistency_proof(self, m: int, n: int) -> list[bytes]:
        """The proof that the first n entries extend the first m."""
        return consistency_path(self.node, m, n)

    def multiproof(self, indices: Sequence[int], size: int) -> list[bytes]:
        """The hashes that tie entries to the root of the first `size` (`merkle.root_from_multiproof`)."""
        return multi_path(self.node, indices, size)

    @staticmethod
    def _node(height: int, index: int, rows_of: Callable[[int, int, int], list[bytes]]) -> bytes:
        level, above = divmod(height, HEIGHT)
        tile, place = divmod(index << above, WIDTH)
        at = (place >> above) * HASH_SIZE
        return rows_of(level, tile, place + (1 << above))[above][at : at + HASH_SIZE]

    def _kept_rows(self, level: int, index: int, width: int) -> list[bytes]:
        key = (level, index)
        with self._lock:
            rows = self._cache.get(key)
            if rows is None or len(rows[0]) < width * HASH_SIZE:
                raise _NotKeptError
            self._cache.move_to_end(key)
            return rows

    def rows(self, level: int, index: int, width: int) -> list[bytes]:
        """A tile of `width` hashes or more, and above it the nodes within it, a row for each height: joined hashes.

        Raises DamagedLogError where it is missing, no tile, or shorter.
        """
        try:
            return self._kept_rows(level, index, width)
        except _NotKeptError:
            rows = _grow(read_tile(self._tiles, level, index))
        if len(rows[0]) < width * HASH_SIZE:
            raise DamagedLogError(
                f"tile {Tile(level, index).path()} of the log is too short",
                expected=f"{width} hashes",
                found=len(rows[0]) // HASH_SIZE,
                hint=FSCK,
            )
        with self._lock:
            self._cache[level, index] = rows
            while len(self._cache) > self._kept:
                self._cache.popitem(last=False)
        return rows


class _NotKeptError(Exception):
    """A tile is not in memory. Never leaves this module."""


def _grow(hashes: bytes) -> list[bytes]:
    """A tile's hashes, and above them those of the complete subtrees within the tile, each row in one piece."""
    rows = [hashes]
    while len(rows[-1]) > HASH_SIZE:
        last = rows[-1]
        ends = range(0, len(last) - HASH_SIZE, 2 * HASH_SIZE)
        # node_hash, without taking the children apart: this is most of what a proof costs.
        rows.append(b"".join([sha256(b"\x01" + last[at : at + 2 * HASH_SIZE]).digest() for at in ends]))
    return rows
