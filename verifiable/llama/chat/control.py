"""Where control tokens may be read in a prompt, and what becomes of the text between them.

The same partition as llama.cpp's (`llama_vocab::impl::tokenizer_st_partition`), except that a control token counts
only where every character of it was written by the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from verifiable.llama.model import Model

_LSTRIP, _RSTRIP = 1 << 7, 1 << 8  # enum llama_token_attr in llama.h
_SPACE: Final = " \t\n\v\f\r"  # isspace() in the C locale
_NOTHING: Final = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True)
class _Found:
    start: int
    end: int
    token: int
    control: bool


class ControlTokens:
    """The special tokens of a model, prepared for finding them in text."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._table: dict[str, tuple[int, bool]] = {text: (token, False) for text, token in model.whole_words.items()}
        self._table.update({text: (token, True) for text, token in model.control_tokens.items()})
        self._sizes = {text: len(text.encode("utf-8", "replace")) for text in self._table}
        self._lengths: dict[str, set[int]] = {}
        for text in self._table:
            self._lengths.setdefault(text[0], set()).add(len(text))
        firsts = "".join(re.escape(first) for first in self._lengths)
        self._first = re.compile(f"[{firsts}]") if firsts else _NOTHING

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """(start, end) of every control token written out in *text*, overlapping ones too."""
        return ((each.start, each.end) for each in self._occurrences(text) if each.control)

    def ids(self, text: str, foreign: bytearray) -> list[int]:
        """The control tokens that the template wrote into *text*, in order; *foreign* as for `tokenize`."""
        return [each.token for each in self._chosen(text, foreign) if each.control]

    def tokenize(self, text: str, foreign: bytearray) -> list[int]:
        """Token ids of a rendered prompt, without a start token of its own.

        `foreign` has a byte for each character of *text*: 1 where it came from a message, 0 where from the template.
        """
        ids: list[int] = []
        attributes = self._model.control_attributes
        at = 0
        strip = False
        for place in [each for each in self._chosen(text, foreign) if each.control]:
            bits = attributes[place.token]
            ids += self._plain(text[at : place.start], strip, bool(bits & _LSTRIP))
            ids.append(place.token)
            at, strip = place.end, bool(bits & _RSTRIP)
        return ids + self._plain(text[at:], strip, False)

    def _plain(self, text: str, left: bool, right: bool) -> list[int]:
        if left:
            text = text.lstrip(_SPACE)
        if right:
            text = text.rstrip(_SPACE)
        return self._model.tokenize(text, add_special=False, parse_special=False) if text else []

    def _occurrences(self, text: str) -> Iterator[_Found]:
        table = self._table
        for match in self._first.finditer(text):
            start = match.start()
            for length in self._lengths[text[start]]:
                known = table.get(text[start : start + length])
                if known is not None and start + length <= len(text):
                    yield _Found(start, start + length, *known)

    def _chosen(self, text: str, foreign: bytearray) -> list[_Found]:
        """Occurrences that the tokenizer would take: longer tokens first, from left to right, none overlapping."""
        places = [
            each
            for each in self._occurrences(text)
            # A foreign character in it: not a control token, whatever it looks like.
            if not (each.control and foreign.find(1, each.start, each.end) >= 0)
        ]
        places.sort(key=lambda each: (-self._sizes[text[each.start : each.end]], each.token, each.start))
        taken = bytearray(len(text))
        chosen = []
        for each in places:
            if taken.find(1, each.start, each.end) < 0:
                taken[each.start : each.end] = b"\1" * (each.end - each.start)
                chosen.append(each)
        chosen.sort(key=lambda each: each.start)
        return chosen
