"""From chat messages to the prompt's token ids, so that nothing a person writes can become a control token.

A chat template mixes control tokens and people's text into one string, and a tokenizer that reads control tokens in
it also reads those that people wrote. So the template is rendered twice: once with the messages as they are, once
with a private mark before every character of their text. Where both agree but for the marks, the origin of every
character is known, and control tokens are read only where the template wrote them.

A template that looks into a text (does it start with `<think>`?) may render marked text differently. Then fewer
characters are marked, and a third rendering, in which people's text is replaced by filler, has to give the very same
control tokens; if it does not, the request is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from verifiable.errors import PolicyError
from verifiable.llama.control import ControlTokens
from verifiable.llama.messages import Transform, checked, rewritten, unused_mark
from verifiable.llama.model import Model
from verifiable.llama.template import Template

_FILLER: Final = "x"


class ChatTemplate:
    """A model's chat template, ready to turn conversations into prompts.

    Args:
        source: the Jinja source, usually `model.chat_template`.
        model: the model whose tokens it writes.

    Raises:
        MalformedError: the source is no template.
    """

    def __init__(self, source: str, model: Model) -> None:
        self._model = model
        self._control = ControlTokens(model)
        self._template = Template(source, _token_text(model, model.bos), _token_text(model, model.eos))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The prompt as text, with the opening of the assistant's answer at its end."""
        return self._template.render(*checked(messages, tools), now)

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
        conversation, functions = checked(messages, tools)
        mark = unused_mark((conversation, functions), self._template.source)
        text = self._template.render(conversation, functions, now)

        def render(transform: Transform) -> str | None:
            try:
                return self._template.render(
                    rewritten(conversation, transform, self._template.names),
                    None if functions is None else rewritten(functions, transform, self._template.names),
                    now,
                )
            except PolicyError:
                return None  # the template stumbles over the marks

        foreign = self._origins(text, mark, render)
        ids = self._control.tokenize(text, foreign)
        model = self._model
        if model.adds_bos and model.bos is not None and ids[:1] != [model.bos]:
            ids.insert(0, model.bos)
        return ids

    def _origins(self, text: str, mark: str, render: Callable[[Transform], str | None]) -> bytearray:
        marked = _unescaped(render(_marker(mark, _everything)), mark)
        if marked.replace(mark, "") == text:
            return _origins(marked, mark)
        # What is marked, and what is replaced by filler for the comparison of control tokens.
        for chosen, replaced in (
            (self._all_but_constants, self._all_but_constants),
            (self._control_text, self._control_text),
            (self._all_but_any_constants, _everything),
        ):
            marked = _unescaped(render(_marker(mark, chosen)), mark)
            if marked.replace(mark, "") != text:
                continue
            origins = _origins(marked, mark)
            neutral = render(_filler(replaced))
            if neutral is not None and self._control.ids(text, origins) == self._control.ids(
                neutral, bytearray(len(neutral))
            ):
                return origins
        raise PolicyError(
            "the chat template treats this text so that control tokens in it cannot be told from the template's own",
            hint="Rephrase the message, or leave out what looks like a control token",
            parameter="messages",
        )

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


def _everything(text: str) -> bytearray:
    return bytearray(b"\1" * len(text))


def _unescaped(marked: str | None, mark: str) -> str:
    """The rendering with marks as they are, where a template wrote them as JSON escapes."""
    return "" if marked is None else marked.replace(json.dumps(mark)[1:-1], mark)


def _marker(mark: str, choose: Callable[[str], bytearray]) -> Transform:
    """Put *mark* before each chosen character, except in white space at the ends, which templates trim."""

    def transform(text: str) -> str:
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        chosen = choose(text)[start : start + len(core)]
        if all(chosen):
            body = mark + mark.join(core)
        else:
            body = "".join(mark + c if flag else c for c, flag in zip(core, chosen, strict=True))
        return text[:start] + body + text[start + len(core) :]

    return transform


def _filler(choose: Callable[[str], bytearray]) -> Transform:
    """Replace chosen characters by filler and put filler around each run of the others, so that nothing that is left
    can join what was apart."""

    def transform(text: str) -> str:
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


def _origins(marked: str, mark: str) -> bytearray:
    """One byte for each character of the text without marks: 1 where a mark stood before it."""
    parts: Iterable[str] = marked.split(mark)
    iterator = iter(parts)
    origins = bytearray(len(next(iterator)))
    for part in iterator:
        if part:
            origins += b"\1" + bytes(len(part) - 1)
    return origins


def _token_text(model: Model, token: int | None) -> str:
    return "" if token is None else next((text for text, each in model.control_tokens.items() if each == token), "")
