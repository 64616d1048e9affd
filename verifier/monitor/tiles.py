"""A log's tiles and entry bundles, as whoever serves them has them (c2sp.org/tlog-tiles).

A partial tile may be gone once the full one is there: then the full one is taken and cut. A full one never changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from verifiable.errors import MalformedError, VerificationError
from verifiable.tlog.merkle import HASH_SIZE
from verifiable.tlog.tiles import MAX_BUNDLE, WIDTH, Tile, check_tile, decode_bundle
from verifier.monitor.fetch import Fetch

T = TypeVar("T")


class ChangedTileError(VerificationError):
    """A full tile is another than it was."""

    def __init__(self, path: str, known: bytes, found: bytes) -> None:
        super().__init__(
            f"{path} of the log is another than it was: full tiles never change",
            code="no-evidence",
            expected=f"SHA-256 {known.hex()}",
            found=found.hex(),
            hint="Nobody signs a tile: it may be whoever serves it. Ask the provider itself, and keep both.",
        )


@dataclass(slots=True)
class LogTiles:
    """What one look at a log reads of its tiles. `known` has the SHA-256 of full ones that were read before, by their
    paths; `full` gets those of the ones that are read now.
    """

    fetch: Fetch
    known: Callable[[str], bytes | None]
    full: dict[str, bytes] = field(default_factory=dict)
    _read: dict[Tile, bytes] = field(default_factory=dict)

    def hashes(self, tile: Tile) -> bytes:
        """A tile's hashes, joined; each tile is read once. Raises VerificationError (`no-evidence`, `unreachable`)."""
        if tile not in self._read:
            self._read[tile] = self._get(tile, check_tile, WIDTH * HASH_SIZE)[: tile.width * HASH_SIZE]
        return self._read[tile]

    def entries(self, bundle: Tile) -> list[bytes]:
        """A bundle's entries. Raises likewise."""
        return self._get(bundle, lambda tile, data: decode_bundle(data, tile.width), MAX_BUNDLE)[: bundle.width]

    def _get(self, tile: Tile, read: Callable[[Tile, bytes], T], most: int) -> T:
        """What a tile says, or the full one in its place."""
        try:
            data = self.fetch(tile.path(), most)
        except VerificationError as error:
            if error.code != "no-evidence" or tile.width == WIDTH:
                raise
            tile = replace(tile, width=WIDTH)
            data = self.fetch(tile.path(), most)
        try:
            found = read(tile, data)
        except MalformedError as error:
            raise VerificationError(
                error.what, code="no-evidence", expected=error.expected, found=error.found
            ) from error
        if tile.width == WIDTH:
            self._compare(tile.path(), hashlib.sha256(data).digest())
        return found

    def _compare(self, path: str, digest: bytes) -> None:
        known = self.full.setdefault(path, self.known(path) or digest)
        if known != digest:
            raise ChangedTileError(path, known, digest)
