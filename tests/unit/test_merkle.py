from __future__ import annotations

import hashlib

import pytest

from verifiable.errors import MalformedError, VerificationError
from verifiable.tlog.merkle import (
    EMPTY_ROOT,
    Tree,
    leaf_hash,
    node_hash,
    root_from_multiproof,
    verify_consistency,
    verify_inclusion,
)

A, B, C = (leaf_hash(text) for text in (b"a", b"b", b"c"))


def test_hashes():
    assert hashlib.sha256(b"").digest() == EMPTY_ROOT
    assert leaf_hash(b"a") == hashlib.sha256(b"\0a").digest()
    assert node_hash(A, B) == hashlib.sha256(b"\1" + A + B).digest()


def test_small_trees():
    tree = Tree()
    assert (tree.size, tree.root(), tree.multiproof([])) == (0, EMPTY_ROOT, [])
    assert [tree.append(leaf) for leaf in (A, B, C)] == [0, 1, 2]
    assert tree.leaf(2) == C
    assert [tree.root(size) for size in range(4)] == [
        EMPTY_ROOT,
        A,
        node_hash(A, B),
        node_hash(node_hash(A, B), C),
    ]
    assert tree.inclusion_proof(0) == [B, C]
    assert tree.inclusion_proof(2) == [node_hash(A, B)]
    assert tree.inclusion_proof(0, 1) == []
    assert tree.consistency_proof(2) == [C]
    assert tree.consistency_proof(1) == [B, C]
    # The order of a multiproof: left to right, the largest unknown ranges.
    assert tree.multiproof([1]) == [A, C]
    assert tree.multiproof([]) == [tree.root()]
    assert root_from_multiproof(3, {1: B}, [A, C]) == tree.root()
    assert root_from_multiproof(0, {}, []) == EMPTY_ROOT


@pytest.mark.parametrize(
    "ask",
    [
        lambda tree: tree.root(4),
        lambda tree: tree.root(-1),
        lambda tree: tree.leaf(3),
        lambda tree: tree.leaf(-1),
        lambda tree: tree.inclusion_proof(3),
        lambda tree: tree.inclusion_proof(2, 2),
        lambda tree: tree.inclusion_proof(0, 0),
        lambda tree: tree.consistency_proof(3, 2),
        lambda tree: tree.consistency_proof(1, 4),
        lambda tree: tree.consistency_proof(-1),
        lambda tree: tree.multiproof([0, 3]),
        lambda tree: tree.multiproof([-1]),
        lambda tree: tree.multiproof([0], 0),
        lambda tree: tree.append(A[:31]),
        lambda tree: tree.append(A + b"\0"),
    ],
)
def test_questions_that_make_no_sense(ask):
    tree = Tree.from_leaves([A, B, C])
    with pytest.raises(MalformedError):
        ask(tree)
    assert tree.size == 3


@pytest.mark.parametrize(
    "arguments",
    [
        (A, 0, 0, [], A),
        (A, 1, 1, [], A),
        (A, -1, 1, [], A),
        (A, 0, 1, [B], A),
        (A, 0, 2, [], A),
        (A + b"", 0, 2, [B + C], node_hash(A, B + C)),  # a hash of another length must not be hashed
        (A[:5], 0, 1, [], A[:5]),
    ],
)
def test_inclusion_is_refused(arguments):
    with pytest.raises(VerificationError) as caught:
        verify_inclusion(*arguments)
    assert caught.value.code == "bad-inclusion-proof"


@pytest.mark.parametrize(
    "arguments",
    [
        (2, 1, [], A, A),
        (-1, 1, [], A, A),
        (0, 1, [], A, A),  # not the root of nothing
        (0, 1, [A], EMPTY_ROOT, A),
        (0, 0, [], EMPTY_ROOT, A),
        (1, 1, [], A, B),
        (1, 1, [A], A, A),
        (1, 2, [], A, node_hash(A, B)),
        (3, 4, [], A, B),
        (1, 2, [B, C], A, node_hash(A, B)),
        (1, 2, [B + C], A, node_hash(A, B + C)),
        (1, 2, [C], A, node_hash(A, B)),
    ],
)
def test_consistency_is_refused(arguments):
    with pytest.raises(VerificationError) as caught:
        verify_consistency(*arguments)
    assert caught.value.code == "bad-consistency-proof"


def test_huge_sizes_end_quickly():
    size = 2**63 - 1
    with pytest.raises(VerificationError):
        verify_inclusion(A, size - 1, size, [], A)
    with pytest.raises(VerificationError):
        verify_consistency(1, size, [B] * 62, A, B)
    with pytest.raises(VerificationError):
        root_from_multiproof(size, {0: A, size - 1: B}, [])
