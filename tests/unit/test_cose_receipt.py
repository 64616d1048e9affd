from __future__ import annotations

import cbor2
import pytest

from tests.logs import mint_receipt
from verifiable.errors import MalformedError, VerificationError
from verifiable.tlog.cose_receipt import CoseReceipt, Proof, verify_receipt
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.wire import cose
from verifiable.wire.encoding import Tagged, encode
from verifiable.wire.keys import PrivateKey

LOG = PrivateKey("log.example", bytes(32))
OTHER = PrivateKey("other.example", bytes(31) + b"\1")
TREE = Tree.from_leaves(leaf_hash(bytes([index])) for index in range(9))
RECEIPT = mint_receipt(TREE, 3, LOG)


def remake(key: PrivateKey = LOG, *, index: int = 3, size: int = 9, **changed) -> bytes:
    """A receipt like ours with something changed before signing."""
    protected = {
        1: -19,
        4: key.public.kid,
        15: changed.get("claims", {1: LOG.name, -65537: size}),
        395: changed.get("vds", 1),
    }
    protected |= changed.get("protected", {})
    proof = changed.get("proof", encode([size, index, TREE.inclusion_proof(3)]))
    unprotected = changed.get("unprotected", {396: {-1: [proof]}})
    attached = changed.get("attached", False)
    return cose.assemble(protected, unprotected, TREE.root(), key, attached=attached)


def test_it_says_where_the_entry_is():
    included = verify_receipt(RECEIPT, bytes([3]), [OTHER.public, LOG.public])
    assert (included.origin, included.size, included.index) == ("log.example", 9, 3)
    assert (included.root, included.key) == (TREE.root(), LOG.public)
    assert remake() == RECEIPT
    old = verify_receipt(mint_receipt(TREE, 3, LOG, size=5), bytes([3]), [LOG.public])
    assert (old.size, old.root) == (5, TREE.root(5))


def test_others_can_read_it():
    """The structure of RFC 9942, as a general CBOR decoder sees it."""
    tag = cbor2.loads(RECEIPT)
    protected, unprotected, payload, signature = tag.value
    assert (tag.tag, payload, len(signature)) == (18, None, 64)
    assert cbor2.loads(protected) == {1: -19, 4: LOG.public.kid, 15: {1: "log.example", -65537: 9}, 395: 1}
    (proof,) = unprotected[396][-1]
    assert cbor2.loads(proof) == [9, 3, TREE.inclusion_proof(3)]
    message = cbor2.dumps(["Signature1", protected, b"", TREE.root()], canonical=True)
    LOG.public.verify(signature, message)


@pytest.mark.parametrize(
    ("receipt", "entry", "code"),
    [
        (RECEIPT, bytes([4]), "bad-signature"),
        (RECEIPT[:-1] + bytes([RECEIPT[-1] ^ 1]), bytes([3]), "bad-signature"),
        (mint_receipt(TREE, 3, OTHER), bytes([3]), "untrusted-key"),
        (remake(claims={1: "elsewhere.example", -65537: 9}), bytes([3]), "wrong-origin"),
        (remake(claims={1: LOG.name, -65537: 10}), bytes([3]), "bad-inclusion-proof"),
        (remake(index=9), bytes([3]), "bad-inclusion-proof"),
        (remake(index=8), bytes([3]), "bad-inclusion-proof"),
        (remake(index=2), bytes([3]), "bad-signature"),
        (remake(vds=2), bytes([3]), "unsupported-structure"),
        (remake(vds="1"), bytes([3]), "unsupported-structure"),
        (remake(protected={1: -7}), bytes([3]), "unsupported-algorithm"),
    ],
)
def test_refusals(receipt: bytes, entry: bytes, code: str):
    with pytest.raises(VerificationError) as caught:
        verify_receipt(receipt, entry, [LOG.public])
    assert caught.value.code == code


@pytest.mark.parametrize(
    "receipt",
    [
        remake(attached=True),
        remake(unprotected={}),
        remake(unprotected={396: {-1: []}}),
        remake(unprotected={396: {-1: [b"\x83\x09\x03\x80", b"\x83\x09\x03\x80"]}}),
        remake(unprotected={396: {-2: [b"\x83\x09\x03\x80"]}}),
        remake(unprotected={396: {-1: [b"\x83\x09\x03\x80"]}, 99: 0}),
        remake(proof=encode([9, 3, TREE.inclusion_proof(3), 0])),
        remake(proof=encode([9, 3, [b"short"]])),
        remake(proof=encode([9, 3, [bytes(32)] * 64])),
        remake(proof=encode([9, -1, []])),
        remake(proof=b"\x9f\x09\x03\x80\xff"),
        remake(claims={1: LOG.name}),
        remake(claims={1: LOG.name, -65537: 9, 6: 0}),
        remake(protected={16: "application/x-test"}),
        remake(protected={2: [395]}),
        encode(Tagged(18, [b"", {396: {}}, None, bytes(64)])),
    ],
)
def test_malformed(receipt: bytes):
    with pytest.raises((MalformedError, VerificationError)) as caught:
        verify_receipt(receipt, bytes([3]), [LOG.public])
    # Only the last has no structure at all, which is said with a code.
    code = caught.value.code
    assert code == "malformed" or (code == "unsupported-structure" and receipt.endswith(bytes(64)))


def test_the_proof_alone():
    proof = CoseReceipt.parse(RECEIPT).proof
    assert proof == Proof(9, 3, tuple(TREE.inclusion_proof(3)))
    assert proof.root(leaf_hash(bytes([3]))) == TREE.root()
