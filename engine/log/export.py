"""The published log as static files: what a web server, a mirror or an archive needs to serve it without us."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.log.checkpoint_file import CheckpointFile
from engine.log.log import open_by_any
from engine.log.tree import read_hashes
from engine.store import DamagedLogError, Store
from verifiable import files
from verifiable.errors import StoreError
from verifiable.tlog.merkle import leaf_hash
from verifiable.tlog.tiles import ENTRIES, WIDTH, Tile, bundles_for, encode_bundle, root_from_tiles, tiles_for
from verifiable.wire.keys import PublicKey


def export(store: Store, keys: Sequence[PublicKey], place: CheckpointFile, out: Path) -> tuple[int, int]:
    """Write tiles and bundles, then the checkpoint over them; returns how many files are new, and the log's size.

    Files that are there are compared. Raises DamagedLogError where the store does not give the published root, or a
    file says something else than the store: an export that went wrong, or a log that did.
    """
    note = place.read()
    if note is None:
        raise StoreError("there is no published checkpoint", expected=str(place.path))
    head = open_by_any(note, keys).checkpoint

    def hashes(tile: Tile) -> bytes:
        return b"".join(read_hashes(store, tile.level, tile.index)[: tile.width])

    if root_from_tiles(head.size, hashes) != head.root:
        raise DamagedLogError("the store does not give the published root", hint="Run `verifiable log fsck`.")
    count = 0
    for tile in tiles_for(head.size):
        count += _write(out / tile.path(), hashes(tile))
    for bundle in bundles_for(head.size):
        entries = store.entries(bundle.index * WIDTH, bundle.width)
        if b"".join(map(leaf_hash, entries)) != hashes(Tile(0, bundle.index, bundle.width)):
            raise DamagedLogError(f"{Tile(ENTRIES, bundle.index).path()} does not give its leaf hashes")
        count += _write(out / bundle.path(), encode_bundle(entries))
    CheckpointFile(out / "checkpoint").replace(CheckpointFile(out / "checkpoint").read(), note)
    (out / "checkpoint.lock").unlink(missing_ok=True)
    return count, head.size


def _write(path: Path, data: bytes) -> bool:
    try:
        if path.exists():
            if path.read_bytes() != data:
                raise DamagedLogError(f"{path} is there and says something else than the store")
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, data)
    except OSError as error:
        raise StoreError(f"{path} can't be written", found=str(error)) from error
    return True
