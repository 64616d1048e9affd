"""Results on the terminal: plain lines that carry the same facts as the JSON, coloured only where someone looks."""

from __future__ import annotations

import datetime
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from verifiable.checking.offline import ReceiptDetails
from verifiable.checking.verdict import Status, Step, Verdict
from verifiable.cli import printable
from verifiable.manifest.manifest import Manifest
from verifiable.request.request import Request
from verifier.auditing.scope import audited
from verifier.campaign.outcome import Outcome
from verifier.report.meaning import meaning
from verifier.tolerant.tolerant import LN10

if TYPE_CHECKING:
    from verifier.report.signed import SignedReport

_GREEN, _RED, _YELLOW, _BOLD = "32", "31", "33", "1"
MOST_REQUESTS = 4
LONGEST_REQUEST = 400
"""Committed requests that are shown, and characters of each."""
MOST_MANIFESTS = 8
"""Manifests that are named, where sessions were made under several."""
MOST_ALSO = 10
"""Further sessions that are named for one reason code; the JSON and the report have them all."""


def verification(verdict: Verdict) -> list[str]:
    """Lines for `verifiable verify`."""
    if verdict.status is not Status.RECEIPT or not isinstance(verdict.details, ReceiptDetails):
        return failure(verdict)
    session = verdict.details.session
    turns, head = len(session.spans), session.head
    lines = [
        f"Signed by {session.signed.by} at {moment(head.time)}; session {short(verdict.session)}, "
        f"{turns} turn{'s' if turns != 1 else ''}, {head.size} leaves",
        f"Model, by the provider's word: {models(session.manifest)}",
        f"Declared: {declared(session.manifest)}",
        *[f"{check.name}: {check.detail}" for check in verdict.checks if check.name not in (Step.MANIFEST, Step.HEAD)],
        "This checks who said what and that nothing was changed since.",
        *not_shown(verdict.not_shown),
    ]
    return [printable(line) for line in lines]


def audit(outcome: Outcome) -> list[str]:
    """Lines for `verifiable audit`."""
    lines = [*_facts(outcome), ""]
    worst = outcome.worst
    if outcome.status is Status.EXACT:
        lines.append(
            colour("VERIFIED, exactly.", _GREEN) + f"  {_of_all(outcome, Status.EXACT)}, {outcome.tokens_checked:,} of "
            f"{outcome.tokens_total:,} tokens: every committed logit has the same bits here,"
        )
        lines.append("every token is the one its record and the turn's key give.")
    elif outcome.status is Status.STATISTICAL and worst is not None:
        lines.append(
            colour("VERIFIED, within rounding.", _GREEN) + f"  {_of_all(outcome, Status.STATISTICAL)}; {worst.summary}."
        )
    if outcome.status in (Status.EXACT, Status.STATISTICAL):
        lines += [*outcome.of_others(), *outcome.tally()[1:]]
    elif worst is None:
        lines.append(colour("INCONCLUSIVE", _YELLOW) + "  there is no session to audit. Nothing was checked.")
    else:
        for group in outcome.findings():
            lines += [*failure(group[0]), *[also(verdict) for verdict in group[1 : 1 + MOST_ALSO]]]
            if len(group) > 1 + MOST_ALSO:
                lines.append(f"  … and in {len(group) - 1 - MOST_ALSO} more sessions; --json and --html have them all")
            lines.append("")
        lines += outcome.tally()
    if outcome.decision is not None:
        path = ", ".join(f"{value:+.1f}" for value in outcome.decision.e_values[-20:])
        accuses = -math.log10(outcome.decision.alpha)
        lines.append(f"E-value, as powers of ten after each conversation: {path} (accuses from {accuses:+.0f})")
        alone = ", ".join(f"{name} {value / LN10:+.1f}" for name, value in outcome.decision.path.statistics.items())
        lines.append(f"Of each statistic alone: {alone}")
        if outcome.decision.origin is not None:
            lines.append(printable(f"Calibration: {outcome.decision.origin}"))
    if outcome.saved and outcome.status is Status.FAILED:
        lines.append("Evidence: anyone with the model file can repeat this with `verifiable audit FILE --model …`")
    lines += [printable(f"  {path}") for path in outcome.saved]
    lines += map(printable, not_shown(outcome.limits()))
    return lines + outcome.chances()


