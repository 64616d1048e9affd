"""Openings: leaves with the hashes that tie them to a signed root."""

from __future__ import annotations

import pytest

from verifiable import limits
from verifiable.errors import MalformedError, VerificationError
from verifiable.session.opening import Opening
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.wire import encoding

LEAVES = [f"leaf {index}".encode() for index in range(21)]
TREE = Tree.from_leaves(leaf_hash(leaf) for leaf in LEAVES)


def opening(*indices: int) -> Opening:
    return Opening.of(TREE, {index: LEAVES[index] for index in indices})


@pytest.mark.parametrize("indices", [(0,), (20,), (0, 20), (3, 4, 5), tuple(range(21)), (7, 16)])
def test_leaves_give_the_root(indices: tuple[int, ...]) -> None:
    made = opening(*indices)
    made.check(21, TREE.root())
    shown = set(indices)
    for low, high, value in made.hidden(21):
        assert not shown & set(range(low, high))
        assert Tree.from_leaves(leaf_hash(leaf) for leaf in LEAVES[low:high]).root() == value
        shown |= set(range(low, high))
    assert shown == set(range(21))


def test_changes_are_found() -> None:
    made = opening(3, 9)
    for wrong in (
        Opening({3: LEAVES[3], 9: b"other"}, made.proof),
        Opening({3: LEAVES[3], 10: LEAVES[9]}, made.proof),
        Opening({3: LEAVES[3]}, made.proof),
        Opening(made.leaves, made.proof[:-1]),
        Opening(made.leaves, (*made.proof, b"h" * 32)),
        Opening(made.leaves, made.proof[::-1]),
        Opening({}, ()),
        Opening({21: b"x"}, ()),
    ):
        with pytest.raises(VerificationError) as caught:
            wrong.check(21, TREE.root())
        assert caught.value.code == "root-differs"
    # The size is not the path's to prove: it is signed with the root. Leaves beyond it are refused all the same.
    with pytest.raises(VerificationError):
        made.check(9, TREE.root())
    with pytest.raises(VerificationError):
        made.check(1 << 40, TREE.root())


def test_the_encoding_is_strict() -> None:
    made = opening(3, 9)
    leaves, proof = made.to_cbor()
    assert Opening.from_cbor(leaves, proof) == made
    first: encoding.Value = leaves[0]
    wrong: list[tuple[encoding.Value, encoding.Value]] = [
        ([leaves[1], first], proof),
        ([first, first], proof),
        ([[3, LEAVES[3], 0]], proof),
        ([[3, "text"]], proof),
        ([[-1, LEAVES[3]]], proof),
        ([[3, b"x" * (limits.LEAF_BYTES + 1)]], proof),
        (leaves, [b"short"]),
        ({}, proof),
    ]
    for given in wrong:
        with pytest.raises(MalformedError):
            Opening.from_cbor(*given)
