"""RFC 9162 §2.1 and the subtree draft §4, written out literally: slow, recursive, over lists of entries' hashes.

Not one line is shared with `verifiable.tlog.merkle`, so that agreement means something.
"""

from __future__ import annotations

import hashlib


def _h(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _k(n: int) -> int:
    """The largest power of two smaller than n: k < n ≤ 2k."""
    k = 1
    while k * 2 < n:
        k *= 2
    return k


def mth(d: list[bytes]) -> bytes:
    """The Merkle Tree Hash of a list of leaf hashes."""
    if not d:
        return _h(b"")
    if len(d) == 1:
        return d[0]
    k = _k(len(d))
    return _h(b"\x01" + mth(d[:k]) + mth(d[k:]))


def path(m: int, d: list[bytes]) -> list[bytes]:
    """PATH(m, D_n)."""
    if len(d) == 1:
        return []
    k = _k(len(d))
    if m < k:
        return [*path(m, d[:k]), mth(d[k:])]
    return [*path(m - k, d[k:]), mth(d[:k])]


def proof(m: int, d: list[bytes]) -> list[bytes]:
    """PROOF(m, D_n)."""
    return subproof(m, d, True)


def subproof(m: int, d: list[bytes], b: bool) -> list[bytes]:
    """SUBPROOF(m, D_n, b)."""
    n = len(d)
    if m == n:
        return [] if b else [mth(d)]
    k = _k(n)
    if m <= k:
        return [*subproof(m, d[:k], b), mth(d[k:])]
    return [*subproof(m - k, d[k:], False), mth(d[:k])]


def subtree_proof(start: int, end: int, d: list[bytes], b: bool = True) -> list[bytes]:
    """SUBTREE_PROOF(start, end, D_n) and its SUBTREE_SUBPROOF."""
    n = len(d)
    if start == 0 and end == n:
        return [] if b else [mth(d)]
    k = _k(n)
    if end <= k:
        return [*subtree_proof(start, end, d[:k], b), mth(d[k:])]
    if k <= start:
        return [*subtree_proof(start - k, end - k, d[k:], b), mth(d[:k])]
    return [*subtree_proof(0, end - k, d[k:], False), mth(d[:k])]
