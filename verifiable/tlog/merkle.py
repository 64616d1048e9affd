"""The Merkle tree of RFC 9162 §2.1 over SHA-256: an append-only tree, its proofs, and their verification.

    MTH({})     = SHA-256()
    MTH({d})    = SHA-256(0x00 ‖ d)
    MTH(D[0:n]) = SHA-256(0x01 ‖ MTH(D[0:k]) ‖ MTH(D[k:n])), k the largest power of two below n

Leaves come in as leaf hashes, so that a tree can be kept by someone who must not see the entries. Hashes are
32 bytes. An index or a size means nothing without a signature over the size: every verifier here takes the
size from its caller, and the caller takes it from a signed head.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final

from verifiable.errors import MalformedError, VerificationError

EMPTY_ROOT: Final = sha256(b"").digest()
HASH_SIZE: Final = 32


def leaf_hash(entry: bytes) -> bytes:
    """SHA-256(0x00 ‖ entry)."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 ‖ left ‖ right)."""
    return sha256(b"\x01" + left + right).digest()


def split(n: int) -> int:
    """The largest power of two smaller than n, for n ≥ 2: where a tree of n leaves divides."""
    return 1 << ((n - 1).bit_length() - 1)


Node = Callable[[int, int], bytes]
"""`node(height, index)` is the hash of the complete subtree of leaves [index·2^height, (index + 1)·2^height)."""


def range_hash(node: Node, lo: int, hi: int) -> bytes:
    """The hash of leaves [lo, hi), where lo is a multiple of the least power of two ≥ hi - lo."""
    n = hi - lo
    if n == 0:
        return EMPTY_ROOT
    if n & (n - 1) == 0:
        height = n.bit_length() - 1
        return node(height, lo >> height)
    k = split(n)
    return node_hash(range_hash(node, lo, lo + k), range_hash(node, lo + k, hi))


def inclusion_path(node: Node, index: int, size: int) -> list[bytes]:
    """PATH(index, D[0:size]) of RFC 9162 §2.1.3.1, leaf end first."""
    check_index(index, size)
    path = []
    height, last = 0, size - 1
    while last:
        if index & 1:
            path.append(node(height, index - 1))
        elif index + 1 < last or (index < last and (last + 1) << height == size):
            path.append(node(height, index + 1))
        elif index < last:  # the sibling is the right edge of the tree, and not a complete subtree
            path.append(range_hash(node, last << height, size))
        index >>= 1
        last >>= 1
        height += 1
    return path


def consistency_path(node: Node, m: int, n: int) -> list[bytes]:
    """PROOF(m, D[0:n]) of RFC 9162 §2.1.4.1; empty for m = 0 and m = n."""
    if not 0 <= m <= n:
        raise MalformedError("consistency proof: old size", expected=f"0 to {n}", found=m)

    def subproof(m: int, lo: int, hi: int, whole: bool) -> list[bytes]:
        """SUBPROOF(m, D[lo:hi], whole): is [lo, lo + m) the whole old tree?"""
        if m == hi - lo:
            return [] if whole else [range_hash(node, lo, hi)]
        middle = lo + split(hi - lo)
        if m <= middle - lo:
            return [*subproof(m, lo, middle, whole), range_hash(node, middle, hi)]
        return [*subproof(m - (middle - lo), middle, hi, False), range_hash(node, lo, middle)]

    return subproof(m, 0, n, True) if m else []


def multi_path(node: Node, indices: Iterable[int], size: int) -> list[bytes]:
    """The hashes that `root_from_multiproof` needs beside the leaves at these indices, left to right."""
    known = sorted(set(indices))
    for index in known[:1] + known[-1:]:
        check_index(index, size)
    proof: list[bytes] = []

    def walk(lo: int, hi: int, first: int, end: int) -> None:
        """Append what is needed for [lo, hi), of which known[first:end] are known."""
        if first == end:
            proof.append(range_hash(node, lo, hi))
        elif hi - lo > 1:
            middle = lo + split(hi - lo)
            border = bisect_left(known, middle, first, end)
            walk(lo, middle, first, border)
            walk(middle, hi, border, end)

    if size:
        walk(0, size, 0, len(known))
    return proof


def check_index(index: int, size: int) -> None:
    """Refuse an index outside a tree of `size` leaves."""
    if not 0 <= index < size:
        raise MalformedError("leaf index", expected=f"less than {size}", found=index)


