"""Regular expressions of JSON schemas (`pattern`, ECMA 262) as grammar expressions for the inside of a JSON string.

What the expression accepts, the regular expression matches, in JavaScript and in Python: where the two read a class
differently (digits, letters and spaces beyond ASCII), only what both take is written. Look-around, references back and
word borders are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from verifiable.llama.grammar.gbnf import MAX_REPEAT
from verifiable.llama.grammar.schema_merge import refuse
from verifiable.llama.grammar.schema_text import Ranges, character, joined

LAST: Final = 0x10FFFF
_SPACES: Final = "\t\n\v\f\r \x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"
_WIDE_SPACES: Final = [*((ord(each), ord(each)) for each in _SPACES), (0x2000, 0x200A)]
_BEYOND: Final = (0x80, LAST)
_CLASSES: Final[dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]]] = {
    "d": ([(48, 57)], [(48, 57), _BEYOND]),
    "w": ([(48, 57), (65, 90), (95, 95), (97, 122)], [(48, 57), (65, 90), (95, 95), (97, 122), _BEYOND]),
    "s": ([(9, 13), (32, 32)], _WIDE_SPACES),
}
"""What every reader puts into a class, and what any reader does."""
_CONTROLS: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_NO_BREAK: Final = [(10, 10), (13, 13), (0x2028, 0x2029)]
_PUNCTUATION: Final = frozenset("^$\\.*+?()[]{}|/-!\"#%&',:;<=>@_`~ ")
_QUANTIFIER: Final = re.compile(r"\{([0-9]{1,4})(?:(,)([0-9]{1,4})?)?\}")
_GROUP: Final = re.compile(r"\(\?(?::|<[A-Za-z_][A-Za-z0-9_]*>)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A grammar expression and how many characters of the string it stands for; `most` None for any number.

    `item` is set where it is a repetition of something of always the same size: that, with its size.
    """

    text: str
    least: int
    most: int | None
    item: tuple[str, int] | None = None


def pattern_rule(pattern: str, least: int, most: int | None) -> str:
    """The expression for strings that a pattern matches, as JSON writes them, without the quotes.

    A pattern without anchors matches anywhere in a string. `least` and `most` bound the string's characters:
    repetitions outside of groups are narrowed until they do. Raises PolicyError, which names what is not understood, or
    cannot be narrowed.
    """
    reader = _PatternReader(pattern)
    branches = [reader.branch()]
    while reader.take("|"):
        branches.append(reader.branch())
    if not reader.ended:
        raise refuse("a parenthesis too many in a pattern", pattern)
    rows = [_row(_narrowed(branch, least, most)) for branch in branches]
    for row in rows:
        if row.least < least or (most is not None and (row.most is None or row.most > most)):
            raise refuse("a pattern that matches strings of other lengths than minLength and maxLength allow", pattern)
    return joined([row.text for row in rows])


