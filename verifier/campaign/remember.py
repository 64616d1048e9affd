"""What an auditor remembers between audits: every head and checkpoint that a provider showed it.

A provider that shows two readers two histories is found out when one reader comes back, or compares notes. The state
is a folder with one small file for each thing remembered, named by its hash, each written whole or not at all; a
damaged one is an error, never forgotten in silence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verifiable import files
from verifiable.checking.checks import check_evidence, check_receipt
from verifiable.checking.fraud import Fraud, Kind
from verifiable.errors import MalformedError, VerificationError
from verifiable.manifest.manifest import verify_manifest
from verifiable.session.evidence import Evidence
from verifiable.session.head import Head, verify_head
from verifiable.session.receipt import Receipt
from verifiable.session.sealed import seal, unseal
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint
from verifiable.tlog.merkle import verify_consistency
from verifiable.tlog.note import Note
from verifiable.wire import encoding
from verifiable.wire.keys import PublicKey
from verifier.campaign.client import Client
from verifier.offline import frauds
from verifier.offline.rebuild import Bound, check_same_history

MAX_BYTES = 1 << 21


@dataclass(frozen=True, slots=True)
class Seen:
    """A signed statement as it was seen, with the manifest that names its key."""

    manifest: bytes
    signed: bytes


class Contradiction(VerificationError):
    """What a provider shows now contradicts what it showed before. `fraud` proves it, where it proves itself."""

    def __init__(self, what: str, code: str, expected: str, found: str, fraud: Fraud | None) -> None:
        super().__init__(
            what, code=code, expected=expected, found=found, hint="The provider showed another history before."
        )
        self.fraud = fraud


class Memory:
    """The state folder; made when the first thing is remembered."""

    def __init__(self, folder: Path, trust: Sequence[PublicKey]) -> None:
        self._folder = folder
        self.trust = tuple(trust)

    def head(self, manifest: bytes, signed: bytes) -> Head | None:
        """Compare a head with those of its session seen before, and remember it.

        Returns the latest head seen before, None where the session is new.

        Raises:
            Contradiction: the same size with another root (`two-histories`, with its proof).
            VerificationError: the head is not signed under a trusted manifest.
            MalformedError: the state is damaged.
        """
        place, now = self._place("heads", self._head(Seen(manifest, signed)).session), Seen(manifest, signed)
        latest: Head | None = None
        known: dict[int, Seen] = {}
        # What was seen before is compared among itself too: a provider that was caught once stays caught.
        for seen in (*self._read(place), now):
            head = self._head(seen)
            other = known.setdefault(head.size, seen)
            if self._head(other).root != head.root:
                self._write(place, now)
                raise Contradiction(
                    f"the provider signed two histories of one session at size {head.size}",
                    "two-histories",
                    self._head(other).root.hex(),
                    head.root.hex(),
                    frauds.of_heads((other.manifest, other.signed), (seen.manifest, seen.signed), self.trust),
                )
            if seen is not now and (latest is None or head.size > latest.size):
                latest = head
        self._write(place, now)
        return latest

    def checkpoint(self, manifest: bytes, note: bytes) -> Checkpoint | None:
        """Compare a checkpoint with those of its log seen before, and remember it.

        Returns the largest seen before: the caller asks the log for a consistency proof from it.

        Raises:
            Contradiction: the same size with another root (`two-histories`, with its proof), or a size below one
                seen before (`log-differs`: a log only grows, though nothing signed says which came first).
            VerificationError, MalformedError: as `head`.
        """
        log = verify_manifest(manifest, self.trust).log
        if log is None:
            raise VerificationError("the manifest names no log", code="log-differs", expected="a log", found="none")
        now = open_checkpoint(note, log).checkpoint
        place, new = self._place("checkpoints", log.raw), Seen(manifest, note)
        latest: Checkpoint | None = None
        known: dict[int, Seen] = {}
        for seen in (*self._read(place), new):
            shown = open_checkpoint(seen.signed, log).checkpoint
            other = known.setdefault(shown.size, seen)
            root = open_checkpoint(other.signed, log).checkpoint.root
            if root != shown.root:
                self._write(place, new)
                raise Contradiction(
                    f"the provider's log signed two roots at size {shown.size}",
                    "two-histories",
                    root.hex(),
                    shown.root.hex(),
                    Fraud(Kind.TWO_CHECKPOINTS, (manifest,), (other.signed, seen.signed)),
                )
            if seen is not new and (latest is None or shown.size > latest.size):
                latest = shown
        self._write(place, new)
        if latest is not None and now.size < latest.size:
            raise Contradiction(
                "the provider's log is shorter than it was",
                "log-differs",
                f"{latest.size} or more",
                str(now.size),
                None,
            )
        return latest

    def _head(self, seen: Seen) -> Head:
        return verify_head(seen.signed, verify_manifest(seen.manifest, self.trust).session_keys)

    def _place(self, kind: str, of: bytes) -> Path:
        provider = hashlib.sha256(b"".join(sorted(key.raw for key in self.trust))).hexdigest()[:16]
        return self._folder / provider / kind / of.hex()

    def _read(self, place: Path) -> list[Seen]:
        found = []
        for path in sorted(place.glob("*.seen")):
            fields = unseal(files.read(path, MAX_BYTES), 2, f"auditor's state {path}", MAX_BYTES)
            seen = Seen(encoding.bytes_(fields[1], "manifest"), encoding.bytes_(fields[2], "signed statement"))
            if _name(seen) != path.name:
                raise MalformedError(f"auditor's state {path}", expected=_name(seen), found=path.name)
            found.append(seen)
        return found

    def _write(self, place: Path, seen: Seen) -> None:
        path = place / _name(seen)
        if path.exists():
            return
        place.mkdir(parents=True, exist_ok=True)
        files.replace(path, seal({1: seen.manifest, 2: seen.signed}))


def check_growth(
    memory: Memory, client: Client, evidence: Evidence, trust: Sequence[PublicKey], *, newest: bool
) -> None:
    """Compare evidence with what was seen of its session before, and remember its head.

    Where an older head is known, the provider is asked for the session as it stood then: it must give that very root,
    and the leaves of then must be the leaves of now.

    Args:
        newest: the evidence is meant to be under the session's newest head.

    Raises:
        Contradiction: `two-histories`, or `list-differs` where the session is shorter than it was.
    """
    latest = memory.head(evidence.manifest, evidence.head)
    session, _ = check_evidence(evidence, trust)
    if latest is None or latest.size == session.head.size:
        return
    if latest.size > session.head.size:
        if newest:
            raise Contradiction(
                "the session is shorter than it was",
                "list-differs",
                f"{latest.size} leaves",
                str(session.head.size),
                None,
            )
        return
    then = Receipt.parse(client.receipt(latest.session, latest.size))
    memory.head(then.manifest, then.head)  # with another root than was seen, this is the fraud
    held = check_receipt(then, trust)
    if (held.head.session, held.head.size) != (latest.session, latest.size):
        raise VerificationError("the provider sent another head than was asked for", code="no-evidence")
    check_same_history(
        Bound.of(evidence.opening, session.head.size, session.head.root),
        Bound.of(then.opening, held.head.size, held.head.root),
    )


def check_log(memory: Memory, client: Client) -> Checkpoint | None:
    """Compare the provider's log with what was seen of it before; None where its manifest names no log.

    Raises:
        Contradiction: two roots, or a log that shrank or was rewritten.
        VerificationError: it can't be had, or its signatures do not hold.
    """
    manifest = client.manifest()
    if verify_manifest(manifest, memory.trust).log is None:
        return None
    note = client.checkpoint()
    latest = memory.checkpoint(manifest, note)
    now = Checkpoint.parse(Note.parse(note).text)
    if latest is not None and 0 < latest.size < now.size:
        try:
            verify_consistency(latest.size, now.size, client.consistency(latest.size, now.size), latest.root, now.root)
        except VerificationError as error:
            if error.code != "bad-consistency-proof":
                raise
            raise Contradiction(
                "the provider's log is not a continuation of what it was",
                "bad-consistency-proof",
                f"a proof from size {latest.size} to {now.size}",
                error.what,
                None,
            ) from error
    return now


def _name(seen: Seen) -> str:
    return hashlib.sha256(seen.signed).hexdigest() + ".seen"
