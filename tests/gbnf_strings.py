"""Random texts that a grammar (GBNF) accepts, for tests of the grammars that we write: literals, classes, groups."""

from __future__ import annotations

import math
import random
import re

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_DIGITS = {"x": 2, "u": 4, "U": 8}

Node = tuple[str, object]


class Grammar:
    """A grammar that texts can be drawn from. Alternatives of few rules are preferred as texts become deep."""

    def __init__(self, text: str) -> None:
        self._rules: dict[str, Node] = {}
        for line in text.removesuffix("\n").split("\n"):
            name, _, body = line.partition(" ::= ")
            self._text, self._at = body, 0
            self._rules[name] = self._alternatives()
            assert self._at == len(body), (line, self._at)
        self._heights: dict[str, float] = dict.fromkeys(self._rules, math.inf)
        for _ in self._rules:  # the fewest rules within each other that end a text
            self._heights = {name: 1 + self._height(node) for name, node in self._rules.items()}
        self.ends = self._heights["root"] < math.inf

    def _height(self, node: Node) -> float:
        kind, value = node
        if kind == "rule":
            return self._heights[str(value)]
        if kind in ("row", "either"):
            heights = [self._height(item) for item in value]  # type: ignore[attr-defined]
            return (max if kind == "row" else min)(heights, default=0)
        return self._height(value[0]) if kind == "times" and value[1] else 0  # type: ignore[index]

    def draw(self, chance: random.Random) -> str:
        parts: list[str] = []
        self._draw(self._rules["root"], chance, 0, parts)
        return "".join(parts)

    def _draw(self, node: Node, chance: random.Random, depth: int, parts: list[str]) -> None:
        kind, value = node
        if kind == "text":
            parts.append(str(value))
        elif kind == "class":
            parts.append(_member(value, chance))  # type: ignore[arg-type]
        elif kind == "rule":
            self._draw(self._rules[str(value)], chance, depth + 1, parts)
        elif kind == "row":
            for item in value:  # type: ignore[attr-defined]
                self._draw(item, chance, depth, parts)
        elif kind == "either":
            choices = list(value)  # type: ignore[call-overload]
            if depth > 12:
                choices = sorted(choices, key=self._height)[:1]
            self._draw(chance.choice(choices), chance, depth, parts)
        else:
            self._repeat(value, chance, depth, parts)  # type: ignore[arg-type]

    def _repeat(self, value: tuple[Node, int, int | None], chance: random.Random, depth: int, parts: list[str]) -> None:
        item, low, high = value
        most = low + chance.choice((0, 0, 1, 3, 10))
        count = low if depth > 12 else most if high is None else min(most, high)
        for _ in range(count):
            self._draw(item, chance, depth, parts)

    def _alternatives(self) -> Node:
        found = [self._row()]
        while self._take("|"):
            found.append(self._row())
        return found[0] if len(found) == 1 else ("either", found)

    def _row(self) -> Node:
        items: list[Node] = []
        while True:
            self._skip()
            if self._at == len(self._text) or self._text[self._at] in "|)":
                return ("row", items)
            items.append(self._repeated(self._atom()))

    def _atom(self) -> Node:
        if self._take("("):
            node = self._alternatives()
            assert self._take(")")
            return node
        if self._take('"'):
            text = ""
            while not self._text.startswith('"', self._at):
                text += self._character()
            self._at += 1
            return ("text", text)
        if self._take("["):
            negated = self._take("^", skip=False)
            members = []
            while not self._text.startswith("]", self._at):
                low = high = self._character()
                if self._text[self._at] == "-" and self._text[self._at + 1] != "]":
                    self._at += 1
                    high = self._character()
                members.append((ord(low), ord(high)))
            self._at += 1
            return ("class", (negated, members))
        match = re.compile(r"[A-Za-z0-9-]+").match(self._text, self._at)
        assert match, self._text[self._at :]
        self._at = match.end()
        return ("rule", match[0])

    def _repeated(self, node: Node) -> Node:
        match = re.compile(r"[*+?]|\{(\d+)(,?)(\d*)\}").match(self._text, self._at)
        if match is None:
            return node
        self._at = match.end()
        if match[1] is None:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[match[0]]
            return ("times", (node, low, high))
        high = int(match[3]) if match[3] else None if match[2] else int(match[1])
        return ("times", (node, int(match[1]), high))

    def _character(self) -> str:
        character = self._text[self._at]
        self._at += 1
        if character != "\\":
            return character
        letter = self._text[self._at]
        self._at += 1
        if letter in _DIGITS:
            digits = self._text[self._at : self._at + _DIGITS[letter]]
            self._at += len(digits)
            return chr(int(digits, 16))
        return _ESCAPES.get(letter, letter)

    def _skip(self) -> None:
        while self._at < len(self._text) and self._text[self._at] == " ":
            self._at += 1

    def _take(self, text: str, skip: bool = True) -> bool:
        if skip:
            self._skip()
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True


def _member(value: tuple[bool, list[tuple[int, int]]], chance: random.Random) -> str:
    negated, members = value
    if not negated:
        low, high = chance.choice(members)
        return chr(chance.choice((low, high, chance.randint(low, high))))
    while True:
        code = chance.choice((chance.randint(0, 0x7F), chance.randint(0, 0x10FFFF), ord(chance.choice("aé水😀/"))))
        if not any(low <= code <= high for low, high in members) and not 0xD800 <= code <= 0xDFFF:
            return chr(code)
