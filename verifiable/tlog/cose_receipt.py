"""COSE Receipts of inclusion (RFC 9942, verifiable data structure 1: RFC 9162 with SHA-256).

A receipt is a COSE_Sign1 whose detached payload is the root of the log's tree, with the inclusion proof in its
unprotected header. The RFC signs the root alone, which leaves index and size to whoever holds the receipt: the
same path can fit another position of another size. So what we mint says origin and size in the signed CWT claims
(RFC 9597), and `verify_receipt` demands that the proof has that size; with size and root fixed, a path fits one
index only.

    18([<< {1: -19, 4: kid, 15: {1: origin, -65537: size}, 395: 1} >>,
        {396: {-1: [<< [size, index, [hash, …]] >>]}}, null, signature])
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from verifiable import limits
from verifiable.errors import MalformedError, VerificationError
from verifiable.tlog.merkle import HASH_SIZE, leaf_hash, root_from_inclusion
from verifiable.wire import cose
from verifiable.wire.encoding import Map, array, bytes_, decode, encode, map_, text, uint
from verifiable.wire.keys import PrivateKey, PublicKey

VDS: Final = 395
PROOFS: Final = 396
RFC9162_SHA256: Final = 1
INCLUSION: Final = -1

SIZE: Final = -65537
"""CWT claim of ours, from the range for private use: the size of the tree whose root was signed."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The inclusion proof of RFC 9942 §5.2: [size, index, path]. Not signed."""

    size: int
    index: int
    path: tuple[bytes, ...]

    def encode(self) -> bytes:
        """The deterministic CBOR that stands in the header."""
        return encode([self.size, self.index, list(self.path)])

    @classmethod
    def decode(cls, data: bytes) -> Proof:
        """Parse it strictly."""
        size, index, path = array(decode(data), 3, "inclusion proof")
        hashes = array(path, None, "inclusion proof: path", maximum=limits.PROOF_HASHES)
        return cls(
            uint(size, "inclusion proof: size"),
            uint(index, "inclusion proof: index"),
            tuple(bytes_(value, "inclusion proof: hash", HASH_SIZE) for value in hashes),
        )

    def root(self, leaf: bytes) -> bytes:
        """The root that follows for a leaf hash, for profiles that sign the root alone.

        Raises VerificationError (`bad-inclusion-proof`): the path does not fit index and size.
        """
        return root_from_inclusion(leaf, self.index, self.size, self.path)


@dataclass(frozen=True, slots=True)
class CoseReceipt:
    """A parsed receipt of anyone's, not verified: the envelope and its one proof."""

    envelope: cose.Sign1
    proof: Proof

    @classmethod
    def parse(cls, data: bytes) -> CoseReceipt:
        """Parse a deterministically encoded receipt of inclusion with data structure 1; see `of`."""
        return cls.of(cose.parse(data))

    @classmethod
    def of(cls, envelope: cose.Sign1) -> CoseReceipt:
        """Read the proof from an envelope.

        Raises:
            MalformedError: not a receipt with one inclusion proof and a detached payload.
            VerificationError: another data structure (code `unsupported-structure`).
        """
        structure = envelope.protected.get(VDS)
        if structure != RFC9162_SHA256 or type(structure) is not int:
            raise VerificationError(
                "verifiable data structure is not supported",
                code="unsupported-structure",
                expected=f"{RFC9162_SHA256} (RFC 9162 with SHA-256) in the protected header",
                found="none" if structure is None else structure,
            )
        if envelope.payload is not None:
            raise MalformedError("receipt", expected="a detached payload", found=envelope.payload)
        proofs = map_(envelope.unprotected, (PROOFS,), "receipt: unprotected header")[PROOFS]
        inclusions = map_(proofs, (INCLUSION,), "receipt: proofs")[INCLUSION]
        (encoded,) = array(inclusions, 1, "receipt: inclusion proofs")
        return cls(envelope, Proof.decode(bytes_(encoded, "receipt: inclusion proof")))


@dataclass(frozen=True, slots=True)
class Included:
    """What a verified receipt says: this log's tree of `size` leaves and `root` has the entry at `index`."""

    origin: str
    size: int
    index: int
    root: bytes
    key: PublicKey


def mint_proof(proof: Proof, root: bytes, key: PrivateKey) -> bytes:
    """Mint a receipt from a proof and the root that it leads to. The key's name is the log's origin."""
    protected: Map = {
        cose.ALG: cose.ED25519,
        cose.KID: key.public.kid,
        cose.CLAIMS: {cose.ISSUER: key.name, SIZE: proof.size},
        VDS: RFC9162_SHA256,
    }
    unprotected: Map = {PROOFS: {INCLUSION: [proof.encode()]}}
    return cose.assemble(protected, unprotected, root, key, attached=False)


def verify_receipt(data: bytes, entry: bytes, trusted: Iterable[PublicKey]) -> Included:
    """Verify a receipt that `mint_proof` made, for an entry's bytes.

    Raises:
        MalformedError: not a receipt of ours.
        VerificationError: `unsupported-structure`, `bad-inclusion-proof` (the proof is for another size than was
            signed, or no path of it), `unsupported-algorithm`, `untrusted-key`, `bad-signature` (another entry or
            a changed path), or `wrong-origin` (the claims name another log than the key).
    """
    receipt = CoseReceipt.parse(data)
    protected = map_(receipt.envelope.protected, (cose.ALG, cose.KID, cose.CLAIMS, VDS), "receipt: protected header")
    claims = map_(protected[cose.CLAIMS], (cose.ISSUER, SIZE), "receipt: claims")
    origin = text(claims[cose.ISSUER], "receipt: issuer", limits.KEY_NAME_BYTES)
    size = uint(claims[SIZE], "receipt: size")
    proof = receipt.proof
    if proof.size != size:
        raise VerificationError(
            "receipt: the proof is for another size than was signed",
            code="bad-inclusion-proof",
            expected=size,
            found=proof.size,
        )
    root = proof.root(leaf_hash(entry))
    key = cose.check(receipt.envelope, root, trusted)
    if key.name != origin:
        raise VerificationError("receipt of another log", code="wrong-origin", expected=key.name, found=origin)
    return Included(origin, size, proof.index, root, key)
