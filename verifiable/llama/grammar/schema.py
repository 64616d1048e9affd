"""JSON schemas as grammars (GBNF): every text that such a grammar accepts is JSON and validates against the schema.

The reverse does not hold: of the documents that validate, some can't be written. Members of an object come in the order
of the schema, those that are required first, and no others where the schema names any; numbers have up to 16 digits.
A keyword that would have to be enforced and is not known here is refused by name, never ignored. `format` is an
annotation, as JSON Schema has it, but for dates, times and UUIDs.

Schemas are those of JSON Schema 2020-12 (draft 7's names of the same things are read too), with references within the
document. What the grammar accepts is part of the protocol: spec/sampling-processors.md, "Schemas".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from verifiable.errors import PolicyError
from verifiable.llama.grammar.gbnf import MAX_REPEAT
from verifiable.llama.grammar.pattern import pattern_rule
from verifiable.llama.grammar.schema_merge import (
    ANNOTATIONS,
    Schema,
    common,
    disjoint,
    is_type,
    merged,
    refuse,
    types_of,
)
from verifiable.llama.grammar.schema_text import FORMATS, bounded_integer, bounded_number, inside, literal

MAX_RULES: Final = 4096
MAX_ALTERNATIVES: Final = 256
MAX_EXPANSION: Final = 32
"""References and combinations that are followed into each other."""
MAX_STEPS: Final = 50_000
"""Parts of a schema that are looked at, each as often as it is referred to."""
_BASE: Final[Mapping[str, str]] = {
    "ws": '| " " | "\\n" [ \\t]{0,20}',
    "char": r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" hex)',
    "hex": "[0-9a-cA-Ce-fE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}",
    "string": r'"\"" char* "\""',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,15})',
    "number": 'integer ("." [0-9]{1,16})? ([eE] [-+]? [0-9] [0-9]?)?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" (ws string ":" ws value ("," ws string ":" ws value)*)? ws "}"',
    "array": '"[" (ws value ("," ws value)*)? ws "]"',
}
"""Rules that every grammar has. No surrogate is written as an escape: half a pair would be no text."""
_OBJECT: Final = ("properties", "required", "additionalProperties", "minProperties", "maxProperties")
_ARRAY: Final = ("items", "prefixItems", "minItems", "maxItems", "uniqueItems")
_STRING: Final = ("minLength", "maxLength", "pattern", "format")
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_KEYWORDS: Final = {"object": _OBJECT, "array": _ARRAY, "string": _STRING, "number": (*_BOUNDS, "multipleOf")}
_COMBINING: Final = frozenset(("anyOf", "oneOf", "allOf", "$ref"))
_KNOWN: Final = {*(key for keys in _KEYWORDS.values() for key in keys), *_COMBINING, "type", "enum", "const"}


def schema_grammar(schema: Any) -> str:
    """The grammar of one schema. Raises PolicyError (`response_format`) where it can't be made into one."""
    rules = dict(_BASE)
    return _text(rules, Document(schema, rules, "response_format").root)


def call_grammar(tools: Sequence[Mapping[str, Any]]) -> str:
    """The grammar of a call of one of these tools ({"name", "parameters"}): {"name":…,"parameters":…} without spaces.

    References in a tool's parameters are to places in these parameters. Raises PolicyError (`tools`).
    """
    rules = dict(_BASE)
    calls = []
    for tool in tools:
        name = literal('{"name":' + json.dumps(tool["name"], ensure_ascii=False) + ',"parameters":')
        calls.append(f'{name} {Document(tool["parameters"], rules, "tools").root} "}}"')
    return _text(rules, " | ".join(calls))


def _text(rules: Mapping[str, str], root: str) -> str:
    return "\n".join(f"{name} ::= {body}" for name, body in {**rules, "root": root}.items()) + "\n"


