"""Readers of a request's JSON fields: each gives the field's value with its type, or a PolicyError that names it.

A field that is absent or null gives None, or the neutral value. What is expected and what was found stand in the error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import rfc8785

from verifiable import limits
from verifiable.errors import PolicyError
from verifiable.session.records import SESSION_ID_BYTES
from verifiable.wire.text import from_hex

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


def wrong(name: str, expected: str, value: object) -> PolicyError:
    shown = json.dumps(value)
    return PolicyError(f"parameter {name}", expected=expected, found=shown[:80], parameter=name)


def number(body: Mapping[str, Any], name: str) -> float | None:
    value, (low, high) = body.get(name), limits.NUMBERS[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise wrong(name, f"a number from {low:g} to {high:g}", value)
    return float(value)


def integer(body: Mapping[str, Any], name: str) -> int | None:
    return whole(body.get(name), name, *limits.INTEGERS[name])


def whole(value: object, name: str, low: int, high: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise wrong(name, f"a whole number from {low} to {high}", value)
    return value


def boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(name, "true or false", value)
    return bool(value)


def string(body: Mapping[str, Any], name: str, maximum: int) -> str | None:
    value = body.get(name)
    if value is not None and not (isinstance(value, str) and len(value) <= maximum):
        raise wrong(name, f"a string of at most {maximum} characters", value)
    return value


def choice(body: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str | None:
    value = body.get(name)
    if value is not None and value not in allowed:
        raise wrong(name, " or ".join(allowed), value)
    return value


def object_(body: Mapping[str, Any], name: str, allowed: set[str]) -> Mapping[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or not set(value) <= allowed:
        raise wrong(name, f"an object with {', '.join(sorted(allowed))}", value)
    return value


def prompt(value: object) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        ids = [
            item for item in value if isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= limits.U31
        ]
        if len(ids) == len(value):
            return tuple(ids)
    raise wrong("prompt", "a string or a list of token ids", value)


def stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or len(strings) > limits.STOPS:
        raise wrong("stop", f"a string or at most {limits.STOPS} strings", value)
    for stop in strings:
        if not isinstance(stop, str) or not 1 <= len(stop) <= limits.STOP_CHARACTERS:
            raise wrong("stop", f"strings of 1 to {limits.STOP_CHARACTERS} characters", stop)
    return tuple(strings)


def logprobs(chat: bool, body: Mapping[str, Any]) -> int | None:
    if not chat:
        return integer(body, "logprobs")
    top = integer(body, "top_logprobs")
    if not boolean(body, "logprobs"):
        if top is not None:
            raise wrong("top_logprobs", "logprobs to be true", top)
        return None
    return top or 0


def biases(value: object) -> tuple[tuple[int, float], ...]:
    """Biases by ascending id; those of 0 change nothing and are left out."""
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > limits.BIASES:
        raise wrong("logit_bias", f"an object of at most {limits.BIASES} token ids and biases", value)
    by_id, (low, high) = {}, limits.BIAS
    for name, bias in value.items():
        good = isinstance(bias, (int, float)) and not isinstance(bias, bool) and low <= bias <= high
        if not (_DECIMAL.fullmatch(name) and int(name) <= limits.U31 and good):
            raise wrong("logit_bias", f"token ids in decimal, with biases from {low:g} to {high:g}", {name: bias})
        if bias:
            by_id[int(name)] = float(bias)
    return tuple(sorted(by_id.items()))


def constraint(body: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> bytes:
    """The RFC 8785 form of what the answer has to match, or nothing. `calls`: the tools one of which it has to call."""
    grammar, form = body.get("grammar"), body.get("response_format")
    if isinstance(form, dict) and form == {"type": "text"}:
        form = None
    if calls:
        if grammar is not None or form is not None:
            raise wrong("tool_choice", "auto or none beside grammar or response_format", body.get("tool_choice"))
        return _bounded({"tools": calls}, "tools")
    if grammar is None and form is None:
        return b""
    if grammar is not None and form is not None:
        raise wrong("grammar", "one of grammar and response_format", grammar)
    if grammar is not None:
        if not isinstance(grammar, str) or not 1 <= len(grammar) <= limits.FORM:
            raise wrong("grammar", f"GBNF text of 1 to {limits.FORM} characters", grammar)
        return rfc8785.dumps({"grammar": grammar})
    if not isinstance(form, dict) or form.get("type") not in ("json_object", "json_schema"):
        raise wrong("response_format", "an object with type text, json_object or json_schema", form)
    known = {"type"} | ({"json_schema"} if form["type"] == "json_schema" else {"schema"})
    if not set(form) <= known:
        raise wrong("response_format", f"only {', '.join(sorted(known))}", form)
    schema = form.get("schema")
    if form["type"] == "json_schema":
        named = form.get("json_schema")
        if not isinstance(named, dict) or not set(named) <= {"name", "description", "schema", "strict"}:
            raise wrong("response_format.json_schema", "an object with name, schema and strict", named)
        schema = named.get("schema")
        if schema is None:
            raise wrong("response_format.json_schema.schema", "a JSON schema", schema)
    if schema is not None and not isinstance(schema, (dict, bool)):
        raise wrong("response_format.schema", "a JSON schema", schema)
    return _bounded({"schema": {"type": "object"} if schema is None else schema}, "response_format")


def _bounded(value: Any, name: str) -> bytes:
    canonical: bytes = rfc8785.dumps(value)
    if len(canonical) > limits.FORM:
        raise wrong(name, f"schemas of at most {limits.FORM} bytes", len(canonical))
    return canonical


def nonce(value: object) -> bytes | None:
    if value is None:
        return None
    data = from_hex(value, len(value) // 2) if isinstance(value, str) else None
    least, most = limits.NONCE_BYTES
    if data is None or not least <= len(data) <= most:
        raise wrong("verifiable.nonce", f"{least} to {most} bytes in lower-case hexadecimal", value)
    return data


def manifest(value: object) -> bytes | None:
    """The digest of the manifest that the client pins."""
    if value is None:
        return None
    digest = from_hex(value, 32) if isinstance(value, str) else None
    if digest is None:
        raise wrong("verifiable.manifest", "the 64 hexadecimal digits of a manifest's digest", value)
    return digest


def session(value: object) -> str | None:
    if value is None or (isinstance(value, str) and (value == "new" or from_hex(value, SESSION_ID_BYTES))):
        return value
    raise wrong("verifiable.session", '"new" or the 32 hexadecimal digits of a session id', value)