class Tree:
    """An append-only tree that keeps the hash of every complete subtree, so old sizes can be asked about.

    `_levels[h][i]` is the hash of leaves [i·2^h, (i+1)·2^h). Two hashes a leaf are kept, 32 bytes each.
    """

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: list[list[bytes]] = [[]]

    @classmethod
    def from_leaves(cls, leaf_hashes: Iterable[bytes]) -> Tree:
        """A tree with these leaf hashes, in this order."""
        tree = cls()
        for value in leaf_hashes:
            tree.append(value)
        return tree

    @property
    def size(self) -> int:
        """Number of leaves."""
        return len(self._levels[0])

    def leaf(self, index: int) -> bytes:
        """The leaf hash at an index."""
        check_index(index, self.size)
        return self._levels[0][index]

    def append(self, leaf_hash: bytes) -> int:
        """Append a leaf hash and return its index. Amortised one hash."""
        if type(leaf_hash) is not bytes or len(leaf_hash) != HASH_SIZE:
            raise MalformedError("leaf hash", expected=f"{HASH_SIZE} bytes", found=leaf_hash)
        levels = self._levels
        index = position = len(levels[0])
        value = leaf_hash
        height = 0
        levels[0].append(value)
        while position & 1:  # a right child completes its parent
            value = sha256(b"\x01" + levels[height][-2] + value).digest()
            height += 1
            position >>= 1
            if height == len(levels):
                levels.append([])
            levels[height].append(value)
        return index

    def root(self, size: int | None = None) -> bytes:
        """The root of the first `size` leaves; of all of them by default."""
        return range_hash(self.node, 0, self._sized(size))

    def inclusion_proof(self, index: int, size: int | None = None) -> list[bytes]:
        """The audit path for a leaf in the tree of the first `size` leaves, leaf end first."""
        return inclusion_path(self.node, index, self._sized(size))

    def consistency_proof(self, m: int, n: int | None = None) -> list[bytes]:
        """The proof that the first n leaves extend the first m; empty for m = 0 and m = n."""
        return consistency_path(self.node, m, self._sized(n))

    def multiproof(self, indices: Iterable[int], size: int | None = None) -> list[bytes]:
        """The hashes that `root_from_multiproof` needs beside the leaves at these indices, left to right."""
        return multi_path(self.node, indices, self._sized(size))

    def range(self, lo: int, hi: int) -> bytes:
        """The hash of leaves [lo, hi), where lo is a multiple of the least power of two ≥ hi - lo."""
        return range_hash(self.node, lo, hi)

    def node(self, height: int, index: int) -> bytes:
        """The hash of a complete subtree: this tree as a `Node`."""
        return self._levels[height][index]

    def _sized(self, size: int | None) -> int:
        if size is None:
            return self.size
        if not 0 <= size <= self.size:
            raise MalformedError("tree size", expected=f"0 to {self.size}", found=size)
        return size


def _bad(kind: str, why: str, expected: object = None, found: object = None) -> VerificationError:
    return VerificationError(f"{kind} proof: {why}", code=f"bad-{kind}-proof", expected=expected, found=found)


def _check_hashes(kind: str, *hashes: bytes) -> None:
    for value in hashes:
        # Without this a longer "hash" would shift the boundary between two children of a node.
        if len(value) != HASH_SIZE:
            raise _bad(kind, "hash of the wrong length", f"{HASH_SIZE} bytes", value)


