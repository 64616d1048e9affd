"""Proofs about subtrees of an RFC 9162 tree (draft-ietf-plants-merkle-tree-certs §4).

A subtree [start, end) is the tree of those leaves alone. It can be proven when start is a multiple of the least
power of two ≥ end - start. A turn of a session is such a range only by luck, so our own evidence uses multiproofs;
this is for reading what other logs and mirrors publish.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifiable.errors import VerificationError
from verifiable.tlog.merkle import EMPTY_ROOT, HASH_SIZE, node_hash, verify_inclusion


def _bad(why: str, expected: object = None, found: object = None) -> VerificationError:
    return VerificationError(f"subtree proof: {why}", code="bad-consistency-proof", expected=expected, found=found)


def check_subtree(start: int, end: int) -> None:
    """Refuse a range that is no subtree."""
    alignment = 1 << max(end - start - 1, 0).bit_length()
    if not 0 <= start <= end or start % alignment:
        raise _bad("not a subtree", "a start aligned to the subtree's size", f"[{start}, {end})")


def verify_subtree_inclusion(
    leaf_hash: bytes, index: int, start: int, end: int, proof: Sequence[bytes], root: bytes
) -> None:
    """Verify that a leaf of the log is in the subtree [start, end) with this root (§4.3.2).

    Raises VerificationError: code `bad-consistency-proof` for a range that is none, else `bad-inclusion-proof`.
    """
    check_subtree(start, end)
    verify_inclusion(leaf_hash, index - start, end - start, proof, root)


def verify_subtree_consistency(
    start: int, end: int, size: int, proof: Sequence[bytes], subtree_root: bytes, root: bytes
) -> None:
    """Verify that the subtree [start, end) is part of the tree of `size` leaves (§4.4.3).

    With start 0 this is consistency between two sizes. An empty subtree is part of every tree, whatever its root.
    Raises VerificationError (`bad-consistency-proof`).
    """
    check_subtree(start, end)
    if end > size:
        raise _bad("subtree outside the tree", f"an end up to {size}", end)
    for value in proof:
        if len(value) != HASH_SIZE:
            raise _bad("hash of the wrong length", f"{HASH_SIZE} bytes", value)
    if start == end:
        if proof or subtree_root != EMPTY_ROOT:
            raise _bad("empty subtree", "no hashes and the root of nothing", f"{len(proof)} hashes")
        return
    # fn and sn: first and last leaf of the subtree; tn: last of the tree. They climb together.
    fn, sn, tn = start, end - 1, size - 1
    while fn != sn and (sn == tn or sn & 1):
        fn, sn, tn = fn >> 1, sn >> 1, tn >> 1
    path = list(proof)
    if fn != sn:
        if not path:
            raise _bad("too short for this range and size", found="no hashes")
        first = path.pop(0)
    else:
        first = subtree_root
    part = whole = first
    for value in path:
        if tn == 0:
            raise _bad("too long for this range and size", found=f"{len(proof)} hashes")
        if sn & 1 or sn == tn:
            if fn < sn:
                part = node_hash(value, part)
            whole = node_hash(value, whole)
            while not sn & 1:
                fn, sn, tn = fn >> 1, sn >> 1, tn >> 1
        else:
            whole = node_hash(whole, value)
        fn, sn, tn = fn >> 1, sn >> 1, tn >> 1
    if tn:
        raise _bad("too short for this range and size", found=f"{len(proof)} hashes")
    if part != subtree_root:
        raise _bad("does not lead to the subtree's root", subtree_root, part)
    if whole != root:
        raise _bad("does not lead to the tree's root", root, whole)
