"""The right edge of an append-only tree: all that is needed to append to it, in one hash for each bit of its size."""

from __future__ import annotations

from collections.abc import Iterable

from verifiable.tlog.merkle import EMPTY_ROOT, Node, node_hash
from verifiable.tlog.tiles import HEIGHT, WIDTH


class Frontier:
    """The complete subtrees that make up a tree of `size` leaves, largest first, each with its height."""

    __slots__ = ("_subtrees", "size")

    def __init__(self) -> None:
        self.size = 0
        self._subtrees: list[tuple[int, bytes]] = []

    @classmethod
    def read(cls, size: int, node: Node) -> Frontier:
        """The frontier of a tree whose node hashes can be asked for."""
        frontier = cls()
        at = 0
        for height in reversed(range(size.bit_length())):
            if size >> height & 1:
                frontier._subtrees.append((height, node(height, at >> height)))
                at += 1 << height
        frontier.size = size
        return frontier

    def append(self, leaf_hash: bytes) -> list[tuple[int, int, bytes]]:
        """Append a leaf. Returns the tile hashes that it completes: (tile level, index in the level, hash)."""
        height, value, index = 0, leaf_hash, self.size
        completed = [(0, index, value)]
        while self._subtrees and self._subtrees[-1][0] == height:
            value = node_hash(self._subtrees.pop()[1], value)
            height, index = height + 1, index >> 1
            if height % HEIGHT == 0:
                completed.append((height // HEIGHT, index, value))
        self._subtrees.append((height, value))
        self.size += 1
        return completed

    def root(self) -> bytes:
        """The root of all leaves so far."""
        if not self._subtrees:
            return EMPTY_ROOT
        value = self._subtrees[-1][1]
        for _, left in reversed(self._subtrees[:-1]):
            value = node_hash(left, value)
        return value


def grown(frontier: Frontier, leaf_hashes: Iterable[bytes]) -> dict[tuple[int, int], list[tuple[int, bytes]]]:
    """Append leaves. Returns what they add to tiles: (level, tile index) → [(place in the tile, hash), …]."""
    added: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
    for leaf_hash in leaf_hashes:
        for level, index, value in frontier.append(leaf_hash):
            added.setdefault((level, index // WIDTH), []).append((index % WIDTH, value))
    return added
