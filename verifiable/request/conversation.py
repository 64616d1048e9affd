"""The conversation of a chat request: its messages, the tools it offers, and those of which the answer has to call one.

Readers of JSON fields like those of `verifiable.request.fields`: each gives plain values, or a PolicyError that names
the field. What they give has the fields of OpenAI's objects, in OpenAI's order; a field that is null is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verifiable import limits
from verifiable.request.fields import wrong

ROLES = ("system", "developer", "user", "assistant", "tool")
_ALL = ("role", "content", "name")
_ONLY: Mapping[str, tuple[str, ...]] = {"assistant": ("tool_calls", "reasoning_content"), "tool": ("tool_call_id",)}
"""Fields that messages of one role alone may have."""
NO_PARAMETERS: Mapping[str, Any] = {"additionalProperties": False, "properties": {}, "type": "object"}
"""The schema of a tool that has none."""


def messages(value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise wrong("messages", "a list of at least one message", value)
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def tools(value: object) -> tuple[Mapping[str, Any], ...]:
    """Descriptions of functions that the answer may call; none for null and for an empty list."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > limits.TOOLS:
        raise wrong("tools", f"a list of at most {limits.TOOLS} tools", value)
    offered = tuple(_tool(item, f"tools[{index}]") for index, item in enumerate(value))
    names = [tool["function"]["name"] for tool in offered]
    if len(set(names)) != len(names):
        raise wrong("tools", "each name once", names)
    return offered


def forced(choice: object, offered: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The tools one of which the answer has to call: none for auto and none, all for required, or the one named."""
    if choice is None or choice in ("auto", "none"):
        return ()
    if choice == "required":
        chosen = tuple(offered)
    else:
        named = _only(choice, "tool_choice", ("type", "function"), 'auto, none, required, or {"type": "function", …}')
        if named.get("type") != "function":
            raise wrong("tool_choice", 'the type "function"', choice)
        name = _text(_only(named.get("function"), "tool_choice", ("name",), "a function's name"), "name", "tool_choice")
        chosen = tuple(tool for tool in offered if tool["function"]["name"] == name)
    if not chosen:
        raise wrong("tool_choice", "one of the tools that the request offers", choice)
    return chosen


def calls(chosen: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a forced call has to match, as a constraint names it: name and schema of each tool."""
    functions = [tool["function"] for tool in chosen]
    return [{"name": each["name"], "parameters": each.get("parameters", dict(NO_PARAMETERS))} for each in functions]


def _message(value: object, where: str) -> Mapping[str, Any]:
    role = value.get("role") if isinstance(value, dict) else None
    if not isinstance(value, dict) or role not in ROLES:
        raise wrong(where, f"an object with a role of {', '.join(ROLES)}", value)
    message = _only(value, where, (*_ALL, *_ONLY.get(str(role), ())), f"what a message of role {role} may have")
    plain: dict[str, Any] = {"role": role}
    if made := _tool_calls(message.get("tool_calls", []), f"{where}.tool_calls"):
        plain["tool_calls"] = made
    for name in ("reasoning_content", "tool_call_id", "name"):
        if name in message:
            plain[name] = _string(message, name, where)
    optional = "tool_calls" in plain or "reasoning_content" in plain
    plain["content"] = None if optional and message.get("content") is None else _content(message, where)
    return plain


def _content(message: Mapping[str, Any], where: str) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        if not all(isinstance(part, str) for part in parts):
            raise wrong(f"{where}.content", "text parts only", content)
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str):
        raise wrong(f"{where}.content", "a string or a list of text parts", content)
    return content


def _tool_calls(value: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > limits.TOOLS:
        raise wrong(where, f"a list of at most {limits.TOOLS} calls", value)
    return [_tool_call(item, f"{where}[{index}]") for index, item in enumerate(value)]


def _tool_call(value: object, where: str) -> dict[str, Any]:
    call = _only(value, where, ("id", "type", "function"), "an object with id, type and function")
    function = _only(call.get("function"), f"{where}.function", ("name", "arguments"), "an object with name, arguments")
    if call.get("type", "function") != "function":
        raise wrong(f"{where}.type", "function", call["type"])
    name = _text(function, "name", f"{where}.function")
    arguments = _string(function, "arguments", f"{where}.function")
    return {"id": _text(call, "id", where), "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool(value: object, where: str) -> dict[str, Any]:
    tool = _only(value, where, ("type", "function"), "an object with type and function")
    if tool.get("type") != "function":
        raise wrong(f"{where}.type", "function", tool.get("type"))
    known = ("name", "description", "parameters", "strict")
    function = _only(tool.get("function"), f"{where}.function", known, f"an object with {', '.join(known)}")
    plain: dict[str, Any] = {"name": _text(function, "name", f"{where}.function")}
    kinds: tuple[tuple[str, type, str], ...] = (
        ("description", str, "a string"),
        ("parameters", dict, "a JSON schema that is an object"),
        ("strict", bool, "true or false"),
    )
    for name, kind, expected in kinds:
        if name in function:
            if not isinstance(function[name], kind):
                raise wrong(f"{where}.function.{name}", expected, function[name])
            plain[name] = function[name]
    return {"type": "function", "function": plain}


def _only(value: object, where: str, names: Sequence[str], expected: str) -> dict[str, Any]:
    """The fields of an object that are not null, all of them known."""
    if not isinstance(value, dict):
        raise wrong(where, expected, value)
    held = {name: item for name, item in value.items() if item is not None}
    unknown = sorted(held.keys() - set(names))
    if unknown:
        raise wrong(f"{where}.{unknown[0][:32]}", f"only {', '.join(names)}", value[unknown[0]])
    return held


def _string(holder: Mapping[str, Any], name: str, where: str) -> str:
    value = holder.get(name)
    if not isinstance(value, str):
        raise wrong(f"{where}.{name}", "a string", value)
    return value


def _text(holder: Mapping[str, Any], name: str, where: str) -> str:
    value = _string(holder, name, where)
    if not 1 <= len(value) <= limits.NAME_CHARACTERS:
        raise wrong(f"{where}.{name}", f"a string of 1 to {limits.NAME_CHARACTERS} characters", value)
    return value
