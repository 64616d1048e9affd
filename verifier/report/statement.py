"""What a signed report says of one provider, as a verdict statement, and the one held against the other.

A report can be on sessions of several providers. Format: spec/registry.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from verifiable import limits
from verifiable.checking.registry import MILLION, Draw, SignedVerdict, VerdictStatement
from verifiable.checking.verdict import Status
from verifiable.errors import MalformedError, PolicyError, VerificationError, reading_signed
from verifiable.wire.keys import PublicKey
from verifier.campaign.outcome import COUNTED, counted_as, overall
from verifier.report.signed import SignedReport


def statement_of(checked: SignedReport, subject: PublicKey, where: str | None = None) -> VerdictStatement:
    """What a report says of a provider, which any of its keys names.

    Raises:
        PolicyError: it has no session of that provider.
        MalformedError: it says something that no statement can.
    """
    report = checked.report
    told, beside = (_about(report, subject, report[name]) for name in ("verdicts", "beside"))
    if not told and not beside:
        found = ", ".join(each.label for each in checked.about) or "nobody: no session was opened"
        raise PolicyError(f"the report has no session of {subject.label}", expected="one that was audited", found=found)
    sessions, others = (
        [(Status(verdict["status"]), verdict.get("code")) for verdict in each] for each in (told, beside)
    )
    counts = Counter(counted_as(*session) for session in sessions)
    draw = report.get("challenge")
    try:
        details = [verdict.get("details", {}) for verdict in told]
        made = VerdictStatement(
            report=checked.digest,
            time=checked.time,
            status=overall([*sessions, *others]),
            counts=tuple(counts[name] for name in COUNTED),
            checked=sum(verdict["tokens_checked"] for verdict in told),
            total=sum(verdict["tokens_total"] for verdict in told),
            draw=None if draw is None or not _about(report, subject, [draw]) else _draw(draw),
            codes=_some(verdict["code"] for verdict in told if "code" in verdict),
            models=_some(bytes.fromhex(each["model"]["sha256"]) for each in details if "model" in each),
            manifests=_some(bytes.fromhex(each["manifest"]) for each in details if "manifest" in each),
            where=where,
        )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise MalformedError("report", expected="what `verifiable audit --json` prints", found=str(error)) from None
    return VerdictStatement.parse(made.payload())


def check_statement(verdict: SignedVerdict, checked: SignedReport) -> None:
    """Hold a statement against the report whose digest it has: who says it, about whom, and what.

    Raises VerificationError (`report-differs`).
    """
    said, by = verdict.statement, verdict.issuer
    if by.raw != checked.signer.raw:
        raise _differs(by, f"signed by {checked.signer.label}", f"signed by {by.label}")
    try:
        with reading_signed():
            honest = statement_of(checked, verdict.subject, said.where)
    except PolicyError as error:
        raise _differs(by, f"about {error.found}", f"about {verdict.subject.label}") from None
    if said != honest:
        name = next(name for name in VerdictStatement.__slots__ if getattr(said, name) != getattr(honest, name))
        raise _differs(by, f"{name} {getattr(honest, name)}", f"{name} {getattr(said, name)}")


def _about(report: Any, subject: PublicKey, told: Sequence[Any]) -> list[Any]:
    """Those of a report's parts that are about a provider."""
    own = {keys[0] for keys in report["providers"] if subject.raw in {PublicKey.parse(key).raw for key in keys}}
    return [each for each in told if each.get("about") in own]


def _differs(issuer: PublicKey, expected: str, found: str) -> VerificationError:
    return VerificationError(
        f"the verdict by {issuer.label} is not what the report says whose digest it has",
        code="report-differs",
        expected=expected,
        found=found,
        hint="Go by the report: it is signed, and its sums are those of its sessions.",
    )


def _draw(said: dict[str, Any]) -> Draw:
    chance = said["chance_at_share"] or {"share": 0, "chance": 0}
    share, least = (round(MILLION * chance[name]) for name in ("share", "chance"))
    return Draw(said["population"], said["drawn"], said["receipts"], said["seed_given"], share, least)


def _some(values: Any) -> Any:
    """Each once, sorted, the first where there are too many."""
    return tuple(sorted(set(values))[: limits.VERDICT_CODES])
