"""Following a log from outside: each new checkpoint must extend the last one, or there is a fork to show to everybody.

The log is the adversary. Nothing is believed but what its key signed; proofs are computed here from its tiles, and
verified against both signed roots. What the monitor saw last is kept in a file, so that it notices a log that forgets
across restarts of either.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verifiable import files, limits
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.errors import MalformedError, PolicyError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import Manifest
from verifiable.manifest.statements import KeysFile, Role, Succession
from verifiable.session.head import Head
from verifiable.session.opening import Opening
from verifiable.tlog.checkpoint import Checkpoint, SignedCheckpoint, open_checkpoint
from verifiable.tlog.cosignature import CosignerKey
from verifiable.tlog.entry import kind_of
from verifiable.tlog.merkle import (
    EMPTY_ROOT,
    HASH_SIZE,
    Tree,
    consistency_path,
    leaf_hash,
    roots_from_prefix,
    verify_consistency,
)
from verifiable.tlog.tiles import HEIGHT, WIDTH, Tile, bundles_for, root_from_tiles, tile_node, tile_of
from verifiable.wire.keys import PublicKey
from verifier.monitor.fetch import Fetch
from verifier.monitor.fork import fork_file
from verifier.monitor.headbook import HeadBook
from verifier.monitor.tiles import ChangedTileError, LogTiles


class ForkError(VerificationError):
    """The log signed two histories. `evidence` is the file that shows it."""

    def __init__(self, what: str, evidence: Path, old: Checkpoint, new: Checkpoint) -> None:
        super().__init__(
            what,
            code="log-forked",
            expected=f"an extension of size {old.size}, root {old.root.hex()}",
            found=f"size {new.size}, root {new.root.hex()}",
            hint=f"Both signed checkpoints are in {evidence}. Publish them: no honest log signs both.",
        )
        self.evidence = evidence


class TwoHeadsError(VerificationError):
    """Two entries of the log are heads of one session that contradict each other: two roots for one size, or a larger
    one that does not continue a smaller one. `evidence` is the file to show.
    """

    def __init__(self, one: Head, other: Head, found: bytes, evidence: Path, proves: bool) -> None:
        sizes = f"size {one.size}" if one.size == other.size else f"sizes {one.size} and {other.size}"
        alone = f"It proves itself: verifiable verify --fraud {evidence} --trust PROVIDER.pub"
        super().__init__(
            f"the log holds two histories of session {one.session.hex()} at {sizes}",
            code="two-histories",
            expected=one.root.hex(),
            found=found.hex(),
            hint=alone if proves else f"Both entries are in {evidence}; the manifest that they name was never shown.",
        )
        self.evidence = evidence


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the log found. `old` is None at the first look; `kinds` counts the entries that were read, by
    what they say they are; `unshown` the heads of sessions that were not shown to continue an earlier one.
    """

    old: Checkpoint | None
    new: Checkpoint
    witnesses: tuple[str, ...]
    kinds: Mapping[str, int] = field(default_factory=dict)
    unshown: int = 0

    @property
    def entries(self) -> int:
        """Entries that were read."""
        return sum(self.kinds.values())

    @property
    def stale(self) -> bool:
        """Whether the log showed an older checkpoint than it did before (consistent with it)."""
        return self.old is not None and self.new.size < self.old.size


