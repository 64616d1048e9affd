"""merkle-py as an oracle: with its hash function replaced it agrees on every root, and its proofs are unusable.

It hashes leaves and nodes alike, so it is given our leaf hashes and a node hash with the prefix of RFC 9162.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from typing import Any

import pytest

from verifiable.errors import VerificationError
from verifiable.tlog.merkle import Tree, leaf_hash, verify_inclusion

merklepy = pytest.importorskip("merklepy", reason="merkle-py (with py-utls, which it needs) is not installed")


def _theirs(leaves: list[bytes]) -> tuple[Any, list[Any]]:
    tree = merklepy.MerkleTree()
    tree._hashFunction = lambda data: hashlib.sha256(b"\x01" + data).digest()
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the errors of the proofs that it cannot build
        proofs = tree.add_leaves(False, *leaves)
    return tree, proofs


def _leaves(size: int) -> list[bytes]:
    return [leaf_hash(index.to_bytes(4, "big")) for index in range(size)]


def test_roots_agree():
    leaves = _leaves(130)
    ours = Tree.from_leaves(leaves)
    for size in range(1, 131):
        theirs, _ = _theirs(leaves[:size])
        assert theirs.get_root_hash() == ours.root(size).hex()


def test_its_proofs_verify_for_the_first_two_leaves_only():
    leaves = _leaves(16)
    theirs, proofs = _theirs(leaves)
    root = theirs.get_root_hash()
    verified = [theirs.validate_proof(proof, leaf, root) for proof, leaf in zip(proofs, leaves, strict=True)]
    # The siblings are looked up by the digit of the path (0 or 1) instead of the position in the level.
    assert verified == [True, True] + [False] * 14

    ours = Tree.from_leaves(leaves)
    for index, leaf in enumerate(leaves):
        verify_inclusion(leaf, index, 16, ours.inclusion_proof(index), ours.root())


def test_its_proofs_do_not_bind_the_size():
    leaves = _leaves(16)
    theirs, proofs = _theirs(leaves)
    proofs[0].size = 1_000_000
    assert theirs.validate_proof(proofs[0], leaves[0], theirs.get_root_hash())

    ours = Tree.from_leaves(leaves)
    with pytest.raises(VerificationError) as caught:
        verify_inclusion(leaves[0], 0, 1_000_000, ours.inclusion_proof(0), ours.root())
    assert caught.value.code == "bad-inclusion-proof"