def signed_report(checked: SignedReport) -> list[str]:
    """Lines for `verifiable verify --report`: who says what, and how to find out whether it is so."""
    report = checked.report
    lines = [
        f"Signed by {checked.signer.label} at {moment(checked.time)}",
        f"Audited: {report.get('source', '')}",
        f"About: {', '.join(key.label for key in checked.about) or 'nobody whom the report names'}",
        f"Result: {report['status']}; {report['verified']} verified exactly, {report['verified_statistical']} within "
        f"rounding, {report['failed']} failed, {report['inconclusive']} inconclusive, {report['interrupted']} "
        f"interrupted, {report['nothing_to_check']} with nothing to check, of {plural(report['sessions'], 'session')}",
    ]
    codes = sorted(
        {str(verdict["code"]) for verdict in (*report["verdicts"], *report["beside"]) if verdict.get("code")}
    )
    lines += [f"Found: {', '.join(codes)}"] if codes else []
    lines += [f"Repeat it: {report.get('command', '')}"]
    lines += not_shown([note["what"] for note in report["not_shown"]])
    lines += ["This checks who says so and that nothing was changed since. Whether it is so: repeat the audit."]
    return [printable(line) for line in lines]


def failure(verdict: Verdict) -> list[str]:
    """A verdict that is no pass: what, where, expected and found, what it means and what it does not prove."""
    failed = verdict.status is Status.FAILED
    word = colour("FAILED", _RED) if failed else colour("INCONCLUSIVE", _YELLOW)
    told = meaning(verdict.code)
    lines = [f"{word}  " + printable(f"{verdict.code}  {place(verdict)}".strip()), f"  {verdict.summary}"]
    lines += _field("expected", verdict.expected) + _field("found", verdict.found)
    lines += _field("means", told.means) + _field("does not prove", told.not_proven)
    lines += _field("note", verdict.hint) + _field("a guess", verdict.guess)
    return [lines[0], *map(printable, lines[1:])]


def also(verdict: Verdict) -> str:
    """One line for a further session with the same reason code."""
    values = "" if verdict.found is None else f": expected {verdict.expected}, found {verdict.found}"
    return printable(f"  also {place(verdict)}{values}")


def place(verdict: Verdict, session: bool = True) -> str:
    """Where a verdict points: session (unless that is said already), turn, token, position; as far as it does."""
    parts = [f"session {short(verdict.session)}"] if session and verdict.session is not None else []
    if verdict.turn is not None:
        parts.append(f"turn {verdict.turn}")
    if verdict.token is not None:
        parts.append(f"token {verdict.token}" + ("" if verdict.position is None else f" (position {verdict.position})"))
    return ", ".join(parts)


def moment(milliseconds: int) -> str:
    """A time in ms since 1970 as people read it, in UTC."""
    try:
        when = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")


def short(identifier: str | None) -> str:
    """The head of a long hexadecimal string."""
    return "" if identifier is None else identifier if len(identifier) <= 12 else f"{identifier[:8]}…"


