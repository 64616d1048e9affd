"""Vectors of what everything else is built on: CBOR, keys, signatures and envelopes."""

from __future__ import annotations

import hashlib

from spec.generate.cases import VectorFile
from spec.generate.world import OTHER, PROVIDER, SESSION_KEY
from verifiable.manifest.manifest import TYPE as MANIFEST_TYPE
from verifiable.session.head import TYPE as HEAD_TYPE
from verifiable.wire import cose, keys
from verifiable.wire.encoding import Map, Tagged, encode
from verifiable.wire.text import write_base64

GOOD_CBOR = {
    "0": "00",
    "23": "17",
    "24": "1818",
    "255": "18ff",
    "256": "190100",
    "65536": "1a00010000",
    "2^32": "1b0000000100000000",
    "2^64 - 1": "1bffffffffffffffff",
    "-1": "20",
    "-24": "37",
    "-25": "3818",
    "-2^64": "3bffffffffffffffff",
    "empty bytes": "40",
    "23 bytes": "57" + "ab" * 23,
    "24 bytes": "5818" + "ab" * 24,
    "empty text": "60",
    "text": "6568656c6c6f",
    "text with ü, 水 and a character beyond 16 bits": "69c3bce6b0b4f09f9880",
    "text with a NUL": "6100",
    "text with a byte order mark": "63efbbbf",
    "empty array": "80",
    "array": "83010203",
    "nested arrays": "8181818101",
    "empty map": "a0",
    "map with keys 1 and 2": "a201020304",
    "map sorted bytewise: 10, 100, -1, h'', text": "a50a0018640020004000616100",
    "false": "f4",
    "true": "f5",
    "null": "f6",
    "float 0.0": "f90000",
    "float -0.0": "f98000",
    "float 1.5 in half precision": "f93e00",
    "float 65504 in half precision": "f97bff",
    "smallest half": "f90001",
    "float 100000 in single precision": "fa47c35000",
    "largest single": "fa7f7fffff",
    "float 1.1 in double precision": "fb3ff199999999999a",
    "float 1e300": "fb7e37e43c8800759c",
    "smallest double": "fb0000000000000001",
    "infinity": "f97c00",
    "minus infinity": "f9fc00",
    "NaN": "f97e00",
    "16 levels": "81" * 15 + "00",
}
BAD_CBOR = {
    "no bytes": "",
    "two items": "0000",
    "0 in two bytes": "1800",
    "23 in two bytes": "1817",
    "255 in three bytes": "1900ff",
    "65535 in five bytes": "1a0000ffff",
    "2^32 - 1 in nine bytes": "1b00000000ffffffff",
    "-1 in two bytes": "3800",
    "integer cut short": "1901",
    "reserved length 28": "1c",
    "reserved length 29": "5d",
    "reserved length 30": "9e",
    "bytes cut short": "43abab",
    "bytes with a length in two bytes for 3": "5803ababab",
    "bytes of 2^63": "5b8000000000000000",
    "bytes of indefinite length": "5f41ab41abff",
    "text of indefinite length": "7f61616161ff",
    "array of indefinite length": "9f0102ff",
    "map of indefinite length": "bf0102ff",
    "lone break": "ff",
    "text cut short": "6261",
    "text that is not UTF-8": "61ff",
    "text with an overlong NUL": "62c080",
    "text with a surrogate": "63eda080",
    "text past U+10FFFF": "64f4908080",
    "text with half a character": "61c3",
    "array cut short": "8201",
    "array of 2^32 items": "9b0000000100000000",
    "map cut short": "a101",
    "map without its last value": "a2010203",
    "map with a key twice": "a201000100",
    "map in descending order": "a203000100",
    "map sorted by the length of its keys first": "a22000186400",
    "map with a float as key": "a1f93e0000",
    "map with null as key": "a1f600",
    "map with true as key": "a1f500",
    "map with an array as key": "a18000",
    "undefined": "f7",
    "simple value 16": "f0",
    "simple value 24 in two bytes": "f818",
    "simple value 255": "f8ff",
    "false in two bytes": "f814",
    "float 1.5 in single precision": "fa3fc00000",
    "float 1.5 in double precision": "fb3ff8000000000000",
    "float 100000 in double precision": "fb40f86a0000000000",
    "infinity in single precision": "fa7f800000",
    "infinity in double precision": "fb7ff0000000000000",
    "NaN in single precision": "fa7fc00000",
    "NaN with a payload": "f97e01",
    "negative NaN": "f9fe00",
    "signalling NaN": "f97c01",
    "float cut short": "f93c",
    "17 levels": "81" * 16 + "00",
    "a tag": "c000",
    "tag 18": "d280",
}