@dataclass(frozen=True)
class Monitor:
    """Follows one log.

    Args:
        log: the log's key, from somewhere else than the log.
        folder: where the last checkpoint is remembered and fork evidence is written.
        witnesses: trusted witnesses, of whom `quorum` must have cosigned each checkpoint.
        entries: also read every entry that was not read before, check that it is what its leaf hash says, and that no
            two of them are heads of one session that contradict each other.
        manifest: gets the provider's signed manifest in force, which a file about two heads needs; remembered, so that
            a provider that hides it later is too late.
        continues: gets the provider's proof that a session's head of one size continues that of another, a prefix path.
        keys: gets the provider's statements on its keys, by which a key of the log may succeed `log`; remembered.
        statements: those at hand.
    """

    fetch: Fetch
    log: PublicKey
    folder: Path
    witnesses: Sequence[CosignerKey] = ()
    quorum: int = 0
    entries: bool = False
    manifest: Callable[[], bytes] | None = None
    continues: Callable[[bytes, int, int], list[bytes]] | None = None
    keys: Callable[[], KeysFile] | None = None
    statements: Sequence[bytes] = ()

    @property
    def _newest(self) -> Path:
        return self.folder / "checkpoint"

    def look(self) -> Look:
        """Fetch the log's checkpoint, check it against the one remembered, and remember it.

        Raises:
            ForkError: the log is forked; the evidence is written. What was remembered stays.
            TwoHeadsError: with `entries`, two of them contradict each other; likewise.
            VerificationError: not signed, too few witnesses, not a checkpoint at all (`malformed`), or the log gives no
                tiles that fit (`no-evidence`).
        """
        note = self.fetch("checkpoint", limits.NOTE_BYTES)
        try:
            signed = self._open(note)
        except MalformedError as error:  # what the log serves is no input of the user's: a finding, and asked for again
            raise VerificationError(
                "the log's checkpoint", code="malformed", expected=error.expected, found=error.found
            ) from error
        new = signed.checkpoint
        remembered = self._remembered()
        old = None if remembered is None else open_checkpoint(remembered, self._logs()).checkpoint
        before = old or Checkpoint(new.origin, 0, EMPTY_ROOT)
        if before.size == new.size and before.root != new.root:
            raise self._fork("the log signed two roots for one size", before, new, (remembered or b"", note), ())
        with HeadBook(self.folder / "heads.sqlite") as book:
            tiles = LogTiles(self.fetch, book.tile)
            self._compare(before, new, old is not None, (remembered or b"", note), tiles)
            kinds, unshown = self._read_entries(book, new.size, tiles) if self.entries else (Counter[str](), 0)
            book.keep(tiles.full)
        if old is None or new.size > old.size:
            _write(self._newest, note)
        return Look(old, new, signed.witnesses, kinds, unshown)

    def _open(self, note: bytes) -> SignedCheckpoint:
        """A checkpoint that the log's key signed, or one that is shown to succeed it. Raises as `look`."""
        try:
            return open_checkpoint(note, self._logs(), self.witnesses, self.quorum)
        except VerificationError as error:
            if error.code != "untrusted-key" or self.keys is None:
                raise
            try:
                self._learn(self.keys().statements)
            except VerificationError as refused:
                error.hint = f"The provider shows no key that succeeds the log's: {refused.statement}"
                raise error from refused
        return open_checkpoint(note, self._logs(), self.witnesses, self.quorum)

    def _logs(self) -> tuple[PublicKey, ...]:
        path = self.folder / "log.keys"
        known = KeysFile.load(path).statements if path.exists() else ()
        return Chain.follow([self.log], (*self.statements, *known)).logs(self.log)

    def _learn(self, statements: Sequence[bytes]) -> None:
        """Remember the successions of the log's keys: a provider that shows two successors does not take one back."""
        path = self.folder / "log.keys"
        known = KeysFile.load(path).statements if path.exists() else ()
        some = tuple(dict.fromkeys((*known, *(each for each in statements if self._is_of_log(each)))))
        _write(path, KeysFile(some[: limits.KEY_STATEMENTS]).encode())

    def _is_of_log(self, statement: bytes) -> bool:
        with contextlib.suppress(MalformedError, VerificationError):
            said = Succession.open(statement)
            return said.role is Role.LOG and said.old.name == self.log.name
        return False

    def _compare(
        self, before: Checkpoint, new: Checkpoint, known: bool, notes: tuple[bytes, bytes], tiles: LogTiles
    ) -> None:
        """That one of two checkpoints extends the other, by the tiles. Raises as `look`."""
        small, large = sorted((before, new), key=lambda head: head.size)
        proof: list[bytes] = []
        try:
            proof = consistency_path(tile_node(large.size, tiles.hashes), small.size, large.size)
            verify_consistency(small.size, large.size, proof, small.root, large.root)
            if small.size == 0 and large.size:
                self._whole(large, tiles.hashes)
        except ChangedTileError:
            raise
        except VerificationError as error:
            if error.code == "unreachable" or (error.code == "no-evidence" and large == new):
                raise  # it may have trouble; a log that shows fewer entries than it signed has forgotten the others
            if not known:
                raise VerificationError(
                    "the log's tiles do not give the root that it signed",
                    code="no-evidence",
                    expected=error.expected,
                    found=error.found,
                ) from error
            raise self._fork("the log cannot show that it only grew", before, new, notes, proof) from error

    @staticmethod
    def _whole(head: Checkpoint, read: Callable[[Tile], bytes]) -> None:
        root = root_from_tiles(head.size, read)
        if root != head.root:
            raise VerificationError("the log's tiles", code="bad-consistency-proof", expected=head.root, found=root)

    def _read_entries(self, book: HeadBook, size: int, tiles: LogTiles) -> tuple[Counter[str], int]:
        """Check the entries that were not read before against their leaf hashes, and those against the signed root.

        Returns how many there were of each kind, and how many heads are not shown to continue an earlier one.
        """
        self._remember_manifest()
        node = tile_node(size, tiles.hashes)
        since, kinds = book.read(), Counter[str]()
        for bundle in bundles_for(size, since):
            hashes = tiles.hashes(tile_of(0, bundle.index, size))
            entries = tiles.entries(bundle)
            if b"".join(map(leaf_hash, entries)) != hashes:
                raise VerificationError(
                    "entries of the log are not what it committed to", code="no-evidence", found=bundle.path()
                )
            if bundle.width == WIDTH and size > WIDTH:
                self._above(bundle.index, hashes, node)
            for entry in entries:
                earlier = book.add(entry)
                if earlier is not None:
                    raise self._two_heads(earlier, entry)
            book.advance(bundle.index * WIDTH + bundle.width)
            kinds.update(map(kind_of, entries[max(since - bundle.index * WIDTH, 0) :]))
        return kinds, sum(not self._continued(book, *pair) for pair in book.pairs())

    def _continued(self, book: HeadBook, earlier: bytes, later: bytes) -> bool:
        """Whether the provider shows that one logged head of a session continues another. Raises TwoHeadsError."""
        one, other = map(Head.peek, (earlier, later))
        try:
            path = [] if self.continues is None else self.continues(one.session, one.size, other.size)
            before, after = roots_from_prefix(one.size, other.size, path)
        except VerificationError:  # refused, out of reach, or no proof: nobody signs one, so nothing is proven by it
            return False
        if after != other.root:
            return False
        if before != one.root:
            raise self._two_heads(earlier, later, before, path)
        book.settle(one.session, one.size, other.size)
        return True

    def _remember_manifest(self) -> None:
        with contextlib.suppress(VerificationError, MalformedError):
            if self.manifest is not None:
                signed = self.manifest()
                digest = Manifest.peek(signed).digest()
                if not self._manifest_file(digest).exists():
                    _write(self._manifest_file(digest), signed)

    def _manifest_file(self, digest: bytes) -> Path:
        return self.folder / "manifests" / digest.hex()

    def _two_heads(
        self, earlier: bytes, entry: bytes, before: bytes | None = None, hashes: Sequence[bytes] = ()
    ) -> TwoHeadsError:
        """Write down two heads that contradict each other; for two sizes, the root and hashes that show it."""
        one, other = map(Head.peek, (earlier, entry))
        kind = FraudKind.TWO_HEADS if before is None else FraudKind.TWO_SIZES
        found = other.root if before is None else before
        path = self.folder / f"two-heads-{one.session.hex()}-{other.size}.fraud"
        files = [self._manifest_file(head.manifest_digest) for head in (one, other)]
        if all(file.exists() for file in files):
            manifests = tuple(dict.fromkeys(file.read_bytes() for file in files))
            _write(path, Fraud(kind, manifests, (earlier, entry), Opening({}, tuple(hashes))).encode())
            return TwoHeadsError(one, other, found, path, True)
        path = path.with_suffix(".json")
        content = {"log": self.log.vkey(), "entries": [earlier.hex(), entry.hex()]}
        content["proof"] = [value.hex() for value in hashes]
        _write(path, (json.dumps(content, indent=1) + "\n").encode())
        return TwoHeadsError(one, other, found, path, False)

    @staticmethod
    def _above(index: int, hashes: bytes, node: Callable[[int, int], bytes]) -> None:
        tree = Tree.from_leaves(hashes[at : at + HASH_SIZE] for at in range(0, len(hashes), HASH_SIZE))
        if tree.root() != node(HEIGHT, index):
            raise VerificationError(
                "a tile of the log does not give the hash above it", code="no-evidence", found=index
            )

    def _remembered(self) -> bytes | None:
        try:
            return self._newest.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PolicyError(f"the memory {self._newest} can't be read", found=str(error)) from error

    def _fork(
        self,
        what: str,
        old: Checkpoint,
        new: Checkpoint,
        notes: tuple[bytes, bytes],
        proof: Sequence[bytes],
    ) -> ForkError:
        path = self.folder / f"fork-{old.size}-{new.size}-{new.root.hex()[:8]}.json"
        _write(path, fork_file(what, self.log, notes, proof))
        return ForkError(what, path, old, new)


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, data)
    except OSError as error:
        raise PolicyError(f"{path} can't be written", found=str(error)) from error
