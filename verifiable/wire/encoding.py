"""Deterministic CBOR (RFC 8949 §4.2.1): one spelling for every value, and a decoder that accepts no other.

Everything that is signed or hashed here goes through this module, so it is small and has no dependencies.
The decoder accepts definite lengths, minimal integers and lengths, shortest floats, map keys unique and in
bytewise lexical order, valid UTF-8, `false`, `true` and `null`, and the tags that the caller names. Whatever
else it is given, it raises `MalformedError`; counts and lengths are held against the bounds before anything
is allocated.

Values that Python's dictionaries cannot tell apart (1, 1.0 and true) are kept out of map keys: a key is an
integer, a byte string or a text string.

The second half are field checks for the schema code built on this: each takes a decoded value and returns it
with its type, or raises `MalformedError` naming the field.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from verifiable import limits
from verifiable.errors import MalformedError, NewerVersionError

Value: TypeAlias = "int | bytes | str | bool | float | list[Value] | dict[int | bytes | str, Value] | Tagged | None"
Map: TypeAlias = "dict[int | bytes | str, Value]"
Encodable: TypeAlias = (
    "int | bytes | str | bool | float | Sequence[Encodable] | Mapping[Any, Encodable] | Tagged | None"
)
"""What `encode` takes. Read as list and dict: the wider types only let a `list[bytes]` pass the type checker."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A tagged item (RFC 8949 §3.4). Decoded only where the caller allows the tag's number."""

    tag: int
    value: Any  # a Value when decoded, an Encodable to encode


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on what `decode` accepts.

    Attributes:
        size: length of the input in bytes.
        depth: levels of nesting, at most 100; a lone integer has depth 1.
        items: data items in all, map keys counted.
    """

    size: int = limits.CBOR_BYTES
    depth: int = limits.CBOR_DEPTH
    items: int = limits.CBOR_ITEMS

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= 100:  # the decoder recurses: deeper input must not reach Python's own limit
            raise MalformedError("CBOR depth limit", expected="1 to 100", found=self.depth)


BOUNDS = Bounds()

# Major types (RFC 8949 §3.1), shifted into place.
_UINT, _NINT, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = (major << 5 for major in range(8))
_MAX = (1 << 64) - 1
_FALSE, _TRUE, _NULL = b"\xf4", b"\xf5", b"\xf6"
_NAN = b"\xf9\x7e\x00"  # RFC 8949 §4.2.2: the one NaN that we write
_FLOATS = ((0xF9, struct.Struct(">e")), (0xFA, struct.Struct(">f")), (0xFB, struct.Struct(">d")))
_UINTS = tuple(bytes([n]) for n in range(24))


def _head(major: int, n: int) -> bytes:
    """An item's initial byte and argument, as short as can be (RFC 8949 §4.2.1)."""
    if n < 24:
        return bytes((major | n,))
    if n < 1 << 8:
        return bytes((major | 24, n))
    if n < 1 << 16:
        return ((major | 25) << 16 | n).to_bytes(3, "big")
    if n < 1 << 32:
        return ((major | 26) << 32 | n).to_bytes(5, "big")
    return ((major | 27) << 64 | n).to_bytes(9, "big")


def encode_uint(n: int) -> bytes:
    """An unsigned integer, as `encode` writes it."""
    if 0 <= n < 24:
        return _UINTS[n]
    if 0 <= n <= _MAX:
        return _head(_UINT, n)
    raise MalformedError("CBOR integer out of range", expected="0 to 2^64-1", found=n)


def encode_bytes(data: bytes) -> bytes:
    """A byte string, as `encode` writes it."""
    return _head(_BYTES, len(data)) + data


def _float(value: float) -> bytes:
    """The shortest of half, single and double precision that holds the value exactly."""
    if math.isnan(value):
        return _NAN
    for initial, form in _FLOATS[:2]:
        try:
            packed = form.pack(value)
        except OverflowError:
            continue
        if form.unpack(packed)[0] == value:
            return bytes((initial,)) + packed
    return b"\xfb" + _FLOATS[2][1].pack(value)