def cbor() -> VectorFile:
    file = VectorFile(
        "cbor",
        "input: one item, hexadecimal. tags: numbers of the tags allowed (none by default). The outcome names types: "
        "int (decimal), bytes (hexadecimal), text, float (its binary64, hexadecimal), map (pairs in order), tag.",
    )
    for name, data in GOOD_CBOR.items():
        file.add(name, input=data)
    file.add("tag 18 where allowed", input="d28101", tags=[18])
    for name, data in BAD_CBOR.items():
        file.add(name, "malformed", input=data)
    file.add("tag 17 where 18 is allowed", "malformed", input="d180", tags=[18])
    file.add("tag 18 in two bytes", "malformed", input="d81280", tags=[18])
    return file


P = 2**255 - 19
SMALL_ORDER = {
    "order 1": "01" + "00" * 31,
    "order 2": "ec" + "ff" * 30 + "7f",
    "order 4": "00" * 32,
    "order 4, other sign": "00" * 31 + "80",
    "order 8": "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "order 8, other": "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
}
NOT_CANONICAL = {
    "y = p, order 4": P.to_bytes(32, "little").hex(),
    "y = p + 1, order 1": (P + 1).to_bytes(32, "little").hex(),
    "y = p + 3": (P + 3).to_bytes(32, "little").hex(),
    "x = 0 with a sign bit": "01" + "00" * 30 + "80",
}
OFF_CURVE = "02" + "00" * 31
MIXED_ORDER = "cdb267ce40c5cd45306fa5d2f29731459387dbf9eb933b7bd5aed9a765b88d4d"
"""A point of the main subgroup plus one of order 8 (ed25519-speccheck, case 4)."""


def key() -> VectorFile:
    file = VectorFile(
        "key",
        "vkey: a verifier key of C2SP signed-note. key: its 32 bytes. kid: the RFC 9679 thumbprint that stands "
        "in COSE headers.",
    )
    raw, name = PROVIDER.public.raw, "provider.vectors.example"
    good = PROVIDER.public.vkey()
    file.add("a provider's key", vkey=good)
    file.add("a name with spaces' cousins: letters of any script", vkey=keys.join_vkey("müller/水", 1, raw))
    file.add("a name of 256 bytes", vkey=keys.join_vkey("n" * 256, 1, raw))

    def bad(why: str, text: str) -> None:
        file.add(why, "malformed", vkey=text)

    bad("nothing", "")
    bad("no hash", f"{name}+{write_base64(bytes((1,)) + raw)}")
    bad("a hash that does not fit", good.replace("+", "+0", 1)[:-1])
    bad("another name under the same hash", "x" + good)
    bad("the hash in upper case", f"{name}+{good.split('+')[1].upper()}+{good.split('+', 2)[2]}")
    bad("no name", keys.join_vkey("", 1, raw))
    bad("a name with a space", keys.join_vkey("a b", 1, raw))
    bad("a name with a no-break space", keys.join_vkey("a\u00a0b", 1, raw))
    bad("a name with an ideographic space", keys.join_vkey("a\u3000b", 1, raw))
    bad("a name with a newline", keys.join_vkey("a\nb", 1, raw))
    bad("a name with a control character", keys.join_vkey("a\u0001b", 1, raw))
    bad("a name of 257 bytes", keys.join_vkey("n" * 257, 1, raw))
    bad("a trailing newline", good + "\n")
    bad("base64 with padding too much", good + "=")
    bad("base64 with a line break", good[:-4] + "\n" + good[-4:])
    bad("base64 for URLs", keys.join_vkey(name, 1, b"\xff" * 32).replace("/", "_"))
    bad("a witness's key (type 4)", keys.join_vkey(name, 4, raw))
    bad("an unknown type", keys.join_vkey(name, 0xFF, raw))
    bad("31 bytes", keys.join_vkey(name, 1, raw[:31]))
    bad("33 bytes", keys.join_vkey(name, 1, raw + b"\0"))
    bad("no key bytes", keys.join_vkey(name, 1, b""))
    for why, point in {**SMALL_ORDER, **NOT_CANONICAL}.items():
        bad(f"small or not canonical: {why}", keys.join_vkey(name, 1, bytes.fromhex(point)))
    bad("not on the curve", keys.join_vkey(name, 1, bytes.fromhex(OFF_CURVE)))
    bad("main subgroup plus order 8", keys.join_vkey(name, 1, bytes.fromhex(MIXED_ORDER)))
    return file


