"""A provider's log as it publishes it: its checkpoint, read once a run, and what else is signed held against that.

The log's key signs whatever its holder likes: a tree of one entry, made for one reader, gives a sound proof as well.
So a proof counts where its checkpoint is of the log that everybody is shown. Two checkpoints of one log are consistent,
or the log told two histories. Nobody signs a consistency proof: where none holds, the log's tiles decide, for both
roots are signed. Entries are read only where they are needed, each shown to be under the checkpoint.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from verifiable import limits
from verifiable.errors import MalformedError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import open_manifest
from verifiable.manifest.statements import REVOCATION, SUCCESSION
from verifiable.session.opening import Opening
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint
from verifiable.tlog.merkle import (
    HASH_SIZE,
    leaf_hash,
    multi_path,
    prefix_path,
    range_hash,
    root_from_multiproof,
    roots_from_prefix,
    verify_consistency,
)
from verifiable.tlog.proof import Inclusion
from verifiable.tlog.tiles import ENTRIES, MAX_BUNDLE, WIDTH, Tile, check_tile, decode_bundle, tile_node, tile_of
from verifiable.wire.keys import PublicKey
from verifier.provider.client import Client, read_answer
from verifier.provider.remember import Contradiction, Memory, two_roots

_ON_KEYS = tuple(kind.encode() for kind in (SUCCESSION, REVOCATION))
SECONDS = 600.0
"""Longest that reading a log's entries may take, all together."""


