"""One session under fsck: its row, its leaves, its turns' requests, and every head that was signed over it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping

from engine.store import HeadRow, SessionRow, Store, StoredLeaf
from verifiable.errors import VerifiableError
from verifiable.manifest.manifest import Manifest
from verifiable.session import records
from verifiable.session.evidence import PackedTokens
from verifiable.session.head import Head, verify_head
from verifiable.session.records import Close, End, Leaf, Open, Token, Turn
from verifiable.tlog.merkle import Tree
from verifiable.wire import encoding

_Damage = tuple[str, str]
"""What is damaged within the session, and how."""


class SessionCheck:
    """Reads a session and checks it; raises VerifiableError where it can't even be read."""

    def __init__(self, store: Store, session: bytes, manifests: Mapping[bytes, Manifest]) -> None:
        self.notes: list[str] = []
        self.counts = Counter[str]()
        self._store = store
        self._session = session
        self._manifests = manifests

    def damage(self) -> Iterator[_Damage]:
        """Everything that is wrong with the session."""
        row = self._store.session(self._session)
        if row is None:
            yield "", "its row can't be found by its id: the index is damaged"
            return
        stored = self._store.stored_leaves(self._session)
        leaves: dict[int, Leaf] = {}
        for seq, kept in enumerate(stored):
            try:
                if kept.data is not None:
                    leaves[seq] = records.parse(kept.data)
            except VerifiableError as error:
                yield f"leaf {seq}", str(error)
        self.counts["leaves"] = len(stored)
        yield from self._leaves(row, stored, leaves)
        yield from self._contents(row, stored, leaves)
        yield from self._heads(row, stored)

    def _leaves(self, row: SessionRow, stored: list[StoredLeaf], leaves: dict[int, Leaf]) -> Iterator[_Damage]:
        if row.manifest_digest not in self._manifests:
            yield "", "its manifest is missing or damaged"
        for seq, leaf in leaves.items():
            if (leaf.session, leaf.seq) != (row.session, seq):
                yield f"leaf {seq}", f"it says leaf {leaf.seq} of session {leaf.session.hex()}"
            elif row.erased is not None:
                yield f"leaf {seq}", "its bytes are still there, though the session was erased"
            elif leaf.salt != records.salt(_secret(row, leaf), seq):
                yield f"leaf {seq}", "its salt does not follow from the session's secret: one of the two was changed"
        first = leaves.get(0)
        if isinstance(first, Open) and (first.manifest_digest, first.time) != (row.manifest_digest, row.opened):
            yield "leaf 0", "it names another manifest or time than the session's row"
        for seq, kept in enumerate(stored):
            if kept.data is None and row.erased is None and row.dropped is None:
                yield f"leaf {seq}", "its bytes are gone, though nothing was erased or dropped"

    def _contents(self, row: SessionRow, stored: list[StoredLeaf], leaves: dict[int, Leaf]) -> Iterator[_Damage]:
        requests, packed = self._store.requests(row.session), self._store.packed(row.session)
        if row.erased is not None:
            self.notes.append("erased")
            if requests or packed:
                yield "requests", "they are still there, though the session was erased"
            return
        turns = {leaf.turn: leaf for leaf in leaves.values() if isinstance(leaf, Turn)}
        ends = {leaf.turn: leaf for leaf in leaves.values() if isinstance(leaf, End)}
        digests_only = row.dropped is not None and not packed
        for turn, leaf in turns.items():
            if turn in requests:
                if hashlib.sha256(requests[turn]).digest() != leaf.request_digest:
                    yield f"the request of turn {turn}", "it is not the one that the turn committed to"
            elif not digests_only:
                yield f"the request of turn {turn}", "it is missing"
        for turn, data in packed.items():
            if turn not in ends:
                yield f"the packed tokens of turn {turn}", "the session has no such finished turn"
            else:
                yield from self._packed(turn, data, ends[turn])
        if row.dropped is None and (unbegun := sorted(set(requests) - set(turns))):
            self.notes.append(f"turn {unbegun[0]} was asked for and never begun")
        if leaves and isinstance(leaves[max(leaves)], Turn | Token):
            self.notes.append("it stops in the middle of a turn")

    @staticmethod
    def _packed(turn: int, data: bytes, end: End) -> Iterator[_Damage]:
        try:
            ids, sources, fresh = PackedTokens.from_cbor(encoding.decode(data)).unpack()
        except (VerifiableError, ValueError) as error:
            yield f"the packed tokens of turn {turn}", str(error)
            return
        if records.tokens_digest(ids, sources, fresh) != end.tokens_digest:
            yield f"the packed tokens of turn {turn}", "they are not those that the turn's end committed to"

    def _heads(self, row: SessionRow, stored: list[StoredLeaf]) -> Iterator[_Damage]:
        heads = self._store.heads(row.session)
        self.counts["heads"] = len(heads)
        manifest = self._manifests.get(row.manifest_digest)
        tree = Tree.from_leaves(leaf.hash for leaf in stored)
        for signed in heads:
            for what in [] if manifest is None else _head(signed, row, manifest, tree):
                yield f"head {signed.size}", what
        if stored and (not heads or heads[-1].size < len(stored)):
            self.notes.append("its last leaves are not signed yet")


def _secret(row: SessionRow, leaf: Leaf) -> bytes:
    """What salts a leaf: the session's secret, or one of the turn's own."""
    return row.secret if isinstance(leaf, Open | Close) else records.turn_secret(row.secret, leaf.turn)


def _head(signed: HeadRow, row: SessionRow, manifest: Manifest, tree: Tree) -> Iterator[str]:
    try:
        head: Head = verify_head(signed.signed, manifest.session_keys)
    except VerifiableError as error:
        yield str(error)
        return
    if (head.session, head.size, head.manifest_digest) != (row.session, signed.size, row.manifest_digest):
        yield f"it is one of size {head.size} of session {head.session.hex()}"
    elif head.size > tree.size:
        yield f"it says {head.size} leaves, the store has {tree.size}"
    elif head.root != tree.root(head.size):
        yield f"its root is {head.root.hex()}, the stored leaves give {tree.root(head.size).hex()}"