def encode(value: Encodable) -> bytes:
    """Encode a value in its one deterministic form.

    Raises MalformedError: a type, an integer, a string or a depth that is not encoded here. Subclasses (an IntEnum, a
    numpy integer) are refused too: convert first, so that nothing is guessed.
    """
    out: list[bytes] = []
    _encode(value, out, BOUNDS.depth)
    return b"".join(out)


def _encode(value: Encodable, out: list[bytes], depth: int) -> None:
    if depth == 0:
        raise MalformedError("CBOR value nested too deeply", expected=f"at most {BOUNDS.depth} levels")
    kind = type(value)
    # isinstance() narrows for the type checker; the exact type is compared first, for strictness.
    if kind is int and isinstance(value, int):
        if 0 <= value <= _MAX:
            out.append(_UINTS[value] if value < 24 else _head(_UINT, value))
        elif -1 - _MAX <= value < 0:
            out.append(_head(_NINT, -1 - value))
        else:
            raise MalformedError("CBOR integer out of range", expected="-2^64 to 2^64-1", found=value)
    elif kind is bytes and isinstance(value, bytes):
        out.append(_head(_BYTES, len(value)))
        out.append(value)
    elif kind is list and isinstance(value, list):
        out.append(_head(_ARRAY, len(value)))
        for item in value:
            _encode(item, out, depth - 1)
    elif kind is str and isinstance(value, str):
        try:
            raw = value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise MalformedError("CBOR text is not valid Unicode", found=error.reason) from None
        out.append(_head(_TEXT, len(raw)))
        out.append(raw)
    elif kind is dict and isinstance(value, dict):
        _encode_map(value, out, depth)
    elif value is None:
        out.append(_NULL)
    elif kind is bool:
        out.append(_TRUE if value else _FALSE)
    elif kind is float and isinstance(value, float):
        out.append(_float(value))
    elif isinstance(value, Tagged):
        if not 0 <= value.tag <= _MAX:
            raise MalformedError("CBOR tag out of range", expected="0 to 2^64-1", found=value.tag)
        out.append(_head(_TAG, value.tag))
        _encode(value.value, out, depth - 1)
    else:
        raise MalformedError(
            "CBOR value of a type that is not encoded",
            expected="int, bytes, str, bool, None, float, list, dict or Tagged",
            found=kind.__name__,
        )


def _encode_map(value: Mapping[Any, Encodable], out: list[bytes], depth: int) -> None:
    pairs = []
    for key, item in value.items():
        if type(key) not in (int, bytes, str):
            raise MalformedError("CBOR map key", expected="int, bytes or str", found=type(key).__name__)
        parts: list[bytes] = []
        _encode(key, parts, depth - 1)
        pairs.append((b"".join(parts), item))
    pairs.sort(key=lambda pair: pair[0])  # bytewise lexical order of the encoded keys
    out.append(_head(_MAP, len(pairs)))
    for encoded, item in pairs:
        out.append(encoded)
        _encode(item, out, depth - 1)


def decode(data: bytes, bounds: Bounds = BOUNDS, tags: frozenset[int] = frozenset()) -> Value:
    """Decode exactly one deterministically encoded item that fills `data`.

    The bounds are checked before anything is allocated; `tags` are the tag numbers that may occur, each as a `Tagged`.
    Raises MalformedError: anything else than the one deterministic encoding of a value within the bounds.
    """
    if type(data) is not bytes:
        raise MalformedError("CBOR input", expected="bytes", found=type(data).__name__)
    if len(data) > bounds.size:
        raise MalformedError("CBOR input too large", expected=f"at most {bounds.size} bytes", found=len(data))
    decoder = _Decoder(data, bounds, tags)
    value = decoder.item(bounds.depth)
    if decoder.pos != len(data):
        raise MalformedError("bytes after the CBOR item", expected=decoder.pos, found=f"{len(data)} bytes")
    # The decoder's own checks should leave nothing for this to find. It is here because a second spelling
    # that slipped through would be a second hash for one meaning.
    out: list[bytes] = []
    _encode(value, out, bounds.depth)
    if b"".join(out) != data:
        raise MalformedError("CBOR is not deterministically encoded", expected="the encoding of RFC 8949 §4.2.1")
    return value


