from __future__ import annotations

import pytest

from verifiable.errors import VerificationError
from verifiable.tlog.merkle import EMPTY_ROOT, leaf_hash, node_hash
from verifiable.tlog.subtree import verify_subtree_consistency, verify_subtree_inclusion

A, B, C, D = (leaf_hash(text) for text in (b"a", b"b", b"c", b"d"))
AB, CD = node_hash(A, B), node_hash(C, D)


def refused(code: str, function, *arguments) -> None:
    with pytest.raises(VerificationError) as caught:
        function(*arguments)
    assert caught.value.code == code


def test_a_range_that_is_no_subtree_proves_nothing():
    verify_subtree_inclusion(C, 2, 2, 4, [D], CD)
    # The path is right for [1, 3) as a tree of its own, but no node of the log has that hash.
    refused("bad-consistency-proof", verify_subtree_inclusion, B, 1, 1, 3, [C], node_hash(B, C))
    refused("bad-consistency-proof", verify_subtree_consistency, 1, 3, 4, [], node_hash(B, C), AB)
    refused("bad-consistency-proof", verify_subtree_inclusion, B, 1, 2, 1, [], B)
    refused("bad-consistency-proof", verify_subtree_inclusion, B, 1, -2, 0, [], B)


def test_a_leaf_outside_the_subtree():
    refused("bad-inclusion-proof", verify_subtree_inclusion, C, 1, 2, 4, [D], CD)
    refused("bad-inclusion-proof", verify_subtree_inclusion, C, 4, 2, 4, [D], CD)


def test_parts_of_a_tree_of_four():
    root = node_hash(AB, CD)
    verify_subtree_consistency(2, 4, 4, [AB], CD, root)
    verify_subtree_consistency(2, 3, 4, [D, AB], C, root)
    verify_subtree_consistency(0, 4, 4, [], root, root)
    verify_subtree_consistency(3, 3, 4, [], EMPTY_ROOT, root)
    for proof in ([], [CD], [AB, CD]):
        refused("bad-consistency-proof", verify_subtree_consistency, 2, 4, 4, proof, CD, root)
    refused("bad-consistency-proof", verify_subtree_consistency, 2, 4, 3, [AB], CD, root)
    refused("bad-consistency-proof", verify_subtree_consistency, 2, 4, 4, [AB + b"x"], CD, node_hash(AB + b"x", CD))
    refused("bad-consistency-proof", verify_subtree_consistency, 3, 3, 4, [AB], EMPTY_ROOT, root)
    refused("bad-consistency-proof", verify_subtree_consistency, 3, 3, 4, [], A, root)
