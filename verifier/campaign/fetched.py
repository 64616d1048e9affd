"""One session of a provider: fetch what it shows, audit that, look for its head in the log, keep what proves itself."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

from verifiable.checking.checks import check_evidence
from verifiable.checking.fraud import MERGE_DELAY, Fraud
from verifiable.checking.verdict import Check, Status, Verdict
from verifiable.errors import VerifiableError, VerificationError
from verifiable.session.evidence import Evidence
from verifiable.session.head import verify_head
from verifiable.session.receipt import Receipt
from verifiable.wire.keys import PublicKey
from verifier.auditing.scope import NO_LOG_PROOF
from verifier.auditing.session import audit
from verifier.campaign.client import Client, Listed
from verifier.campaign.logged import CHECK, LogReader, Standing
from verifier.campaign.remember import Contradiction, Memory, check_growth
from verifier.model.reexecute import Reexecutor
from verifier.offline import frauds
from verifier.offline.fault import Fault
from verifier.tolerant.calibration import Calibration


@dataclass(slots=True)
class Auditor:
    """What one run of the auditor uses throughout.

    `folder` takes the evidence of sessions that failed, and with `keep_all` that of every session; `saved` names the
    files written so far. `delay` is the time (ms) within which a head has to be in the provider's log.
    `seed` is the challenge's, once it is drawn.
    """

    worker: Reexecutor
    trust: Sequence[PublicKey]
    folder: Path
    keep_all: bool = False
    saved: list[str] = field(default_factory=list)
    calibration: Calibration | None = None
    memory: Memory | None = None
    delay: int = MERGE_DELAY
    seed: bytes | None = None

    def keep(self, name: str, data: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        path.write_bytes(data)
        self.saved.append(str(path))


@dataclass(slots=True)
class Fetched:
    """A session as the provider showed it.

    Args:
        session: its id.
        listed: its place in the provider's list, which its evidence must keep to.
        receipt: a client's receipt of it.
        size: leaves of the head that evidence is asked for; the newest where None.
        text: the answer as the client has it.
        turns: those to open, all where None.
        evidence: what came.
        error: why nothing came, or why it is not to be believed.
        full: turn -> its evidence of kind full, where that was asked for.
    """

    session: bytes
    listed: Listed | None = None
    receipt: Receipt | None = None
    size: int | None = None
    text: str | None = None
    turns: Sequence[int] | None = None
    evidence: bytes | None = None
    error: VerifiableError | None = None
    full: dict[int, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How its files begin."""
        return self.session.hex()[:12]

    def heads(self) -> list[tuple[bytes, bytes]]:
        """Every (manifest, signed head) that was shown of it, a client's own first; nothing in them is checked."""
        found = [] if self.receipt is None else [(self.receipt.manifest, self.receipt.head)]
        for data in (self.evidence, *self.full.values()):
            with contextlib.suppress(VerifiableError):
                if data is not None:
                    parsed = Evidence.parse(data)
                    found.append((parsed.manifest, parsed.head))
        if self.listed is not None and found:
            found.append((found[-1][0], self.listed.head))
        return found


def fetch(auditor: Auditor, client: Client, wanted: Fetched) -> Fetched:
    """Get a session's evidence, and hold it against the list and against what was seen before."""
    try:
        wanted.evidence = client.evidence(wanted.session, "tokens", wanted.turns, wanted.size)
        if wanted.listed is not None:
            check_promise(Evidence.parse(wanted.evidence), auditor.trust, wanted.listed)
        if auditor.memory is not None:
            newest = wanted.listed is not None
            check_growth(auditor.memory, client, Evidence.parse(wanted.evidence), auditor.trust, newest=newest)
    except VerifiableError as error:
        wanted.error = error
    return wanted


def audit_fetched(auditor: Auditor, client: Client, worker: Reexecutor, found: Fetched) -> Verdict:
    """Audit what was fetched; asks the provider for all records where they are needed."""
    if found.error is not None or found.evidence is None:
        error = found.error or VerificationError("no evidence was fetched", code="no-evidence")
        return Fault.of(error).verdict(session=found.session.hex())

    def fetch_full(turn: int) -> bytes:
        found.full[turn] = client.evidence(found.session, "full", [turn], found.size)
        return found.full[turn]

    verdict = audit(
        found.evidence,
        worker,
        auditor.trust,
        receipt=found.receipt,
        text=found.text,
        fetch_full=fetch_full,
        calibration=auditor.calibration,
        seed=auditor.seed,
    )
    if verdict.code in frauds.SELF_PROVING and verdict.turn is not None and verdict.turn not in found.full:
        with contextlib.suppress(VerifiableError):
            fetch_full(verdict.turn)
    details = {**verdict.details, "evidence_sha256": hashlib.sha256(found.evidence).hexdigest()}
    return replace(verdict, session=verdict.session or found.session.hex(), details=details)


