"""Whether the provider's log holds the heads that it signed. One that it kept out past its delay is fraud, and a file.

A provider that wants a conversation forgotten signs its head for the client and never logs it. That proves itself once
the log holds heads that were signed later by the merge delay or more: the log went on without it. Only the provider's
own times are compared, so the auditor's clock does not matter, and as long as the log's newest head is younger than
the delay allows, nothing is said against anybody.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from verifiable import limits
from verifiable.checking import fraud
from verifiable.checking.checks import SignedHead
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.errors import VerifiableError, VerificationError
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.tlog.proof import TlogProof
from verifiable.tlog.tiles import MAX_BUNDLE, bundles_for, decode_bundle
from verifiable.wire.keys import PublicKey
from verifier.campaign.client import Client, read_answer

SECONDS = 600.0
"""Longest that reading a log's entries may take."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Whether the log holds a head or a later one of its session (None: that could not be found out), a sentence about
    it, and what proves fraud, where there is any.
    """

    logged: bool | None
    detail: str
    proof: Fraud | None = None

    @property
    def fits(self) -> bool:
        """Whether the proof fits into a file. What does not, anybody finds again who reads the log."""
        if self.proof is None:
            return False
        entries = self.proof.entries
        return len(entries) <= limits.FRAUD_ENTRIES and sum(map(len, entries)) <= limits.FRAUD_BYTES // 2


class LogReader:
    """A provider's log as it stood when it was first asked for; read at most once, however many heads are looked up.

    `delay` is the milliseconds within which a head must be in the log.
    """

    def __init__(self, client: Client, trust: Sequence[PublicKey], delay: int) -> None:
        self._client = client
        self._trust = tuple(trust)
        self._delay = delay
        self._known: tuple[bytes, tuple[bytes, ...]] | VerifiableError | None = None

    def look_up(self, signed: SignedHead) -> Logged | None:
        """Where a signed head stands; None where its manifest names no log."""
        log = signed.manifest.log
        if log is None:
            return None
        try:
            index = self._proven(log, signed)
            if index is not None:
                return Logged(True, f"the head of {signed.head.size} leaves is entry {index}")
            return self._without_proof(log, signed)
        except VerifiableError as error:
            return Logged(None, f"what it holds can't be found out: {error.what}")

    def _proven(self, log: PublicKey, signed: SignedHead) -> int | None:
        """The entry's index, by the provider's own proof; None where it gives none that holds."""
        try:
            proof = TlogProof.parse(self._client.log_proof(signed.head.session, signed.head.size))
            proof.verify(signed.head_envelope, log)
        except VerifiableError:
            return None
        return proof.index

    def _without_proof(self, log: PublicKey, signed: SignedHead) -> Logged:
        head, manifest, envelope = signed.head, signed.manifest_envelope, signed.head_envelope
        note, entries = self._read(log)
        newest = 0
        for entry in entries:
            logged = fraud.logged_head(entry, signed.manifest.session_keys)
            if logged is None:
                continue
            newest = max(newest, logged.time)
            if logged.session != head.session or logged.size < head.size:
                continue
            if logged.size == head.size and logged.root != head.root:
                # The log has another history of the same size: that needs no delay to be fraud.
                made = Fraud(FraudKind.TWO_HEADS, (manifest,), (envelope, entry))
                return Logged(False, made.verify(self._trust).what, made)
            return Logged(True, f"it holds the session's head of {logged.size} leaves")
        if newest < head.time + self._delay:
            return Logged(None, "the head is not there yet, and the delay within which it has to be is not over")
        made = Fraud(FraudKind.MISSING, (manifest,), (envelope, note), entries=entries)
        return Logged(False, made.verify(self._trust, self._delay).what, made)

    def _read(self, log: PublicKey) -> tuple[bytes, tuple[bytes, ...]]:
        """The newest checkpoint, and every entry that it covers. Raises a VerifiableError, the same one each time."""
        if self._known is None:
            try:
                note = self._client.checkpoint()
                self._known = note, read_entries(self._client, open_checkpoint(note, log).checkpoint)
            except VerifiableError as error:
                self._known = error
        if isinstance(self._known, VerifiableError):
            raise self._known
        open_checkpoint(self._known[0], log)  # of this manifest's log, not of another's
        return self._known


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
