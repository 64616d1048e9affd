"""Deriving the log's root from the bytes that are stored, before anything is signed.

Entries are hashed as they are read back from the disk, never as they were in memory, and every hash that follows from
them is compared with the tile that has it. What was published before is the start: the stored tree must still give
that root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.log.tree import LogTree
from engine.store import FSCK, DamagedLogError, LogStore
from verifiable.tlog.merkle import HASH_SIZE, leaf_hash
from verifiable.tlog.tiles import ENTRIES, HEIGHT, WIDTH, Tile

_REPAIR = f"{FSCK} Nothing is signed until the store is repaired."


def rederive(store: LogStore, old_size: int, old_root: bytes, size: int, tree: LogTree | None = None) -> bytes:
    """The root of the first `size` entries, derived from stored bytes on top of a published size and root.

    `old_size` 0 derives the whole log. `tree` is one that has not read anything yet, by default a new one: what it
    keeps of the tiles that are read here makes the first proofs quick.

    Raises DamagedLogError where bytes are missing or contradict each other.
    """
    tree = tree or LogTree(store)
    if old_size and tree.root(old_size) != old_root:
        raise DamagedLogError(
            f"the log's stored tiles do not give the root that was published for size {old_size}",
            expected=old_root.hex(),
            found=tree.root(old_size).hex(),
            hint=_REPAIR,
        )
    level, first, derived = 0, old_size, _leaves(store, old_size, size)
    while size >> (HEIGHT * level):
        derived, first = iter(list(_compared(tree, level, first, derived))), first // WIDTH
        level += 1
    return tree.root(size)


def check_bundle(store: LogStore, index: int, size: int) -> None:
    """Check one bundle of published entries against its leaf hashes, and those against the hash above them."""
    first = index * WIDTH
    tree = LogTree(store)
    above = list(_compared(tree, 0, first, _leaves(store, first, min(first + WIDTH, size))))
    list(_compared(tree, 1, index, above))


def _leaves(store: LogStore, first: int, end: int) -> Iterator[bytes]:
    """The leaf hashes of entries [first, end), joined, as many at a time as are in one bundle."""
    while first < end:
        count = min(WIDTH - first % WIDTH, end - first)
        entries = store.entries(first, count)
        if len(entries) != count:
            raise DamagedLogError(
                f"entry {first + len(entries)} of the log is missing", expected=f"{end} entries", hint=_REPAIR
            )
        yield b"".join([leaf_hash(entry) for entry in entries])
        first += count


def _compared(tree: LogTree, level: int, first: int, derived: Iterable[bytes]) -> Iterator[bytes]:
    """Compare hashes of a level, from its hash `first` on, with its tiles; those of the level above that are complete
    with them. `derived` comes in pieces, none of which reaches over the end of a tile.
    """
    for piece in derived:
        tile, place = divmod(first, WIDTH)
        count = len(piece) // HASH_SIZE
        rows = tree.rows(level, tile, place + count)
        _compare(level, tile, place, piece, rows[0])
        if place + count == WIDTH:
            yield rows[-1]
        first += count


def _compare(level: int, tile: int, place: int, derived: bytes, stored: bytes) -> None:
    """Name the first hash of a tile that is not the derived one."""
    start = place * HASH_SIZE
    if stored[start : start + len(derived)] == derived:
        return
    for at in range(0, len(derived), HASH_SIZE):
        expected, kept = derived[at : at + HASH_SIZE], stored[start + at : start + at + HASH_SIZE]
        if kept != expected:
            entry = f", or {Tile(ENTRIES, tile).path()}" if level == 0 else ""
            raise DamagedLogError(
                f"the log is damaged: hash {place + at // HASH_SIZE} of {Tile(level, tile).path()}{entry}",
                expected=f"{expected.hex()} (from the bytes below it)",
                found=kept.hex(),
                hint=_REPAIR,
            )