def colour(text: str, code: str) -> str:
    """`text` in a colour, where standard output is a terminal that wants it."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_BOLD};{code}m{text}\x1b[0m"


def say(lines: Iterable[str]) -> None:
    """Print lines on standard output."""
    print("\n".join(lines))


def not_shown(sentences: Sequence[str]) -> list[str]:
    """Lines for what a verdict does not rest on."""
    return ["Not shown by this:", *[f"  - {sentence}" for sentence in sentences]] if sentences else []


def models(manifest: Manifest) -> str:
    """The model files that a manifest names, with the head of each hash."""
    files = [(file.name, file.sha256) for file in manifest.model.files]
    files += [(file.name, file.sha256) for file in manifest.model.adapters]
    return ", ".join(f"{name} (sha256 {short(digest.hex())})" for name, digest in files)


def declared(manifest: Manifest) -> str:
    """What the manifest states beside the model, in the order in which it matters for an answer."""
    runtime, defaults = manifest.runtime, manifest.defaults
    parts = [f"KV cache {runtime.type_k}/{runtime.type_v}", f"context {runtime.n_ctx:,}", f"k {manifest.k}"]
    names = ["temperature", "top_k", "top_p", "min_p"]
    names += ["repeat_penalty", "repeat_last_n"] if defaults.repeat_penalty != 1.0 else []
    return ", ".join(parts) + "; by default " + ", ".join(f"{name} {getattr(defaults, name):g}" for name in names)


def _facts(outcome: Outcome) -> list[str]:
    rows: list[tuple[str, str]] = []
    manifests = outcome.manifests
    for signed, sessions in manifests[:MOST_MANIFESTS]:
        digest, valid = signed.manifest.digest().hex(), moment(signed.manifest.valid_to)[:10]
        count = f": {plural(sessions, 'session')}" if len(manifests) > 1 else ""
        rows.append(("Provider", f"{signed.by}, manifest {short(digest)} valid to {valid}{count}"))
        rows.append(("Declared", declared(signed.manifest)))
    if len(manifests) > MOST_MANIFESTS:
        rows.append(("", f"and {len(manifests) - MOST_MANIFESTS:,} other manifests; --json has them all"))
    checks = {check.name: check for verdict in outcome.verdicts for check in verdict.checks if check.passed}
    for label, step in (("Model", Step.MODEL), ("Numerics", Step.NUMERICS)):
        if step in checks:
            rows.append((label, checks[step].detail))
    challenge = outcome.challenge
    if challenge is not None:
        when = "which was given to this audit" if challenge.plan.given else "used after the list was fetched"
        drawn = (
            f"seed {challenge.seed.hex()}, {when}; of {challenge.population:,} sessions → "
            f"{plural(challenge.drawn, 'session')}, {_receipts(challenge.receipts)}{outcome.tokens_total:,} tokens, "
            f"room for {outcome.room:,} by signed sizes"
        )
        rows.append(("Challenge", drawn))
        rows += [] if outcome.beacon is None else [("Beacon", str(outcome.beacon))]
    else:
        rows += [("Request", request) for request in _requests(outcome)]
    return [printable(f"{label:<11} {text}") for label, text in rows]


def _requests(outcome: Outcome) -> list[str]:
    """The requests that were committed to, where nobody gave a copy to compare them with."""
    told = {caveat.id for verdict in outcome.verdicts for caveat in verdict.notes}
    if "request-not-given" not in told:
        return []
    turns = [turn for verdict in outcome.verdicts for turn in audited(verdict).turns]
    return [f"turn {turn.number} committed to {shortened(turn.request)}" for turn in turns[-MOST_REQUESTS:]]


def shortened(request: Request) -> str:
    """A request's canonical form, of a long one the beginning and the end."""
    text = request.canonical.decode()
    return text if len(text) <= LONGEST_REQUEST else f"{text[: LONGEST_REQUEST // 2]} … {text[-LONGEST_REQUEST // 2 :]}"


def _receipts(count: int) -> str:
    return f"{plural(count, 'receipt')} of clients, " if count else ""


def _of_all(outcome: Outcome, status: Status) -> str:
    return f"{outcome.count(status)} of {plural(outcome.decided, 'session')}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _field(label: str, text: str | None) -> list[str]:
    return [] if not text else [f"  {label:<15} {text}"]
