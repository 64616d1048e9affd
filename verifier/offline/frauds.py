"""Writing and checking fraud files at the auditor's edge; what one is and proves: `verifiable.checking.fraud`."""

from __future__ import annotations

from collections.abc import Sequence

from verifiable.checking import fraud
from verifiable.checking.checks import check_evidence
from verifiable.checking.fraud import Fraud, Kind
from verifiable.checking.verdict import Check, Status, Verdict
from verifiable.errors import VerifiableError
from verifiable.manifest.manifest import verify_manifest
from verifiable.session.evidence import Evidence
from verifiable.session.head import verify_head
from verifiable.wire.keys import PublicKey
from verifier.offline.fault import Fault

SELF_PROVING = frozenset({"token-not-sampled", "temperature-differs", "text-not-sampled"})
"""Reason codes whose first departing token is proof by itself."""


def of_token(evidence: Evidence, trust: Sequence[PublicKey], turn: int, token: int) -> Fraud | None:
    """The file for token `token` of turn `turn`, from evidence that shows its record; None where it does not.

    Raises a VerifiableError where the evidence or the file does not hold: better none than one that proves nothing.
    """
    session, turns = check_evidence(evidence, trust)
    opened = next((item for item in turns if item.span.turn.turn == turn), None)
    if opened is None or opened.span.first + token not in opened.shown:
        return None
    leaf = opened.span.turn.seq
    made = fraud.token_fraud(
        evidence.manifest, evidence.head, evidence.opening, session.head.size, leaf, opened.span.first + token
    )
    made.verify(trust)
    return made


def of_heads(one: tuple[bytes, bytes], other: tuple[bytes, bytes], trust: Sequence[PublicKey]) -> Fraud | None:
    """The file for two (manifest, head) pairs; None where they do not contradict each other."""
    heads = [verify_head(head, verify_manifest(manifest, trust).session_keys) for manifest, head in (one, other)]
    same = (heads[0].session, heads[0].size) == (heads[1].session, heads[1].size)
    if not same or heads[0].root == heads[1].root:
        return None
    manifests = (one[0],) if one[0] == other[0] else (one[0], other[0])
    return Fraud(Kind.TWO_HEADS, manifests, (one[1], other[1]))


def verify(file: Fraud | bytes, trust: Sequence[PublicKey], delay: int = fraud.MERGE_DELAY) -> Verdict:
    """What `verifiable verify --fraud` says: failed where the provider's fraud is proven, else inconclusive.

    A file that proves nothing accuses nobody, whatever is wrong with it: its signatures may be forged by the accuser.
    """
    try:
        parsed = Fraud.parse(file) if isinstance(file, bytes) else file
        proven = parsed.verify(trust, delay)
    except VerifiableError as error:
        fault = Fault.of(error)
        return Verdict(
            Status.INCONCLUSIVE,
            f"the file proves no fraud: {fault.what}",
            code="nothing-checked",
            expected=fault.expected,
            found=fault.found,
            hint=fault.hint,
            checks=(Check("Fraud file", None, fault.what),),
            details={"reason": fault.code},
        )
    return Verdict(
        Status.FAILED,
        proven.what,
        code=proven.code,
        session=None if proven.session is None else proven.session.hex(),
        turn=proven.turn,
        position=proven.position,
        expected=proven.expected,
        found=proven.found,
        hint="Proven by what the provider itself signed: anyone who trusts its key can check this file.",
        checks=(Check("Fraud file", True, f"{parsed.kind.name.lower().replace('_', ' ')}: {proven.what}"),),
        details={"provider": proven.provider, "kind": parsed.kind.name.lower()},
    )