def root_from_inclusion(leaf_hash: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes:
    """The root that an audit path leads to from a leaf at `index` of `size` (RFC 9162 §2.1.3.2, steps 1 to 4).

    Raises VerificationError (`bad-inclusion-proof`): no path of this length fits the position.
    """
    if not 0 <= index < size:
        raise _bad("inclusion", "index outside the tree", f"less than {size}", index)
    _check_hashes("inclusion", leaf_hash, *proof)
    fn, sn = index, size - 1
    computed = leaf_hash
    for sibling in proof:
        if sn == 0:
            raise _bad("inclusion", "too long for this index and size", found=f"{len(proof)} hashes")
        if fn & 1 or fn == sn:
            computed = sha256(b"\x01" + sibling + computed).digest()
            while not fn & 1 and fn:
                fn >>= 1
                sn >>= 1
        else:
            computed = sha256(b"\x01" + computed + sibling).digest()
        fn >>= 1
        sn >>= 1
    if sn:
        raise _bad("inclusion", "too short for this index and size", found=f"{len(proof)} hashes")
    return computed


def verify_inclusion(leaf_hash: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Verify that a leaf is at `index` in the tree of `size` leaves with this root (RFC 9162 §2.1.3.2).

    Raises VerificationError (`bad-inclusion-proof`).
    """
    computed = root_from_inclusion(leaf_hash, index, size, proof)
    if computed != root:
        raise _bad("inclusion", "does not lead to the root", root, computed)


def verify_consistency(m: int, n: int, proof: Sequence[bytes], root_m: bytes, root_n: bytes) -> None:
    """Verify that the tree of n leaves with root_n extends that of m leaves with root_m (RFC 9162 §2.1.4.2).

    The RFC leaves out m = 0 and m = n. Here both take an empty proof: every tree extends the empty one, whose
    root must be `EMPTY_ROOT`, and a tree extends itself alone. Raises VerificationError (`bad-consistency-proof`).
    """
    if not 0 <= m <= n:
        raise _bad("consistency", "sizes", "0 ≤ old size ≤ new size", f"{m} and {n}")
    for size, root in ((m, root_m), (n, root_n)):
        if size == 0 and root != EMPTY_ROOT:
            raise _bad("consistency", "root of an empty tree", EMPTY_ROOT, root)
    if m in (0, n):
        if proof:
            raise _bad("consistency", "none is needed for these sizes", "no hashes", f"{len(proof)} hashes")
        if m == n and root_m != root_n:
            raise _bad("consistency", "two roots for one size", root_m, root_n)
        return
    # Step 2: when m is a power of two, the old root is itself the first node.
    old, new = roots_from_prefix(m, n, [root_m, *proof] if m & (m - 1) == 0 else proof)
    if old != root_m:
        raise _bad("consistency", "does not lead to the old root", root_m, old)
    if new != root_n:
        raise _bad("consistency", "does not lead to the new root", root_n, new)


def prefix_path(value: Callable[[int, int], bytes], m: int, n: int) -> list[bytes]:
    """PROOF(m, D[0:n]) for 0 < m < n, with the node that the RFC leaves out where m is a power of two.

    So the roots of both sizes follow from it alone. `value(lo, hi)` is the hash of leaves [lo, hi).
    """

    def subproof(m: int, lo: int, hi: int) -> list[bytes]:
        if m == hi - lo:
            return [value(lo, hi)]
        middle = lo + split(hi - lo)
        if m <= middle - lo:
            return [*subproof(m, lo, middle), value(middle, hi)]
        return [*subproof(m - (middle - lo), middle, hi), value(lo, middle)]

    return subproof(m, 0, n)


def roots_from_prefix(m: int, n: int, path: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The roots of the first m and of all n leaves that a `prefix_path` leads to, 0 < m < n.

    Raises VerificationError (`bad-consistency-proof`): no path of this length fits the sizes.
    """
    if not 0 < m < n:
        raise _bad("consistency", "sizes", "0 < old size < new size", f"{m} and {n}")
    if not path:
        raise _bad("consistency", "empty")
    _check_hashes("consistency", *path)
    fn, sn = m - 1, n - 1
    while fn & 1:
        fn >>= 1
        sn >>= 1
    old = new = path[0]
    for value in path[1:]:
        if sn == 0:
            raise _bad("consistency", "too long for these sizes", found=f"{len(path)} hashes")
        if fn & 1 or fn == sn:
            old = node_hash(value, old)
            new = node_hash(value, new)
            while not fn & 1 and fn:
                fn >>= 1
                sn >>= 1
        else:
            new = node_hash(new, value)
        fn >>= 1
        sn >>= 1
    if sn:
        raise _bad("consistency", "too short for these sizes", found=f"{len(path)} hashes")
    return old, new


def root_from_multiproof(size: int, known: Mapping[int, bytes], proof: Sequence[bytes]) -> bytes:
    """The root that follows from some leaf hashes and the proof of `Tree.multiproof` for their indices.

    The tree is walked from the root, left first. A range without a known leaf takes the next hash of the
    proof, a single known leaf is its own hash, any other range is split as the RFC splits it. The caller
    compares the result with a signed root.

    Raises:
        VerificationError: index outside the tree or proof of the wrong length (code `bad-inclusion-proof`).
    """
    indices = sorted(known)
    if indices and (indices[0] < 0 or indices[-1] >= size):
        raise _bad("inclusion", "index outside the tree", f"less than {size}", f"{indices[0]} to {indices[-1]}")
    _check_hashes("inclusion", *known.values(), *proof)
    if size == 0:
        if proof:
            raise _bad("inclusion", "too long for an empty tree", found=f"{len(proof)} hashes")
        return EMPTY_ROOT
    rest = iter(proof)

    def walk(lo: int, hi: int, first: int, end: int) -> bytes:
        """The hash of leaves [lo, hi), of which indices[first:end] are known."""
        if first == end:
            value = next(rest, None)
            if value is None:
                raise _bad("inclusion", "too short for these indices and this size", found=f"{len(proof)} hashes")
            return value
        if hi - lo == 1:
            return known[lo]
        middle = lo + split(hi - lo)
        border = bisect_left(indices, middle, first, end)
        left = walk(lo, middle, first, border)
        return node_hash(left, walk(middle, hi, border, end))

    root = walk(0, size, 0, len(indices))
    if next(rest, None) is not None:
        raise _bad("inclusion", "too long for these indices and this size", found=f"{len(proof)} hashes")
    return root
