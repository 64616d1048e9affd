"""Schemas combined: what two schemas demand at once as one, and whether two can hold for the same document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from verifiable.errors import PolicyError

Schema = Mapping[str, Any]

ANNOTATIONS: Final = frozenset(
    "title description default examples $schema $id $comment $defs definitions $anchor deprecated readOnly writeOnly "
    "contentEncoding contentMediaType nullable discriminator example".split()
)
"""Keywords that demand nothing."""
TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
_LARGER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def refuse(what: str, found: object = None) -> PolicyError:
    return PolicyError(f"the schema can't be made into a grammar: {what}", found=found)


def types_of(schema: Schema) -> tuple[str, ...] | None:
    """The types that a schema allows by `type`, or None where it is silent."""
    kinds = schema.get("type")
    if kinds is None:
        return None
    listed = kinds if isinstance(kinds, list) else [kinds]
    if not listed or not all(kind in TYPES for kind in listed):
        raise refuse("an unknown type", kinds)
    return tuple(listed)


def common(values: list[Any], others: list[Any]) -> list[Any]:
    """Those of some JSON values that are among others, equal as JSON Schema has it: 1 is 1.0, and true is not 1."""
    keys = {_key(value) for value in others}
    return [value for value in values if _key(value) in keys]


def _key(value: object) -> str:
    def plain(item: object) -> object:
        if isinstance(item, dict):
            return {key: plain(each) for key, each in item.items()}
        if isinstance(item, list):
            return [plain(each) for each in item]
        return int(item) if isinstance(item, float) and item.is_integer() else item

    return json.dumps(plain(value), sort_keys=True)


def merged(one: Any, other: Any) -> Any:
    """A schema that demands what both do. Raises PolicyError where that can't be said in one."""
    for this, that in ((one, other), (other, one)):
        if this is True:
            return that
        if this is False:
            return False
    _check_additional(one, other)
    _check_additional(other, one)
    result = dict(one)
    for key, value in other.items():
        if key not in result or key in ANNOTATIONS:
            result[key] = value
        elif _key(result[key]) != _key(value):
            result[key] = _both(key, result[key], value)
    return result


def _both(key: str, one: Any, other: Any) -> Any:
    if key in _LARGER:
        return max(one, other)
    if key in _SMALLER:
        return min(one, other)
    if key == "required":
        return [*one, *(name for name in other if name not in one)]
    if key == "properties":
        names = [*one, *(name for name in other if name not in one)]
        return {name: {"allOf": [each[name] for each in (one, other) if name in each]} for name in names}
    if key == "type":
        return _both_types(types_of({"type": one}) or (), types_of({"type": other}) or ())
    if key == "enum":
        return common(one, other)
    raise refuse("two demands at once", key)


def _both_types(one: tuple[str, ...], other: tuple[str, ...]) -> list[str]:
    def allows(kinds: tuple[str, ...], kind: str) -> bool:
        return kind in kinds or (kind == "integer" and "number" in kinds)

    return [kind for kind in TYPES if allows(one, kind) and allows(other, kind)]


def _check_additional(one: Schema, other: Schema) -> None:
    """A schema that limits other members says so of its own, not of those of the schema beside it."""
    if one.get("additionalProperties", True) in (True, {}):
        return
    strangers = {*other.get("properties", {}), *other.get("required", ())} - set(one.get("properties", {}))
    if strangers:
        raise refuse("additionalProperties beside members of another schema", sorted(strangers)[0])


def disjoint(one: Any, other: Any) -> bool:
    """Whether it is sure that no document validates against both."""
    if one is False or other is False:
        return True
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return not common(values, others)
    kinds, more = types_of(one), types_of(other)
    if values is not None and more is not None:
        return not any(is_type(value, kind) for value in values for kind in more)
    if others is not None and kinds is not None:
        return not any(is_type(value, kind) for value in others for kind in kinds)
    if kinds is None or more is None:
        return False
    if not _both_types(kinds, more):
        return True
    shared = set(one.get("required", ())) & set(other.get("required", ()))
    members, theirs = one.get("properties", {}), other.get("properties", {})
    objects = set(kinds) & set(more) == {"object"}
    return objects and any(disjoint(members.get(name, True), theirs.get(name, True)) for name in shared)


def _values(schema: Schema) -> list[Any] | None:
    """The values that a schema lists, or None."""
    return [schema["const"]] if "const" in schema else list(schema["enum"]) if "enum" in schema else None


def is_type(value: object, kind: str) -> bool:
    """Whether a JSON value is of a type."""
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    if isinstance(value, (int, float)):
        return kind == "number" or (kind == "integer" and float(value).is_integer())
    return kind == ("string" if isinstance(value, str) else "array" if isinstance(value, list) else "object")
