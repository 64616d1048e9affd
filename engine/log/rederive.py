"""Deriving the log's root from the bytes that are stored, before anything is signed.

Entries are hashed as they are read back from the disk, never as they were in memory, and every tile that they touch
is compared. What was published before is the start: the stored tree must still give that root.
"""

from __future__ import annotations

from engine.log.errors import DamagedLogError
from engine.log.frontier import Frontier
from engine.log.tree import LogTree, read_hashes
from engine.store import LogStore
from verifiable.merkle import leaf_hash
from verifiable.tiles import ENTRIES, WIDTH, Tile

_FSCK = "`verifiable log fsck` lists everything that is damaged. Nothing is signed until the store is repaired."


def rederive(store: LogStore, old_size: int, old_root: bytes, size: int) -> bytes:
    """The root of the first `size` entries, derived from stored bytes on top of a published size and root.

    `old_size` 0 derives the whole log. Raises DamagedLogError where bytes are missing or contradict each other.
    """
    tree = LogTree(store)
    if old_size and tree.root(old_size) != old_root:
        raise DamagedLogError(
            f"the log's stored tiles do not give the root that was published for size {old_size}",
            expected=old_root.hex(),
            found=tree.root(old_size).hex(),
            hint=_FSCK,
        )
    frontier = Frontier.read(old_size, tree.node)
    tiles = _TileComparison(store)
    while frontier.size < size:
        first = frontier.size
        count = min(WIDTH - first % WIDTH, size - first)
        entries = store.entries(first, count)
        if len(entries) != count:
            raise DamagedLogError(
                f"entry {first + len(entries)} of the log is missing", expected=f"{size} entries", hint=_FSCK
            )
        for entry in entries:
            for level, index, value in frontier.append(leaf_hash(entry)):
                tiles.compare(level, index, value)
    root = frontier.root()
    if size and tree.root(size) != root:
        raise DamagedLogError(
            "the log's tiles and its entries give two roots",
            expected=root.hex(),
            found=tree.root(size).hex(),
            hint=_FSCK,
        )
    return root


def check_bundle(store: LogStore, index: int, size: int) -> None:
    """Check one bundle of published entries against its leaf hashes, and those against the hash above them."""
    first = index * WIDTH
    entries = store.entries(first, min(WIDTH, size - first))
    frontier = Frontier()
    tiles = _TileComparison(store)
    for entry in entries:
        for level, at, value in frontier.append(leaf_hash(entry)):
            tiles.compare(level, index if level else first + at, value)
    if len(entries) != min(WIDTH, size - first):
        raise DamagedLogError(f"entry {first + len(entries)} of the log is missing", hint=_FSCK)


class _TileComparison:
    """Compares derived hashes with stored tiles, of which it keeps the last one of each level."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._last: dict[int, tuple[int, list[bytes]]] = {}

    def compare(self, level: int, index: int, value: bytes) -> None:
        tile, place = divmod(index, WIDTH)
        if self._last.get(level, (-1, []))[0] != tile:
            self._last[level] = (tile, read_hashes(self._store, level, tile))
        hashes = self._last[level][1]
        found = hashes[place] if place < len(hashes) else b""
        if found != value:
            entry = f", or {Tile(ENTRIES, tile).path()}" if level == 0 else ""
            raise DamagedLogError(
                f"the log is damaged: hash {place} of {Tile(level, tile).path()}{entry}",
                expected=f"{value.hex()} (from the bytes below it)",
                found=found.hex() or "none",
                hint=_FSCK,
            )
