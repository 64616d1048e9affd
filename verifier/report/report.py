"""The report for people: one HTML file that needs no network, no script and no other file.

Everything that a provider could have written goes through `safe`; the page forbids itself to load anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from string import Template

from verifiable.checking.verdict import Check, Status, Step, Verdict
from verifier.auditing.scope import TurnDetails, audited
from verifier.campaign.outcome import Outcome
from verifier.report import tolerant as report_tolerant
from verifier.report.meaning import meaning
from verifier.report.show import MOST_MANIFESTS, declared, moment, place, plural, short
from verifier.report.strip import cell, describe, legend, safe, strip

MOST_STRIPS = 60
MOST_ALSO = 20
_WORDS = {
    Status.EXACT: ("pass", "verified"),
    Status.STATISTICAL: ("pass", "within rounding"),
    Status.FAILED: ("fail", "failed"),
}
_ANSWERED = "The provider answered with the model it promised"
_CHECKED = {True: ("pass", "passed"), False: ("fail", "failed"), None: ("undecided", "not possible")}
_MOODS = {Status.EXACT: "good", Status.STATISTICAL: "good", Status.FAILED: "bad"}


def render(outcome: Outcome) -> str:
    """The report as HTML."""
    template = Template((Path(__file__).parent / "report.html").read_text(encoding="utf-8"))
    headline, lead = _banner(outcome)
    return template.substitute(
        title=safe(f"Audit: {headline}"),
        mood=_MOODS.get(outcome.status, "open"),
        headline=safe(headline),
        lead=lead,
        about=_about(outcome),
        failures=_failures(outcome) + report_tolerant.section(outcome),
        checked=_checked(outcome),
        unchecked=_caveats(outcome) or "<p>Nothing is known to be left out.</p>",
        sessions=_sessions(outcome),
        strips=_strips(outcome),
        checks=_checks(outcome),
        repeat=_repeat(outcome),
    )


def _banner(outcome: Outcome) -> tuple[str, str]:
    """The headline, and a paragraph in a buyer's words."""
    total, tokens = len(outcome.verdicts), f"{outcome.tokens_checked:,}"
    if outcome.status is Status.EXACT:
        count = outcome.count(Status.EXACT)
        said = "The answers are those of the model that was promised" if outcome.others else _ANSWERED
        text = (
            f"{said}, word for word. {tokens} tokens in {plural(count, 'session')} were computed again here and agree "
            "to the last bit with what had been signed."
        )
        if count < total:
            text += f" In {plural(total - count, 'other session')} nothing was checked."
        return "Verified, exactly", "".join(
            f"<p>{safe(each)}</p>" for each in (text, *outcome.of_others(), *outcome.chances())
        )
    worst = outcome.worst
    if outcome.status is Status.STATISTICAL and worst is not None:
        text = (
            "The provider's machine rounds otherwise than this one, so bits could not be compared. Nothing more than "
            f"rounding was seen between its numbers and those of the model it promised: {worst.summary}. This is "
            "weaker than an exact audit; what it can't tell stands below."
        )
        return "Verified, within rounding", f"<p>{safe(text)}</p>"
    if worst is None:
        return "Inconclusive", "<p>There was no session to audit, so nothing was shown.</p>"
    if outcome.status is Status.FAILED:
        failed = outcome.count(Status.FAILED)
        head = f"{failed} of {plural(total, 'session')} failed." if total > 1 else ""
        return "Failed", f"<p>{safe(meaning(worst.code).means)} {safe(head)}</p>"
    text = f"{meaning(worst.code).means} This is no pass, and no proof against the provider either."
    return "Inconclusive", f"<p>{safe(text)}</p>"


def _about(outcome: Outcome) -> str:
    parts = [f"Audited: <code>{safe(outcome.source)}</code>"]
    named = {(signed.by, signed.manifest.model.files[0].name): None for signed, _ in outcome.manifests}
    parts += [f"provider {safe(by)}, model <code>{safe(model)}</code>" for by, model in list(named)[:MOST_MANIFESTS]]
    if len(named) > MOST_MANIFESTS:
        parts.append(f"and {len(named) - MOST_MANIFESTS} others")
    if outcome.started:
        parts.append(f"{moment(outcome.started)}, in {outcome.seconds:.0f} s")
    return " · ".join(parts)