def _narrowed(pieces: list[Piece], least: int, most: int | None) -> list[Piece]:
    """Pieces of one row with their repetitions narrowed, so that the row has the lengths asked for, where it can."""
    bounded = list(pieces)
    missing = least - sum(piece.least for piece in bounded)
    for at, piece in enumerate(bounded):
        if missing > 0 and piece.item is not None:
            size = piece.item[1]
            room = missing if piece.most is None else min(missing, piece.most - piece.least)
            more = -(-room // size) * size
            bounded[at] = _repeated(piece.item, piece.least + more, piece.most)
            missing -= more
    if most is None:
        return bounded
    free = [at for at, piece in enumerate(bounded) if piece.item is not None and piece.most != piece.least]
    room = most - sum(piece.least if at in free else piece.most or 0 for at, piece in enumerate(bounded))
    for left, at in enumerate(free):
        piece = bounded[at]
        share = max(room, 0) // (len(free) - left)
        highest = piece.least + share if piece.most is None else min(piece.most, piece.least + share)
        bounded[at] = _repeated(piece.item or ("", 1), piece.least, highest)
        room -= (bounded[at].most or 0) - piece.least
    return bounded


def _repeated(item: tuple[str, int], least: int, most: int | None) -> Piece:
    """A repetition of an item, of so many characters."""
    text, size = item
    low, high = -(-least // size), None if most is None else most // size
    mark = f"{{{low}}}" if high == low else f"{{{low},{'' if high is None else high}}}"
    return Piece(f"({text}){mark}", low * size, None if high is None else high * size, item)


class _PatternReader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._pattern)

    def take(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def branch(self) -> list[Piece]:
        """One alternative at the top, where alone anchors may stand."""
        any_text = Piece("char*", 0, None, ("char", 1))
        before = [] if self.take("^") else [any_text]
        pieces = self._sequence()
        after = [] if self.take("$") else [any_text]
        if not self.ended and self._pattern[self._at] not in "|)":
            raise refuse("an anchor inside a pattern", self._pattern)
        return [*before, *pieces, *after]

    def _sequence(self) -> list[Piece]:
        pieces = list[Piece]()
        while not self.ended and self._pattern[self._at] not in "|)$":
            pieces.append(self._quantified(self._atom()))
        return pieces

    def _alternatives(self) -> Piece:
        branches = [_row(self._sequence())]
        while self.take("|"):
            branches.append(_row(self._sequence()))
        if not self.take(")"):
            raise refuse("a group that is not closed, or an anchor in it", self._pattern)
        most = [branch.most for branch in branches]
        highest = None if None in most else max(each for each in most if each is not None)
        return Piece(joined([each.text for each in branches]), min(each.least for each in branches), highest)

    def _atom(self) -> Piece:
        match = _GROUP.match(self._pattern, self._at)
        if match is not None or self._pattern[self._at] == "(":
            self._at = match.end() if match else self._at + 1
            if match is None and self.take("?"):
                raise refuse("look-around or flags in a pattern", self._pattern)
            self._depth += 1
            if self._depth > 32:
                raise refuse("a pattern nested too deeply", self._pattern)
            piece = self._alternatives()
            self._depth -= 1
            return piece
        points = self._set()
        text = character(points)
        if text is None:
            raise refuse("a character in a pattern that no string can hold", self._pattern)
        return Piece(text, 1, 1)

    def _set(self) -> Ranges:
        character_ = self._next()
        if character_ == ".":
            return _complement(_NO_BREAK)
        if character_ == "[":
            return self._class()
        if character_ == "\\":
            return self._escape()[0]
        if character_ in "*+?{}]^":
            raise refuse(f"{character_!r} where a character is due in a pattern", self._pattern)
        return ((ord(character_), ord(character_)),)

    def _class(self) -> Ranges:
        negated = self.take("^")
        narrow, wide = list[tuple[int, int]](), list[tuple[int, int]]()
        while not self.take("]"):
            low, low_wide = self._member()
            if self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at):
                self._at += 1
                high, _ = self._member()
                ends = [point for part in (*low, *high) for point in part]
                if len(ends) != 4 or ends[0] != ends[1] or ends[2] != ends[3] or ends[0] > ends[2]:
                    raise refuse("a range of characters in a pattern", self._pattern)
                low = low_wide = ((ends[0], ends[2]),)
            narrow += low
            wide += low_wide
        return _complement(wide) if negated else _tidy(narrow)

    def _member(self) -> tuple[Ranges, Ranges]:
        character_ = self._next()
        if character_ == "\\":
            return self._escape(in_class=True)
        one = ((ord(character_), ord(character_)),)
        return one, one

    def _escape(self, in_class: bool = False) -> tuple[Ranges, Ranges]:
        """The characters of an escape: those that every reader takes, and those that any does."""
        letter = self._next()
        if letter.lower() in _CLASSES:
            narrow, wide = _CLASSES[letter.lower()]
            return (_tidy(narrow), _tidy(wide)) if letter.islower() else (_complement(wide), _complement(narrow))
        if letter in ("x", "u"):
            count = 2 if letter == "x" else 4
            digits = self._pattern[self._at : self._at + count]
            if not re.fullmatch(r"[0-9a-fA-F]+", digits) or len(digits) != count or 0xD800 <= int(digits, 16) <= 0xDFFF:
                raise refuse("an escape in a pattern", letter + digits)
            self._at += count
            code = int(digits, 16)
        elif letter == "b" and in_class:
            code = 8
        elif letter in _CONTROLS and not (letter == "0" and self._pattern[self._at : self._at + 1].isdigit()):
            code = _CONTROLS[letter]
        elif letter in _PUNCTUATION:
            code = ord(letter)
        else:
            raise refuse("an escape in a pattern", "\\" + letter)
        return ((code, code),), ((code, code),)

    def _quantified(self, piece: Piece) -> Piece:
        if self.ended:
            return piece
        mark = self._pattern[self._at]
        match = _QUANTIFIER.match(self._pattern, self._at)
        low, high = int(mark == "+"), 1 if mark == "?" else None
        if match is not None:
            low = int(match[1])
            high = int(match[3]) if match[3] else None if match[2] else low
            if not low <= (MAX_REPEAT if high is None else high) <= MAX_REPEAT:
                raise refuse(f"a repetition in a pattern, of at most {MAX_REPEAT}", match[0])
            mark = f"{{{low}}}" if high == low else f"{{{low},{'' if high is None else high}}}"
        elif mark not in "*+?":
            return piece
        self._at = match.end() if match else self._at + 1
        self.take("?")  # a lazy one matches the same strings
        following = self._pattern[self._at : self._at + 1]
        if following in ("*", "+", "?") or _QUANTIFIER.match(self._pattern, self._at):
            raise refuse("a repetition of a repetition in a pattern", self._pattern)
        most = None if high is None or piece.most is None else piece.most * high
        item = (piece.text, piece.least) if piece.least == piece.most and piece.least else None
        return Piece(f"({piece.text}){mark}", piece.least * low, most, item)

    def _next(self) -> str:
        if self.ended:
            raise refuse("a pattern that ends too early", self._pattern)
        self._at += 1
        return self._pattern[self._at - 1]


def _row(pieces: list[Piece]) -> Piece:
    most = [piece.most for piece in pieces]
    total = None if None in most else sum(each for each in most if each is not None)
    return Piece(" ".join(piece.text for piece in pieces) or '""', sum(piece.least for piece in pieces), total)


def _tidy(ranges: list[tuple[int, int]]) -> Ranges:
    merged = list[tuple[int, int]]()
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: list[tuple[int, int]]) -> Ranges:
    gaps, at = list[tuple[int, int]](), 0
    for low, high in _tidy(ranges):
        if at < low:
            gaps.append((at, low - 1))
        at = high + 1
    return (*gaps, *(((at, LAST),) if at <= LAST else ()))
