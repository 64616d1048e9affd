"""The strip of a turn: one cell a token, coloured by how far its record is from what was recomputed."""

from __future__ import annotations

from collections import Counter
from html import escape

from verifiable.cli import printable
from verifier.auditing.marks import COMPARED, DIFFERS, NOT_SAMPLED, SUSPECT, UNCHECKED
from verifier.auditing.scope import TurnDetails

MOST_CELLS = 4000
"""Cells of one strip; a browser draws them at once, and the story is near the first difference."""
_BORDERS = ((0.1, "a"), (1.0, "b"), (5.0, "c"))
"""Differences (logits) below which a cell has the class; larger ones have the last."""
_LARGEST = "d"
_MARKS = {NOT_SAMPLED: "s", SUSPECT: "q", COMPARED: "w", UNCHECKED: "u"}

_SAID = (
    (DIFFERS, "differ"),
    (NOT_SAMPLED, "not as drawn"),
    (SUSPECT, "suspect"),
    (COMPARED, "compared within rounding"),
    (UNCHECKED, "unchecked"),
)

LEGEND = (
    ("", "same bits here, and drawn as the nonce says"),
    ("a", "record differs by less than 0.1"),
    ("b", "record differs by less than 1"),
    ("c", "record differs by less than 5"),
    ("d", "record differs by more"),
    ("s", "not the token that was drawn"),
    ("q", "among records of which some differ"),
    ("w", "compared within rounding, not bit for bit"),
    ("u", "not checked"),
)


def safe(text: str) -> str:
    """Text for an HTML page: nothing in it is markup, and no character steers a terminal or turns the writing round."""
    return escape(printable(text))


def cell(mark: str, difference: float | None) -> str:
    """The class of a token's cell; "" for a token whose every bit agrees."""
    if mark != DIFFERS:
        return _MARKS.get(mark, "")
    if difference is None:
        return _LARGEST
    return next((name for border, name in _BORDERS if difference < border), _LARGEST)


def strip(turn: TurnDetails, first: int | None) -> str:
    """The HTML of a turn's strip. `first` is the token that the verdict points at, and gets a frame."""
    cells = []
    for index, mark in enumerate(turn.strip[:MOST_CELLS]):
        difference = turn.differences[index] if index < len(turn.differences) else None
        kind = cell(mark, difference)
        if index == first:
            kind = f"{kind} f".strip()
        title = f' title="token {index}: difference {difference:.4g}"' if kind and difference else ""
        cells.append(f'<i class="{kind}"{title}></i>' if kind else "<i></i>")
    return f'<div class="strip" role="img" aria-label="{safe(describe(turn, first))}">{"".join(cells)}</div>'


def describe(turn: TurnDetails, first: int | None) -> str:
    """The strip in words, for those who do not see it."""
    marks = turn.strip
    counts = Counter(marks)
    same = len(marks) - sum(counts[mark] for mark in (DIFFERS, *_MARKS))
    parts = [f"{len(marks)} tokens", *([f"{same} the same"] if same or not counts[COMPARED] else [])]
    parts += [f"{counts[mark]} {words}" for mark, words in _SAID if counts[mark]]
    if first is not None:
        parts.append(f"the first at token {first}")
    if len(marks) > MOST_CELLS:
        parts.append(f"the first {MOST_CELLS} are drawn")
    return ", ".join(parts)


def legend(kinds: set[str]) -> str:
    """The meaning of the colours that occur."""
    shown = [
        f'<span><span class="strip"><i class="{kind}"></i></span>{safe(words)}</span>'
        for kind, words in LEGEND
        if kind in kinds
    ]
    return f'<div class="legend">{"".join(shown)}</div>'