class _Decoder:
    __slots__ = ("bounds", "data", "items", "pos", "tags")

    def __init__(self, data: bytes, bounds: Bounds, tags: frozenset[int]) -> None:
        self.data = data
        self.pos = 0
        self.items = bounds.items
        self.bounds = bounds
        self.tags = tags

    def fail(self, what: str, expected: object = None, found: object = None) -> MalformedError:
        return MalformedError(f"CBOR at byte {self.pos}: {what}", expected=expected, found=found)

    def take(self, n: int) -> bytes:
        end = self.pos + n
        if end > len(self.data):
            raise self.fail("input ends too early", f"{n} more bytes", len(self.data) - self.pos)
        taken = self.data[self.pos : end]
        self.pos = end
        return taken

    def argument(self, info: int) -> int:
        if info < 24:
            return info
        if info > 27:
            raise self.fail("indefinite length or reserved form", "a definite length")
        argument = int.from_bytes(self.take(1 << (info - 24)), "big")
        # The least value that needs this width: 24, 2^8, 2^16, 2^32.
        if argument < (24 if info == 24 else 1 << (4 << (info - 24))):
            raise self.fail("integer or length not in its shortest form", found=argument)
        return argument

    def item(self, depth: int) -> Value:
        if depth == 0:
            raise self.fail("nested too deeply", f"at most {self.bounds.depth} levels")
        self.items -= 1
        if self.items < 0:
            raise self.fail("too many items", f"at most {self.bounds.items}")
        initial = self.take(1)[0]
        major, info = initial & 0xE0, initial & 0x1F
        if major == _SIMPLE:
            return self.simple(initial)
        n = self.argument(info)
        if major == _UINT:
            return n
        if major == _BYTES:
            return self.take(n)
        if major == _ARRAY:
            self.count(n)
            return [self.item(depth - 1) for _ in range(n)]
        if major == _NINT:
            return -1 - n
        if major == _TEXT:
            return self.text(n)
        if major == _MAP:
            self.count(2 * n)
            return self.map(n, depth - 1)
        if n not in self.tags:
            raise self.fail("tag not allowed here", f"one of {sorted(self.tags)}" if self.tags else "no tag", n)
        return Tagged(n, self.item(depth - 1))

    def count(self, n: int) -> None:
        """Refuse a declared number of items before the first of them is read: each takes a byte at least."""
        if n > self.items:
            raise self.fail("too many items", f"at most {self.bounds.items} in all", n)
        if n > len(self.data) - self.pos:
            raise self.fail("more items declared than bytes are left", len(self.data) - self.pos, n)

    def text(self, n: int) -> str:
        raw = self.take(n)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail("text is not valid UTF-8", found=error.reason) from None

    def map(self, n: int, depth: int) -> Map:
        result: Map = {}
        previous = b""
        for _ in range(n):
            start = self.pos
            key = self.item(depth)
            if isinstance(key, bool) or not isinstance(key, (int, bytes, str)):
                raise self.fail("map key", "an integer, a byte string or a text string", type(key).__name__)
            encoded = self.data[start : self.pos]
            if encoded <= previous:
                raise self.fail("map keys not unique and in bytewise order", f"more than {previous.hex()}", encoded)
            previous = encoded
            result[key] = self.item(depth)
        return result

    def simple(self, initial: int) -> bool | float | None:
        if initial == _FALSE[0]:
            return False
        if initial == _TRUE[0]:
            return True
        if initial == _NULL[0]:
            return None
        for kind, form in _FLOATS:
            if initial == kind:
                raw = self.take(form.size)
                value: float = form.unpack(raw)[0]
                if _float(value) != bytes((initial,)) + raw:
                    raise self.fail("float not in its shortest form", _float(value), raw)
                return value
        raise self.fail("simple value", "false, true, null or a float", f"initial byte {initial:#04x}")


# Field checks.


def _kind(value: Value) -> str:
    return "null" if value is None else type(value).__name__


