"""Deterministic CBOR: round trips, an independent encoder, and input that nobody should send."""

from __future__ import annotations

import math

import cbor2
import pytest
from hypothesis import given, settings, strategies as st

from verifiable.errors import MalformedError
from verifiable.wire.encoding import Bounds, Tagged, decode, encode

INTEGERS = st.one_of(
    st.integers(-(2**64), 2**64 - 1),
    st.integers(-70_000, 70_000),
    st.sampled_from([sign * (1 << bits) + off for bits in (8, 16, 32, 63) for sign in (1, -1) for off in (-1, 0, 1)]),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
FLOATS = st.one_of(
    st.floats(allow_nan=False), st.floats(width=16, allow_nan=False), st.floats(width=32, allow_nan=False)
)
KEYS = st.one_of(INTEGERS, TEXTS, st.binary(max_size=20))
SCALARS = st.one_of(INTEGERS, TEXTS, FLOATS, st.booleans(), st.none(), st.binary(max_size=300))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=25,
)


def same(one: object, two: object) -> bool:
    """Equality that tells 1 from 1.0 and from True, and 0.0 from -0.0."""
    if type(one) is not type(two):
        return False
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, float) and isinstance(two, float):
        return one == two and math.copysign(1, one) == math.copysign(1, two)
    return one == two


@settings(deadline=None, max_examples=300)
@given(VALUES)
def test_round_trip(value):
    data = encode(value)
    assert same(decode(data), value)
    assert same(cbor2.loads(data), value)  # another decoder reads it as the same


@settings(deadline=None, max_examples=300)
@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=5), max_leaves=25))
def test_agrees_with_another_encoder(value):
    """cbor2's canonical form is ours for everything but maps, which it sorts by the older rule."""
    assert encode(value) == cbor2.dumps(value, canonical=True)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(KEYS, INTEGERS, max_size=20))
def test_map_keys_are_in_bytewise_order(value):
    head_size = 1 if len(value) < 24 else 2
    data = encode(value)[head_size:]
    keys = sorted(encode(key) for key in value)
    assert data == b"".join(key + encode(value[decode(key)]) for key in keys)


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=60))
def test_any_bytes(data: bytes):
    try:
        value = decode(data, tags=frozenset({18}))
    except MalformedError:
        return
    assert encode(value) == data


@settings(deadline=None, max_examples=500)
@given(st.data())
def test_damaged_encodings(data: st.DataObject):
    original = encode(data.draw(VALUES))
    at = data.draw(st.integers(0, len(original) - 1))
    damage = data.draw(st.binary(min_size=0, max_size=3))
    length = data.draw(st.integers(0, 3))
    damaged = original[:at] + damage + original[at + length :]
    try:
        value = decode(damaged)
    except MalformedError:
        return
    assert encode(value) == damaged


@settings(deadline=None, max_examples=100)
@given(VALUES, st.binary(min_size=1, max_size=3))
def test_cut_short_or_continued(value, more: bytes):
    data = encode(value)
    for end in range(len(data)):
        with pytest.raises(MalformedError):
            decode(data[:end])
    with pytest.raises(MalformedError):
        decode(data + more)


@settings(deadline=None, max_examples=200)
@given(INTEGERS.filter(lambda n: n >= 0), st.sampled_from(range(7)))
def test_longer_heads_are_refused(argument: int, major: int):
    """Every longer spelling of an integer, length, count or tag number, whatever its major type."""
    for info, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument >= 1 << 8 * size:
            continue
        shortest = argument < (24 if size == 1 else 1 << 4 * size)
        if shortest:
            head = bytes([major << 5 | info]) + argument.to_bytes(size, "big")
            body = bytes(argument) if major in (2, 3) and argument < 1000 else b"\0"
            with pytest.raises(MalformedError, match="shortest form"):
                decode(head + body, tags=frozenset({argument}))


@settings(deadline=None, max_examples=200)
@given(FLOATS)
def test_longer_floats_are_refused(value: float):
    import struct

    shortest = encode(value)
    for initial, form in ((0xFA, ">f"), (0xFB, ">d")):
        try:
            longer = bytes([initial]) + struct.pack(form, value)
        except OverflowError:
            continue
        if len(longer) > len(shortest):
            with pytest.raises(MalformedError):
                decode(longer)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 100), st.integers(1, 100))
def test_depth_limit(levels: int, limit: int):
    value = b"\x81" * (levels - 1) + b"\x00"
    if levels <= limit:
        assert decode(value, Bounds(depth=limit)) is not None
    else:
        with pytest.raises(MalformedError, match="too deeply"):
            decode(value, Bounds(depth=limit))


@settings(deadline=None, max_examples=50)
@given(VALUES, st.integers(0, 2**64 - 1))
def test_tags_only_where_allowed(value, tag: int):
    data = encode(Tagged(tag, value))
    decoded = decode(data, tags=frozenset({tag}))
    assert isinstance(decoded, Tagged)
    assert decoded.tag == tag
    assert same(decoded.value, value)
    with pytest.raises(MalformedError, match="tag"):
        decode(data)