def conclude(auditor: Auditor, client: Client, log: LogReader, found: Fetched, verdict: Verdict) -> Verdict:
    """The verdict with what the log says about the session's head; files are written where there is something to show.

    What proves itself is written beside the evidence, with all records where they were needed: those show the
    difference by themselves.
    """
    if isinstance(found.error, Contradiction) and found.error.fraud is not None:
        auditor.keep(f"{found.name}.fraud", found.error.fraud.encode())
    shown = found.heads()
    if not shown and found.listed is not None:
        with contextlib.suppress(VerifiableError):
            shown = [(client.manifest(), found.listed.head)]
    contradiction = None if isinstance(found.error, Contradiction) else _two_heads(shown, auditor.trust)
    if contradiction is not None:
        auditor.keep(f"{found.name}-heads.fraud", contradiction.encode())
        verdict = _failed(verdict, contradiction, auditor)
    standing = _standing(log, shown)
    if standing is not None:
        verdict = _with_standing(verdict, standing, auditor)
        if standing.proof is not None:
            auditor.keep(f"{found.name}-log.fraud", standing.proof.encode())
    if found.evidence is not None and (verdict.status is Status.FAILED or auditor.keep_all):
        _keep_evidence(auditor, found, verdict)
    return verdict


def audit_session(auditor: Auditor, client: Client, wanted: Fetched) -> Verdict:
    """Fetch one session and audit it."""
    found = fetch(auditor, client, wanted)
    verdict = audit_fetched(auditor, client, auditor.worker, found)
    return conclude(auditor, client, LogReader(client, auditor.trust, auditor.delay), found, verdict)


def check_promise(evidence: Evidence, trust: Sequence[PublicKey], listed: Listed) -> None:
    """Raise VerificationError unless the evidence stands under the very head that the provider's list showed."""
    opened, _ = check_evidence(evidence, trust)
    promised = verify_head(listed.head, opened.manifest.session_keys)
    given = (opened.head.session, opened.head.size)
    if given != (listed.session, listed.size) or (promised.session, promised.size) != given:
        raise VerificationError(
            "the provider's list, its head and its evidence do not belong together",
            code="list-differs",
            expected=f"session {listed.session.hex()}, {listed.size} leaves",
            found=f"head of {promised.session.hex()}, {promised.size}; evidence of {given[0].hex()}, {given[1]}",
        )
    if opened.head.root != promised.root:
        raise VerificationError(
            "the provider signed two histories of one session: in its list and in its evidence",
            code="two-histories",
            expected=promised.root.hex(),
            found=opened.head.root.hex(),
        )


def _keep_evidence(auditor: Auditor, found: Fetched, verdict: Verdict) -> None:
    auditor.keep(f"{found.name}.evidence", found.evidence or b"")
    if verdict.code in frauds.SELF_PROVING and verdict.turn in found.full and verdict.token is not None:
        with contextlib.suppress(VerifiableError):
            full = Evidence.parse(found.full[verdict.turn])
            made = frauds.of_token(full, auditor.trust, verdict.turn, verdict.token)
            if made is not None:
                auditor.keep(f"{found.name}.fraud", made.encode())
    for turn, records in found.full.items():
        auditor.keep(f"{found.name}-turn{turn}-full.evidence", records)


def _two_heads(shown: Sequence[tuple[bytes, bytes]], trust: Sequence[PublicKey]) -> Fraud | None:
    for one, other in combinations(shown, 2):
        with contextlib.suppress(VerifiableError):
            made = frauds.of_heads(one, other, trust)
            if made is not None:
                return made
    return None


def _standing(log: LogReader, shown: Sequence[tuple[bytes, bytes]]) -> Standing | None:
    for manifest, head in shown:
        with contextlib.suppress(VerifiableError):  # what is not the provider's says nothing about its log
            return log.look_up(manifest, head)
    return None


def _with_standing(verdict: Verdict, standing: Standing, auditor: Auditor) -> Verdict:
    passed = standing.logged if standing.proof is None else False
    verdict = replace(verdict, checks=(*verdict.checks, Check(CHECK, passed, standing.detail)))
    if standing.proof is not None:
        return _failed(verdict, standing.proof, auditor)
    notes = tuple(note for note in verdict.not_shown if note != NO_LOG_PROOF)
    if not standing.logged:
        notes = (*notes, f"That the session stands in the provider's public log: {standing.detail}")
    return replace(verdict, not_shown=notes)


def _failed(verdict: Verdict, proof: Fraud, auditor: Auditor) -> Verdict:
    """The verdict with what a file proves, unless the session has failed already."""
    if verdict.status is Status.FAILED:
        return verdict
    proven = frauds.verify(proof, auditor.trust, auditor.delay)
    return replace(
        verdict,
        status=proven.status,
        code=proven.code,
        summary=proven.summary,
        expected=proven.expected,
        found=proven.found,
        hint=proven.hint,
    )
