"""What an auditor remembers between audits: every head and checkpoint that a provider showed it.

A provider that shows two readers two histories is found out when one reader comes back, or compares notes. The state
is a folder with one small file for each thing remembered, named by its hash, each written whole or not at all; a
damaged one is an error, never forgotten in silence.

Several audits may use one state at a time. What a provider lists or publishes is then older than what another audit
was shown meanwhile, though the provider is honest: so it is held only against what was remembered before it was fetched
(`Memory.mark`). Two roots for one size contradict each other in any order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verifiable import files
from verifiable.checking.checks import SignedHead, check_head
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.errors import MalformedError, StoreError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import Manifest, open_manifest, verify_manifest
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint
from verifiable.wire import encoding
from verifiable.wire.keys import PublicKey
from verifiable.wire.sealed import seal, unseal
from verifier.offline import frauds

MAX_BYTES = 1 << 21


@dataclass(frozen=True, slots=True)
class Shown:
    """A signed statement as a provider showed it, with the manifest that names its key."""

    manifest: bytes
    signed: bytes

    @property
    def name(self) -> str:
        """Its file's name."""
        return hashlib.sha256(self.signed).hexdigest() + ".seen"


class Contradiction(VerificationError):
    """What a provider shows now contradicts what it showed before. `fraud` proves it, where it proves itself."""

    def __init__(self, what: str, code: str, expected: str, found: str, fraud: Fraud | None) -> None:
        super().__init__(
            what, code=code, expected=expected, found=found, hint="The provider showed another history before."
        )
        self.fraud = fraud


def two_roots(manifest: bytes, one: bytes, other: bytes, first: Checkpoint, second: Checkpoint) -> Contradiction:
    """Two notes of one log that sign two roots for one size."""
    return Contradiction(
        f"the provider's log signed two roots at size {first.size}",
        "two-histories",
        first.root.hex(),
        second.root.hex(),
        Fraud(FraudKind.TWO_CHECKPOINTS, (manifest,), (one, other)),
    )


