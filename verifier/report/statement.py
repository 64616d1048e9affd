"""A signed report as a verdict statement, and the one held against the other. Format: spec/registry.md."""

from __future__ import annotations

from typing import Any

from verifiable import limits
from verifiable.checking.registry import MILLION, Draw, VerdictStatement
from verifiable.errors import MalformedError, VerificationError
from verifier.campaign.outcome import COUNTED
from verifier.report.signed import SignedReport


def statement_of(checked: SignedReport, where: str | None = None) -> VerdictStatement:
    """What a report says, in a statement. Raises MalformedError: it says something that no statement can."""
    report = checked.report
    try:
        details = [verdict.get("details", {}) for verdict in report["verdicts"]]
        made = VerdictStatement(
            report=checked.digest,
            time=checked.time,
            status=checked.status,
            counts=tuple(report[name] for name in COUNTED),
            checked=report["tokens_checked"],
            total=report["tokens_total"],
            draw=None if "challenge" not in report else _draw(report["challenge"]),
            codes=_some(verdict["code"] for verdict in report["verdicts"] if "code" in verdict),
            models=_some(bytes.fromhex(each["model"]["sha256"]) for each in details if "model" in each),
            manifests=_some(bytes.fromhex(each["manifest"]) for each in details if "manifest" in each),
            where=where,
        )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise MalformedError("report", expected="what `verifiable audit --json` prints", found=str(error)) from None
    return VerdictStatement.parse(made.payload())


def check_statement(said: VerdictStatement, checked: SignedReport) -> None:
    """Hold a statement against the report whose digest it has. Raises VerificationError (`report-differs`)."""
    honest = statement_of(checked, said.where)
    if said != honest:
        differing = [name for name in VerdictStatement.__slots__ if getattr(said, name) != getattr(honest, name)]
        raise VerificationError(
            "an auditor's verdict is not what its own report says",
            code="report-differs",
            expected=f"{differing[0]} {getattr(honest, differing[0])}",
            found=f"{differing[0]} {getattr(said, differing[0])}",
            hint="The auditor signed both. Believe neither.",
        )


def _draw(said: dict[str, Any]) -> Draw:
    chance = said["chance_at_share"] or {"share": 0, "chance": 0}
    share, least = (round(MILLION * chance[name]) for name in ("share", "chance"))
    return Draw(said["population"], said["drawn"], said["receipts"], said["seed_given"], share, least)


def _some(values: Any) -> Any:
    """Each once, sorted, the first where there are too many."""
    return tuple(sorted(set(values))[: limits.VERDICT_CODES])
