"""From chat messages to the prompt's token ids, so that nothing a person writes can become a control token.

A chat template mixes control tokens and people's text into one string, and a tokenizer that reads control tokens in
it also reads those that people wrote. So the template is rendered three times: with the messages as they are; with
private marks around every character of their text; and with filler instead of their text. Where the first two agree
but for the marks, the origin of every character is known, and control tokens are read only where the template wrote
them. They have to be those of the third rendering.

A template that looks into a text (does it start with `<think>`?) may render marked text differently. Then fewer
characters are marked, and in the end the request is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from verifiable.errors import PolicyError
from verifiable.llama.chat.control import ControlTokens
from verifiable.llama.chat.messages import Transform, checked, rewritten, rewritten_messages, unused_marks
from verifiable.llama.chat.template import Template
from verifiable.llama.chat.tools import Abilities
from verifiable.llama.model import Model

_FILLER: Final = "x"


class ChatTemplate:
    """A template (Jinja, usually `model.chat_template`), ready to turn conversations into prompts for a model.

    Raises MalformedError where the source is no template.
    """

    def __init__(self, source: str, model: Model) -> None:
        self._model = model
        self._control = ControlTokens(model)
        self._template, self._abilities = _compiled(
            source, _token_text(model, model.bos), _token_text(model, model.eos)
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The prompt as text, with the opening of the assistant's answer at its end."""
        return self._template.render(*self._abilities.fit(*checked(messages, tools)), now)

    def prompt_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
    ) -> list[int]:
        """Token ids of the prompt for *messages*.

        No control token comes from a message or a tool description. Where they hold no control token's text, the ids
        are those that `llama_tokenize` gives for the whole rendered prompt with control tokens read. The model's
        start token comes first exactly once, when the model wants one.

        Args:
            messages: each with a `role` of `messages.ROLES` and a `content`: a string, null or a list of text parts.
            tools: descriptions of functions, JSON values.
            now: the time for templates that write the date. Without it those that insist on one refuse.

        Raises:
            PolicyError: the messages are not of that form, the template refuses them, or the origin of a control
                token cannot be told.
        """
        conversation, functions = self._abilities.fit(*checked(messages, tools))
        marks = Marks(*unused_marks((conversation, functions), self._template.source))
        text = self._template.render(conversation, functions, now)

        def render(transform: Transform) -> str | None:
            try:
                return self._template.render(
                    rewritten_messages(conversation, transform, self._template.names),
                    None if functions is None else rewritten(functions, transform, self._template.names),
                    now,
                )
            except PolicyError:
                return None  # the template stumbles over the marks

        foreign = self._origins(text, marks, render)
        ids = self._control.tokenize(text, foreign)
        model = self._model
        if model.adds_bos and model.bos is not None and ids[:1] != [model.bos]:
            ids.insert(0, model.bos)
        return ids

    def _origins(self, text: str, marks: Marks, render: Callable[[Transform], str | None]) -> bytearray:
        neutral = self._written(render(_filler(_everything)))
        similar: list[int] | None = None
        for chosen in (_everything, self._all_but_constants, self._control_text, self._all_but_any_constants):
            plain, origins = marks.read(render(marks.around(chosen)))
            if plain != text:
                continue
            ids = self._control.ids(text, origins)
            if ids == neutral:
                return origins
            # The template may write other control tokens because of a constant in the text: then filler leaves those.
            # Not in the last round, in which constants that are control tokens have no marks.
            if chosen != self._all_but_any_constants:
                similar = similar or self._written(render(_filler(self._all_but_constants)))
                if ids == similar:
                    return origins
        raise PolicyError(
            "the chat template treats this text so that control tokens in it cannot be told from the template's own",
            hint="Rephrase the message, or leave out what looks like a control token",
            parameter="messages",
        )

    def _written(self, neutral: str | None) -> list[int] | None:
        """The control tokens in a prompt without people's text: all of them the template's."""
        return None if neutral is None else self._control.ids(neutral, bytearray(len(neutral)))

    def _all_but_any_constants(self, text: str) -> bytearray:
        """Marks for all characters except those of strings that the template compares with or splits at."""
        chosen = _everything(text)
        for constant in self._template.constants:
            at = text.find(constant)
            while at >= 0:
                chosen[at : at + len(constant)] = bytes(len(constant))
                at = text.find(constant, at + len(constant))
        return chosen

    def _all_but_constants(self, text: str) -> bytearray:
        """The same, but what is written like a control token is marked always."""
        return self._with_control_text(text, self._all_but_any_constants(text))

    def _control_text(self, text: str) -> bytearray:
        """Marks only for what is written like a control token."""
        return self._with_control_text(text, bytearray(len(text)))

    def _with_control_text(self, text: str, chosen: bytearray) -> bytearray:
        for start, end in self._control.find(text):
            chosen[start:end] = b"\1" * (end - start)
        return chosen


