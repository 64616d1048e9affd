"""Ed25519: honest signatures, malleable ones, and keys that no honest signer has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.conformance.harness import Outcome, Vectors, attempt, check, judge
from verifiable.wire.keys import PublicKey


def _verify(key: bytes, signature: bytes, message: bytes) -> None:
    """Both doors that a key and a signature pass: reading the key, then verifying."""
    PublicKey("test.example", key).verify(signature, message)


def rfc8032(vectors: Vectors) -> Iterator[Outcome]:
    """Lines of key:message:signature‖message; each must verify as it is and with no other message."""
    for number, line in enumerate(vectors.read("ed25519/rfc8032-verify.txt").decode().split(), 1):
        key, message, signed = map(bytes.fromhex, line.split(":")[:3])
        signature = signed[:64]
        error = attempt(partial(_verify, key, signature, message))
        other = attempt(partial(_verify, key, signature, message + b"\0"))
        yield check(f"rfc8032 {number}", error is None and other is not None, str(error))


def wycheproof(vectors: Vectors) -> Iterator[Outcome]:
    data = vectors.json("ed25519/wycheproof-ed25519_test.json")
    for group in data["testGroups"]:
        key = bytes.fromhex(group["publicKey"]["pk"])
        for case in group["tests"]:
            message, signature = bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"])
            action = partial(_verify, key, signature, message)
            yield judge(f"wycheproof {case['tcId']}", action, valid=case["result"] == "valid")


def cctv(vectors: Vectors) -> Iterator[Outcome]:
    """Edge cases on which verifiers disagree. Each has a low-order component or a non-canonical encoding, so we
    want all of them refused."""
    for case in vectors.json("ed25519/cctv-ed25519vectors.json"):
        key, signature = bytes.fromhex(case["key"]), bytes.fromhex(case["sig"])
        action = partial(_verify, key, signature, case["msg"].encode())
        yield judge(f"cctv {case['number']}", action, valid=not case["flags"])


def speccheck(vectors: Vectors) -> Iterator[Outcome]:
    """The 12 cases of "Taming the many EdDSAs". None of these keys or signatures comes from an honest signer, and
    a strict verifier accepts none."""
    for number, case in enumerate(vectors.json("ed25519/speccheck-cases.json")):
        values = [bytes.fromhex(case[name]) for name in ("pub_key", "signature", "message")]
        yield judge(f"speccheck {number}", partial(_verify, *values), valid=False)
