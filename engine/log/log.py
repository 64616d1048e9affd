"""The provider-wide log as the engine sees it: it takes heads in, publishes checkpoints, and gives proofs.

Two threads: one sequences and integrates what the store brings, one publishes. Neither holds an answer up: a receipt
that is handed out with an answer has no log proof yet, and the same receipt asked for a second later has it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.log.checkpoint_file import CheckpointFile
from engine.log.integrate import MAX_BATCH, CheckHead, integrate
from engine.log.rederive import check_bundle, rederive
from engine.log.tree import LogTree
from engine.log.witnesses import Witnesses
from engine.store import DamagedLogError, HeadRow, LogStore
from verifiable.errors import PolicyError, StoreError, VerifiableError, VerificationError
from verifiable.manifest.manifest import verify_manifest
from verifiable.session.head import Head, verify_head
from verifiable.tlog.checkpoint import Checkpoint, SignedCheckpoint, open_checkpoint
from verifiable.tlog.merkle import EMPTY_ROOT
from verifiable.tlog.note import Ed25519Verifier, Note, sign_note, sign_text
from verifiable.tlog.proof import TlogProof
from verifiable.tlog.tiles import WIDTH
from verifiable.wire.keys import PrivateKey, PublicKey

log = logging.getLogger(__name__)

_LONGEST_WAIT = 30.0
"""Seconds between tries while publishing fails."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Seconds between looks for new heads, and between checkpoints; both far below the second that we promise."""

    integrate_every: float = 0.1
    publish_every: float = 0.5


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """The checkpoint that everybody is shown, and its bytes."""

    note: bytes
    signed: SignedCheckpoint

    @property
    def size(self) -> int:
        return self.signed.checkpoint.size

    @property
    def root(self) -> bytes:
        return self.signed.checkpoint.root


