"""How tools, tool calls and reasoning come into a prompt: through the template where it writes them, as text elsewhere.

What a template can do is found by rendering short fixed conversations with it, never by its model's name, and so is the
same for provider and auditor. A field that it does not write becomes a line of JSON in a message's content: RFC 8785 of
{field: value}. Such a line is a person's text like the content around it, so no control token comes from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import rfc8785

from verifiable.errors import PolicyError
from verifiable.llama.chat.messages import plain
from verifiable.llama.chat.template import Template

_NEEDLE: Final = "needleabc"  # nine letters: some templates insist on ids of nine
_USER: Final = {"role": "user", "content": "q"}
_ARGUMENTS: Final = {"city": _NEEDLE}
_NOON: Final = datetime(2000, 1, 1, 12, tzinfo=UTC)
_SYSTEM: Final = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a template does by itself.

    Attributes:
        tools: it writes the variable `tools`.
        calls: it writes a message's `tool_calls`.
        objects: it wants the arguments of a call as an object, not as the JSON text that OpenAI's clients send.
        empty: what it wants as content of a message that has calls alone.
        reasoning: it asks for `reasoning_content` by name; it may leave it out where it likes.
        results: it knows messages of role `tool`; else their `tool_call_id` becomes text.
        tool_role: it takes that role, whether it knows it or writes any role; else they are given the role `user`.
        developer: it asks for the role `developer` by name; else such messages are given the role `system`.
    """

    tools: bool
    calls: bool
    objects: bool
    empty: str | None
    reasoning: bool
    results: bool
    tool_role: bool
    developer: bool

    @classmethod
    def of(cls, template: Template) -> Abilities:
        """Ask a template what it can do."""

        def writes(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> bool:
            try:
                return _NEEDLE in template.render(messages, tools, _NOON)
            except PolicyError:
                return False

        ways = [(empty, objects) for empty in (None, "") for objects in (True, False)]
        called = [way for way in ways if writes([_USER, _probe_call(*way)])]
        empty, objects = called[0] if called else ("", False)
        before = [_USER, _probe_call(empty, objects) if called else {"role": "assistant", "content": "a"}]
        function = {"name": _NEEDLE, "description": "d", "parameters": {"type": "object", "properties": {}}}
        names = template.names
        return cls(
            tools=writes([_USER], [{"type": "function", "function": function}]),
            calls=bool(called),
            objects=objects,
            empty=empty,
            reasoning="reasoning_content" in names,
            results="tool" in names or "tool_call_id" in names,
            tool_role=writes([*before, {"role": "tool", "tool_call_id": "abcdef123", "content": _NEEDLE}]),
            developer="developer" in names,
        )

    def fit(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None
    ) -> tuple[list[dict[str, Any]], list[Any] | None]:
        """Messages and tools as the template takes them, and what it does not write as text in the content.

        Results that follow each other and are told as a user's are one message: many templates want user and assistant
        to take turns.
        """
        fitted: list[dict[str, Any]] = []
        joining = False
        for message in messages:
            one = self._message(message)
            told = message["role"] == "tool" and one["role"] == "user"
            if told and joining:
                fitted[-1]["content"] += "\n" + one["content"]
            else:
                fitted.append(one)
            joining = told
        if not tools:
            return fitted, None
        if self.tools:
            return fitted, [_whole(tool) for tool in tools]
        first, told_of = fitted[0], _line("tools", list(tools))
        texts = [first["content"] or "", told_of]
        first["content"] = "\n\n".join(texts if first["role"] in _SYSTEM else reversed(texts))
        return fitted, None

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        one = dict(message)
        before, after = list[str](), list[str]()
        if one["role"] == "developer" and not self.developer:
            one["role"] = "system"
        if "reasoning_content" in one and not self.reasoning:
            before.append(_line("reasoning_content", one.pop("reasoning_content")))
        if "tool_calls" in one and not self.calls:
            after.append(_line("tool_calls", one.pop("tool_calls")))
        if one["role"] == "tool" and not self.results:
            if "tool_call_id" in one:
                before.append(_line("tool_call_id", one.pop("tool_call_id")))
            one["role"] = "tool" if self.tool_role else "user"
        if before or after:
            one["content"] = "\n".join((*before, *([one["content"]] if one["content"] else ()), *after))
        if "tool_calls" in one:
            one["content"] = one["content"] or self.empty
            one["tool_calls"] = [self._call(call) for call in one["tool_calls"]]
        elif one["content"] is None:
            one["content"] = ""
        return one

    def _call(self, call: Any) -> Any:
        """A call with its arguments as the template wants them. Those that are no JSON object, or one that is nested
        too deep, stay text.
        """
        try:
            arguments = json.loads(call["function"]["arguments"]) if self.objects else None
            arguments = plain(arguments, "arguments", "messages")
        except (ValueError, LookupError, TypeError, RecursionError, PolicyError):
            return call
        if not isinstance(arguments, dict):
            return call
        return {**call, "function": {**call["function"], "arguments": arguments}}


def _whole(tool: Any) -> Any:
    """A tool with an empty list of parameters where it has none; templates look into it."""
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict) or "parameters" in tool["function"]:
        return tool
    return {**tool, "function": {**tool["function"], "parameters": {"type": "object", "properties": {}}}}


def _line(name: str, value: Any) -> str:
    try:
        return rfc8785.dumps({name: value}).decode()
    except (rfc8785.CanonicalizationError, UnicodeError, RecursionError) as error:
        raise PolicyError(f"{name} has no canonical form (RFC 8785)", found=str(error), parameter=name) from error


def _probe_call(empty: str | None, objects: bool) -> dict[str, Any]:
    function = {"name": "f", "arguments": _ARGUMENTS if objects else json.dumps(_ARGUMENTS)}
    call = {"id": "abcdef123", "type": "function", "function": function}
    return {"role": "assistant", "content": empty, "tool_calls": [call]}
