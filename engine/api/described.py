"""What the OpenAPI document says of the routes that generate; the ranges are those of `verifiable.limits`."""

from __future__ import annotations

from typing import Any

from verifiable import limits

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


_REASONS = {
    400: "The body is not JSON, or a parameter is unknown, malformed or out of range.",
    401: "No API key, or a wrong one.",
    404: "No such model, or no such session for this caller.",
    409: "The session can't take this turn now.",
    429: "Too many requests with this API key at once.",
    500: "The engine failed.",
    503: "Too many requests are waiting.",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": reason, "content": {"application/json": {"schema": _ERROR}}}
    for status, reason in _REASONS.items()
}
ANSWERS: dict[int | str, dict[str, Any]] = {
    **REFUSALS,
    200: {
        "description": "The answer, whole or as events; `verifiable` holds session, turn, next turn, the capability of "
        "the session's owner where it goes on, and the receipt.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
    },
}


def _number(kind: str, low: float, high: float) -> dict[str, Any]:
    return {"type": [kind, "null"], "minimum": low, "maximum": high}


_NUMBERS = {name: _number("number", *ends) for name, ends in limits.NUMBERS.items()}
_INTEGERS = {name: _number("integer", *ends) for name, ends in limits.INTEGERS.items()}
_OF_CHAT_ALONE = {name: _INTEGERS.pop(name) for name in ("max_completion_tokens", "top_logprobs")}
_LOGPROBS = _INTEGERS.pop("logprobs")
_NUMBERS["temperature"]["description"] = f"0, or at least {limits.TEMPERATURE[0]:g}."


_OURS = "`nonce` and `manifest` (hexadecimal), `session`, `turn`, `commitments`."


_STOP = {"type": "string", "minLength": 1, "maxLength": limits.STOP_CHARACTERS}


def _body(required: str, properties: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    common = {
        "model": {"type": ["string", "null"], "maxLength": limits.NAME_CHARACTERS},
        **_NUMBERS,
        **_INTEGERS,
        "stream": {"type": ["boolean", "null"]},
        "stop": {"oneOf": [{"type": "null"}, _STOP, {"type": "array", "maxItems": limits.STOPS, "items": _STOP}]},
        "logit_bias": {
            "type": ["object", "null"],
            "maxProperties": limits.BIASES,
            "additionalProperties": {"type": "number", "minimum": limits.BIAS[0], "maximum": limits.BIAS[1]},
        },
        "ignore_eos": {"type": ["boolean", "null"]},
        "grammar": {"type": ["string", "null"], "minLength": 1, "maxLength": limits.FORM},
        "verifiable": {"type": "object", "description": _OURS},
    }
    schema = {"type": "object", "required": [required], "properties": {**properties, **common}}
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"type": ["string", "array", "null"]},
        "name": {"type": ["string", "null"]},
        "reasoning_content": {"type": ["string", "null"], "description": "An assistant's."},
        "tool_calls": {
            "type": ["array", "null"],
            "maxItems": limits.TOOLS,
            "items": {"type": "object"},
            "description": "An assistant's.",
        },
        "tool_call_id": {"type": ["string", "null"], "description": "A tool's."},
    },
}
_TOOL = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {"type": {"enum": ["function"]}, "function": {"type": "object", "required": ["name"]}},
}
_ID = {"type": "integer", "minimum": 0, "maximum": limits.U31}
CHAT_BODY = _body(
    "messages",
    {
        "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
        **_OF_CHAT_ALONE,
        "logprobs": {"type": ["boolean", "null"]},
        "tools": {"type": "array", "maxItems": limits.TOOLS, "items": _TOOL},
        "tool_choice": {"description": "`auto`, `none`, `required`, or a function by name."},
        "response_format": {"type": "object", "description": "`text`, `json_object` or `json_schema`."},
    },
    {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 32},
)
COMPLETION_BODY = _body(
    "prompt",
    {
        "prompt": {"oneOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _ID}]},
        "logprobs": _LOGPROBS,
    },
    {"prompt": "The sky is", "max_tokens": 8},
)