class Document:
    """One schema document on its way into `rules`.

    Attributes:
        root: the expression of the whole document.
    """

    def __init__(self, schema: Any, rules: dict[str, str], parameter: str) -> None:
        self._schema = schema
        self._steps = 0
        self._rules = rules
        self._names: dict[str, str] = {body: name for name, body in rules.items()}
        self._references: dict[str, str] = {}
        try:
            self.root = self._visit(schema)
        except PolicyError as error:
            raise PolicyError(error.what, found=error.found, parameter=parameter) from error
        except (TypeError, ValueError, AttributeError, LookupError, RecursionError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}"[:200]
            raise PolicyError("the schema can't be made into a grammar", found=reason, parameter=parameter) from error

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise refuse(f"more than {MAX_STEPS} parts, each counted as often as it is referred to")

    def _rule(self, body: str) -> str:
        """The name of the rule with this body."""
        if body not in self._names:
            if len(self._rules) >= MAX_RULES:
                raise refuse(f"more than {MAX_RULES} rules")
            self._names[body] = f"r{len(self._rules)}"
            self._rules[self._names[body]] = body
        return self._names[body]

    def _visit(self, schema: Any) -> str:
        """The expression for what a schema allows. Raises PolicyError where it allows nothing."""
        self._step()
        if schema is True:
            return "value"
        if schema is False:
            raise refuse("a part of it allows nothing")
        if not isinstance(schema, Mapping):
            raise refuse("a schema that is neither object nor boolean", schema)
        demands = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        if unknown := sorted(demands.keys() - _KNOWN):
            raise refuse("a keyword that is not enforced here", unknown[0])
        if set(demands) == {"$ref"}:
            return self._reference(demands["$ref"])
        for key in ("anyOf", "oneOf"):
            if set(demands) == {key}:
                return self._union(key, demands[key])
        if demands.keys() & _COMBINING:
            return self._union("anyOf", self._expanded(demands, 0))
        return self._plain(demands)

    def _union(self, key: str, schemas: Sequence[Any]) -> str:
        if key == "oneOf":
            if len(schemas) > MAX_ALTERNATIVES:
                raise refuse(f"oneOf of more than {MAX_ALTERNATIVES}")
            whole = [self._target(each) for each in schemas]
            if any(not disjoint(one, other) for at, one in enumerate(whole) for other in whole[:at]):
                raise refuse("oneOf, more than one of which may match: say anyOf, or tell them apart by a const")
        return self._rule(
            " | ".join([self._visit(each) for each in schemas if each is not False]) or self._visit(False)
        )

    def _reference(self, reference: object) -> str:
        """The rule of another place of the document; it may be one that is being made."""
        text = str(reference)
        if text not in self._references:
            target = self._look_up(reference)
            name = self._references[text] = self._rule(f"reference {len(self._rules)}")
            self._rules[name] = self._visit(target)
            if self._rules[name] == name:
                raise refuse("a reference to itself", reference)
        return self._references[text]

    def _look_up(self, reference: object) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise refuse('a "$ref" to anywhere but a place in the document, "#/…"', reference)
        target = self._schema
        for part in reference.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            target = target[int(key)] if isinstance(target, list) else target[key]
        return target

    def _target(self, schema: Any) -> Any:
        """A schema, or what it refers to where it is no more than a reference."""
        for _ in range(MAX_EXPANSION):
            if not isinstance(schema, Mapping) or set(schema) - ANNOTATIONS != {"$ref"}:
                return schema
            schema = self._look_up(schema["$ref"])
        raise refuse("a reference to itself", schema)

    def _expanded(self, schema: Any, depth: int) -> list[Any]:
        """A schema as alternatives without anyOf, oneOf, allOf and $ref at their top."""
        self._step()
        if depth > MAX_EXPANSION:
            raise refuse("a reference to itself, or combinations nested too deeply")
        if not isinstance(schema, Mapping):
            return [schema]
        combined: list[Any] = [{key: value for key, value in schema.items() if key not in _COMBINING | ANNOTATIONS}]
        parts = [[self._look_up(schema["$ref"])]] if "$ref" in schema else []
        parts += [[each] for each in schema.get("allOf", ())]
        parts += [schema[key] for key in ("anyOf", "oneOf") if key in schema]
        if "oneOf" in schema:
            self._union("oneOf", schema["oneOf"])  # for its check
        for part in parts:
            choices = [choice for each in part for choice in self._expanded(each, depth + 1)]
            combined = [merged(one, choice) for one in combined for choice in choices]
            if len(combined) > MAX_ALTERNATIVES:
                raise refuse(f"more than {MAX_ALTERNATIVES} combinations")
        return combined

    def _plain(self, schema: Schema) -> str:
        """A schema without combinations: listed values, or a union over the types that it allows."""
        if "enum" in schema or "const" in schema:
            return self._listed(schema)
        kinds = types_of(schema)
        if kinds is None:
            inferred = [kind for kind, keys in _KEYWORDS.items() if schema.keys() & set(keys)]
            if not inferred:
                return "value"
            kinds = tuple(inferred)
        makers: Mapping[str, Callable[[Schema], str]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "number": self._number,
            "integer": self._number,
        }
        rules = [makers[kind]({**schema, "type": kind}) if kind in makers else kind for kind in kinds]
        return self._rule(" | ".join(dict.fromkeys(rules))) if len(rules) > 1 else rules[0]

    def _listed(self, schema: Schema) -> str:
        if others := schema.keys() - {"enum", "const", "type"}:
            raise refuse("listed values beside another demand", sorted(others)[0])
        values = list(schema.get("enum", [schema.get("const")]))
        if "enum" in schema and "const" in schema:
            values = common(values, [schema["const"]])
        kinds = types_of(schema)
        values = [value for value in values if kinds is None or any(is_type(value, kind) for kind in kinds)]
        if not values:
            raise refuse("a list of no values")
        texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False) for value in values]
        return self._rule(" | ".join(dict.fromkeys(literal(text) for text in texts)))

    def _object(self, schema: Schema) -> str:
        properties: Mapping[str, Any] = schema.get("properties", {})
        additional = schema.get("additionalProperties", True)
        required = list(dict.fromkeys(schema.get("required", ())))
        optional = [name for name in properties if name not in required and properties[name] is not False]
        count = range(len(required), len(required) + len(optional) + 1)
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        free = not properties and additional is not False
        if least > count.start or (most is not None and (free or most < count.stop - 1)):
            raise refuse("minProperties or maxProperties")
        pairs = {name: self._pair(name, properties.get(name, additional)) for name in (*required, *optional)}
        if free and not required:
            value = self._visit(additional)
            pair = f'ws string ":" ws {value}'
            return "object" if value == "value" else self._rule(f'"{{" ({pair} ("," {pair})*)? ws "}}"')
        rests = [""]
        for name in reversed(optional):
            rests.insert(0, self._rule(f'("," {pairs[name]})? {rests[0]}'.strip()))
        if required:
            members = ' "," '.join(pairs[name] for name in required)
            return self._rule(f'"{{" {members} {rests[0]} ws "}}"')
        firsts = [f"{pairs[name]} {rest}".strip() for name, rest in zip(optional, rests[1:], strict=True)]
        return self._rule(f'"{{" ({" | ".join(firsts)})? ws "}}"' if firsts else '"{" ws "}"')

    def _pair(self, name: str, schema: Any) -> str:
        key = literal(json.dumps(name, ensure_ascii=False) + ":")
        return self._rule(f"ws {key} ws {self._visit(schema)}")

    def _array(self, schema: Schema) -> str:
        items: Any = schema.get("items", True)
        prefix = list(schema.get("prefixItems", ()))
        if isinstance(items, list):  # draft 7
            prefix, items = items, False
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if schema.get("uniqueItems") and (most is None or most > 1):
            raise refuse("uniqueItems")
        if not prefix and items is True and not least and most is None:
            return "array"
        prefix = prefix[:most]
        parts = [self._visit(each) for each in prefix]
        if not prefix and most != 0 and items is not False:
            item = self._visit(items)
            more = _times(max(least - 1, 0), None if most is None else most - 1)
            optional = "" if least else "?"
            return self._rule(f'"[" (ws {item} ("," ws {item}){more}){optional} ws "]"')
        body = ' "," '.join(f"ws {part}" for part in parts)
        missing = max(least - len(prefix), 0)
        if items is False or most == len(prefix) or (items is True and not missing):
            if missing:
                raise refuse("minItems beyond the items that there may be")
        else:
            body += f' ("," ws {self._visit(items)}){_times(missing, None if most is None else most - len(prefix))}'
        return self._rule(f'"[" {body} ws "]"')

    def _string(self, schema: Schema) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        form = FORMATS.get(schema.get("format", ""))
        if form is not None and schema.keys() & {"pattern", "minLength", "maxLength"}:
            raise refuse("format beside pattern, minLength or maxLength", schema["format"])
        if form is not None:
            body = form
        elif "pattern" in schema:
            body = pattern_rule(schema["pattern"], least, most)
        elif not least and most is None:
            return "string"
        else:
            body = f"char{_times(least, most)}"
        return self._rule(rf'"\"" ({body}) "\""')

    def _number(self, schema: Schema) -> str:
        whole = schema["type"] == "integer" or schema.get("multipleOf") == 1
        if schema.get("multipleOf", 1) != 1:
            raise refuse("multipleOf", schema["multipleOf"])
        if not schema.keys() & set(_BOUNDS):
            return "integer" if whole else "number"
        (low, above), (high, below) = _bound(schema, "inimum", max), _bound(schema, "aximum", min)
        if whole:
            options = bounded_integer(inside(low, 1, above), inside(high, -1, below))
        else:
            options = bounded_number(low, high, above or below)
        if not options:
            raise refuse("no number of up to 16 digits within its bounds")
        return self._rule(" | ".join(options))


def _bound(schema: Schema, name: str, tighter: Callable[[float, float], float]) -> tuple[float | None, bool]:
    """One bound of a number, and whether it is excluded."""
    closed, strict = schema.get(f"m{name}"), schema.get(f"exclusiveM{name}")
    if isinstance(closed, bool) or isinstance(strict, bool):
        raise refuse("a bound that is no number")
    if closed is None or strict is None:
        return (strict, True) if closed is None and strict is not None else (closed, False)
    return (strict, True) if tighter(closed, strict) == strict else (closed, False)


def _times(least: int, most: int | None) -> str:
    """A repetition; of more than llama.cpp can repeat, as many as it can."""
    if least > MAX_REPEAT or (most is not None and most < least):
        raise refuse(f"a count between two bounds, of at most {MAX_REPEAT}", f"{least} to {most}")
    return "*" if most is None and not least else f"{{{least},{'' if most is None else min(most, MAX_REPEAT)}}}"
