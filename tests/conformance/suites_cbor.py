"""CBOR: what must be refused, and what may be read.

Our decoder reads deterministic encoding only, so a vector that shows another valid spelling is an exception with
that reason. Whether it really is another spelling is asked of the vector itself, never of our decoder.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import cbor2

from tests.conformance.harness import Outcome, Vectors, attempt, judge
from verifiable.errors import MalformedError
from verifiable.wire.encoding import Bounds, Tagged, decode, encode

ANOTHER_SPELLING = "valid CBOR but not the deterministic spelling (RFC 8949 §4.2.1), which is the only one read"
SIMPLE = "undefined and unassigned simple values have no meaning in our formats and are refused"
DEPTH = "nested deeper than the decoder's limit of 100"

_BOUNDS = Bounds(depth=100)
_TAGS = frozenset(range(1 << 16))


def _cases(vectors: Vectors, name: str) -> list[dict[str, Any]]:
    # The container is read by cbor2: it is not deterministic, and the vectors within are byte strings.
    container = cbor2.load(io.BytesIO(vectors.read(name)), max_depth=5000)
    tests: list[dict[str, Any]] = container["tests"]
    return tests


def _read(data: bytes, expected: object) -> None:
    value = decode(data, _BOUNDS, _TAGS)
    if encode(value) != data:
        raise AssertionError("decoded and encoded again, it is not the same")
    # repr tells 1, 1.0 and True apart, and one NaN from none. A tagged value's meaning is its reader's business.
    if not _has_tag(value) and repr(value) != repr(expected):
        raise AssertionError(f"decoded {value!r}, expected {expected!r}")


def _has_tag(value: object) -> bool:
    if isinstance(value, Tagged):
        return True
    if isinstance(value, list):
        return any(map(_has_tag, value))
    return isinstance(value, dict) and any(map(_has_tag, value.values()))


def _depth(value: object) -> int:
    """Levels of nesting, counted without recursion: some vectors are deeper than Python's stack."""
    deepest, stack = 0, [(value, 1)]
    while stack:
        item, depth = stack.pop()
        deepest = max(deepest, depth)
        if isinstance(item, Mapping):
            stack += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, (list, tuple)):
            stack += [(part, depth + 1) for part in item]
    return deepest


def _exception(case: dict[str, Any]) -> str:
    data: bytes = case["encoded"]
    if case.get("roundtrip") is False:  # the vector's own word for: an encoder would write it otherwise
        return ANOTHER_SPELLING
    if data[0] >> 5 == 7 and data[0] & 0x1F < 25 and data not in (b"\xf4", b"\xf5", b"\xf6"):
        return SIMPLE
    if _depth(case["decoded"]) > _BOUNDS.depth:
        return DEPTH
    return ""


def _valid(vectors: Vectors, name: str) -> Iterator[Outcome]:
    for number, case in enumerate(_cases(vectors, name), 1):
        action = partial(_read, case["encoded"], case["decoded"])
        title = f"{name} {number}: {case.get('description', '')}"
        yield judge(title, action, valid=True, exception=_exception(case))


def good(vectors: Vectors) -> Iterator[Outcome]:
    yield from _valid(vectors, "cbor-wg/rfc8949/good.cbor")


def bad(vectors: Vectors) -> Iterator[Outcome]:
    name = "cbor-wg/rfc8949/bad.cbor"
    for number, case in enumerate(_cases(vectors, name), 1):
        error = attempt(partial(decode, case["encoded"], _BOUNDS))
        yield Outcome(f"{name} {number}", isinstance(error, MalformedError), detail=f"refused: {error}")


def appendix_a(vectors: Vectors) -> Iterator[Outcome]:
    for name in vectors.names("cbor-wg/rfc8949-appendixA/*.cbor"):
        yield from _valid(vectors, name)