def _failures(outcome: Outcome) -> str:
    """What went wrong, session by session: the story that a buyer reads after the banner."""
    groups = outcome.findings()
    if not groups:
        return ""
    parts = ['<section aria-labelledby="failures"><h2 id="failures">What was found</h2>']
    for group in groups:
        verdict = group[0]
        words = meaning(verdict.code)
        rows = [
            ("Where", place(verdict) or "the file as a whole"),
            ("Expected", verdict.expected),
            ("Found", verdict.found),
            ("What it means", words.means),
            ("What it does not prove", words.not_proven),
            ("Note", verdict.hint),
        ]
        listed = "".join(f"<dt>{safe(name)}</dt><dd>{safe(text)}</dd>" for name, text in rows if text)
        if verdict.guess:
            listed += f'<dt>A guess</dt><dd class="guess">{safe(verdict.guess)}</dd>'
        if len(group) > 1:
            others = "; ".join(place(other) for other in group[1 : 1 + MOST_ALSO])
            more = f"; and {len(group) - 1 - MOST_ALSO} more" if len(group) > 1 + MOST_ALSO else ""
            listed += f"<dt>The same in</dt><dd>{safe(others + more)}</dd>"
        title = f"{_word(verdict)} <code>{safe(str(verdict.code))}</code>: {safe(verdict.summary)}"
        parts.append(f'<div class="card" style="margin-bottom:1rem"><h3>{title}</h3><dl>{listed}</dl></div>')
    return "".join(parts) + "</section>"


def _checked(outcome: Outcome) -> str:
    within, total = outcome.tokens_within, outcome.tokens_total
    exactly, checked = outcome.tokens_compared - within, outcome.tokens_checked
    items = []
    if outcome.count(Status.STATISTICAL):
        count = f"{outcome.count(Status.STATISTICAL)} of {plural(outcome.decided, 'session')}"
        items.append(f"{count} verified within rounding")
    if outcome.count(Status.EXACT) or not items:
        items.append(f"{outcome.count(Status.EXACT)} of {plural(outcome.decided, 'session')} verified exactly")
    if exactly:
        agree = sum(verdict.tokens_checked for verdict in outcome.verdicts if verdict.status is not Status.STATISTICAL)
        items.append(
            f"{exactly:,} of {total:,} tokens computed again with your own copy of the model, and every committed "
            f"logit compared bit for bit: {agree:,} tokens agree in everything"
        )
    if within:
        items.append(
            f"{within:,} of {total:,} tokens computed again with your own copy of the model, and their committed "
            "logits compared within rounding, not bit for bit"
        )
    if checked:
        items += [
            "each of those tokens drawn again from its record, the committed parameters and the turn's key",
            "their prompts, the delivered text, the reason why each answer ended, and the counts",
        ]
    if not exactly and not within:
        items.append("no token was recomputed")
    items += outcome.tally()
    return _items(map(safe, items))


