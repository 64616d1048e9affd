"""Pieces of grammars (GBNF) for JSON: literals, sets of characters, formats, and numbers within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

Ranges = tuple[tuple[int, int], ...]
"""Code points as ascending ranges that do not touch, ends included."""

DIGITS: Final = 16
"""Most digits of a number before its point, and after it."""
_UNWRITTEN: Final = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF))
"""Ranges that do not stand for themselves in a JSON string: controls, quote, backslash, halves of pairs."""
_ESCAPED: Final = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_JSON_ESCAPES: Final = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
"""Characters that JSON's strings write with a backslash and one letter."""
_MONTHS: Final = (
    '(("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
    ' | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30")'
    ' | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))'
)
_DATE: Final = f'[12] [0-9]{{3}} "-" {_MONTHS}'
_TIME: Final = (
    '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})?'
    ' ("Z" | [+-] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])'
)
FORMATS: Final[Mapping[str, str]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": ' "-" '.join(f"[0-9a-f]{{{count}}}" for count in (8, 4, 4, 4, 12)),
}
"""Formats that are enforced (RFC 3339, RFC 4122; the 29th of February is left out), without the quotes."""


def literal(text: str) -> str:
    """A text as a GBNF string."""
    return '"' + "".join(_ESCAPED.get(each, each if each >= " " else f"\\x{ord(each):02X}") for each in text) + '"'


def character(points: Ranges) -> str | None:
    """An expression for one character of a JSON string, of these code points; None where none can be written.

    Control characters without an escape of one letter are left out.
    """
    plain = points
    for first, last in _UNWRITTEN:
        plain = tuple(
            part
            for low, high in plain
            for part in ((low, min(high, first - 1)), (max(low, last + 1), high))
            if part[0] <= part[1]
        )
    parts = [literal("\\" + letter) for point, letter in _JSON_ESCAPES.items() if _holds(points, point)]
    if plain:
        parts.insert(0, "[" + "".join(_point(low) + f"-{_point(high)}" * (high > low) for low, high in plain) + "]")
    return joined(parts) if parts else None


def _holds(points: Ranges, point: int) -> bool:
    return any(low <= point <= high for low, high in points)


def _point(code: int) -> str:
    if code < 0x80 and chr(code).isalnum():
        return chr(code)
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def bounded_integer(low: int | None, high: int | None) -> list[str]:
    """Alternatives for the whole numbers from `low` to `high`, of up to 16 digits. None is no bound."""
    most = 10**DIGITS - 1
    least, top = max(-most, -most if low is None else low), min(most, most if high is None else high)
    negative = _natural(max(1, -top), -least)
    return [f'"-" ({" | ".join(negative)})'] * bool(negative) + _natural(max(0, least), top)


def bounded_number(low: float | None, high: float | None, strict: bool) -> list[str]:
    """Alternatives for numbers from `low` to `high`: whole ones, and fractions where all of the same whole part fit.

    `strict`: the bounds themselves are not to be written.
    """
    floor = None if low is None else math.ceil(low)
    top = None if high is None else math.floor(high)
    most = 10**DIGITS - 1
    fraction = f'"." [0-9]{{0,{DIGITS - 2}}} [1-9]' if strict else f'"." [0-9]{{1,{DIGITS - 1}}}'
    up = _natural(max(0, floor or 0), most if top is None else top - 1)
    down = _natural(max(0, -(top or 0)), most if floor is None else -floor - 1)
    return (
        bounded_integer(inside(low, 1, strict), inside(high, -1, strict))
        + [f"({' | '.join(up)}) {fraction}"] * bool(up)
        + [f'"-" ({" | ".join(down)}) {fraction}'] * bool(down)
    )


def inside(bound: float | None, step: int, strict: bool) -> int | None:
    """The first whole number at a bound (strict: past it) in a direction, 1 up or -1 down."""
    if bound is None:
        return None
    nearest = math.ceil(bound) if step > 0 else math.floor(bound)
    return nearest + step if strict and nearest == bound else nearest


def _natural(low: int, high: int) -> list[str]:
    """Alternatives for the whole numbers from `low` to `high`, neither below 0, without leading zeros."""
    if low > high:
        return []
    first, last = len(str(low)), len(str(high))
    if first == last:
        return _digits(str(low), str(high))
    between = f"[1-9] [0-9]{{{first},{last - 2}}}"  # every number of more digits than `low` and fewer than `high`
    return [
        *_digits(str(low), "9" * first),
        *[between] * (last - first > 1),
        *_digits("1" + "0" * (last - 1), str(high)),
    ]


def _digits(low: str, high: str) -> list[str]:
    """Alternatives for numbers of one length, between two of that length."""
    if len(low) == 1 or (set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}):
        rest = f" [0-9]{{{len(low) - 1}}}" if len(low) > 1 else ""
        return [f"[{low[0]}-{high[0]}]{rest}"]
    if low[0] == high[0]:
        return [f'"{low[0]}" ({" | ".join(_digits(low[1:], high[1:]))})']
    tail = len(low) - 1
    first = []
    start, stop = int(low[0]), int(high[0])
    if low[1:] != "0" * tail:
        first.append(f'"{start}" ({" | ".join(_digits(low[1:], "9" * tail))})')
        start += 1
    last = []
    if high[1:] != "9" * tail:
        last.append(f'"{stop}" ({" | ".join(_digits("0" * tail, high[1:]))})')
        stop -= 1
    middle = [f"[{start}-{stop}] [0-9]{{{tail}}}"] if start <= stop else []
    return [*first, *middle, *last]


def joined(alternatives: Sequence[str]) -> str:
    """Alternatives as one expression."""
    return alternatives[0] if len(alternatives) == 1 else "(" + " | ".join(alternatives) + ")"