def array(value: Value, n: int | None, what: str, *, maximum: int | None = None) -> list[Value]:
    """The value as a list of exactly `n` items (any number when None), or of at most `maximum`."""
    if not isinstance(value, list):
        raise MalformedError(what, expected="an array", found=_kind(value))
    if n is not None and len(value) != n:
        raise MalformedError(what, expected=f"an array of {n} items", found=f"{len(value)} items")
    if maximum is not None and len(value) > maximum:
        raise MalformedError(what, expected=f"at most {maximum} items", found=f"{len(value)} items")
    return value


def map_(value: Value, required: Iterable[int], what: str, *, optional: Iterable[int] = ()) -> Map:
    """The value as a map with all of the required integer keys, perhaps optional ones, and no other."""
    if not isinstance(value, dict):
        raise MalformedError(what, expected="a map", found=_kind(value))
    wanted = set(required)
    missing = sorted(wanted - value.keys())
    if missing:
        raise MalformedError(f"{what}: key missing", expected=f"keys {sorted(wanted)}", found=f"no {missing}")
    unknown = value.keys() - wanted - set(optional)
    if unknown:
        raise MalformedError(
            f"{what}: unknown key", expected=f"keys {sorted(wanted)}", found=sorted(map(repr, unknown))
        )
    return value


def versioned(value: Value, required: Iterable[int], what: str) -> Map:
    """The value as a map with these keys and no other, of this protocol: 1 is its version, and is looked at first.

    Raises as `version`.
    """
    if isinstance(value, dict):
        version(value.get(1), f"{what} version")
    return map_(value, required, what)


def uint(value: Value, what: str, maximum: int = limits.U63) -> int:
    """The value as an integer from 0 to `maximum`. The default fits a signed 64-bit column of a database."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedError(what, expected="an unsigned integer", found=_kind(value))
    if not 0 <= value <= maximum:
        raise MalformedError(what, expected=f"an integer from 0 to {maximum}", found=value)
    return value


PROTOCOL = 2
"""Major version of the protocol: the version of every object in it."""


def version(value: Value, what: str) -> None:
    """Refuse an object of any other protocol than this one.

    Raises MalformedError for one before it, NewerVersionError for one after it.
    """
    number = uint(value, what)
    said = f"an object of protocol {number}; this reads {PROTOCOL}"
    if number < PROTOCOL:
        raise MalformedError(
            said, expected=f"{what} {PROTOCOL}", found=number, hint="The release that made it can read it."
        )
    if number > PROTOCOL:
        raise NewerVersionError(said, expected=f"{what} {PROTOCOL}", found=number)


def bytes_(value: Value, what: str, length: int | None = None, maximum: int | None = None) -> bytes:
    """The value as a byte string of exactly `length` bytes, or of at most `maximum`."""
    if not isinstance(value, bytes):
        raise MalformedError(what, expected="a byte string", found=_kind(value))
    if length is not None and len(value) != length:
        raise MalformedError(what, expected=f"{length} bytes", found=f"{len(value)} bytes")
    if maximum is not None and len(value) > maximum:
        raise MalformedError(what, expected=f"at most {maximum} bytes", found=f"{len(value)} bytes")
    return value


def text(value: Value, what: str, maximum: int) -> str:
    """The value as a text string of at most `maximum` UTF-8 bytes."""
    if not isinstance(value, str):
        raise MalformedError(what, expected="a text string", found=_kind(value))
    size = len(value.encode("utf-8", "surrogatepass"))  # only the length; encode() refuses surrogates
    if size > maximum:
        raise MalformedError(what, expected=f"at most {maximum} bytes of UTF-8", found=f"{size} bytes")
    return value


def boolean(value: Value, what: str) -> bool:
    """The value as true or false."""
    if not isinstance(value, bool):
        raise MalformedError(what, expected="true or false", found=_kind(value))
    return value


def float_(value: Value, what: str) -> float:
    """The value as a finite float. An integer is not one: it would be a second spelling."""
    if not isinstance(value, float):
        raise MalformedError(what, expected="a float", found=_kind(value))
    if not math.isfinite(value):
        raise MalformedError(what, expected="a finite float", found=value)
    return value
