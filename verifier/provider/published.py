"""A provider's log as it publishes it: its checkpoint, read once a run, and what else is signed held against that.

The log's key signs whatever its holder likes: a tree of one entry, made for one reader, gives a sound proof as well.
So a proof counts where its checkpoint is of the log that everybody is shown. Two checkpoints of one log are consistent,
or the log told two histories. Nobody signs a consistency proof: where none holds, the entries decide, for both roots
are signed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from verifiable import limits
from verifiable.errors import VerificationError
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import open_manifest
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint
from verifiable.tlog.merkle import Tree, leaf_hash, verify_consistency
from verifiable.tlog.proof import Inclusion
from verifiable.tlog.tiles import MAX_BUNDLE, bundles_for, decode_bundle
from verifiable.wire.keys import PublicKey
from verifier.provider.client import Client, read_answer
from verifier.provider.remember import Contradiction, Memory, two_roots

SECONDS = 600.0
"""Longest that reading a log's entries may take."""


@dataclass(slots=True)
class Published:
    """What a log publishes: its newest checkpoint as it was when it was first asked for and, where they are needed,
    its entries. `manifest` is one that names it, `log` its key and those that succeed it.
    """

    client: Client
    memory: Memory | None
    manifest: bytes
    log: Sequence[PublicKey]
    note: bytes
    checkpoint: Checkpoint
    _entries: tuple[bytes, ...] | VerificationError | None = None
    _asked_more: bool = False
    _agreed: set[tuple[int, bytes]] = field(default_factory=set)

    @classmethod
    def read(cls, client: Client, memory: Memory | None, manifest: bytes, log: Sequence[PublicKey]) -> Published:
        """Ask for the checkpoint, and hold it against what is remembered.

        Raises:
            Contradiction: two roots, or a log that was rewritten, by its own entries.
            VerificationError: it can't be had, or is older than what was seen (`no-evidence`), or its signatures do not
                hold.
        """
        note = client.checkpoint()
        made = cls(client, memory, manifest, log, note, read_answer(open_checkpoint, note, log).checkpoint)
        latest = None if memory is None else memory.checkpoint(manifest, note)[0]
        if latest is not None:
            made._consistent(latest, made.checkpoint, "log-forked")
        return made

    def check(self, other: Inclusion) -> None:
        """Hold another checkpoint of the log, that of a proof, against what it publishes and what is remembered.

        Raises:
            Contradiction: `two-histories`, two roots for one size, with its proof; `log-differs`, one does not extend
                the other, by the log's own entries.
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

    def entries(self) -> tuple[bytes, ...]:
        """Every entry that the checkpoint covers; read once. Raises VerificationError, the same one each time."""
        if self._entries is None:
            try:
                self._entries = read_entries(self.client, self.checkpoint)
            except VerificationError as error:
                self._entries = error
        if isinstance(self._entries, VerificationError):
            raise self._entries
        return self._entries

    def _more(self, large: Checkpoint) -> tuple[bytes, ...]:
        """The entries under a checkpoint beyond what is published; asked for once a run, since reading takes long."""
        if self._asked_more:
            raise VerificationError("it is not asked for more entries than it publishes twice", code="no-evidence")
        self._asked_more = True
        return read_entries(self.client, large)

    def _consistent(self, small: Checkpoint, large: Checkpoint, code: str) -> None:
        if small.size in (0, large.size):
            return
        try:
            path = self.client.consistency(small.size, large.size)
            verify_consistency(small.size, large.size, path, small.root, large.root)
        except VerificationError:  # nobody signs a proof: only the entries under both roots show that there is none
            self._by_entries(small, large, code)

    def _by_entries(self, small: Checkpoint, large: Checkpoint, code: str) -> None:
        try:
            entries = self.entries() if large == self.checkpoint else self._more(large)
        except VerificationError as error:
            raise VerificationError(
                "the log signed two checkpoints and does not show that one extends the other",
                code="no-evidence",
                expected=f"a consistency proof from size {small.size} to {large.size}, or its entries",
                found=error.what,
                hint="An honest log can always show it. Keep both: they are in the receipt, the proof or the state.",
            ) from error
        root = Tree.from_leaves(map(leaf_hash, entries[: small.size])).root()
        if root != small.root:
            expected = f"size {small.size} with root {small.root.hex()}"
            raise Contradiction(
                "the provider's log is not a continuation of what it was", code, expected, root.hex(), None
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
    """Who may sign a checkpoint of the log that a manifest names; None where it names none.

    Raises VerificationError: as `open_manifest`, or `key-revoked`.
    """
    chain = Chain.of(trust)
    stated, key = open_manifest(manifest, chain)
    return None if stated.log is None else chain.logs_now(stated.log, key)


def read_entries(client: Client, checkpoint: Checkpoint) -> tuple[bytes, ...]:
    """Every entry that a checkpoint covers, by its root. Raises a VerifiableError, where they can't be had."""
    if checkpoint.size > limits.LOG_ENTRIES:
        raise VerificationError(
            "the log is longer than is read without the provider's own proof",
            code="no-evidence",
            expected=f"at most {limits.LOG_ENTRIES:,} entries",
            found=f"{checkpoint.size:,}",
        )
    entries: list[bytes] = []
    size, ends = 0, time.monotonic() + SECONDS
    for bundle in bundles_for(checkpoint.size):
        data = client.log_file(bundle.path(), MAX_BUNDLE)
        entries += read_answer(decode_bundle, data, bundle.width)
        size += len(data)
        if size > limits.LOG_BYTES or time.monotonic() > ends:
            raise VerificationError(
                "the log's entries are too much to read",
                code="unreachable",
                expected=f"{limits.LOG_BYTES:,} bytes within {SECONDS:g} s",
                found=f"{size:,} bytes so far",
            )
    root = Tree.from_leaves(map(leaf_hash, entries)).root()
    if root != checkpoint.root:
        raise VerificationError(
            "the log's entries do not give the root that it signed",
            code="no-evidence",
            expected=checkpoint.root,
            found=root,
        )
    return tuple(entries)
