"""COSE_Sign1 (RFC 9052 §4.2), the envelope of everything that is signed here.

What is written: tag 18, a protected header {1 (alg): -19, 4 (kid): thumbprint, 16 (typ): text} and an empty
unprotected one, the payload attached. Algorithm -19 is Ed25519 by its full name (RFC 9864); the older -8
(EdDSA) is read too. Nothing else is accepted, and what is accepted has one spelling only.

One kind of object has signed CWT claims besides (RFC 9597): a statement about somebody, in SCITT's form, with
15: {1: issuer, 2: subject} in its protected header. `verify1` takes none, `verify_claimed` demands them.

Keys come from the verifier, never from the object: the kid only selects one of the trusted keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from verifiable import limits
from verifiable.errors import MalformedError, VerificationError
from verifiable.wire.encoding import Encodable, Map, Tagged, Value, array, bytes_, decode, encode, map_, text
from verifiable.wire.keys import PrivateKey, PublicKey

TAG: Final = 18
ALG, CRIT, KID, CLAIMS, TYP = 1, 2, 4, 15, 16
ISSUER, SUBJECT = 1, 2
"""CWT claims `iss` and `sub` (RFC 8392)."""
ED25519: Final = -19
EDDSA: Final = -8


@dataclass(frozen=True, slots=True)
class Signed:
    """What `verify1` checked: the payload, the trusted key that signed it, and the whole protected header."""

    payload: bytes
    key: PublicKey
    protected: Map


@dataclass(frozen=True, slots=True)
class Claims:
    """Who says something about whom: verifier keys, as text."""

    issuer: str
    subject: str


@dataclass(frozen=True, slots=True)
class Unverified:
    """What an envelope says of itself. For showing only; nothing here was checked."""

    payload: bytes
    kid: bytes
    typ: str


@dataclass(frozen=True, slots=True)
class Sign1:
    """A parsed COSE_Sign1. Well-formed, not verified.

    `raw` is the protected header as it was signed, `protected` the same, decoded; `payload` is None when detached.
    """

    raw: bytes
    protected: Map
    unprotected: Map
    payload: bytes | None
    signature: bytes


def to_be_signed(raw: bytes, payload: bytes, external: bytes = b"") -> bytes:
    """The Sig_structure of RFC 9052 §4.4 for COSE_Sign1. Our own objects have no external data."""
    return encode(["Signature1", raw, external, payload])


def assemble(
    protected: Mapping[Any, Encodable],
    unprotected: Mapping[Any, Encodable],
    payload: bytes,
    key: PrivateKey,
    *,
    attached: bool = True,
) -> bytes:
    """Sign a payload under any headers; with `attached` false the payload is left out of the result."""
    raw = encode(protected)
    signature = key.sign(to_be_signed(raw, payload))
    return encode(Tagged(TAG, [raw, unprotected, payload if attached else None, signature]))


def parse(data: bytes) -> Sign1:
    """Parse a tagged COSE_Sign1 with any headers but `crit`, which names extensions that we do not know."""
    outer = decode(data, tags=frozenset({TAG}))
    if not isinstance(outer, Tagged):
        raise MalformedError("COSE_Sign1", expected=f"CBOR tag {TAG}", found=type(outer).__name__)
    raw, unprotected, payload, signature = array(outer.value, 4, "COSE_Sign1")
    raw = bytes_(raw, "COSE_Sign1 protected header")
    protected = _header(decode(raw) if raw else {}, "COSE_Sign1 protected header")
    if raw and not protected:
        raise MalformedError("COSE_Sign1: empty protected header", expected="no bytes", found=raw)
    unprotected = _header(unprotected, "COSE_Sign1 unprotected header")
    if CRIT in protected or CRIT in unprotected:
        raise MalformedError("COSE_Sign1: critical headers are not supported", found="crit")
    duplicates = protected.keys() & unprotected.keys()
    if duplicates:
        raise MalformedError("COSE_Sign1: header in both buckets", found=sorted(map(repr, duplicates)))
    return Sign1(
        raw,
        protected,
        unprotected,
        None if payload is None else bytes_(payload, "COSE_Sign1 payload"),
        bytes_(signature, "COSE_Sign1 signature"),
    )


def _header(value: Value, what: str) -> Map:
    if not isinstance(value, dict):
        raise MalformedError(what, expected="a map", found=type(value).__name__)
    return value


def select(kid: bytes, trusted: Iterable[PublicKey]) -> PublicKey:
    """The trusted key with this thumbprint, or a VerificationError with code `untrusted-key`."""
    keys = list(trusted)
    for key in keys:
        if key.kid == kid:
            return key
    known = ", ".join(f"{key.kid.hex()} of {key.label}" for key in keys[:3])
    raise VerificationError(
        "signed by a key that you do not trust",
        code="untrusted-key",
        expected=f"the thumbprint {known}{' or another' if len(keys) > 3 else ''}" if keys else "a trusted key",
        found=kid,
        hint="Get the signer's key over a channel that you trust; never take it from the object itself.",
    )


def check(parsed: Sign1, payload: bytes, trusted: Iterable[PublicKey]) -> PublicKey:
    """Check algorithm, kid and signature of a parsed object over its payload; return the key."""
    algorithm = parsed.protected.get(ALG)
    if algorithm not in (ED25519, EDDSA) or type(algorithm) is not int:
        raise VerificationError(
            "signature algorithm is not supported",
            code="unsupported-algorithm",
            expected=f"{ED25519} (Ed25519) or {EDDSA} (EdDSA)",
            found="none" if algorithm is None else algorithm,
        )
    key = select(bytes_(parsed.protected.get(KID), "COSE_Sign1 kid", length=32), trusted)
    key.verify(parsed.signature, to_be_signed(parsed.raw, payload))
    return key


def sign1(payload: bytes, key: PrivateKey, typ: str, about: PublicKey | None = None) -> bytes:
    """Sign a payload as a COSE_Sign1 of the given type (RFC 9596 `typ`); with CWT claims where it is about somebody."""
    protected: Map = {ALG: ED25519, KID: key.public.kid, TYP: text(typ, "typ", limits.TYPE_BYTES)}
    if about is not None:
        protected[CLAIMS] = {ISSUER: key.public.vkey(), SUBJECT: about.vkey()}
    return assemble(protected, {}, payload, key)


def _ours(data: bytes, claimed: bool = False) -> tuple[Sign1, Unverified]:
    """Parse an envelope that has our headers and no others, with `claimed` CWT claims too, and a payload."""
    parsed = parse(data)
    wanted = (ALG, KID, *((CLAIMS,) if claimed else ()), TYP)
    protected = map_(parsed.protected, wanted, "COSE_Sign1 protected header")
    map_(parsed.unprotected, (), "COSE_Sign1 unprotected header")
    typ = text(protected[TYP], "COSE_Sign1 typ", limits.TYPE_BYTES)
    kid = bytes_(protected[KID], "COSE_Sign1 kid", length=32)
    if parsed.payload is None:
        raise MalformedError("COSE_Sign1 payload", expected="an attached payload", found="none")
    return parsed, Unverified(parsed.payload, kid, typ)


def _claims(value: Value) -> Claims:
    claims = map_(value, (ISSUER, SUBJECT), "CWT claims")
    issuer, subject = (text(claims[name], "CWT claim", limits.KEY_BYTES) for name in (ISSUER, SUBJECT))
    return Claims(issuer, subject)


def verify1(data: bytes, trusted: Iterable[PublicKey], typ: str) -> Signed:
    """Verify what `sign1` writes.

    Order: parse, then the key, then the signature, then the type, so that a wrong type is reported only of an
    object that a trusted key did sign.

    Raises:
        MalformedError: not a COSE_Sign1 with exactly our headers.
        VerificationError: `unsupported-algorithm`, `untrusted-key`, `bad-signature` or `wrong-type`.
    """
    return _verified(*_ours(data), trusted, typ)


def verify_claimed(data: bytes, trusted: Iterable[PublicKey], typ: str) -> Signed:
    """`verify1` for what has CWT claims; raises what it raises."""
    return _verified(*_ours(data, True), trusted, typ)


def _verified(parsed: Sign1, said: Unverified, trusted: Iterable[PublicKey], typ: str) -> Signed:
    key = check(parsed, said.payload, trusted)
    if said.typ != typ:
        raise VerificationError("signed object of another type", code="wrong-type", expected=typ, found=said.typ)
    return Signed(said.payload, key, parsed.protected)


def peek1(data: bytes) -> Unverified:
    """Read an envelope without verifying it, for showing who it says it is from."""
    return _ours(data)[1]


def peek_claimed(data: bytes) -> tuple[Unverified, Claims]:
    """`peek1` for what has CWT claims."""
    parsed, said = _ours(data, True)
    return said, _claims(parsed.protected[CLAIMS])
