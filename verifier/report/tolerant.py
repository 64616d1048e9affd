"""The report's part on a comparison within rounding: the e-value's path, and the distribution against calibration.

Drawings are plain SVG with their numbers in words beside them, so that they can be read aloud and printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10

from verifier.campaign.outcome import Outcome
from verifier.tolerant.statistics import Score
from verifier.tolerant.tolerant import LN10, Decision

WIDTH, HEIGHT = 640, 160
RATIO = "Log ratio to the auditor's own rounding"
LOST = "Margin by which the drawn tokens lose here, beyond what is likely, in standard deviations"
_LEFT, _BOTTOM, _TOP = 34, 22, 12


def section(outcome: Outcome) -> str:
    """HTML, or nothing where every session was compared bit for bit."""
    decision, calibration = outcome.decision, outcome.calibration
    if decision is None or calibration is None or not decision.used:
        return ""
    limit = -log10(decision.alpha)
    claimed = calibration.claimed()
    rests = (
        f"honest classes {', '.join(claimed['classes'])}; {claimed['without_model']}; {claimed['beyond']}; "
        f"a margin of {claimed['margin']:g} in the log ratio"
    )
    alone = {name: value / LN10 for name, value in decision.path.statistics.items()}
    statistics = ", ".join(f"{name} 10^{value:.2f}" for name, value in alone.items())
    rows = (
        ("Compared", f"{len(decision.used)} conversations over {decision.length} tokens each"),
        ("False accusation", f"probability at most {decision.alpha:g}, however often the audit looks"),
        ("That rests on", rests),
        ("E-value at the end", f"10^{decision.e_values[-1]:.2f}; ranks alone 10^{decision.path.rank / LN10:.2f}"),
        ("Of each statistic alone", statistics),
        ("Calibration", str(calibration.origin)),
        ("Would have been caught", ", ".join(decision.caught) or "none"),
        ("Can't be told", ", ".join(decision.missed) or "none"),
    )
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows)
    return (
        '<section aria-labelledby="tolerant"><h2 id="tolerant">Comparison within rounding</h2>'
        f"<dl>{listed}</dl>{path(decision.e_values, limit)}"
        f"{_spread(decision, 'mean', RATIO)}"
        f"{_spread(decision, 'margin', LOST)}"
        "</section>"
    )


def _spread(decision: Decision, statistic: str, words: str) -> str:
    def values(scores: Sequence[Score]) -> list[float]:
        return [float(getattr(one, statistic)) for one in scores]

    return spread(words, values(decision.scores), {name: values(rows) for name, rows in decision.honest.items()})


def path(logs: Sequence[float], limit: float) -> str:
    """The e-value after each conversation, as powers of ten, and the line at which it accuses."""
    low, high = min(-1.0, *logs), max(limit + 1.0, *logs)
    points = [(_across(at, 0, max(len(logs), 1)), _up(value, low, high)) for at, value in enumerate((0.0, *logs))]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    y = _up(limit, low, high)
    words = f"E-value after each of {len(logs)} conversations: highest 10^{max(logs):.1f}, accuses from 10^{limit:.0f}"
    marks = _label(y, f"10^{limit:.0f}") + _label(_up(0.0, low, high), "1")
    shape = f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="2"/>'
    border = f'<line x1="{_LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#c0392b" stroke-dasharray="6 4"/>'
    return _figure(words, marks + border + shape)


def spread(what: str, scores: Sequence[float], honest: Mapping[str, Sequence[float]]) -> str:
    """A statistic, one tick a conversation: the provider's, and below them those of each honest class."""
    rows: list[tuple[str, Sequence[float], str]] = [("provider", scores, "#c0392b")]
    rows += [(name, sorted(values), "currentColor") for name, values in honest.items()]
    every = [value for _, values, _ in rows for value in values]
    low, high = min(every) - 0.05, max(every) + 0.05
    tall = 24 * len(rows)
    parts = []
    for at, (name, values, colour) in enumerate(rows):
        y = 24 * at + 4
        parts.append(f'<text x="0" y="{y + 12}" font-size="11" fill="currentColor">{escape(name[:16])}</text>')
        for value in values:
            x = 110 + (WIDTH - 120) * (value - low) / (high - low)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 14}" stroke="{colour}" opacity="0.6"/>')
    means = ", ".join(f"{name} {sum(values) / len(values):+.3f}" for name, values, _ in rows if values)
    return _figure(f"{what}, one tick a conversation; means: {means}", *parts, tall=tall)


def _across(value: float, low: float, high: float) -> float:
    return _LEFT + (WIDTH - _LEFT - 6) * (value - low) / (high - low)


def _up(value: float, low: float, high: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * (value - low) / (high - low)


def _label(y: float, text: str) -> str:
    return f'<text x="0" y="{y + 4:.1f}" font-size="11" fill="currentColor">{escape(text)}</text>'


def _figure(words: str, *parts: str, tall: int = HEIGHT) -> str:
    return (
        f'<figure><svg role="img" aria-label="{escape(words)}" viewBox="0 0 {WIDTH} {tall}" width="100%">'
        f"{''.join(parts)}</svg><figcaption>{escape(words)}</figcaption></figure>"
    )
