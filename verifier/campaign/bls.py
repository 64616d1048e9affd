"""The signature of a drand round, checked with py_ecc (the extra `beacon`): BLS over BLS12-381, RFC 9380 hashing.

Two schemes of drand's are known: chained rounds signed in G2 under a key in G1 (`pedersen-bls-chained`), and
unchained rounds signed in G1 under a key in G2 (`bls-unchained-g1-rfc9380`). py_ecc is plain Python: a check takes
about a second, and is not constant-time, which matters to who signs and not to who checks.
"""

from __future__ import annotations

import hashlib
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from verifiable.errors import VerificationError

if TYPE_CHECKING:
    from verifier.campaign.beacon import Chain, Round

_DST_G1 = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"
_DST_G2 = b"BLS_SIG_BLS12381G2_XMD:SHA-256_SSWU_RO_NUL_"
_G1_BYTES = 48


def verify_round(given: Round, chain: Chain) -> None:
    """Raise VerificationError (`bad-signature`) unless the round is the network's.

    Raises:
        ModuleNotFoundError: py_ecc is not installed.
    """
    curve, points_of, hashing = _modules()
    pairing = partial(curve.pairing, final_exponentiate=False)
    pubkey_to_G1, signature_to_G2 = points_of.pubkey_to_G1, points_of.signature_to_G2

    number = given.number.to_bytes(8, "big")
    key = bytes.fromhex(chain.key)
    small_key = len(key) == _G1_BYTES
    try:
        # Names of py_ecc's are those of Ethereum's scheme; they read any compressed point of G1 and of G2.
        points: tuple[Any, Any] = (
            (pubkey_to_G1(key), signature_to_G2(given.signature))
            if small_key
            else (pubkey_to_G1(given.signature), signature_to_G2(key))
        )
    except (ValueError, AssertionError) as error:
        raise _bad(str(error) or "no point of the curve") from None
    if any(curve.is_inf(point) or not points_of.subgroup_check(point) for point in points):
        raise _bad("a point outside the group")
    in_g1, in_g2 = points
    digest = hashlib.sha256(given.previous + number if small_key else number).digest()
    if small_key:
        left = pairing(hashing.hash_to_G2(digest, _DST_G2, hashlib.sha256), in_g1)
        right = pairing(in_g2, curve.neg(curve.G1))
    else:
        left = pairing(in_g2, hashing.hash_to_G1(digest, _DST_G1, hashlib.sha256))
        right = pairing(curve.neg(curve.G2), in_g1)
    if curve.final_exponentiate(left * right) != curve.FQ12.one():
        raise _bad("a signature of something else")


def _modules() -> tuple[Any, Any, Any]:
    """py_ecc's curve, points and hashing; without types, since its annotations do not agree with their use.

    When it is imported, py_ecc raises Python's recursion limit to 100,000, past what the C stack holds: after that a
    deeply nested JSON file would end the process. So the limit is put back.
    """
    limit = sys.getrecursionlimit()
    try:
        names = ("optimized_bls12_381", "bls.g2_primitives", "bls.hash_to_curve")
        curve, points_of, hashing = (import_module(f"py_ecc.{name}") for name in names)
    finally:
        sys.setrecursionlimit(limit)
    return curve, points_of, hashing


def _bad(found: str) -> VerificationError:
    return VerificationError(
        "the beacon's round is not signed by its network", code="bad-signature", expected="its signature", found=found
    )
