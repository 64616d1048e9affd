"""Writing and checking fraud files at the auditor's edge; what one is and proves: `verifiable.checking.fraud`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verifiable import limits
from verifiable.checking import fraud
from verifiable.checking.checks import OpenedEvidence, SignedHead, signed_by
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.checking.verdict import Check, Status, Step, Verdict
from verifiable.errors import VerifiableError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import Manifest, open_manifest
from verifiable.manifest.statements import Role
from verifiable.session.opening import Opening
from verifiable.tlog.merkle import roots_from_prefix
from verifiable.wire.keys import PublicKey
from verifier.offline.fault import Fault

SELF_PROVING = frozenset({"token-not-sampled", "temperature-differs", "text-not-sampled"})
"""Reason codes whose first departing token is proof by itself."""


@dataclass(frozen=True, slots=True)
class NothingProven:
    """Why a file proves nothing: the reason code of the check that failed."""

    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"reason": self.reason}


@dataclass(frozen=True, slots=True)
class FraudDetails:
    """What a file shows, and against whom: the holder of a trusted key, and what that calls itself."""

    provider: str
    key: PublicKey
    kind: FraudKind

    def to_json(self) -> dict[str, Any]:
        return {"provider": self.provider, "key": self.key.vkey(), "kind": self.kind.name.lower()}


def of_token(opened: OpenedEvidence, trust: Sequence[PublicKey], turn: int, token: int) -> Fraud | None:
    """The file for token `token` of turn `turn`, from evidence that shows its record; None where it does not.

    Raises a VerifiableError where the file does not hold: better none than one that proves nothing.
    """
    shown = opened.turn(turn)
    if shown is None or shown.first + token not in shown.shown:
        return None
    signed = opened.session.signed
    leaves = {shown.leaf.seq, shown.first + token}
    opening = fraud.narrowed(opened.evidence.opening, signed.head.size, leaves)
    made = Fraud(FraudKind.TOKEN, (signed.manifest_envelope,), (signed.head_envelope,), opening)
    made.verify(trust)
    return made


def of_sizes(one: SignedHead, other: SignedHead, path: Sequence[bytes]) -> Fraud | None:
    """The file for two heads of two sizes, from hashes of the larger one's tree (`merkle.prefix_path`).

    None where they prove nothing.
    """
    small, large = sorted((one, other), key=lambda each: each.head.size)
    if one.provider.kid != other.provider.kid or not 0 < small.head.size < large.head.size:
        return None
    try:
        before, after = roots_from_prefix(small.head.size, large.head.size, path)
    except VerificationError:
        return None
    if one.head.session != other.head.session or after != large.head.root or before == small.head.root:
        return None
    heads = (small.head_envelope, large.head_envelope)
    return Fraud(FraudKind.TWO_SIZES, _manifests(small, large), heads, Opening({}, tuple(path)))


def of_heads(one: SignedHead, other: SignedHead) -> Fraud | None:
    """The file for two heads; None where they do not contradict each other."""
    if (one.head.session, one.head.size) != (other.head.session, other.head.size) or one.head.root == other.head.root:
        return None
    return Fraud(FraudKind.TWO_HEADS, _manifests(one, other), (one.head_envelope, other.head_envelope))


def _manifests(one: SignedHead, other: SignedHead) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys((one.manifest_envelope, other.manifest_envelope)))


def _duration(milliseconds: int) -> str:
    hours = milliseconds / 3_600_000
    return f"{hours:g} h" if hours >= 1 else f"{milliseconds / 1000:g} s"


def _agreed(delay: int) -> str:
    if delay >= limits.MERGE_DELAY:
        return "is the protocol's, or longer"
    usual = _duration(limits.MERGE_DELAY)
    return f"you named: it proves nothing unless the provider promised it, for without a promise it has {usual}"


def verify(file: Fraud | bytes, trust: Sequence[PublicKey], delay: int = limits.MERGE_DELAY) -> Verdict:
    """What `verifiable verify --fraud` says: failed where the provider's fraud is proven, else inconclusive.

    A file that proves nothing accuses nobody, whatever is wrong with it: its signatures may be forged by the accuser.
    Revocations are named, where `trust` is a chain that has some: else a provider could revoke its way out.
    """
    chain = Chain.of(trust).whole()
    try:
        parsed = Fraud.parse(file) if isinstance(file, bytes) else file
        proven = parsed.verify(chain, delay)
        manifest, key = open_manifest(parsed.manifests[0], chain)
    except VerifiableError as error:
        fault = Fault.of(error)
        return Verdict(
            Status.INCONCLUSIVE,
            f"the file proves no fraud: {fault.what}",
            code="nothing-checked",
            expected=fault.expected,
            found=fault.found,
            hint=fault.hint,
            checks=(Check(Step.FRAUD, None, fault.what),),
            details=NothingProven(fault.code),
        )
    revoked = "".join(f" Note: {each}." for each in _revoked(key, manifest, chain))
    rests = (
        ""
        if parsed.kind is not FraudKind.MISSING
        else (f" It rests on a merge delay of {_duration(delay)}, which {_agreed(delay)}.")
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
        hint=f"Proven against the holder of {signed_by(key, manifest, chain)}, by what it signed: anyone who trusts "
        f"that key can check this file.{rests}{revoked}",
        checks=(
            Check(Step.FRAUD, True, f"{parsed.kind.name.lower().replace('_', ' ')}: {proven.what}"),
            *(Check(Step.KEYS, None, f"{each}; that changes nothing here") for each in _revoked(key, manifest, chain)),
        ),
        details=FraudDetails(manifest.provider, key, parsed.kind),
    )


def _revoked(key: PublicKey, manifest: Manifest, chain: Chain) -> list[str]:
    """Which of the keys that a file rests on were revoked, in words."""
    found = [chain.revoked(key), *(chain.revoked(each, Role.SESSION, key) for each in manifest.session_keys)]
    found += [chain.revoked(each, Role.LOG, key) for each in chain.log_family(manifest.log)] if manifest.log else []
    return [f"the {said.role.words} {said.key.label} was revoked: {said.reason}" for said in found if said is not None]
