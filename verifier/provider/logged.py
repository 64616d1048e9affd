"""Whether the provider's log holds the heads that it signed. One that it kept out past its delay is fraud, and a file.

A provider that wants a conversation forgotten signs its head for the client and never logs it. That proves itself once
the log holds heads that were signed later by the merge delay or more: the log went on without it. Only the provider's
own times are compared, so the auditor's clock does not matter, and as long as the log's newest head is younger than
the delay allows, nothing is said against anybody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verifiable import limits
from verifiable.checking import fraud
from verifiable.checking.checks import SignedHead
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.errors import VerifiableError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.tlog.cosignature import NOBODY, Quorum
from verifiable.tlog.proof import Inclusion, TlogProof
from verifiable.wire.keys import PublicKey
from verifier.offline.rebuild import Bound
from verifier.provider.client import Client
from verifier.provider.continued import check_continued
from verifier.provider.published import Published, log_keys
from verifier.provider.remember import Contradiction, Memory


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
        entries = self.proof.entries
        return len(entries) <= limits.FRAUD_ENTRIES and sum(map(len, entries)) <= limits.FRAUD_BYTES // 2


class LogReader:
    """A provider's log as it stood when it was first asked for; read at most once, however many heads are looked up.

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
        self._known = dict(known or {})

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
                return self._found(published, signed, given[0])
            return self._without_proof(published, signed, bound)
        except Contradiction as error:
            return Logged.of(error)
        except VerificationError as error:
            if given or error.code == "too-few-witnesses":  # more than a log that is out of reach
                return Logged.of(error)
            return Logged(None, f"what it holds can't be found out: {error.what}")

    def later(self, signed: SignedHead) -> int | None:
        """Leaves of the largest head of the session that the log holds, where it is of more than the head has.

        None where there is none, or the log can't be read.
        """
        log = signed.manifest.log
        published = None if log is None else self._published(log, signed.manifest_envelope)
        if not isinstance(published, Published):
            return None
        try:
            heads = [fraud.logged_head(entry, signed.manifest.session_keys) for entry in published.entries()]
        except VerificationError:
            return None
        sizes = [head.size for head in heads if head is not None and head.session == signed.head.session]
        return max((size for size in sizes if size > signed.head.size), default=None)

    def _published(self, log: PublicKey, manifest: bytes) -> Published | VerificationError:
        if log.raw not in self._known:
            try:
                keys = log_keys(manifest, self._trust)
                self._known[log.raw] = Published.read(self._client, self._memory, manifest, keys or (log,))
            except VerificationError as error:
                self._known[log.raw] = error
        return self._known[log.raw]

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
        """By all of the log's entries: the head itself, or those of its session that are next to it by size."""
        head, newest, entries = signed.head, 0, published.entries()
        beside: dict[bool, tuple[int, bytes]] = {}
        for entry in entries:
            logged = fraud.logged_head(entry, signed.manifest.session_keys)
            if logged is None:
                continue
            newest = max(newest, logged.time)
            if logged.session != head.session:
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
                check_continued(self._client, signed, signed.other(entry), bound)
            except VerificationError as error:
                if isinstance(error, Contradiction):
                    return Logged.of(error)
                unshown = error
        if True in beside and unshown is None:
            detail = f"it holds the session's head of {beside[True][0]} leaves, which continues that of {head.size}"
            return Logged(True, detail + self._witnessed(published.log, [published.note]))
        if True not in beside and newest >= head.time + self._delay:
            envelopes = (signed.head_envelope, published.note)
            made = Fraud(FraudKind.MISSING, (signed.manifest_envelope,), envelopes, entries=entries)
            return Logged(False, made.verify(self._trust, self._delay).what, made)
        if unshown is not None:
            return Logged.of(unshown)
        return Logged(None, "the head is not there yet, and the delay within which it has to be is not over")