class ProviderLog:
    """One log over one store. Opening it compares everything stored with what was published.

    Args:
        place: where the published checkpoint is kept, apart from the store.
        check: refuses a stored head that no session key signed.
        before: the log's key before the last exchange: its line stands before that of `key`.
        known: the log's keys, oldest first; by default `key` alone.
        unused: a file that exists from the making of the log's key until the first checkpoint is there. Without it,
            a log whose checkpoint is missing has lost it, and does not start again from nothing.

    Raises:
        DamagedLogError: the store is older than the checkpoint, or damaged, or the checkpoint is missing.
    """

    def __init__(
        self,
        store: LogStore,
        key: PrivateKey,
        place: CheckpointFile,
        check: CheckHead,
        unused: Path,
        witnesses: Witnesses | None = None,
        settings: LogSettings | None = None,
        before: PrivateKey | None = None,
        known: Sequence[PublicKey] = (),
    ) -> None:
        self.key = key
        self._before = before
        self._known = tuple(known) or (key.public,)
        self.tree = LogTree(store)
        self.witnesses = witnesses or Witnesses((), 0)
        self._store = store
        self._place = place
        self._check = check
        self._settings = settings or LogSettings()
        self._failure: VerifiableError | None = None
        self._trouble: dict[str, VerifiableError] = {}
        self._scrubbed = 0
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._publishing = threading.Lock()
        self._published = self._open(unused)

    @property
    def origin(self) -> str:
        return self.key.name

    @property
    def published(self) -> PublishedCheckpoint:
        """The checkpoint that everybody is shown now."""
        return self._published

    @property
    def signers(self) -> tuple[PublicKey, ...]:
        """The keys that sign checkpoints now, the newest last."""
        return tuple(key.public for key in self._signing())

    def use(self, key: PrivateKey, before: PrivateKey | None, known: Sequence[PublicKey]) -> None:
        """Sign with other keys from now on, beginning with the checkpoint that is published. Raises StoreError."""
        with self._publishing:
            self.key, self._before, self._known = key, before, tuple(known)
            note = self._with_lines(self._published.note)
            if note != self._published.note:
                self._place.replace(self._published.note, note)
                self._published = PublishedCheckpoint(note, self._opened(note))

    def failure(self) -> VerifiableError | None:
        """Why nothing is published any more (for good, or for the moment), or None."""
        return self._failure or next(iter(self._trouble.values()), None)

    def size(self) -> int:
        """Entries integrated, published or not."""
        return self._store.log_size()

    def start(self) -> None:
        """Start sequencing and publishing."""
        integrating = ("integrate", self._settings.integrate_every, lambda: self.integrate() == MAX_BATCH)
        publishing = ("publish", self._settings.publish_every, self._publish_and_scrub)
        for loop in (integrating, publishing):
            thread = threading.Thread(target=self._repeat, args=loop, name=f"log-{loop[0]}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Take in and publish what the store holds by now, then stop. The store must still be open."""
        self._stopping.set()
        running = bool(self._threads)
        for thread in self._threads:
            thread.join()
        self._threads = []
        if running and self._failure is None:
            try:
                while self.integrate() == MAX_BATCH:
                    pass
                self.publish()
            except VerifiableError as error:
                log.error("the log could not be published before the stop: %s", error)
        self.witnesses.close()

    def integrate(self) -> int:
        """One transaction's worth of waiting heads; returns how many. Safe to call at any time."""
        return integrate(self._store, self._check)

    def publish(self) -> bool:
        """Sign and publish a checkpoint over everything integrated; False where there is nothing new.

        Raises DamagedLogError (nothing was signed), StoreError (try again), or PolicyError: too few witnesses.
        """
        with self._publishing:
            old, size = self._published, self._store.log_size()
            if size < old.size:
                raise _older(size, old.size)
            if size == old.size:
                return False
            root = rederive(self._store, old.size, old.root, size)
            checkpoint = Checkpoint(self.origin, size, root)
            note = sign_note(checkpoint.text(), *self._signing())
            remembered = self._store.checkpoint(size)
            if remembered is None:
                self._store.add_checkpoint(size, note)
            elif self._opened(remembered[1]).checkpoint != checkpoint:
                raise DamagedLogError("another checkpoint was signed for this size", found=f"size {size}")
            cosigned = self.witnesses.cosign(note, self.key.public, self.tree)
            self._place.replace(old.note, cosigned)
            self._published = PublishedCheckpoint(cosigned, open_checkpoint(cosigned, self.key.public))
            return True

    def proof(self, session: bytes, size: int) -> bytes | None:
        """The `.tlog-proof` of a session's head, or None while no published checkpoint covers it."""
        index = self._store.index_of(session, size)
        published = self._published
        if index is None or index >= published.size:
            return None
        path = self.tree.inclusion_proof(index, published.size)
        return TlogProof(index, tuple(path), published.note).format()

    def signed(self, size: int | None) -> tuple[int, bytes, bytes]:
        """Size, root and note of a checkpoint that was published: the newest, or that of exactly this size."""
        published = self._published
        if size is None or size == published.size:
            return published.size, published.root, published.note
        remembered = self._store.checkpoint(size) if size < published.size else None
        if remembered is None:
            raise PolicyError(
                "no checkpoint of that size was published",
                found=size,
                hint="Leave the size out for the newest.",
                parameter="size",
            )
        return remembered[0], self._opened(remembered[1]).checkpoint.root, self._with_lines(remembered[1])

    def _signing(self) -> tuple[PrivateKey, ...]:
        return (self.key,) if self._before is None else (self._before, self.key)

    def _opened(self, note: bytes) -> SignedCheckpoint:
        return open_by_any(note, self._known)

    def _with_lines(self, note: bytes) -> bytes:
        """A checkpoint of this log with a line by each key that signs now, and its witnesses' lines."""
        parsed = Note.parse(note)
        keys = {(key.name, Ed25519Verifier(key).key_id) for key in self._known}
        lines = [sign_text(parsed.text, key) for key in self._signing()]
        others = [line for line in parsed.signatures if (line.name, line.key_id) not in keys]
        return Note(parsed.text, (*lines, *others)).format()

    def _open(self, unused: Path) -> PublishedCheckpoint:
        note = self._place.read()
        size, remembered = self._store.log_size(), self._store.checkpoint()
        if note is None:
            if size > 0 or remembered is not None or not unused.exists():
                raise DamagedLogError(
                    f"the log's published checkpoint {self._place.path} is missing",
                    hint="Put it back from your backup, or from a witness or a monitor that keeps the newest one.",
                )
            note = sign_note(Checkpoint(self.origin, 0, EMPTY_ROOT).text(), *self._signing())
            self._place.replace(None, note)
        try:
            published = PublishedCheckpoint(note, self._opened(note))
        except VerifiableError as error:
            raise DamagedLogError(
                f"the log's published checkpoint {self._place.path} is damaged, or another log's: {error}"
            ) from error
        if size < published.size:
            raise _older(size, published.size)
        rederive(self._store, 0, EMPTY_ROOT, size, self.tree)
        if published.size and self.tree.root(published.size) != published.root:
            raise _forked(published.signed.checkpoint, self.tree)
        if remembered is not None:
            mine = self._opened(remembered[1]).checkpoint
            if mine.size > size or self.tree.root(mine.size) != mine.root:
                raise _forked(mine, self.tree)
        try:
            unused.unlink(missing_ok=True)
        except OSError as error:
            # While it is there, a lost checkpoint would be made anew: not a log to go on with.
            hint = "Check the folder and the disk."
            raise StoreError(f"{unused} can't be removed", found=str(error), hint=hint) from error
        signed = self._with_lines(published.note)
        if signed != published.note:  # the log's key was exchanged while nobody was here
            self._place.replace(published.note, signed)
            published = PublishedCheckpoint(signed, self._opened(signed))
        return published

    def _publish_and_scrub(self) -> bool:
        self.publish()
        size = self._published.size
        if size:  # old entries too: damage should be found before somebody asks for them
            self._scrubbed %= -(-size // WIDTH)
            check_bundle(self._store, self._scrubbed, size)
            self._scrubbed += 1
        return False

    def _repeat(self, name: str, every: float, work: Callable[[], bool]) -> None:
        """Call `work` until the log stops or is found damaged; at once again when it returns True."""
        wait = every
        while not self._stopping.wait(wait) and self._failure is None:
            try:
                wait = 0 if work() else every
                self._trouble.pop(name, None)
            except DamagedLogError as error:
                self._failure = error
                log.critical("the log stops: %s", error)
            except VerifiableError as error:
                if str(error) != str(self._trouble.get(name)):
                    log.error("the log can't go on now: %s", error)
                self._trouble[name] = error
                wait = min(max(wait, every) * 2, _LONGEST_WAIT)
            except Exception as error:  # a fault of ours must not end in silence
                self._failure = DamagedLogError("the log failed", found=repr(error))
                log.exception("the log stops")


def _older(size: int, published: int) -> DamagedLogError:
    return DamagedLogError(
        "the store is older than the checkpoint that was published",
        expected=f"{published} log entries or more",
        found=size,
        hint="It was probably restored from an old backup. Going on would fork the log: restore the newest store.",
    )


def _forked(checkpoint: Checkpoint, tree: LogTree) -> DamagedLogError:
    return DamagedLogError(
        f"the store is not what was signed for size {checkpoint.size}",
        expected=checkpoint.root.hex(),
        found=tree.root(checkpoint.size).hex(),
        hint="It is damaged, or another log's. Going on would fork the log: restore the right store.",
    )


def open_by_any(note: bytes, keys: Sequence[PublicKey]) -> SignedCheckpoint:
    """A checkpoint that one of a log's keys signed. Raises as `open_checkpoint`, of the last key."""
    for key in keys[:-1]:
        with contextlib.suppress(VerificationError):
            return open_checkpoint(note, key)
    return open_checkpoint(note, keys[-1])


def make_check(providers: Callable[[], Iterable[PublicKey]]) -> CheckHead:
    """The check that a stored head is one that a session key of its manifest signed. Manifests are kept once read;
    `providers` are the keys that may have signed them.
    """
    keys: dict[bytes, tuple[PublicKey, ...]] = {}

    def check(row: HeadRow, manifest_of: Callable[[bytes], bytes | None]) -> None:
        try:
            digest = Head.peek(row.signed).manifest_digest
            if digest not in keys:
                signed = manifest_of(digest)
                if signed is None:
                    raise StoreError("the manifest of a head is missing", expected=digest.hex())
                keys[digest] = verify_manifest(signed, providers()).session_keys
            head = verify_head(row.signed, keys[digest])
        except VerifiableError as error:
            raise DamagedLogError(f"head {row.size} of session {row.session.hex()} is damaged: {error}") from error
        if (head.session, head.size) != (row.session, row.size):
            raise DamagedLogError(
                f"head {row.size} of session {row.session.hex()} is another's",
                found=f"head {head.size} of session {head.session.hex()}",
            )

    return check
