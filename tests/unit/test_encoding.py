from __future__ import annotations

import enum
import tracemalloc

import pytest

from verifiable.errors import MalformedError
from verifiable.wire import encoding
from verifiable.wire.encoding import Bounds, Encodable, Tagged, decode, encode


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65_536, "1a00010000"),
        (2**32, "1b0000000100000000"),
        (2**64 - 1, "1bffffffffffffffff"),
        (-1, "20"),
        (-(2**64), "3bffffffffffffffff"),
        (b"\x01", "4101"),
        ("ü", "62c3bc"),
        ([1, [2]], "82018102"),
        (None, "f6"),
        (False, "f4"),
        (True, "f5"),
        (0.0, "f90000"),
        (-0.0, "f98000"),
        (1.5, "f93e00"),
        (100_000.0, "fa47c35000"),
        (1.1, "fb3ff199999999999a"),
        (float("inf"), "f97c00"),
        (float("nan"), "f97e00"),
        (Tagged(18, 0), "d200"),
        # Bytewise lexical order, not shortest first: 10, 100, -1, "z", "aa" (RFC 8949 §4.2.1).
        ({"aa": 0, "z": 0, -1: 0, 100: 0, 10: 0}, "a50a001864002000617a0062616100"),
    ],
)
def test_known_encodings(value, expected: str):
    assert encode(value).hex() == expected
    assert repr(decode(bytes.fromhex(expected), tags=frozenset({18}))) == repr(
        dict(sorted(value.items(), key=lambda item: encode(item[0]))) if isinstance(value, dict) else value
    )


class _Number(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**64) - 1,
        (1, 2),
        bytearray(b"x"),
        {1, 2},
        _Number.ONE,
        {True: 1},
        {1.0: 1},
        {None: 1},
        "\ud800",
        object(),
    ],
)
def test_what_cannot_be_encoded(value):
    with pytest.raises(MalformedError):
        encode(value)


def test_encoding_what_contains_itself():
    value: list[Encodable] = []
    value.append(value)
    with pytest.raises(MalformedError, match="nested too deeply"):
        encode(value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "ends too early"),
        ("1817", "shortest form"),
        ("f90000ff", "bytes after"),
        ("fa3fc00000", "shortest form"),
        ("f97e01", "shortest form"),
        ("5fff", "indefinite"),
        ("9fff", "indefinite"),
        ("bfff", "indefinite"),
        ("1c", "indefinite length or reserved"),
        ("f7", "simple value"),
        ("f814", "simple value"),
        ("e0", "simple value"),
        ("ff", "simple value"),
        ("a201000000", "bytewise order"),
        ("a201000100", "bytewise order"),
        ("a1f500", "map key"),
        ("a1f93c0000", "map key"),
        ("a1800000", "map key"),
        ("62c3", "ends too early"),
        ("62c328", "not valid UTF-8"),
        ("63eda080", "not valid UTF-8"),
        ("c100", "tag not allowed"),
        ("9affffffff00", "too many items"),
        ("bb7fffffffffffffff00", "too many items"),
        ("9900ff00", "shortest form"),
        ("98ff00", "more items declared"),
        ("5bffffffffffffffff00", "ends too early"),
    ],
)
def test_what_is_malformed(data: str, why: str):
    with pytest.raises(MalformedError, match=why):
        decode(bytes.fromhex(data))


def test_limits():
    with pytest.raises(MalformedError, match="too large"):
        decode(bytes(11), Bounds(size=10))
    assert decode(bytes.fromhex("83010203"), Bounds(items=4)) == [1, 2, 3]
    with pytest.raises(MalformedError, match="too many items"):
        decode(bytes.fromhex("83010203"), Bounds(items=3))
    with pytest.raises(MalformedError, match="too many items"):
        decode(encode([[1, 2], [3, 4]]), Bounds(items=6))
    with pytest.raises(MalformedError, match="depth limit"):
        Bounds(depth=101)
    with pytest.raises(MalformedError, match="bytes"):
        decode(bytearray(1))  # type: ignore[arg-type]


def test_a_declared_length_is_not_allocated():
    tracemalloc.start()
    for data in ("9a00ffffff00", "ba007fffff00", "5a7fffffff00", "7a7fffffff00"):
        with pytest.raises(MalformedError):
            decode(bytes.fromhex(data), Bounds(items=1 << 40))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda v: encoding.array(v, 2, "f"), [1]),
        (lambda v: encoding.array(v, None, "f", maximum=1), [1, 2]),
        (lambda v: encoding.array(v, None, "f"), {}),
        (lambda v: encoding.map_(v, (1, 2), "f"), {1: 0}),
        (lambda v: encoding.map_(v, (1,), "f", optional=(2,)), {1: 0, 3: 0}),
        (lambda v: encoding.map_(v, (1,), "f"), {1: 0, "1": 0}),
        (lambda v: encoding.map_(v, (), "f"), []),
        (lambda v: encoding.uint(v, "f"), -1),
        (lambda v: encoding.uint(v, "f"), 2**63),
        (lambda v: encoding.uint(v, "f", 7), 8),
        (lambda v: encoding.uint(v, "f"), True),
        (lambda v: encoding.uint(v, "f"), 1.0),
        (lambda v: encoding.bytes_(v, "f", 2), b"x"),
        (lambda v: encoding.bytes_(v, "f", maximum=0), b"x"),
        (lambda v: encoding.bytes_(v, "f"), "x"),
        (lambda v: encoding.text(v, "f", 1), "ü"),
        (lambda v: encoding.text(v, "f", 9), b"x"),
        (lambda v: encoding.boolean(v, "f"), 1),
        (lambda v: encoding.float_(v, "f"), 1),
        (lambda v: encoding.float_(v, "f"), float("nan")),
        (lambda v: encoding.float_(v, "f"), float("inf")),
    ],
)
def test_field_checks_refuse(read, value):
    with pytest.raises(MalformedError, match=r"^f"):
        read(value)


def test_field_checks_accept():
    assert encoding.array([1, 2], 2, "f") == [1, 2]
    assert encoding.map_({1: 0, 3: 0}, (1,), "f", optional=(3, 4)) == {1: 0, 3: 0}
    assert encoding.uint(2**63 - 1, "f") == 2**63 - 1
    assert encoding.bytes_(b"xy", "f", 2, 2) == b"xy"
    assert encoding.text("ü", "f", 2) == "ü"
    assert encoding.boolean(False, "f") is False
    assert encoding.float_(1.5, "f") == 1.5
