"""Grammars made of JSON schemas: every text that one accepts is JSON and validates, by other people's validator."""

from __future__ import annotations

import json
import random
import re
from datetime import datetime
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from tests.gbnf_strings import Grammar
from verifiable.errors import PolicyError
from verifiable.llama.grammar.gbnf import check
from verifiable.llama.grammar.pattern import pattern_rule
from verifiable.llama.grammar.schema import call_grammar, schema_grammar

TEXTS = st.sampled_from(["a", "b", 'x"y', "back\\slash", "é", "水", "\n", "", "$ref", "%s", "]"]) | st.text(max_size=4)
SCALARS = st.none() | st.booleans() | st.integers(-1000, 1000) | st.sampled_from([0.5, -2.25, 1e-3]) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3), max_leaves=5
)
PATTERNS = [
    r"^\d{3}-\d{4}$",
    r"\d",
    r"^[A-Z][a-z]+( [A-Z][a-z]*)?$",
    r'^"[^"\\]*"$',
    r"^(?:ab|c\.d|\\)*$",
    r"^\w+@\w+\.(com|org)$",
    r"^[\w.-]{2,5}$",
    r"^\S+$",
    r"^[^\d\s]{1,3}$",
    r"^a|b$",
    r"^.{0,4}$",
    r"^\D\W$",
    r"^[\t\n]*\u00e9?\x41+?$",
    r"^$",
    r"^(?<year>[12]\d{3})-[0-1]\d$",
]
REFUSED = [
    r"^[]$",
    r"(?=x)y",
    r"^\bx$",
    r"(a)\1",
    r"^a{2,1}$",
    r"^(^a)$",
    r"a**",
]


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def _with(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _some(**fields).map(lambda schema: {"type": kind, **schema})


BOUNDS = st.integers(-1100, 1100) | st.sampled_from([0, 1, -1, 0.5, 99.5, -0.25, 1e6, 123456789])
SMALL = st.integers(0, 4)
LEAVES = st.one_of(
    st.just(True),
    st.just({}),
    _with("string", minLength=SMALL, maxLength=SMALL, title=TEXTS),
    _with("string", pattern=st.sampled_from(PATTERNS[:14]), minLength=SMALL, maxLength=st.integers(2, 12)),
    _with("string", format=st.sampled_from(["date", "time", "date-time", "uuid", "email"])),
    *(
        _with(kind, minimum=BOUNDS, maximum=BOUNDS, exclusiveMinimum=BOUNDS, exclusiveMaximum=BOUNDS)
        for kind in ("integer", "number")
    ),
    st.lists(VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value}),
    st.sampled_from([{"type": "null"}, {"type": ["boolean", "integer"]}, {"type": "array"}, {"type": "object"}]),
)


def _larger(each: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.dictionaries(st.sampled_from(["a", "b", 'c"', "水"]), each, max_size=4)
    names = st.lists(st.sampled_from(["a", "b", "d"]), max_size=2, unique=True)
    some = st.lists(each, min_size=1, max_size=3)
    return st.one_of(
        _with("object", properties=members, required=names, additionalProperties=st.booleans() | each),
        _with("array", items=each, minItems=SMALL, maxItems=SMALL, prefixItems=some),
        some.map(lambda schemas: {"anyOf": schemas}),
        some.map(lambda schemas: {"oneOf": schemas}),
        some.map(lambda schemas: {"allOf": schemas}),
        st.tuples(some, each).map(lambda parts: {"anyOf": parts[0], "allOf": [parts[1]]}),
        each.map(lambda schema: {"$defs": {"x": schema}, "$ref": "#/$defs/x"}),
    )


SCHEMAS = st.recursive(LEAVES, _larger, max_leaves=6)


FORMATS = jsonschema.FormatChecker(
    {"date", "time", "date-time", "uuid"} & jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers.keys()
)


def validates(schema: Any, text: str) -> None:
    value = json.loads(text)
    validator = jsonschema.Draft202012Validator
    validator(schema, format_checker=FORMATS).validate(value)
    text.encode()  # no half of a pair, not even by an escape
    json.dumps(value, ensure_ascii=False).encode()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_what_a_grammar_accepts_validates(schema: Any, seed: int) -> None:
    try:
        text = schema_grammar(schema)
    except PolicyError:
        assume(False)
    check(text, "response_format")
    grammar, chance = Grammar(text), random.Random(seed)
    assume(grammar.ends)
    for _ in range(8):
        try:
            validates(schema, grammar.draw(chance))
        except RecursionError:
            assume(False)  # it refers to itself before any part of a value: JSON Schema gives that no meaning


@pytest.mark.parametrize("form", ["date", "time", "date-time"])
def test_dates_and_times_exist(form: str) -> None:
    grammar, chance = Grammar(schema_grammar({"type": "string", "format": form})), random.Random(1)
    for _ in range(300):
        text = json.loads(grammar.draw(chance))
        datetime.fromisoformat({"date": text, "time": f"2000-01-01T{text}", "date-time": text}[form])


@pytest.mark.parametrize("pattern", REFUSED)
def test_patterns_that_are_not_understood(pattern: str) -> None:
    with pytest.raises(PolicyError, match="pattern"):
        schema_grammar({"type": "string", "pattern": pattern})


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(pattern: str) -> None:
    text = schema_grammar({"type": "string", "pattern": pattern})
    grammar, chance = Grammar(text), random.Random(1)
    found = {json.loads(grammar.draw(chance)) for _ in range(200)}
    for each in found:
        assert re.search(pattern.replace("(?<", "(?P<"), each), (pattern, each)
    assert len(found) > 3 or pattern == "^$"


MARKS = st.sampled_from([*r"ab.\[]()|*+?{}^$-d w1,2:", "\\d", "[^a]", "{2}", "\\s"])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@settings(max_examples=200, deadline=None)
@given(pattern=st.lists(MARKS, max_size=8).map("".join), least=st.integers(0, 6), more=st.none() | st.integers(0, 6))
def test_any_pattern_is_refused_or_right(pattern: str, least: int, more: int | None) -> None:
    most = None if more is None else least + more
    try:
        rule = pattern_rule(pattern, least, most)
    except PolicyError:
        return
    grammar, chance = Grammar('root ::= "\\"" ' + rule + ' "\\""\nchar ::= [a-z]'), random.Random(1)
    for _ in range(20):
        text = json.loads(grammar.draw(chance))
        assert re.search(pattern, text)
        assert least <= len(text) <= (len(text) if most is None else most)


SCORE = {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"type": "null"}], "default": None}


