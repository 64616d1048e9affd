"""Evidence from the store: the leaves of a session, its turns' requests and secrets, under one signed head."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from engine.sessions.trees import SessionTrees
from engine.store import ErasedError, SessionRow, Store, StoredLeaf
from verifiable.errors import PolicyError, StoreError
from verifiable.session import records
from verifiable.session.evidence import Evidence, Kind, PackedTokens, TurnEvidence
from verifiable.session.opening import Opening
from verifiable.session.receipt import Receipt
from verifiable.session.records import End, Leaf, Token, turn_secret
from verifiable.tlog.merkle import Tree, prefix_path, range_hash
from verifiable.wire import encoding

LogProof = Callable[[bytes, int], bytes | None]
"""The `.tlog-proof` of a session's head of some size, or None while the log does not have it."""


class EvidenceReader:
    """Builds receipts and evidence. `size` names one of the session's signed heads; None means the newest."""

    def __init__(self, store: Store, vocabulary: int, log_proof: LogProof = lambda session, size: None) -> None:
        self._store = store
        self._vocabulary = vocabulary
        self._log_proof = log_proof
        self._trees = SessionTrees(store)

    def receipt(self, row: SessionRow, size: int | None = None, capability: bytes | None = None) -> Receipt:
        """The receipt of the newest complete turn under the head, with that capability in it."""
        under = self._under(row, size)
        ends = [leaf for leaf in under.leaves.values() if isinstance(leaf, End)]
        if not ends:
            raise PolicyError("the session has no finished turn yet", hint="Ask again when the answer is complete.")
        proof = self._log_proof(row.session, under.tree.size)
        opening = Opening.of(under.tree, under.landmarks())
        return Receipt(under.head, self._manifest(row), opening, ends[-1].turn, capability, proof)

    def evidence(
        self,
        row: SessionRow,
        kind: Kind,
        turns: Collection[int] | None = None,
        positions: Collection[int] | None = None,
        size: int | None = None,
    ) -> Evidence:
        """Evidence of `kind` for the chosen turns (None: all finished ones).

        For kind RECORDS, `positions` are the absolute positions to show, in each of the turns. Raises PolicyError
        where a turn or a position does not exist, ErasedError where it is no longer kept.
        """
        under = self._under(row, size)
        ends = {leaf.turn: leaf for leaf in under.leaves.values() if isinstance(leaf, End)}
        chosen = sorted(ends) if turns is None else sorted(set(turns))
        missing = [turn for turn in chosen if turn not in ends]
        if missing:
            raise PolicyError("no such finished turn", expected=f"{sorted(ends)}", found=missing[0], parameter="turns")
        requests, kept = self._store.requests(row.session), self._store.packed(row.session)
        shown = under.landmarks() | under.broken_off()
        parts = []
        for turn in chosen:
            if turn not in requests:
                raise _gone(turn, "its request")
            tokens = under.tokens(turn, ends[turn])
            packed = None
            if kind is Kind.TOKENS and tokens is None:
                if turn not in kept:
                    raise _gone(turn, "its tokens")
                packed = PackedTokens.from_cbor(encoding.decode(kept[turn]))
            elif tokens is None:
                raise _gone(turn, "its records")
            elif kind is Kind.TOKENS:
                packed = pack(tokens, self._vocabulary)
            else:
                wanted = [token for token in tokens if kind is Kind.FULL or token.position in (positions or ())]
                shown |= {token.seq: under.data(token.seq) for token in wanted}
            parts.append(TurnEvidence(turn, requests[turn], turn_secret(row.secret, turn), packed))
        if kind is Kind.RECORDS:
            there = {leaf.position for seq, leaf in under.leaves.items() if isinstance(leaf, Token) and seq in shown}
            absent = sorted(set(positions or ()) - there)
            if absent or not there:
                raise PolicyError(
                    "no such position among the chosen turns' tokens",
                    found=absent[0] if absent else "none asked for",
                    parameter="positions",
                )
        return Evidence(kind, under.head, self._manifest(row), Opening.of(under.tree, shown), tuple(parts))

    def consistency(self, session: bytes, old: int, new: int) -> tuple[bytes, bytes, list[bytes]]:
        """Two signed heads of a session, and the proof that the second extends the first (`merkle.prefix_path`).

        It says nothing of the content, which may be gone. Raises PolicyError where there are none.
        """
        earlier, later = self._store.head(session, old), self._store.head(session, new)
        if earlier is None or later is None or old > new:
            raise PolicyError(
                "no such pair of signed heads",
                expected="sizes of two heads, the smaller first",
                found=f"{old} and {new}",
            )
        node = self._trees.of(session).node
        path = prefix_path(lambda low, high: range_hash(node, low, high), old, new) if old < new else []
        return earlier[1], later[1], path

    def _under(self, row: SessionRow, size: int | None) -> _Under:
        if row.erased is not None:
            raise ErasedError(
                "the session's content was erased", hint="What you kept of it still verifies, and so does the log."
            )
        head = self._store.head(row.session, size)
        if head is None:
            raise PolicyError(
                "the session has no signed head" + ("" if size is None else " of that size"),
                found=size,
                parameter="size",
            )
        stored = self._store.stored_leaves(row.session, head[0])
        if len(stored) != head[0]:
            raise StoreError("leaves are missing from the store", expected=head[0], found=len(stored))
        leaves = {seq: records.parse(leaf.data) for seq, leaf in enumerate(stored) if leaf.data is not None}
        return _Under(head[1], stored, leaves, Tree.from_leaves(leaf.hash for leaf in stored))

    def _manifest(self, row: SessionRow) -> bytes:
        manifest = self._store.manifest(row.manifest_digest)
        if manifest is None:
            raise StoreError("the session's manifest is missing from the store", found=row.manifest_digest)
        return manifest


@dataclass(frozen=True, slots=True)
class _Under:
    """What stands under a head: every leaf's hash, and the leaves that are still kept, parsed."""

    head: bytes
    stored: list[StoredLeaf]
    leaves: dict[int, Leaf]
    tree: Tree

    def data(self, seq: int) -> bytes:
        data = self.stored[seq].data
        if data is None:
            raise ErasedError(f"leaf {seq} of the session is no longer kept")
        return data

    def landmarks(self) -> dict[int, bytes]:
        """Every leaf that is not a token."""
        return {seq: self.data(seq) for seq, leaf in self.leaves.items() if not isinstance(leaf, Token)}

    def broken_off(self) -> dict[int, bytes]:
        """The log's last leaf, where that is a token: it shows that the turn has no end."""
        last = len(self.stored) - 1
        return {last: self.data(last)} if isinstance(self.leaves.get(last), Token) else {}

    def tokens(self, turn: int, end: End) -> list[Token] | None:
        """The turn's records in order, or None where one of them was dropped."""
        tokens = [leaf for leaf in self.leaves.values() if isinstance(leaf, Token) and leaf.turn == turn]
        return tokens if len(tokens) == end.completion_count else None


def pack(tokens: Sequence[Token], vocabulary: int) -> PackedTokens:
    """A turn's token ids and marks, as evidence of kind `tokens` holds them."""
    return PackedTokens.pack(
        [token.token for token in tokens],
        [token.source for token in tokens],
        [token.row == 0 for token in tokens],
        vocabulary,
    )


def _gone(turn: int, what: str) -> ErasedError:
    return ErasedError(
        f"{what} of turn {turn} is no longer kept",
        hint="The provider keeps records for a time. Evidence of kind tokens may still be there.",
    )