@lru_cache(maxsize=8)
def _compiled(source: str, bos: str, eos: str) -> tuple[Template, Abilities]:
    """A template and what it can do; kept, since every request needs it."""
    template = Template(source, bos, eos)
    return template, Abilities.of(template)


def _everything(text: str) -> bytearray:
    return bytearray(b"\1" * len(text))


class Marks:
    """A pair of characters that stand around each character of foreign text. A template that cuts text apart or takes
    some out may leave single ones; only a character between both is foreign."""

    def __init__(self, opening: str, closing: str) -> None:
        self._open, self._close = opening, closing
        self._escapes = [(json.dumps(mark)[1:-1], mark) for mark in (opening, closing)]
        self._pattern = re.compile(f"{opening}([^{opening}{closing}]){closing}|[{opening}{closing}]")

    def around(self, choose: Callable[[str], bytearray]) -> Transform:
        """Mark each chosen character, except white space at the ends, which templates trim."""

        def transform(text: str) -> str:
            core = text.strip()
            if not core:
                return text
            start = text.index(core)
            chosen = choose(text)[start : start + len(core)]
            if all(chosen):
                body = self._open + f"{self._close}{self._open}".join(core) + self._close
            else:
                pairs = zip(core, chosen, strict=True)
                body = "".join(f"{self._open}{c}{self._close}" if flag else c for c, flag in pairs)
            return text[:start] + body + text[start + len(core) :]

        return transform

    def read(self, marked: str | None) -> tuple[str | None, bytearray]:
        """A rendering without its marks, and one byte for each character of it: 1 where it is foreign."""
        if marked is None:
            return None, bytearray()
        for escape, mark in self._escapes:  # some templates write JSON in pure ASCII
            marked = marked.replace(escape, mark)
        parts: list[str] = []
        origins = bytearray()
        at = 0
        for match in self._pattern.finditer(marked):
            between = marked[at : match.start()]
            foreign = match.group(1) or ""
            parts += (between, foreign)
            origins += bytes(len(between)) + b"\1" * len(foreign)
            at = match.end()
        parts.append(marked[at:])
        origins += bytes(len(marked) - at)
        return "".join(parts), origins


def _filler(choose: Callable[[str], bytearray]) -> Transform:
    """Replace chosen characters by filler and put filler around each run of the others, so that nothing that is left
    can join what was apart."""

    def transform(text: str) -> str:
        if not text.strip():
            return text  # templates ask whether there is a text
        runs: list[str] = []
        before = 1
        for character, flag in zip(text, choose(text), strict=True):
            if flag:
                runs.append(_FILLER)
            elif before:
                runs.append(character)
            else:
                runs[-1] += character
            before = flag
        return _FILLER + _FILLER.join(runs) + _FILLER

    return transform


def _token_text(model: Model, token: int | None) -> str:
    return "" if token is None else next((text for text, each in model.control_tokens.items() if each == token), "")