@dataclass(slots=True)
class Published:
    """What a log publishes: its newest checkpoint as it was when it was first asked for and, where they are needed,
    some of its entries. `manifest` is one that names it, `log` all its keys, `since` the size up to which it was seen
    before, `statements` those on keys among the entries that were read.
    """

    client: Client
    memory: Memory | None
    manifest: bytes
    log: Sequence[PublicKey]
    note: bytes
    checkpoint: Checkpoint
    since: int = 0
    statements: set[bytes] = field(default_factory=set)
    _agreed: set[tuple[int, bytes]] = field(default_factory=set)
    _tiles: dict[Tile, bytes] = field(default_factory=dict)
    _bundles: dict[int, list[bytes]] = field(default_factory=dict)
    _read: int = 0
    _ends: float | None = None

    @classmethod
    def read(cls, client: Client, memory: Memory | None, manifest: bytes, log: Sequence[PublicKey]) -> Published:
        """Ask for the checkpoint, and hold it against what is remembered.

        Raises:
            Contradiction: two roots, or a log that was rewritten, by its own tiles.
            VerificationError: it can't be had, or is older than what was seen (`no-evidence`), or its signatures do not
                hold.
        """
        note = client.checkpoint()
        made = cls(client, memory, manifest, log, note, read_answer(open_checkpoint, note, log).checkpoint)
        latest = None if memory is None else memory.checkpoint(manifest, note)[0]
        if latest is not None:
            made._consistent(latest, made.checkpoint, "log-forked")
            made.since = latest.size
        return made

    def check(self, other: Inclusion) -> None:
        """Hold another checkpoint of the log, that of a proof, against what it publishes and what is remembered.

        Raises:
            Contradiction: `two-histories`, two roots for one size, with its proof; `log-differs`, one does not extend
                the other, by the log's own tiles.
            VerificationError: the log shows neither (`no-evidence`).
        """
        mine, theirs = self.checkpoint, other.checkpoint
        if self.memory is not None:
            self.memory.compare(self.manifest, other.note)
        if mine.size == theirs.size and mine.root != theirs.root:
            raise two_roots(self.manifest, self.note, other.note, mine, theirs)
        if (theirs.size, theirs.root) not in self._agreed:
            small, large = sorted((mine, theirs), key=lambda each: each.size)
            self._consistent(small, large, "log-differs")
            self._agreed.add((theirs.size, theirs.root))

    def at(self, indices: Sequence[int]) -> list[bytes]:
        """The entries at ascending indices below the size. Raises VerificationError where they can't be had."""
        if not indices:
            return []
        entries, path = self.client.log_entries(indices, self.checkpoint.size)
        known = dict(zip(indices, map(leaf_hash, entries), strict=True))
        try:
            root = root_from_multiproof(self.checkpoint.size, known, path)
        except VerificationError as error:
            raise _not_signed(error.what) from error
        if root != self.checkpoint.root:
            raise _not_signed(root.hex())
        self._keep(entries)
        return entries

    def _keep(self, entries: Iterable[bytes]) -> None:
        self.statements.update(entry for entry in entries if any(kind in entry for kind in _ON_KEYS))

    def range(self, first: int, end: int) -> Opening:
        """Entries `first` to `end - 1` with the hashes that tie them to the root.

        Raises VerificationError where they can't be had (`no-evidence`, `unreachable`).
        """
        leaves: dict[int, bytes] = {}
        for index in range(first // WIDTH, -(-end // WIDTH)):
            leaves |= dict(enumerate(self._bundle(index), index * WIDTH))
        leaves = {index: leaves[index] for index in range(first, end)}
        node = tile_node(self.checkpoint.size, self._tile)
        try:
            opening = Opening(leaves, tuple(multi_path(node, leaves, self.checkpoint.size)))
            opening.check(self.checkpoint.size, self.checkpoint.root)
        except MalformedError as error:
            raise _not_signed(error.what) from error
        except VerificationError as error:
            raise _not_signed(error.what) if error.code == "root-differs" else error from error
        self._keep(leaves.values())
        return opening

    def _bundle(self, index: int) -> list[bytes]:
        """The bundle of entries with this index; read once, and no more in all than is allowed."""
        if index not in self._bundles:
            self._ends = self._ends or time.monotonic() + SECONDS
            tile = tile_of(ENTRIES, index, self.checkpoint.size)
            data = self.client.log_file(tile.path(), MAX_BUNDLE)
            self._read += len(data)
            if self._read > limits.LOG_BYTES or time.monotonic() > self._ends:
                raise VerificationError(
                    "the log's entries are too much to read",
                    code="unreachable",
                    expected=f"{limits.LOG_BYTES:,} bytes within {SECONDS:g} s",
                    found=f"{self._read:,} bytes so far",
                )
            self._bundles[index] = read_answer(decode_bundle, data, tile.width)
        return self._bundles[index]

    def _tile(self, tile: Tile) -> bytes:
        if tile not in self._tiles:
            self._tiles[tile] = check_tile(tile, self.client.log_file(tile.path(), tile.width * HASH_SIZE))
        return self._tiles[tile]

    def _consistent(self, small: Checkpoint, large: Checkpoint, code: str) -> None:
        if small.size in (0, large.size):
            return
        try:
            path = self.client.consistency(small.size, large.size)
            verify_consistency(small.size, large.size, path, small.root, large.root)
        except VerificationError:  # nobody signs a proof: only what is under the larger root shows that there is none
            self._by_tiles(small, large, code)

    def _by_tiles(self, small: Checkpoint, large: Checkpoint, code: str) -> None:
        try:
            value = functools.partial(range_hash, tile_node(large.size, self._tile))
            before, after = roots_from_prefix(small.size, large.size, prefix_path(value, small.size, large.size))
            if after != large.root:
                raise _not_signed(after.hex())
        except (MalformedError, VerificationError) as error:
            raise VerificationError(
                "the log signed two checkpoints and does not show that one extends the other",
                code="no-evidence",
                expected=f"a consistency proof from size {small.size} to {large.size}, or its tiles",
                found=error.what,
                hint="An honest log can always show it. Keep both: they are in the receipt, the proof or the state.",
            ) from error
        if before != small.root:
            expected = f"size {small.size} with root {small.root.hex()}"
            raise Contradiction(
                "the provider's log is not a continuation of what it was", code, expected, before.hex(), None
            )


def check_log(memory: Memory, client: Client) -> Published | None:
    """Compare the provider's log with what was seen of it before; None where its manifest names no log.

    What is fetched from here on is held against what is remembered now (`Memory.mark`). Raises as `Published.read`.
    """
    memory.mark()
    manifest = client.manifest()
    log = read_answer(log_keys, manifest, memory.trust)
    return None if log is None else Published.read(client, memory, manifest, log)


def log_keys(manifest: bytes, trust: Iterable[PublicKey]) -> Sequence[PublicKey] | None:
    """All keys of the log that a manifest names, revoked or not: what is read under them may speak against the
    provider. None where it names none. Raises VerificationError: as `open_manifest`.
    """
    chain = Chain.of(trust)
    stated, _ = open_manifest(manifest, chain)
    return None if stated.log is None else chain.log_family(stated.log)


def _not_signed(found: str) -> VerificationError:
    return VerificationError("the log's entries are not what it signed", code="no-evidence", found=found)
