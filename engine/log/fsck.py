"""`verifiable log fsck`: derive everything again from the stored bytes, and say exactly what is damaged.

Nothing that is stored is believed: a manifest is what the provider key signed, a leaf is what hashes to the signed
root, an entry's place is where the tiles have it, a checkpoint is what the log key signed over the root that the
entries give. What a crash may leave behind (a turn without its end, a head that the log does not have yet) is
noted, and is no damage.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.log.checkpoint_file import CheckpointFile
from engine.log.frontier import Frontier
from engine.log.fsck_session import SessionCheck
from engine.log.integrate import check_statement
from engine.log.log import open_by_any
from engine.store import Store
from verifiable.errors import VerifiableError
from verifiable.manifest.manifest import Manifest, verify_manifest
from verifiable.tlog.checkpoint import Checkpoint
from verifiable.tlog.entry import MANIFEST
from verifiable.tlog.merkle import HASH_SIZE, leaf_hash
from verifiable.tlog.tiles import WIDTH, Tile
from verifiable.wire.keys import PublicKey

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage: where it is, and what is wrong there."""

    where: str
    what: str


@dataclass(slots=True)
class FsckReport:
    """What fsck found. `notes` are no damage; `counts` say how much was looked at."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        return not self.findings

    def damaged(self, where: str, what: object) -> None:
        self.findings.append(Finding(where, str(what)))


def fsck(
    store: Store,
    providers: Sequence[PublicKey],
    logs: Sequence[PublicKey],
    place: CheckpointFile,
    unused: Path,
    progress: Progress = lambda stage, done, total: None,
) -> FsckReport:
    """Check a store that nobody else is writing to. Raises nothing but what is no damage (a bug, a missing right)."""
    report = FsckReport()
    for line in store.damage():
        report.damaged("the database file", line)
    try:
        known = _manifests(store, providers, report)
        _sessions(store, known, report, progress)
        _Log(store, logs, place, unused, report).check(progress)
    except VerifiableError as error:
        report.damaged("the database", error)
    return report


def _manifests(store: Store, providers: Sequence[PublicKey], report: FsckReport) -> dict[bytes, Manifest]:
    known: dict[bytes, Manifest] = {}
    for signed in store.manifests():
        report.counts["manifests"] += 1
        try:
            manifest = verify_manifest(signed, providers)
            known[manifest.digest()] = manifest
            if store.manifest(manifest.digest()) != signed:
                report.damaged("a manifest", "it is not stored under its own digest")
        except VerifiableError as error:
            digest = hashlib.sha256(signed).hexdigest()
            report.damaged(f"a manifest (sha256 of its bytes {digest[:16]}…)", error)
    return known


def _sessions(store: Store, known: dict[bytes, Manifest], report: FsckReport, progress: Progress) -> None:
    ids = store.session_ids()
    for number, session in enumerate(ids):
        report.counts["sessions"] += 1
        where = f"session {session.hex()}"
        try:
            check = SessionCheck(store, session, known)
            for name, what in check.damage():
                report.damaged(f"{where}, {name}" if name else where, what)
            report.notes += [f"{where}: {note}" for note in check.notes]
            report.counts.update(check.counts)
        except VerifiableError as error:
            report.damaged(where, error)
        if number % 256 == 0:
            progress("sessions", number, len(ids))
    for table, sessions in store.strays().items():
        for session in sessions:
            report.damaged(f"session {session.hex()}", f"its row is gone, but table {table} has rows of it")


class _Log:
    """The log's part: entries, tiles, and every checkpoint over them."""

    def __init__(
        self, store: Store, keys: Sequence[PublicKey], place: CheckpointFile, unused: Path, report: FsckReport
    ) -> None:
        self._store = store
        self._keys = keys
        self._place = place
        self._unused = unused
        self._report = report
        self._roots: dict[int, list[tuple[str, Checkpoint]]] = {}

    def check(self, progress: Progress) -> None:
        size = self._store.log_size()
        self._checkpoints(size)
        self._statements()
        frontier = Frontier()
        open_tiles: dict[tuple[int, int], bytearray] = {}
        seen: set[tuple[int, int]] = set()
        self._compare_roots(frontier)
        while frontier.size < size:
            first = frontier.size
            entries = self._store.entries(first, WIDTH)
            for entry in entries:
                for level, index, value in frontier.append(leaf_hash(entry)):
                    key = (level, index // WIDTH)
                    hashes = open_tiles.setdefault(key, bytearray())
                    hashes += value
                    if len(hashes) == WIDTH * HASH_SIZE:
                        seen.add(key)
                        self._compare_tile(*key, bytes(open_tiles.pop(key)))
                self._compare_roots(frontier)
            if len(entries) < min(WIDTH, size - first):
                missing = first + len(entries)
                self._report.damaged(f"log entry {missing}", f"it is missing; the log has {size} entries")
                return
            progress("log entries", frontier.size, size)
        for key, hashes in open_tiles.items():
            seen.add(key)
            self._compare_tile(*key, bytes(hashes))
        self._report.counts["log entries"] = size
        self._report.counts["tiles"] = len(seen)
        for level, index in sorted(set(self._store.tiles()) - seen):
            self._report.damaged(f"tile {level}/{index}", f"the tree of {size} entries has no such tile")
        with self._store.integration() as transaction:
            heads, statements = len(transaction.pending(1 << 30)), len(transaction.pending_statements(1 << 30))
        for waiting, what in ((heads, "heads"), (statements, "statements")):
            if waiting:
                self._report.notes.append(f"{waiting} {what} are not in the log yet")

    def _statements(self) -> None:
        """What stands beside the heads, in the log or on its way there."""
        for row in self._store.every_statement():
            where = f"the {row.kind} with leaf hash {row.hash.hex()[:16]}…"
            self._report.counts[f"{row.kind} statements"] += 1
            try:
                check_statement(row)
                if row.kind == MANIFEST and self._store.manifest(Manifest.peek(row.signed).digest()) != row.signed:
                    self._report.damaged(where, "it is none of the manifests in the store")
            except VerifiableError as error:
                self._report.damaged(where, error)

    def _checkpoints(self, size: int) -> None:
        remembered = self._store.checkpoints()
        self._report.counts["checkpoints"] = len(remembered)
        for at, note in remembered:
            self._read(f"the checkpoint of size {at} in the store", note, size, at)
        where = f"the published checkpoint {self._place.path}"
        published = self._place.read()
        if published is None:
            if size or remembered or not self._unused.exists():
                self._report.damaged(where, "it is missing")
            return
        signed = self._read(where, published, size)
        if signed is not None and remembered and remembered[-1][0] > signed.size:
            self._report.notes.append(f"a checkpoint of size {remembered[-1][0]} is signed and not published yet")
        if signed is not None and signed.size and signed.size not in dict(remembered):
            self._report.damaged(where, f"the store does not remember a checkpoint of its size, {signed.size}")

    def _read(self, where: str, note: bytes, size: int, at: int | None = None) -> Checkpoint | None:
        try:
            checkpoint = open_by_any(note, self._keys).checkpoint
        except VerifiableError as error:
            self._report.damaged(where, error)
            return None
        if at is not None and checkpoint.size != at:
            self._report.damaged(where, f"it is one of size {checkpoint.size}")
        elif checkpoint.size > size:
            self._report.damaged(
                where, f"it says {checkpoint.size} entries, the store has {size}: an old backup, or entries were lost"
            )
        else:
            self._roots.setdefault(checkpoint.size, []).append((where, checkpoint))
        return checkpoint

    def _compare_roots(self, frontier: Frontier) -> None:
        for where, checkpoint in self._roots.get(frontier.size, ()):
            root = frontier.root()
            if checkpoint.root != root:
                self._report.damaged(
                    where, f"its root is {checkpoint.root.hex()}, the first {frontier.size} entries give {root.hex()}"
                )

    def _compare_tile(self, level: int, index: int, expected: bytes) -> None:
        where = Tile(level, index).path()
        stored = self._store.tile(level, index)
        if stored is None:
            self._report.damaged(where, "it is missing")
        elif len(stored) != len(expected):
            self._report.damaged(where, f"it has {len(stored)} bytes, the entries give {len(expected)}")
        elif stored != expected:
            place = next(at for at in range(len(stored)) if stored[at] != expected[at]) // HASH_SIZE
            at = place * HASH_SIZE
            below = f"entry {index * WIDTH + place}" if level == 0 else f"tile {level - 1}/{index * WIDTH + place}"
            self._report.damaged(
                where,
                f"hash {place} is {stored[at : at + HASH_SIZE].hex()}, the stored bytes of {below} give "
                f"{expected[at : at + HASH_SIZE].hex()}: one of the two was changed",
            )
