"""Evidence from the store: the leaves of a session, its turns' requests and secrets, under one signed head."""

from __future__ import annotations

from collections.abc import Callable, Collection

from engine.store import SessionRow, Store
from verifiable import records
from verifiable.errors import PolicyError, StoreError
from verifiable.evidence import Evidence, Kind, PackedTokens, TurnEvidence
from verifiable.merkle import Tree, leaf_hash
from verifiable.opening import Opening
from verifiable.receipt import Receipt
from verifiable.records import End, Leaf, Token, turn_secret

LogProof = Callable[[bytes, int], bytes | None]
"""The `.tlog-proof` of a session's head of some size, or None while the log does not have it."""


class EvidenceReader:
    """Builds receipts and evidence. `size` names one of the session's signed heads; None means the newest."""

    def __init__(self, store: Store, vocabulary: int, log_proof: LogProof = lambda session, size: None) -> None:
        self._store = store
        self._vocabulary = vocabulary
        self._log_proof = log_proof

    def receipt(self, row: SessionRow, size: int | None = None) -> Receipt:
        """The receipt of the newest complete turn under the head."""
        head, data, leaves, tree = self._under(row, size)
        ends = [leaf for leaf in leaves if isinstance(leaf, End)]
        if not ends:
            raise PolicyError("the session has no finished turn yet", hint="Ask again when the answer is complete.")
        shown = {leaf.seq: data[leaf.seq] for leaf in leaves if not isinstance(leaf, Token)}
        proof = self._log_proof(row.session, tree.size)
        return Receipt(head, self._manifest(row), Opening.of(tree, shown), ends[-1].turn, row.capability, proof)

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
        where a turn or a position does not exist.
        """
        head, data, leaves, tree = self._under(row, size)
        ends = {leaf.turn: leaf for leaf in leaves if isinstance(leaf, End)}
        chosen = sorted(ends) if turns is None else sorted(set(turns))
        missing = [turn for turn in chosen if turn not in ends]
        if missing:
            raise PolicyError("no such finished turn", expected=f"{sorted(ends)}", found=missing[0], parameter="turns")
        requests = self._store.requests(row.session)
        shown = {leaf.seq: data[leaf.seq] for leaf in leaves if not isinstance(leaf, Token)}
        parts = []
        for turn in chosen:
            tokens = [leaf for leaf in leaves if isinstance(leaf, Token) and leaf.turn == turn]
            packed = None
            if kind is Kind.TOKENS:
                packed = PackedTokens.pack(
                    [token.token for token in tokens],
                    [token.source for token in tokens],
                    [token.row == 0 for token in tokens],
                    self._vocabulary,
                )
            elif kind is Kind.FULL:
                shown |= {token.seq: data[token.seq] for token in tokens}
            else:
                wanted = [token for token in tokens if token.position in (positions or ())]
                shown |= {token.seq: data[token.seq] for token in wanted}
            if turn not in requests:
                raise StoreError("the request of a turn is gone", found=f"turn {turn}", hint="It may have been erased.")
            parts.append(TurnEvidence(turn, requests[turn], turn_secret(row.secret, turn), packed))
        if kind is Kind.RECORDS:
            found = {leaf.position for leaf in leaves if isinstance(leaf, Token) and leaf.seq in shown}
            absent = sorted(set(positions or ()) - found)
            if absent or not found:
                raise PolicyError(
                    "no such position among the chosen turns' tokens",
                    found=absent[0] if absent else "none asked for",
                    parameter="positions",
                )
        return Evidence(kind, head, self._manifest(row), Opening.of(tree, shown), tuple(parts))

    def _under(self, row: SessionRow, size: int | None) -> tuple[bytes, list[bytes], list[Leaf], Tree]:
        head = self._store.head(row.session, size)
        if head is None:
            raise PolicyError(
                "the session has no signed head" + ("" if size is None else " of that size"),
                found=size,
                parameter="size",
            )
        data = self._store.leaves(row.session, head[0])
        if len(data) != head[0]:
            raise StoreError("leaves are missing from the store", expected=head[0], found=len(data))
        leaves = [records.parse(leaf) for leaf in data]
        return head[1], data, leaves, Tree.from_leaves(leaf_hash(leaf) for leaf in data)

    def _manifest(self, row: SessionRow) -> bytes:
        manifest = self._store.manifest(row.manifest_digest)
        if manifest is None:
            raise StoreError("the session's manifest is missing from the store", found=row.manifest_digest)
        return manifest