def test_lengths_narrow_a_pattern() -> None:
    schema = {"type": "string", "pattern": r"^[A-Z][a-z]+( [A-Z])?\.$", "minLength": 4, "maxLength": 9}
    grammar, chance = Grammar(schema_grammar(schema)), random.Random(5)
    found = {json.loads(grammar.draw(chance)) for _ in range(300)}
    for text in found:
        validates(schema, json.dumps(text))
    assert {len(text) for text in found} >= {4, 5, 6, 7}


PERSON: dict[str, Any] = {
    "$defs": {"Address": {"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]}},
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "minLength": 1, "maxLength": 50_000},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "address": {"$ref": "#/$defs/Address"},
        "tags": {"type": "array", "items": {"enum": ['say "hi"', "\\d+"]}},
        "score": {
            "anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"type": "null"}],
            "default": None,
        },
        "pet": {
            "discriminator": {"propertyName": "kind"},
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
                {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]},
            ],
        },
        "friends": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        "scores": {"type": "object", "additionalProperties": {"type": "integer"}},
        "phone": {"allOf": [{"type": "string"}, {"pattern": r"^\+\d{1,3} \d{6,9}$"}]},
    },
    "required": ["name", "age", "address", "pet", "phone"],
    "additionalProperties": False,
}


def test_a_schema_as_people_write_them() -> None:
    grammar, chance = Grammar(schema_grammar(PERSON)), random.Random(7)
    drawn = [grammar.draw(chance) for _ in range(100)]
    for text in drawn:
        validates(PERSON, text)
    members = {name for text in drawn for name in json.loads(text)}
    assert members == set(PERSON["properties"])
    ages = {json.loads(text)["age"] for text in drawn}
    assert len(ages) > 20


DOUBLING = {
    "$defs": {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 4} for at in range(12)}
    | {"d12": {"type": "null"}},
    "allOf": [{"$ref": "#/$defs/d0"}],
}
"""Each reference is followed four times: four to the power of twelve parts."""


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {}}, "not"),
        ({"type": "string", "minLength": 3, "pattern": "^aa?$"}, "minLength"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "number", "multipleOf": 0.1}, "multipleOf"),
        ({"type": "object", "patternProperties": {}}, "patternProperties"),
        ({"if": True, "then": False}, "if"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"$ref": "https://example.com/schema"}, "$ref"),
        ({"$ref": "#"}, "reference to itself"),
        ({"$ref": "#/$defs/missing"}, "KeyError"),
        ({"type": "text"}, "unknown type"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "allows nothing"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "bounds"),
        ({"enum": ["a"], "type": "integer"}, "no values"),
        ({"type": "string", "minLength": 5000}, "2000"),
        ({"properties": [1]}, "IndexError"),
        ({"enum": [1], "minimum": 5}, "minimum"),
        (False, "allows nothing"),
        (DOUBLING, "parts"),
        ({"oneOf": [{"const": at} for at in range(257)]}, "256"),
        ({"allOf": [{"anyOf": [{"minLength": at}, {"maxLength": 9 + at}]} for at in range(12)]}, "256"),
    ],
)
def test_what_is_not_enforced_is_refused_by_name(schema: Any, named: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(named)) as caught:
        schema_grammar(schema)
    assert caught.value.parameter == "response_format"


def test_calls() -> None:
    tools = [
        {"name": 'say "it"', "parameters": PERSON},
        {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
    ]
    grammar, chance = Grammar(call_grammar(tools)), random.Random(3)
    names = set()
    for _ in range(60):
        text = grammar.draw(chance)
        call = json.loads(text)
        names.add(call["name"])
        head = '{"name":' + json.dumps(call["name"]) + ',"parameters":'
        assert text.startswith(head)
        validates(next(tool["parameters"] for tool in tools if tool["name"] == call["name"]), text[len(head) : -1])
    assert names == {'say "it"', "now"}
