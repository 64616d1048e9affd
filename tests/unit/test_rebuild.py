"""Recomputed leaves held against a signed root: nothing passes that the root says nothing about."""

from __future__ import annotations

import pytest

from verifiable.errors import VerificationError
from verifiable.session.head import Head
from verifiable.session.opening import Opening
from verifiable.tlog.merkle import Tree, leaf_hash
from verifier.offline.rebuild import Bound

LEAVES = [b"leaf %d" % number for number in range(8)]
HASHES = [leaf_hash(leaf) for leaf in LEAVES]
TREE = Tree.from_leaves(HASHES)


def bound(*shown: int) -> Bound:
    opening = Opening.of(TREE, {index: LEAVES[index] for index in shown})
    opening.check(8, TREE.root())
    return Bound.of(opening, Head(bytes(16), 8, TREE.root(), bytes(32), 0))


def test_leaves_agree_or_differ_where_they_are_shown_and_where_they_are_hidden() -> None:
    assert bound(0, 1, 7).first_difference(2, HASHES[2:7]) is None
    for at, where in ((2, (2, 4)), (5, (4, 6)), (6, (6, 7))):
        other = [*HASHES[2:at], leaf_hash(b"another"), *HASHES[at + 1 : 7]]
        assert bound(0, 1, 7).first_difference(2, other) == where
        assert bound(0, 1, at, 7).first_difference(2, other) == (at, at + 1)


@pytest.mark.parametrize("count", [1, 3])
def test_leaves_that_a_root_says_nothing_about_by_themselves_do_not_agree(count: int) -> None:
    """One hash for leaves 4 to 7, of which fewer were recomputed."""
    with pytest.raises(VerificationError) as caught:
        bound(0).first_difference(4, HASHES[4 : 4 + count])
    assert (caught.value.code, caught.value.found) == ("incomplete", f"0 of {count} covered")
