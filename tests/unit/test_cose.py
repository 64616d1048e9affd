from __future__ import annotations

from typing import Any

import pytest

from verifiable.errors import MalformedError, VerificationError
from verifiable.wire import cose
from verifiable.wire.encoding import Tagged, encode
from verifiable.wire.keys import PrivateKey

KEY = PrivateKey("a.example", bytes(32))
OTHER = PrivateKey("b.example", bytes(31) + b"\1")
TYP = "application/x-test"
GOOD = cose.sign1(b"payload", KEY, TYP)
PROTECTED: dict[int, Any] = {1: -19, 4: KEY.public.kid, 16: TYP}


def envelope(protected=None, unprotected=None, payload=b"payload", key=KEY, **kwargs) -> bytes:
    return cose.assemble(PROTECTED if protected is None else protected, unprotected or {}, payload, key, **kwargs)


def test_byte_for_byte():
    kid = KEY.public.kid.hex()
    header = f"a3013204 5820{kid} 1072{TYP.encode().hex()}".replace(" ", "")
    signed = f"846a5369676e617475726531 583a{header} 40 477061796c6f6164".replace(" ", "")
    signature = KEY.sign(bytes.fromhex(signed)).hex()
    assert GOOD.hex() == f"d284 583a{header} a0 477061796c6f6164 5840{signature}".replace(" ", "")


def test_verify():
    signed = cose.verify1(GOOD, [OTHER.public, KEY.public], TYP)
    assert (signed.payload, signed.key, signed.protected) == (b"payload", KEY.public, PROTECTED)
    shown = cose.peek1(GOOD)
    assert (shown.payload, shown.kid, shown.typ) == (b"payload", KEY.public.kid, TYP)


def test_the_older_algorithm_number_is_read():
    assert cose.verify1(envelope({**PROTECTED, 1: -8}), [KEY.public], TYP).payload == b"payload"


@pytest.mark.parametrize(
    ("data", "trusted", "typ", "code"),
    [
        (GOOD, [], TYP, "untrusted-key"),
        (GOOD, [OTHER], TYP, "untrusted-key"),
        (GOOD, [KEY], "application/x-other", "wrong-type"),
        (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), [KEY], TYP, "bad-signature"),
        (GOOD.replace(b"payload", b"payl0ad"), [KEY], TYP, "bad-signature"),
        (envelope(key=OTHER), [KEY, OTHER], TYP, "bad-signature"),  # says KEY, signed by OTHER
        (envelope({**PROTECTED, 1: -7}), [KEY], TYP, "unsupported-algorithm"),
        (envelope({**PROTECTED, 1: "Ed25519"}), [KEY], TYP, "unsupported-algorithm"),
        # A wrong type is told only of what a trusted key signed.
        (envelope({**PROTECTED, 16: "x"}, key=OTHER), [KEY], TYP, "bad-signature"),
    ],
)
def test_refusals(data: bytes, trusted, typ: str, code: str):
    with pytest.raises(VerificationError) as caught:
        cose.verify1(data, [key.public for key in trusted], typ)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "data",
    [
        GOOD[1:],  # no tag
        b"\xd1" + GOOD[1:],  # tag 17
        b"\xd8\x12" + GOOD[1:],  # tag 18 in two bytes
        GOOD + b"\0",
        envelope(attached=False),
        envelope({1: -19, 4: KEY.public.kid}),
        envelope({**PROTECTED, 2: [16]}),  # crit
        envelope({**PROTECTED, 3: 0}),  # a header that we do not write
        envelope({**PROTECTED, 4: b"11"}),
        envelope({**PROTECTED, 16: 60}),
        envelope(unprotected={4: KEY.public.kid}),
        envelope(unprotected={99: 0}),
        envelope({}),
        encode(Tagged(18, [b"", {}, b"payload"])),
        encode(Tagged(18, [{}, {}, b"payload", bytes(64)])),
        encode(Tagged(18, [b"\xa0", {}, b"payload", bytes(64)])),
        encode(Tagged(18, [b"\x80", {}, b"payload", bytes(64)])),
        encode(Tagged(18, [b"", [], b"payload", bytes(64)])),
        encode(Tagged(18, [b"", {}, "payload", bytes(64)])),
        b"",
    ],
)
def test_malformed(data: bytes):
    with pytest.raises(MalformedError):
        cose.verify1(data, [KEY.public], TYP)
    with pytest.raises(MalformedError):
        cose.peek1(data)


def test_two_spellings_of_a_signed_header():
    """The header's bytes are what is signed, so a header whose keys are out of order could be signed too."""
    header = b"\xa3" + b"".join(encode(key) + encode(value) for key, value in reversed(PROTECTED.items()))
    signature = KEY.sign(cose.to_be_signed(header, b"payload"))
    with pytest.raises(MalformedError, match="bytewise order"):
        cose.verify1(encode(Tagged(18, [header, {}, b"payload", signature])), [KEY.public], TYP)


@pytest.mark.parametrize(
    ("protected", "unprotected", "why"),
    [
        ({1: -19, 2: [16]}, {}, "critical"),
        ({1: -19}, {2: [16]}, "critical"),
        ({1: -19, 4: b"1"}, {4: b"1"}, "both buckets"),
        ({}, {1: -19}, "empty protected"),
    ],
)
def test_headers_that_no_profile_may_have(protected, unprotected, why: str):
    """`parse` is for other people's envelopes too, whose headers are not listed here."""
    with pytest.raises(MalformedError, match=why):
        cose.parse(envelope(protected, unprotected))


def test_other_headers_are_parsed():
    parsed = cose.parse(envelope({1: -19, 99: "x"}, {100: 1}, attached=False))
    assert (parsed.protected, parsed.unprotected, parsed.payload) == ({1: -19, 99: "x"}, {100: 1}, None)
    assert cose.parse(encode(Tagged(18, [b"", {}, b"", b""]))).protected == {}