class Memory:
    """The state folder; made when the first thing is remembered."""

    def __init__(self, folder: Path, trust: Sequence[PublicKey]) -> None:
        self._folder = folder
        self.trust = Chain.of(trust)
        self._marked: frozenset[Path] | None = None

    def mark(self) -> None:
        """Hold what is fetched from now on against what is remembered now, not what others add meanwhile."""
        self._marked = frozenset(self._folder.rglob("*.seen"))

    def head(self, now: SignedHead) -> tuple[SignedHead, ...]:
        """Compare a head with those of its session seen before, and remember it.

        Returns those seen before that are next to it by size: one that it has to continue, and one that continues it.

        Raises:
            Contradiction: the same size with another root (`two-histories`, with its proof).
            StoreError: the state is damaged.
        """
        before = [check_head(shown.manifest, shown.signed, self.trust) for _, shown in self._heads(now)]
        self._write(self._place("heads", now.key, now.head.session), Shown(now.manifest_envelope, now.head_envelope))
        known: dict[int, SignedHead] = {}
        # What was seen before is compared among itself too: a provider that was caught once stays caught.
        for each in (*before, now):
            other = known.setdefault(each.head.size, each)
            if other.head.root != each.head.root:
                raise Contradiction(
                    f"the provider signed two histories of one session at size {each.head.size}",
                    "two-histories",
                    other.head.root.hex(),
                    each.head.root.hex(),
                    frauds.of_heads(other, each),
                )
        size = now.head.size
        earlier = max((each for each in known if each < size), default=None)
        later = min((each for each in known if each > size), default=None)
        return tuple(known[each] for each in (earlier, later) if each is not None)

    def check_listed(self, now: SignedHead) -> None:
        """Raise Contradiction (`list-differs`) where the list shows a session shorter than it was before the mark."""
        sizes = [
            check_head(shown.manifest, shown.signed, self.trust).head.size
            for path, shown in self._heads(now)
            if self._before(path)
        ]
        longest = max(sizes, default=0)
        if longest > now.head.size:
            raise Contradiction(
                "the session is shorter than it was", "list-differs", f"{longest} leaves", str(now.head.size), None
            )

    def checkpoint(self, manifest: bytes, note: bytes) -> tuple[Checkpoint | None, Checkpoint]:
        """Compare the log's newest checkpoint with those of it seen before, and remember it.

        Returns the largest seen before the mark, from which the caller asks the log for a consistency proof, and this.

        Raises:
            Contradiction: the same size with another root (`two-histories`, with its proof).
            VerificationError: the checkpoint is not that of the log of a trusted manifest, or its size is below one
                seen before, or it is of another log than was seen under the same name (`no-evidence`: nothing signed
                says which came first, or that a log ended).
            MalformedError: it is none. StoreError: the state is damaged.
        """
        seen, now = self.compare(manifest, note)
        self._same_log(manifest)
        latest = max((each for path, each in seen if self._before(path)), key=lambda each: each.size, default=None)
        if latest is not None and now.size < latest.size:
            raise VerificationError(
                "the provider's log is shorter than it was",
                code="no-evidence",
                expected=f"{latest.size} entries or more",
                found=str(now.size),
                hint="A log only grows: ask for its newest checkpoint.",
            )
        return latest, now

    def _same_log(self, manifest: bytes) -> None:
        """Remember which log the provider has. Raise VerificationError (`no-evidence`) where it had another: one by a
        key that neither leads to this one's nor follows it.
        """
        stated, signer = open_manifest(manifest, self.trust)
        log = self._log(stated)
        family = {key.kid for key in self.trust.log_family(log)}
        for key in self.trust.related(signer):
            for _, shown in self._read(self._place("logs", key)):
                other = self._log(verify_manifest(shown.manifest, self.trust))
                if other.kid not in family:
                    raise VerificationError(
                        "the provider names another log than it did before",
                        code="no-evidence",
                        expected=f"the log of {other.label}, or a key that succeeds that",
                        found=f"{log.label}",
                        hint="What it logged before is in none of what it shows now. A provider whose log came to an "
                        "end says so in public: if you believe it, go on with another state folder.",
                    )
        self._write(self._place("logs", signer), Shown(manifest, log.vkey().encode()))

    @staticmethod
    def _log(stated: Manifest) -> PublicKey:
        if stated.log is None:
            raise VerificationError("the manifest names no log", code="untrusted-key", expected="a log", found="none")
        return stated.log

    def compare(self, manifest: bytes, note: bytes) -> tuple[list[tuple[Path, Checkpoint]], Checkpoint]:
        """Compare any checkpoint of a log with those of it seen before, size by size, and remember it.

        Returns those seen before, and this. Raises as `checkpoint`.
        """
        log = self._log(verify_manifest(manifest, self.trust))
        family = self.trust.log_family(log)
        now = open_checkpoint(note, family).checkpoint
        read = [each for key in family for each in self._read(self._place("checkpoints", key))]
        seen = [(path, shown.signed, open_checkpoint(shown.signed, family).checkpoint) for path, shown in read]
        self._write(self._place("checkpoints", log), Shown(manifest, note))
        known: dict[int, tuple[bytes, Checkpoint]] = {}
        for signed, each in (*((signed, each) for _, signed, each in seen), (note, now)):
            other, first = known.setdefault(each.size, (signed, each))
            if first.root != each.root:
                raise two_roots(manifest, other, signed, first, each)
        return [(path, each) for path, _, each in seen], now

    def _heads(self, now: SignedHead) -> list[tuple[Path, Shown]]:
        """What was seen of a head's session, under whichever key of its provider."""
        known = {key.kid for key in self.trust}
        keys = [key for key in self.trust.whole().related(now.key) if key.kid in known]
        return [each for key in keys for each in self._read(self._place("heads", key, now.head.session))]

    def _place(self, kind: str, signer: PublicKey, of: bytes = b"") -> Path:
        """By whose key was signed, whatever else is trusted: what was seen is known as long as its signer is."""
        return self._folder / signer.kid.hex()[:32] / kind / of.hex()

    def _before(self, path: Path) -> bool:
        return self._marked is None or path in self._marked

    def _read(self, place: Path) -> list[tuple[Path, Shown]]:
        shown = []
        for path in sorted(place.glob("*.seen")):
            try:
                fields = unseal(files.read(path, MAX_BYTES), 3, "what was remembered", MAX_BYTES)
                each = Shown(encoding.bytes_(fields[2], "manifest"), encoding.bytes_(fields[3], "signed statement"))
            except MalformedError as error:  # the auditor's own file, which says nothing about a provider
                raise StoreError(
                    f"{path} is damaged: {error.what}", expected=error.expected, found=error.found
                ) from error
            if each.name != path.name:
                raise StoreError(f"{path} is damaged", expected=each.name, found=path.name)
            shown.append((path, each))
        return shown

    def _write(self, place: Path, shown: Shown) -> None:
        path = place / shown.name
        if path.exists():
            return
        place.mkdir(parents=True, exist_ok=True)
        files.replace(path, seal({1: encoding.PROTOCOL, 2: shown.manifest, 3: shown.signed}))
