"""Whether the provider's log holds the heads that it signed. One that it kept out past its delay is fraud, and a file.

A provider that wants a conversation forgotten signs its head for the client and never logs it. That proves itself once
the log holds heads that were signed later by the merge delay or more: the log went on without it. Only the provider's
own times are compared, so the auditor's clock does not matter, and as long as the log's newest head is younger than
the delay allows, nothing is said against anybody.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from verifiable import limits
from verifiable.checking import fraud
from verifiable.checking.checks import SignedHead
from verifiable.checking.fraud import Fraud
from verifiable.errors import VerifiableError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.session.opening import Opening
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.cosignature import NOBODY, Quorum
from verifiable.tlog.proof import Inclusion, TlogProof
from verifiable.wire.keys import PublicKey
from verifier.offline.rebuild import Bound
from verifier.provider.client import Client
from verifier.provider.continued import check_continued
from verifier.provider.published import Published, log_keys
from verifier.provider.remember import Contradiction, Memory
from verifier.provider.window import Known, Window, missing, window_of

RECENT = 2048
"""Entries that are looked at where nothing is proven by what they lack."""
NOT_YET = "the head is not there, and no head of it that was read is younger by the delay within which it has to be"


@dataclass(frozen=True, slots=True)
class Logged:
    """Whether the log holds a head or a later one of its session (None: that could not be found out), a sentence about
    it, and what proves fraud, where there is any.

    `error` is what is to be said of the provider where a file alone does not say it.
    """

    logged: bool | None
    detail: str
    proof: Fraud | None = None
    error: VerificationError | None = None

    @classmethod
    def of(cls, error: VerificationError) -> Logged:
        """What the log is found to have done, or leaves open."""
        if isinstance(error, Contradiction):
            return cls(False, error.what, error.fraud, error)
        return cls(None, error.what, None, error)

    @property
    def fits(self) -> bool:
        """Whether the proof fits into a file. What does not, anybody finds again who reads the log."""
        if self.proof is None:
            return False
        leaves = self.proof.opening.leaves
        return len(leaves) <= limits.FRAUD_ENTRIES and sum(map(len, leaves.values())) <= limits.FRAUD_BYTES // 2


class LogReader:
    """A provider's log as it stood when it was first asked for. Entries are read only where it proves nothing itself.

    Args:
        delay: milliseconds within which a head must be in the log.
        memory: what the log showed before, which it has to continue.
        quorum: the witnesses who must have cosigned what a head is found under.
        known: what was read already of logs, or why it could not be, by their keys' bytes.
    """

    def __init__(
        self,
        client: Client,
        trust: Sequence[PublicKey],
        delay: int,
        memory: Memory | None = None,
        quorum: Quorum = NOBODY,
        known: Mapping[bytes, Published | VerificationError] | None = None,
    ) -> None:
        self._client = client
        self._trust = Chain.of(trust)
        self._delay = delay
        self._memory = memory
        self._quorum = quorum
        self._logs = dict(known or {})
        self._manifests: dict[bytes, Known] = {}

    @property
    def chain(self) -> Chain:
        """The provider's keys, by the statements that were met in its logs too."""
        read = [each.statements for each in self._logs.values() if isinstance(each, Published)]
        if not any(read):
            return self._trust
        return Chain.follow(self._trust.trusted, (*self._trust.statements, *sorted(set().union(*read))))

    def look_up(self, signed: SignedHead, own: Inclusion | None = None, bound: Bound | None = None) -> Logged | None:
        """Where a signed head stands; None where its manifest names no log.

        `own` is what a receipt's proof shows, `bound` what the head opens.
        """
        log = signed.manifest.log
        if log is None:
            return None
        published = self._published(log, signed.manifest_envelope)
        given = [each for each in (self._proven(log, signed), own) if each is not None]
        if isinstance(published, VerificationError):
            return self._unpublished(published, given)
        try:
            for each in given:
                published.check(each)
            if given:
                return self._unrevoked(published, signed, self._found(published, signed, given[0]))
            return self._unrevoked(published, signed, self._without_proof(published, signed, bound))
        except Contradiction as error:
            return Logged.of(error)
        except VerificationError as error:
            if given or error.code == "too-few-witnesses":  # more than a log that is out of reach
                return Logged.of(error)
            return Logged(None, f"what it holds can't be found out: {error.what}")

    def _unrevoked(self, published: Published, signed: SignedHead, found: Logged) -> Logged:
        """What was found, as far as the keys of the log count: one that is revoked does not speak for the provider.
        Against the provider it does, whose revocation takes back nothing that it signed.
        """
        if not found.logged or signed.manifest.log is None:
            return found
        try:
            open_checkpoint(published.note, self._trust.logs_now(signed.manifest.log, signed.key))
        except VerificationError as error:
            why = f"{error.what}: {error.found}" if error.found else error.what
            return Logged(None, f"what it holds can't be found out: {why}")
        return found

    def later(self, signed: SignedHead) -> int | None:
        """Leaves of the largest head of the session that the log holds, where it is of more than the head has.

        Only the `RECENT` entries after the head are looked at. None where there is none, or its manifest names no log.

        Raises:
            VerificationError: the log that its manifest names can't be read.
        """
        log = signed.manifest.log
        if log is None:
            return None
        published = self._published(log, signed.manifest_envelope)
        if isinstance(published, VerificationError):
            raise published
        if not published.checkpoint.size:
            return None
        at = self._proven(log, signed)
        known = self._known(signed)
        window = window_of(published, known, signed.head.time, self._delay)
        first = window.first if at is None else min(at.index, published.checkpoint.size)
        entries = published.range(first, min(first + RECENT, published.checkpoint.size)).leaves.values()
        heads = [fraud.logged_head(entry, known.keys) for entry in fraud.of_session(entries, signed.head.session)]
        sizes = [head.size for head in heads if head is not None]
        return max((size for size in sizes if size > signed.head.size), default=None)

    def _known(self, signed: SignedHead) -> Known:
        """The manifest of a head, and the one in force: they tell whose heads the log holds."""
        provider = self._trust.root_of(signed.key) or signed.key
        if provider.kid not in self._manifests:
            self._manifests[provider.kid] = known = Known(self._trust, provider)
            with contextlib.suppress(VerifiableError):
                known.add(self._client.manifest())
        known = self._manifests[provider.kid]
        known.add(signed.manifest_envelope)
        return known

    def _published(self, log: PublicKey, manifest: bytes) -> Published | VerificationError:
        if log.raw not in self._logs:
            try:
                keys = log_keys(manifest, self._trust)
                self._logs[log.raw] = Published.read(self._client, self._memory, manifest, keys or (log,))
            except VerificationError as error:
                self._logs[log.raw] = error
        return self._logs[log.raw]

    def _proven(self, log: PublicKey, signed: SignedHead) -> Inclusion | None:
        """Where the head stands by the provider's own proof; None where it gives none that holds."""
        with contextlib.suppress(VerifiableError):
            proof = TlogProof.parse(self._client.log_proof(signed.head.session, signed.head.size))
            return proof.verify(signed.head_envelope, self._trust.logs(log))
        return None

    def _unpublished(self, error: VerificationError, given: Sequence[Inclusion]) -> Logged:
        """Without what the log publishes, only witnesses can say that a proof is of the log that others see."""
        if isinstance(error, Contradiction):
            return Logged.of(error)
        for each in given if self._quorum.witnesses else ():
            with contextlib.suppress(VerificationError):
                names = ", ".join(self._quorum.check(each.note, each.log))
                return Logged(True, f"entry {each.index:,} of a log that {names} cosigned")
        return Logged(None, f"what it holds can't be found out: {error.what}")

    def _found(self, published: Published, signed: SignedHead, at: Inclusion) -> Logged:
        """A head stands in the log; where witnesses were named, they must have cosigned a checkpoint that has it."""
        detail = f"the head of {signed.head.size} leaves is entry {at.index:,}"
        covering = [at.note, *([published.note] if at.index < published.checkpoint.size else [])]
        return Logged(True, detail + self._witnessed(published.log, covering))

    def _witnessed(self, log: Sequence[PublicKey], notes: Sequence[bytes]) -> str:
        """Who cosigned one of these checkpoints, as an addition to a sentence. Raises VerificationError: too few."""
        if not self._quorum.witnesses:
            return ""
        for note in notes[:-1]:
            with contextlib.suppress(VerificationError):
                return f", which {', '.join(self._quorum.check(note, log))} cosigned"
        return f", which {', '.join(self._quorum.check(notes[-1], log))} cosigned"

    def _without_proof(self, published: Published, signed: SignedHead, bound: Bound | None) -> Logged:
        """By the log's entries where the head would stand: itself, or those of its session next to it by size."""
        known = self._known(signed)
        head, wait = signed.head, Logged(None, NOT_YET)
        if head.time > 1000 * time.time() + limits.CLOCK_SKEW:
            wait = Logged(None, f"the head says that it was signed at {head.time} ms, after this machine's clock")
        if not published.checkpoint.size:
            return wait
        window = window_of(published, known, head.time, self._delay)
        late = window.over
        if not late:  # nothing is missing yet: what is there all the same stands at the end
            window = replace(window, first=max(window.first, window.end - RECENT))
        try:
            opening = _read(published, window)
        except VerificationError as error:
            if late:
                return Logged.of(error)
            raise
        beside: dict[bool, tuple[int, bytes]] = {}
        for entry in fraud.of_session(opening.leaves.values(), head.session):
            logged = fraud.logged_head(entry, known.keys)
            if logged is None:
                continue
            if logged.size == head.size and logged.root == head.root:
                detail = f"it holds the session's head of {logged.size} leaves"
                return Logged(True, detail + self._witnessed(published.log, [published.note]))
            later = logged.size >= head.size
            nearest = min if later else max
            beside[later] = nearest(beside.get(later, (logged.size, entry)), (logged.size, entry))
        unshown: VerificationError | None = None
        for _, entry in beside.values():
            try:  # another history needs no delay to be fraud
                check_continued(self._client, signed, known.signed(entry), bound)
            except VerificationError as error:
                if isinstance(error, Contradiction):
                    return Logged.of(error)
                unshown = error
        if True in beside and unshown is None:
            detail = f"it holds the session's head of {beside[True][0]} leaves, which continues that of {head.size}"
            return Logged(True, detail + self._witnessed(published.log, [published.note]))
        if True not in beside and late:
            made = missing(published, known, signed, opening)
            with contextlib.suppress(VerificationError):
                return Logged(False, made.verify(self._trust, self._delay).what, made)
        return wait if unshown is None else Logged.of(unshown)


def _read(published: Published, window: Window) -> Opening:
    """The entries of a window. Raises VerificationError where they are too many or can't be had."""
    if window.size > limits.LOG_ENTRIES:
        raise VerificationError(
            "the provider does not prove that its log holds the head, which should have been there by now",
            code="no-evidence",
            expected=f"its proof, or at most {limits.LOG_ENTRIES:,} entries to look through",
            found=f"{window.size:,} entries",
        )
    return published.range(window.first, window.end)
