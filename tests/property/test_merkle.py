"""The tree against a literal reading of the standards, and against forgers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.logs import build_tile, mint_receipt
from tests.property import rfc9162
from verifiable.errors import VerificationError
from verifiable.tlog import tiles
from verifiable.tlog.cose_receipt import INCLUSION, PROOFS, CoseReceipt, Proof, verify_receipt
from verifiable.tlog.merkle import (
    Tree,
    consistency_path,
    inclusion_path,
    leaf_hash,
    root_from_multiproof,
    verify_consistency,
    verify_inclusion,
)
from verifiable.tlog.subtree import verify_subtree_consistency, verify_subtree_inclusion
from verifiable.wire import cose
from verifiable.wire.encoding import Tagged, encode
from verifiable.wire.keys import PrivateKey

LOG = PrivateKey("log.example", bytes(32))


def entry(index: int) -> bytes:
    return b"entry %d" % index


LEAVES = [leaf_hash(entry(index)) for index in range(2_200)]


def refused(code: str, function, *arguments) -> None:
    with pytest.raises(VerificationError) as caught:
        function(*arguments)
    assert caught.value.code == code


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 140))
def test_roots_and_inclusion_at_every_index(size: int):
    leaves = LEAVES[:size]
    tree = Tree.from_leaves(leaves)
    root = tree.root()
    assert root == rfc9162.mth(leaves)
    for index in range(size):
        proof = tree.inclusion_proof(index)
        assert proof == rfc9162.path(index, leaves)
        verify_inclusion(leaves[index], index, size, proof, root)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 70))
def test_consistency_of_every_pair(size: int):
    tree = Tree.from_leaves(LEAVES[:100])  # larger than both: proofs of old sizes must not see the rest
    for old in range(1, size + 1):
        proof = tree.consistency_proof(old, size)
        assert proof == rfc9162.proof(old, LEAVES[:size])
        verify_consistency(old, size, proof, tree.root(old), tree.root(size))
    verify_consistency(0, size, [], tree.root(0), tree.root(size))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_forged_consistency_is_refused(data: st.DataObject):
    size = data.draw(st.integers(2, 70))
    old = data.draw(st.integers(1, size - 1))
    tree = Tree.from_leaves(LEAVES[:size])
    # A log that changed one entry below the old size.
    changed = data.draw(st.integers(0, old - 1))
    other = Tree.from_leaves([leaf_hash(b"x") if i == changed else LEAVES[i] for i in range(size)])
    for proof in (other.consistency_proof(old), tree.consistency_proof(old)):
        refused("bad-consistency-proof", verify_consistency, old, size, proof, tree.root(old), other.root())
        refused("bad-consistency-proof", verify_consistency, old, size, proof, other.root(old), tree.root())


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_damaged_inclusion_is_refused(data: st.DataObject):
    size = data.draw(st.integers(2, 140))
    index = data.draw(st.integers(0, size - 1))
    tree = Tree.from_leaves(LEAVES[:size])
    proof = tree.inclusion_proof(index)
    at = data.draw(st.integers(0, len(proof) - 1))
    bit = data.draw(st.integers(0, 255))
    turned = (int.from_bytes(proof[at], "big") ^ 1 << bit).to_bytes(32, "big")
    for forged in (
        [*proof[:at], turned, *proof[at + 1 :]],
        proof[:at] + proof[at + 1 :],
        [*proof[:at], proof[at], *proof[at:]],
        [*proof[:at], proof[at] + b"\0", *proof[at + 1 :]],
    ):
        refused("bad-inclusion-proof", verify_inclusion, LEAVES[index], index, size, forged, tree.root())


def _moved(receipt: CoseReceipt, index: int, size: int) -> bytes:
    proof = Proof(size, index, receipt.proof.path)
    envelope = receipt.envelope
    unprotected = {PROOFS: {INCLUSION: [proof.encode()]}}
    return encode(Tagged(cose.TAG, [envelope.raw, unprotected, None, envelope.signature]))


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_position_cannot_be_moved(data: st.DataObject):
    """No other (index', size') verifies with the same path, once the size is taken from what was signed."""
    size = data.draw(st.integers(1, 40))
    index = data.draw(st.integers(0, size - 1))
    tree = Tree.from_leaves(LEAVES[:size])
    data_in = mint_receipt(tree, index, LOG)
    receipt = CoseReceipt.parse(data_in)
    included = verify_receipt(data_in, entry(index), [LOG.public])
    assert (included.index, included.size, included.root) == (index, size, tree.root())
    for other_size in range(2 * size + 2):
        for other_index in range(other_size):
            if (other_index, other_size) == (index, size):
                continue
            with pytest.raises(VerificationError) as caught:
                verify_receipt(_moved(receipt, other_index, other_size), entry(index), [LOG.public])
            assert caught.value.code in ("bad-inclusion-proof", "bad-signature")


def test_a_path_alone_does_not_bind_the_size():
    """Why the size must be signed: the RFC's own check of a path accepts it at sizes that it was not made for."""
    tree = Tree.from_leaves(LEAVES[:8])
    proof = tree.inclusion_proof(0)
    sizes = []
    for size in range(1, 20):
        try:
            verify_inclusion(LEAVES[0], 0, size, proof, tree.root())
        except VerificationError:
            continue
        sizes.append(size)
    assert sizes == [5, 6, 7, 8]


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_multiproof(data: st.DataObject):
    size = data.draw(st.integers(1, 140))
    indices = data.draw(st.sets(st.integers(0, size - 1), max_size=12))
    tree = Tree.from_leaves(LEAVES[:150])
    proof = tree.multiproof(indices, size)
    known = {index: LEAVES[index] for index in indices}
    root = tree.root(size)
    assert root_from_multiproof(size, known, proof) == root
    if len(indices) == 1:  # then it has the hashes of the audit path, in another order
        assert sorted(proof) == sorted(tree.inclusion_proof(next(iter(indices)), size))

    refused("bad-inclusion-proof", root_from_multiproof, size, known, [*proof, bytes(32)])
    if proof:
        refused("bad-inclusion-proof", root_from_multiproof, size, known, proof[:-1])
        assert root_from_multiproof(size, known, [bytes(32), *proof[1:]]) != root
    for index in indices:
        moved = {other: value for other, value in known.items() if other != index} | {index: leaf_hash(b"x")}
        assert root_from_multiproof(size, moved, proof) != root
    outside = {**known, size: LEAVES[0]}
    refused("bad-inclusion-proof", root_from_multiproof, size, outside, proof)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_subtrees(data: st.DataObject):
    size = data.draw(st.integers(1, 70))
    height = data.draw(st.integers(0, size.bit_length() - 1))
    start = data.draw(st.integers(0, size - 1)) >> height << height
    end = data.draw(st.integers(start + 1, min(size, start + (1 << height))))
    leaves = LEAVES[:size]
    part, root = rfc9162.mth(leaves[start:end]), rfc9162.mth(leaves)
    proof = rfc9162.subtree_proof(start, end, leaves)
    verify_subtree_consistency(start, end, size, proof, part, root)
    for index in range(start, end):
        path = rfc9162.path(index - start, leaves[start:end])
        verify_subtree_inclusion(leaves[index], index, start, end, path, part)
    refused("bad-consistency-proof", verify_subtree_consistency, start, end, size, [*proof, bytes(32)], part, root)
    refused("bad-consistency-proof", verify_subtree_consistency, start, end, size, proof, bytes(32), root)
    refused("bad-consistency-proof", verify_subtree_consistency, start, end, size, proof, part, bytes(32))


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_tiles_give_the_same_tree(data: st.DataObject):
    size = data.draw(st.one_of(st.integers(1, 2_200), st.sampled_from([255, 256, 257, 511, 512, 2048])))
    tree = Tree.from_leaves(LEAVES[:size])
    node = tree.node
    stored = {tile: build_tile(tile, node) for tile in tiles.tiles_for(size)}
    read = stored.__getitem__  # a KeyError here would be a tile that the log does not have
    assert tiles.root_from_tiles(size, read) == tree.root()
    from_tiles = tiles.tile_node(size, read)
    index = data.draw(st.integers(0, size - 1))
    assert inclusion_path(from_tiles, index, size) == tree.inclusion_proof(index)
    old = data.draw(st.integers(0, size))
    assert consistency_path(from_tiles, old, size) == tree.consistency_proof(old)
    # What a log adds when it grows, with what it had, is what it has.
    before = set(tiles.tiles_for(old)) if old else set()
    assert {tile.path() for tile in before | set(tiles.tiles_for(size, old))} >= {t.path() for t in stored}