def _sessions(outcome: Outcome) -> str:
    rows = []
    for verdict in outcome.verdicts:
        session = audited(verdict).session
        finding = "all tokens agree" if verdict.status is Status.EXACT else "no more than rounding apart"
        if verdict.code:
            finding = f"<code>{safe(verdict.code)}</code> {safe(place(verdict, False))}"
        opened = "" if session is None else moment(session.opened.time)
        turns = "" if session is None else str(len(session.spans))
        name, whole = safe(short(verdict.session)), safe(verdict.session or "")
        rows.append(
            f'<tr><th scope="row"><code class="id" title="{whole}">{name}</code></th>'
            f"<td>{_word(verdict)}</td><td>{finding}</td>"
            f'<td class="n">{turns}</td>'
            f'<td class="n">{verdict.tokens_checked:,} of {verdict.tokens_total:,}</td><td class="t">{opened}</td></tr>'
        )
    heads = (("Session", ""), ("Verdict", ""), ("Finding", ""), ("Turns", "n"), ("Tokens", "n"), ("Opened", ""))
    head = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind in heads)
    caption = "One row a session" + (", as drawn." if outcome.challenge is not None else ".")
    return (
        f'<div class="scroll"><table><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _strips(outcome: Outcome) -> str:
    """A strip for each turn, those with a finding first."""
    turns = [(verdict, turn) for verdict in outcome.verdicts for turn in audited(verdict).turns if turn.strip]
    if not turns:
        return "<p>No token was reached.</p>"
    turns.sort(key=lambda item: not _concerns(*item))
    kinds: set[str] = set()
    parts = []
    for verdict, turn in turns[:MOST_STRIPS]:
        first = verdict.token if _concerns(verdict, turn) else None
        kinds |= {cell(mark, apart) for mark, apart in itertools.zip_longest(turn.strip, turn.differences)}
        title = f"Session {short(verdict.session)}, turn {turn.number}"
        note = f"prompt of {turn.prompt_tokens} tokens, {describe(turn, first)}"
        parts.append(f"<h3>{safe(title)}</h3><p class='about'>{safe(note)}</p>{strip(turn, first)}")
    if len(turns) > MOST_STRIPS:
        parts.append(f"<p>… and {len(turns) - MOST_STRIPS} more turns, all in the JSON.</p>")
    return legend(kinds) + "".join(parts)


def _concerns(verdict: Verdict, turn: TurnDetails) -> bool:
    return verdict.code is not None and verdict.turn == turn.number


def _checks(outcome: Outcome) -> str:
    """Each check once, with the number of sessions that it passed in and one sentence of detail."""
    names: dict[Step, list[Check]] = {}
    for verdict in outcome.verdicts:
        for check in verdict.checks:
            names.setdefault(check.name, []).append(check)
    rows = []
    for name, checks in names.items():
        worst = next((check for check in checks if not check.passed), checks[0])
        kind, word = _CHECKED[worst.passed]
        passed = sum(check.passed is True for check in checks)
        count = f" ({passed} of {len(checks)} sessions)" if len(checks) > 1 else ""
        if len({check.detail for check in checks}) > 1:
            count += ", for example"
        mark = f'<span class="word {kind}">{word}</span>'
        rows.append(f"<li>{mark} <strong>{safe(name)}</strong>{count}: {safe(worst.detail)}</li>")
    return f"<ul>{''.join(rows)}</ul>"


def _repeat(outcome: Outcome) -> str:
    rows = []
    if outcome.challenge is not None:
        drawn_from = f"{outcome.challenge.population:,} sessions; the lots are SHA-256 of seed and session, over weight"
        given = ", given to this audit" if outcome.challenge.plan.given else ""
        rows += [("Seed of the draw", outcome.challenge.seed.hex() + given), ("Drawn from", drawn_from)]
    if outcome.beacon is not None:
        rows.append(("Beacon", str(outcome.beacon)))
    rows.append(("Your model file", outcome.model_file))
    manifests = outcome.manifests
    for signed, count in manifests[:MOST_MANIFESTS]:
        manifest = signed.manifest
        many = f", of {plural(count, 'session')}" if len(manifests) > 1 else ""
        rows += [
            ("Manifest", f"{manifest.digest().hex()}{many}"),
            ("Signed by", signed.by),
            ("Model file's SHA-256", manifest.model.files[0].sha256.hex()),
            ("Numerics fingerprint", manifest.runtime.fingerprint.hex()),
            ("Build", manifest.runtime.build),
            ("Declared", declared(manifest)),
        ]
    if len(manifests) > MOST_MANIFESTS:
        rows.append(("More", f"{len(manifests) - MOST_MANIFESTS} other manifests; the JSON has them all"))
    rows += [("Trusted key", key) for key in outcome.trusted]
    rows += [("Key that follows it", key) for key in outcome.followed]
    rows += [("Evidence kept", path) for path in outcome.saved]
    listed = "".join(f"<dt>{safe(name)}</dt><dd><code>{safe(text)}</code></dd>" for name, text in rows if text)
    return f"<pre>{safe(outcome.command)}</pre><dl>{listed}</dl>"


def _word(verdict: Verdict) -> str:
    kind, word = _WORDS.get(verdict.status, ("undecided", "inconclusive"))
    return f'<span class="word {kind}">{word}</span>'


def _caveats(outcome: Outcome) -> str:
    """What the audit does not show; each sentence bears its id."""
    items = [f'<li data-caveat="{caveat.id}">{safe(str(caveat))}</li>' for caveat in outcome.caveats()]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _items(items: Iterable[str]) -> str:
    listed = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{listed}</ul>" if listed else ""
