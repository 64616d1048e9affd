"""COSE_Sign1 and COSE Receipts.

Many of these vectors are signed with algorithms that we neither make nor accept (ES256, ES384, Ed448). They still
test what is ours, the parsing and the Sig_structure, so the tests bring those algorithms with them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import cbor2
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from tests.conformance.harness import Outcome, Vectors, attempt, check, judge
from verifiable.errors import MalformedError, VerificationError
from verifiable.tlog.cose_receipt import CoseReceipt
from verifiable.tlog.merkle import leaf_hash
from verifiable.wire import cose
from verifiable.wire.keys import PublicKey

UNTAGGED = "valid without its CBOR tag; we read COSE_Sign1 under tag 18 only, so that there is one spelling"
EMPTY_MAP = "valid with an empty protected header written as a0; we read no bytes at all, its other spelling, only"
NO_SIGN1 = "a COSE_Sign with several signers (tag 98), not a COSE_Sign1"
UNSORTED = (
    "valid, but its header's map keys are not in deterministic order, so our decoder refuses it; read by a lenient "
    "decoder in the test, proof and signature verify with our code"
)
OTHER_STRUCTURE = "valid under data structure 2 (CCF); ours is 1 (RFC 9162 with SHA-256)"

Check = Callable[[bytes, bytes], None]
"""Check a signature over a message, or raise VerificationError."""


def _bad() -> VerificationError:
    return VerificationError("signature does not verify", code="bad-signature")


def _ecdsa(key: ec.EllipticCurvePublicKey) -> Check:
    algorithm = hashes.SHA384() if key.curve.name == "secp384r1" else hashes.SHA256()

    def verify(signature: bytes, message: bytes) -> None:
        half = len(signature) // 2
        r, s = int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big")
        try:
            key.verify(encode_dss_signature(r, s), message, ec.ECDSA(algorithm))
        except InvalidSignature:
            raise _bad() from None

    return verify


def _ed448(raw: bytes) -> Check:
    def verify(signature: bytes, message: bytes) -> None:
        try:
            ed448.Ed448PublicKey.from_public_bytes(raw).verify(signature, message)
        except InvalidSignature:
            raise _bad() from None

    return verify


def _jwk(key: dict[str, str]) -> Check:
    def number(name: str) -> int:
        return int.from_bytes(base64.urlsafe_b64decode(key[name] + "=="), "big")

    if key["kty"] == "EC":
        return _ecdsa(ec.EllipticCurvePublicNumbers(number("x"), number("y"), ec.SECP256R1()).public_key())
    if key["crv"] == "Ed25519":
        return PublicKey(key["kid"], bytes.fromhex(key["x_hex"])).verify
    return _ed448(bytes.fromhex(key["x_hex"]))


def _pem(data: bytes) -> Check:
    key = serialization.load_pem_public_key(data)
    if isinstance(key, ed25519.Ed25519PublicKey):
        return PublicKey("pem", key.public_bytes_raw()).verify
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise TypeError(f"a key of another kind: {key}")
    return _ecdsa(key)


_ALGORITHMS = {-7: "ES256", -8: "EdDSA"}


def _verify_sign1(case: dict[str, Any]) -> None:
    parsed = cose.parse(bytes.fromhex(case["output"]["cbor"]))
    algorithm = parsed.protected.get(cose.ALG)
    if _ALGORITHMS.get(algorithm if isinstance(algorithm, int) else 0) != case["input"]["sign0"]["alg"]:
        raise VerificationError("algorithm", code="unsupported-algorithm", found=repr(algorithm))
    if parsed.payload is None:
        raise MalformedError("no payload")
    external = bytes.fromhex(case["input"]["sign0"].get("external", ""))
    message = cose.to_be_signed(parsed.raw, parsed.payload, external)
    if not case.get("fail") and message != bytes.fromhex(case["intermediates"]["ToBeSign_hex"]):
        raise VerificationError("Sig_structure differs", code="sig-structure", found=message)
    _jwk(case["input"]["sign0"]["key"])(parsed.signature, message)


def cose_wg(vectors: Vectors) -> Iterator[Outcome]:
    exceptions = {
        "cose-wg/sign1-tests/sign-pass-01.json": EMPTY_MAP,
        "cose-wg/sign1-tests/sign-pass-03.json": UNTAGGED,
        "cose-wg/eddsa-examples/eddsa-01.json": NO_SIGN1,
        "cose-wg/eddsa-examples/eddsa-02.json": NO_SIGN1,
    }
    for name in vectors.names("cose-wg/**/*.json"):
        case = vectors.json(name)
        if "sign" in case["input"]:
            # Refusing these is right for a reader of COSE_Sign1, but their signatures stay unchecked.
            error = attempt(partial(cose.parse, bytes.fromhex(case["output"]["cbor"])))
            refused = isinstance(error, MalformedError)
            yield Outcome(name, False, exceptions[name] if refused else "", str(error))
            continue
        yield judge(
            name,
            partial(_verify_sign1, case),
            valid=not case.get("fail"),
            exception=exceptions.get(name, ""),
        )


def _lenient(data: bytes) -> cose.Sign1:
    """Read an envelope with any order of map keys, as RFC 9052 allows."""
    raw, unprotected, payload, signature = cbor2.loads(data).value
    return cose.Sign1(raw, cbor2.loads(raw), _thaw(unprotected), payload, signature)


def _thaw(value: Any) -> Any:
    """cbor2 makes everything inside a tag immutable; our types are lists and dictionaries."""
    if isinstance(value, Mapping):
        return {key: _thaw(item) for key, item in value.items()}
    return [_thaw(item) for item in value] if isinstance(value, tuple) else value


def _verify_receipt(envelope: cose.Sign1, entry: bytes, key: Check) -> None:
    receipt = CoseReceipt.of(envelope)
    key(envelope.signature, cose.to_be_signed(envelope.raw, receipt.proof.root(leaf_hash(entry))))


def _verify_statement(envelope: cose.Sign1, payload: bytes, key: Check) -> None:
    if envelope.payload != payload:
        raise VerificationError("payload", code="bad-signature")
    key(envelope.signature, cose.to_be_signed(envelope.raw, payload))


def receipts(vectors: Vectors) -> Iterator[Outcome]:
    """Each vector is a receipt and the statement that it is for."""
    codes = {
        "TAMPERED_INCLUSION_PATH": "bad-signature",  # the root is signed, so a changed path shows as another root
        "UNSUPPORTED_VDS": "unsupported-structure",
    }
    base = "cose-receipts-scitt-cose"
    for vector in vectors.json(f"{base}/manifest.json")["vectors"]:
        folder = f"{base}/{vector['dir']}"
        expected = vectors.json(f"{folder}/expected.json")
        data = {name: vectors.read(f"{folder}/{name}.cose") for name in ("receipt", "statement")}
        keys = {name: _pem(vectors.read(f"{folder}/{name}-key.pub")) for name in ("log", "issuer")}
        payload = vectors.read(f"{folder}/payload.bin")
        entry = hashlib.sha256(data["statement"]).digest()
        structure_2 = expected["protected_header"]["receipt"]["vds"] == 2

        receipt = attempt(partial(_verify_receipt, _lenient(data["receipt"]), entry, keys["log"]))
        statement = attempt(partial(_verify_statement, _lenient(data["statement"]), payload, keys["issuer"]))
        right = (statement is None) == expected["statement_signature_valid"]
        if structure_2:
            right &= isinstance(receipt, VerificationError) and receipt.code == "unsupported-structure"
        else:
            right &= entry.hex() == expected["leaf_entry"] and (receipt is None) == expected["receipt_valid"]
            if receipt is not None:
                code = codes.get(expected.get("failure_code", ""))
                right &= isinstance(receipt, VerificationError) and receipt.code == code
        strict = attempt(partial(CoseReceipt.parse, data["receipt"]))
        if vector["expected_result"] == "INVALID":
            yield check(folder, right, f"receipt {receipt}, statement {statement}")
        elif right and strict is not None:
            yield Outcome(folder, False, OTHER_STRUCTURE if structure_2 else UNSORTED, str(strict))
        else:
            yield check(folder, right, f"receipt {receipt}, statement {statement}")