L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P


def _add(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    (x1, y1), (x2, y2) = one, other
    k = D * x1 * x2 * y1 * y2 % P
    return (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P


def _times(n: int, point: tuple[int, int]) -> tuple[int, int]:
    total = (0, 1)
    while n:
        if n & 1:
            total = _add(total, point)
        point, n = _add(point, point), n >> 1
    return total


def _encode(point: tuple[int, int]) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


_BASE = (
    15112221349535400772501151409588531511454012693041857206046113283949847762202,
    46316835694926478169428394003475163141307993866256225615783033603165251855960,
)


def forged(torsion: bool) -> tuple[bytes, bytes, bytes]:
    """Key, message and a signature whose R is the neutral element, or has a part of order 2.

    The holder of a key can make both; verifiers that multiply by the cofactor accept the second.
    """
    secret, nonce, message = 12345678901234567890, 987654321, b"whose R is odd"
    public = _encode(_times(secret, _BASE))
    r = _encode(_add(_times(nonce, _BASE), (0, P - 1)) if torsion else (0, 1))
    k = int.from_bytes(hashlib.sha512(r + public + message).digest(), "little") % L
    s = ((nonce if torsion else 0) + k * secret) % L
    return public, message, r + s.to_bytes(32, "little")


def signature() -> VectorFile:
    file = VectorFile("signature", "key, message, signature: hexadecimal. Pure Ed25519 by the rule of the protocol.")

    def add(name: str, expected: str, public: bytes, message: bytes, value: bytes) -> None:
        file.add(name, expected, key=public.hex(), message=message.hex(), signature=value.hex())

    public, message = PROVIDER.public.raw, b"a message"
    good = PROVIDER.sign(message)
    add("RFC 8032, test 2", "ok", *(bytes.fromhex(value) for value in _RFC8032))
    add("a signature", "ok", public, message, good)
    add("of no bytes", "ok", public, b"", PROVIDER.sign(b""))
    add("of 300 bytes", "ok", public, bytes(300), PROVIDER.sign(bytes(300)))
    add("of another message", "bad-signature", public, b"a massage", good)
    add("by another key", "bad-signature", OTHER.public.raw, message, good)
    add("a bit of R changed", "bad-signature", public, message, bytes([good[0] ^ 1]) + good[1:])
    add("a bit of S changed", "bad-signature", public, message, good[:32] + bytes([good[32] ^ 1]) + good[33:])
    scalar = int.from_bytes(good[32:], "little")
    add("S + L", "bad-signature", public, message, good[:32] + (scalar + L).to_bytes(32, "little"))
    add("S with a high bit", "bad-signature", public, message, good[:63] + bytes([good[63] | 0x80]))
    add("63 bytes", "bad-signature", public, message, good[:63])
    add("65 bytes", "bad-signature", public, message, good + b"\0")
    add("no bytes", "bad-signature", public, message, b"")
    add("zeros", "bad-signature", public, message, bytes(64))
    add("R is not on the curve", "bad-signature", public, message, bytes.fromhex(OFF_CURVE) + good[32:])
    add("R is the neutral element", "bad-signature", *forged(torsion=False))
    add("R has a part of order 2", "bad-signature", *forged(torsion=True))
    for name, point in {**SMALL_ORDER, **NOT_CANONICAL}.items():
        add(f"key: {name}", "malformed", bytes.fromhex(point), message, bytes.fromhex(point) + bytes(32))
    add("key: main subgroup plus order 8", "malformed", bytes.fromhex(MIXED_ORDER), message, good)
    add("key: 31 bytes", "malformed", public[:31], message, good)
    return file


_RFC8032 = (
    "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    "72",
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
)


def envelope() -> VectorFile:
    file = VectorFile("envelope", "input: a COSE_Sign1. trusted: verifier keys. typ: the type that is expected.")
    typ, payload = HEAD_TYPE, b"the payload"
    signed = cose.sign1(payload, PROVIDER, typ)
    trust = [PROVIDER.public.vkey()]
    good_header: Map = {1: cose.ED25519, 4: PROVIDER.public.kid, 16: typ}

    def add(name: str, expected: str, data: bytes, trusted: list[str] = trust) -> None:
        file.add(name, expected, input=data.hex(), trusted=trusted, typ=typ)

    def make(protected: Map, unprotected: Map | None = None) -> bytes:
        return cose.assemble(protected, unprotected or {}, payload, PROVIDER)

    add("a signed object", "ok", signed)
    add("among several keys", "ok", signed, [OTHER.public.vkey(), SESSION_KEY.public.vkey(), *trust])
    add("with the older algorithm number -8", "ok", make({**good_header, 1: cose.EDDSA}))
    add("of no bytes", "ok", cose.sign1(b"", PROVIDER, typ))
    add("by a key that is not trusted", "untrusted-key", signed, [OTHER.public.vkey()])
    add("with nobody trusted", "untrusted-key", signed, [])
    alias = keys.PublicKey("x", PROVIDER.public.raw)
    add("the same key under another name is the same key", "ok", signed, [alias.vkey()])
    add("kid of a trusted key, signature of another", "bad-signature", cose.assemble(good_header, {}, payload, OTHER))
    add("payload changed", "bad-signature", signed.replace(payload, b"the payLoad"))
    add("signature changed", "bad-signature", signed[:-1] + bytes([signed[-1] ^ 1]))
    add("of another type", "wrong-type", cose.sign1(payload, PROVIDER, MANIFEST_TYPE))
    add("of another type and changed", "bad-signature", cose.sign1(payload, PROVIDER, MANIFEST_TYPE)[:-1] + b"\0")
    add("algorithm ES256", "unsupported-algorithm", make({**good_header, 1: -7}))
    add("algorithm as text", "unsupported-algorithm", make({**good_header, 1: "EdDSA"}))
    add("algorithm -19 as a float", "unsupported-algorithm", make({**good_header, 1: -19.0}))
    add("untrusted and of another algorithm", "unsupported-algorithm", make({**good_header, 1: -7}), [])
    raw, value = encode(good_header), PROVIDER.sign(payload)
    add("not tagged", "malformed", encode([raw, {}, payload, value]))
    add("tag 98", "malformed", encode(Tagged(98, [raw, {}, payload, value])))
    add("tagged twice", "malformed", encode(Tagged(18, Tagged(18, [raw, {}, payload, value]))))
    add("three items", "malformed", encode(Tagged(18, [raw, {}, payload])))
    add("five items", "malformed", encode(Tagged(18, [raw, {}, payload, value, 0])))
    add("header not wrapped in bytes", "malformed", encode(Tagged(18, [good_header, {}, payload, value])))
    add("payload detached", "malformed", cose.assemble(good_header, {}, payload, PROVIDER, attached=False))
    add("payload as text", "malformed", encode(Tagged(18, [raw, {}, "the payload", value])))
    add("signature missing", "malformed", encode(Tagged(18, [raw, {}, payload, None])))
    add("empty header as no bytes", "malformed", encode(Tagged(18, [b"", {}, payload, value])))
    add("empty header as an empty map", "malformed", encode(Tagged(18, [encode({}), {}, payload, value])))
    add("no algorithm", "malformed", make({4: PROVIDER.public.kid, 16: typ}))
    add("no kid", "malformed", make({1: cose.ED25519, 16: typ}))
    add("no type", "malformed", make({1: cose.ED25519, 4: PROVIDER.public.kid}))
    add("another protected header", "malformed", make({**good_header, 3: "text/plain"}))
    add("an unprotected header", "malformed", make(good_header, {33: b""}))
    add("the type in the other header", "malformed", make({1: cose.ED25519, 4: PROVIDER.public.kid}, {16: typ}))
    add("critical headers", "malformed", make({**good_header, 2: [16]}))
    add("kid of 8 bytes", "malformed", make({**good_header, 4: PROVIDER.public.kid[:8]}))
    add("type as a number", "malformed", make({**good_header, 16: 60}))
    add("type of 129 bytes", "malformed", make({**good_header, 16: "t" * 129}))
    add("a byte after the end", "malformed", signed + b"\0")
    add("cut short", "malformed", signed[:-1])
    add("no bytes", "malformed", b"")
    add("not the shortest lengths", "malformed", signed.replace(b"\x4b" + payload, b"\x58\x0b" + payload))
    return file
