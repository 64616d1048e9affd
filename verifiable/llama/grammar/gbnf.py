"""GBNF, read before llama.cpp reads it: what it would print, unroll beyond all bounds, or die of, is refused here.

llama.cpp writes a grammar that it can't parse to standard error, and a grammar is a client's content. So its syntax
(`llama_grammar_parser` in llama-grammar.cpp) is checked here first; what passes is for llama.cpp to compile.
"""

from __future__ import annotations

import re
from typing import Final

from verifiable.errors import PolicyError

MAX_CHARACTERS: Final = 1 << 18
"""Of GBNF, after a schema was made into one."""
MAX_REPEAT: Final = 2000
"""Largest number in a repetition: llama.cpp's own bound (MAX_REPETITION_THRESHOLD)."""
MAX_UNROLLED: Final = 200_000
"""Most elements that all repetitions unroll to: llama.cpp writes out a repeated literal, and names a repeated group."""
MAX_DEPTH: Final = 64

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_DEFINED = re.compile("::=")
_CLOSED = re.compile(r"\)")
_NAME = re.compile(r"[A-Za-z0-9-]+", re.ASCII)
_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[tnr\\\"\[\]])"
_LITERAL = re.compile(rf'"(?:{_ESCAPE}|[^"\\])*"', re.DOTALL)
_CLASS = re.compile(rf"\[\^?(?:{_ESCAPE}|[^\]\\])*\]", re.DOTALL)
_TOKEN = re.compile(r"!?<(?:\[[0-9]{1,9}\]|[^<>\s]{1,128})>")
_REPEAT = re.compile(r"\{[ \t\r\n]*([0-9]{1,4})?[ \t\r\n]*(,?)[ \t\r\n]*([0-9]{1,4})?[ \t\r\n]*\}")


def check(text: str, parameter: str) -> None:
    """Raise PolicyError unless `text` is a grammar within bounds whose rules are all defined."""
    if not text.strip() or len(text) > MAX_CHARACTERS or "\0" in text:
        raise PolicyError(
            "the grammar's length", expected=f"1 to {MAX_CHARACTERS} characters, no NUL", parameter=parameter
        )
    _GrammarReader(text, parameter).grammar()


class _GrammarReader:
    """Reads a grammar from left to right."""

    def __init__(self, text: str, parameter: str) -> None:
        self._text = text
        self._parameter = parameter
        self._at = 0
        self._unrolled = 0
        self._defined: set[str] = set()
        self._used: set[str] = {"root"}

    def grammar(self) -> None:
        self._skip(_SPACES)
        while self._at < len(self._text):
            self._defined.add(self._expect(_NAME, "a rule's name"))
            self._skip(_SPACE)
            self._expect(_DEFINED, "::=")
            self._skip(_SPACES)
            self._alternatives(0)
            self._skip(_SPACES)
        missing = sorted(self._used - self._defined)
        if missing:
            raise PolicyError(f"the grammar has no rule {missing[0][:64]!r}", parameter=self._parameter)

    def _alternatives(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._error(f"at most {MAX_DEPTH} levels")
        spaces = _SPACES if depth else _SPACE
        while True:
            self._sequence(depth, spaces)
            self._skip(spaces)
            if not self._text.startswith("|", self._at):
                return
            self._at += 1
            self._skip(_SPACES)

    def _sequence(self, depth: int, spaces: re.Pattern[str]) -> None:
        size = 0  # of what a repetition would repeat; 0 while there is nothing
        while self._at < len(self._text):
            character, start = self._text[self._at], self._at
            if character == '"':
                self._expect(_LITERAL, "a closed string with known escapes")
            elif character == "[":
                self._expect(_CLASS, "a closed class with known escapes")
            elif character == "(":
                self._at += 1
                self._skip(_SPACES)
                self._alternatives(depth + 1)
                self._skip(_SPACES)
                self._expect(_CLOSED, ")")
            elif character == ".":
                self._at += 1
            elif character in "<!":
                self._expect(_TOKEN, "a token, <[id]> or <text>")
            elif _NAME.match(character):
                self._used.add(self._expect(_NAME, "a name"))
            elif character in "*+?{" and size:
                self._repeat(character, size)
            else:
                return
            size = self._at - start if character == '"' else 1
            self._skip(spaces)

    def _repeat(self, character: str, size: int) -> None:
        if character != "{":
            self._at += 1
            return
        match = _REPEAT.match(self._text, self._at)
        if match is None or not match[1]:
            raise self._error("{m}, {m,} or {m,n}")
        low, high = int(match[1]), int(match[3] or 0)
        if (match[3] and (not match[2] or high < low)) or max(low, high) > MAX_REPEAT:
            raise self._error(f"a repetition from fewer to more, of at most {MAX_REPEAT}")
        self._unrolled += max(low, high) * size
        if self._unrolled > MAX_UNROLLED:
            raise self._error(f"repetitions that unroll to at most {MAX_UNROLLED} elements")
        self._at = match.end()

    def _expect(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise self._error(what)
        self._at = match.end()
        return match[0]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _error(self, expected: str) -> PolicyError:
        rest = self._text[self._at : self._at + 20] or "the end"
        return PolicyError(
            f"the grammar can't be read at character {self._at}",
            expected=expected,
            found=rest,
            parameter=self._parameter,
        )
