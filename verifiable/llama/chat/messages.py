"""Chat messages as plain values: what is allowed in them, and how text in them is found and replaced."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from verifiable.errors import PolicyError

Transform = Callable[[str], str]
"""What becomes of one piece of people's text."""

ROLES: Final = frozenset(
    ("system", "developer", "user", "assistant", "model", "tool", "function", "ipython", "context", "documents")
)
"""Roles that a message may have. Templates write them into control tokens (`<|user|>`), so they are no free text."""

_MAX_DEPTH: Final = 32
_MAX_VALUES: Final = 1_000_000
# The hexagrams of the Yijing: hardly ever in a message, and neither letters nor spaces, so that no filter changes or
# trims them. They have to be printable: some templates write lists as Python does, with escapes for all else.
_MARKS: Final = tuple(chr(code) for code in range(0x4DC0, 0x4E00))
_WORDS: Final = frozenset(
    "content name tool_calls tool_call_id reasoning_content id type function arguments description parameters strict "
    "properties required items enum const default title format anyOf oneOf allOf nullable additionalProperties "
    "minimum maximum minLength maxLength minItems maxItems pattern $ref $defs".split()
)
"""Names that OpenAI's objects and JSON schemas give their parts, and by which templates ask for them."""
_TYPES: Final = frozenset(("function", "object", "array", "string", "number", "integer", "boolean", "null"))
"""Values of `type` that templates compare."""


def checked(messages: Any, tools: Any) -> tuple[list[Any], list[Any] | None]:
    """Copies of *messages* and *tools* as JSON values, with lists of text parts joined by line breaks.

    Raises PolicyError, which names the parameter and the place.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise PolicyError("messages", expected="a list of at least one message", found=messages, parameter="messages")
    budget = [_MAX_VALUES]
    conversation = []
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        if not isinstance(message, Mapping):
            raise PolicyError(place, expected="an object", found=message, parameter="messages")
        copied = _copy(message, place, "messages", 0, budget)
        if copied.get("role") not in ROLES:
            expected = ", ".join(sorted(ROLES))
            raise PolicyError(f"{place}.role", expected=expected, found=copied.get("role"), parameter="messages")
        copied["content"] = _joined(copied.get("content"), place)
        conversation.append(copied)
    if tools is None:
        return conversation, None
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise PolicyError("tools", expected="a list", found=tools, parameter="tools")
    return conversation, [_copy(tool, f"tools[{n}]", "tools", 0, budget) for n, tool in enumerate(tools)]


def _joined(content: Any, place: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        if len(texts) == len(content):
            return "\n".join(texts)
    raise PolicyError(f"{place}.content", expected="text or a list of text parts", found=content, parameter="messages")


def plain(value: Any, place: str, parameter: str) -> Any:
    """A copy of a JSON value. Raises PolicyError where it is none, or nested too deep or too large."""
    return _copy(value, place, parameter, 0, [_MAX_VALUES])


def _copy(value: Any, place: str, parameter: str, depth: int, budget: list[int]) -> Any:
    budget[0] -= 1
    if depth > _MAX_DEPTH or budget[0] < 0:
        raise PolicyError(f"{place} is nested too deep or too large", parameter=parameter)
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise PolicyError(f"{place} has a key that is no string", parameter=parameter)
        return {key: _copy(each, f"{place}.{key}", parameter, depth + 1, budget) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_copy(each, f"{place}[{n}]", parameter, depth + 1, budget) for n, each in enumerate(value)]
    raise PolicyError(f"{place} is no JSON value", found=type(value).__name__, parameter=parameter)


def rewritten_messages(messages: Sequence[Any], transform: Transform, names: frozenset[str]) -> list[Any]:
    """Copies of *messages* with every text replaced but the role, which is a checked word."""
    return [
        {"role": message["role"]}
        | rewritten({key: value for key, value in message.items() if key != "role"}, transform, names)
        for message in messages
    ]


def rewritten(value: Any, transform: Transform, names: frozenset[str]) -> Any:
    """A copy of *value* with every text replaced, keys included.

    Left alone are well-known keys that the template asks for by name (*names*), and the well-known values of `type`.
    Everything that a person could choose freely is replaced.
    """
    if isinstance(value, str):
        return transform(value)
    if isinstance(value, list):
        return [rewritten(each, transform, names) for each in value]
    if isinstance(value, dict):
        return {
            key if key in names and key in _WORDS else transform(key): each
            if key == "type" and isinstance(each, str) and each in _TYPES
            else rewritten(each, transform, names)
            for key, each in value.items()
        }
    return value


def unused_marks(values: Any, source: str) -> tuple[str, str]:
    """Two characters for marking that appear neither in *values* nor in *source*."""
    text = json.dumps(values, ensure_ascii=False) + json.dumps(values) + source
    free = [mark for mark in _MARKS if mark not in text and json.dumps(mark)[1:-1] not in text]
    if len(free) < 2:
        raise PolicyError("the messages hold all 64 hexagrams of the Yijing at once", parameter="messages")
    return free[0], free[1]
