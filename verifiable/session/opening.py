"""Some leaves of a session log, whole, with the hashes that tie them to a signed root. Receipts and evidence are built
on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from verifiable import limits
from verifiable.errors import MalformedError, VerificationError
from verifiable.tlog import merkle
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.wire import encoding


@dataclass(frozen=True, slots=True)
class Opening:
    """`leaves` maps index to leaf bytes; `proof` is the multiproof of those indices (merkle.root_from_multiproof)."""

    leaves: Mapping[int, bytes]
    proof: tuple[bytes, ...]

    @classmethod
    def of(cls, tree: Tree, leaves: Mapping[int, bytes]) -> Opening:
        return cls(dict(sorted(leaves.items())), tuple(tree.multiproof(leaves)))

    def check(self, size: int, root: bytes) -> None:
        """Raise VerificationError (`root-differs`) unless the leaves stand in the tree of `size` leaves with `root`."""
        if not self.leaves or max(self.leaves) >= size:
            raise VerificationError(
                "leaves lie outside the signed size",
                code="root-differs",
                expected=f"indices below {size}",
                found=f"index {max(self.leaves, default=-1)}",
            )
        known = {index: leaf_hash(data) for index, data in self.leaves.items()}
        try:
            computed = merkle.root_from_multiproof(size, known, self.proof)
        except VerificationError as error:
            raise VerificationError(f"the leaves' proof does not fit: {error}", code="root-differs") from error
        if computed != root:
            raise VerificationError(
                "the leaves do not give the signed root",
                code="root-differs",
                expected=root.hex(),
                found=computed.hex(),
                hint="A leaf or a hash was changed after the head was signed.",
            )

    def hidden(self, size: int) -> list[tuple[int, int, bytes]]:
        """The subtrees that the proof stands for, left to right: leaves `low` to `high - 1` have the hash given.

        Call only after `check`. An auditor who recomputed those leaves compares subtree by subtree.
        """
        known = sorted(self.leaves)
        hashes = iter(self.proof)
        subtrees: list[tuple[int, int, bytes]] = []

        def walk(low: int, high: int) -> None:
            first = bisect_left(known, low)
            if first == len(known) or known[first] >= high:
                subtrees.append((low, high, next(hashes)))
            elif high - low > 1:
                middle = low + merkle.split(high - low)
                walk(low, middle)
                walk(middle, high)

        walk(0, size)
        return subtrees

    def to_cbor(self) -> tuple[list[encoding.Value], list[encoding.Value]]:
        return [[index, data] for index, data in self.leaves.items()], list(self.proof)

    @classmethod
    def from_cbor(
        cls,
        leaves: encoding.Value,
        proof: encoding.Value,
        most: int = limits.SESSION_LEAVES,
        longest: int = limits.LEAF_BYTES,
    ) -> Opening:
        opened: dict[int, bytes] = {}
        last = -1
        for entry in encoding.array(leaves, None, "opened leaves", maximum=most):
            index_value, data = encoding.array(entry, 2, "opened leaf")
            index = encoding.uint(index_value, "opened leaf index")
            if index <= last:
                raise MalformedError("opened leaves", expected="ascending indices", found=f"{index} after {last}")
            opened[index] = encoding.bytes_(data, "opened leaf", maximum=longest)
            last = index
        hashes = tuple(encoding.bytes_(item, "proof hash", 32) for item in encoding.array(proof, None, "opening proof"))
        return cls(opened, hashes)
