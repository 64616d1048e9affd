"""Streamed commitments: what was signed with each chunk of an answer, held against the receipt of the whole.

Steps are those of spec/streamed-commitments.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from verifiable import limits
from verifiable.checking.checks import OpenedReceipt
from verifiable.errors import MalformedError, VerificationError
from verifiable.session.head import verify_head
from verifiable.session.records import SESSION_ID_BYTES
from verifiable.tlog.merkle import Node, leaf_hash, node_hash, range_hash
from verifiable.wire.text import HASH_SIZE, from_hex, read_base64url
from verifier.offline.rebuild import Bound


@dataclass(frozen=True, slots=True)
class Chunk:
    """What came with a chunk: leaf hashes of its tokens, the first of them leaf `first`, and the head after them."""

    session: bytes
    turn: int
    first: int
    leaves: tuple[bytes, ...]
    head: bytes

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Chunk:
        """From a chunk's `verifiable`. Raises MalformedError."""
        session, leaves = from_hex(value.get("session"), SESSION_ID_BYTES), value.get("leaves")
        hashes = [from_hex(item, HASH_SIZE) for item in leaves] if isinstance(leaves, list) else [None]
        found = [item for item in hashes if item is not None]
        numbers = [value.get(name) for name in ("turn", "first")]
        whole = all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in numbers)
        head = value.get("head")
        if session is None or not found or len(found) != len(hashes) or not whole or not isinstance(head, str):
            expected = "session, turn, first, leaves and head"
            raise MalformedError("a chunk's commitment", expected=expected, found=str(value)[:80])
        return cls(session, numbers[0] or 0, numbers[1] or 0, tuple(found), read_base64url(head, "a chunk's head"))


def read_chunks(data: bytes) -> list[Chunk]:
    """Step 1: the chunks of an event stream as it came. Raises MalformedError."""
    chunks = []
    for line in data.splitlines():
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            continue
        try:
            event = json.loads(line[5:])
        except (ValueError, RecursionError) as error:
            raise MalformedError("an event of the stream", expected="JSON", found=str(error)) from None
        extra = event.get("verifiable") if isinstance(event, dict) else None
        if isinstance(extra, dict) and "leaves" in extra:
            chunks.append(Chunk.parse(extra))
            if len(chunks) > limits.SESSION_LEAVES:
                raise MalformedError("the stream", expected=f"at most {limits.SESSION_LEAVES} chunks", found="more")
    return chunks


def check_chunks(held: OpenedReceipt, chunks: Sequence[Chunk]) -> int:
    """Steps 2 to 5. Returns the number of tokens that the chunks committed to: all of the receipt's turn.

    Raises VerificationError or MalformedError.
    """
    session, turn = held.session, held.receipt.turn
    span, at = session.spans[turn], session.spans[turn].first
    if not chunks and span.end.completion_count:
        raise _differs("incomplete", "the stream has no commitments", "a chunk with leaves", "none")
    heads = []
    for chunk in chunks:
        head = verify_head(chunk.head, session.manifest.session_keys)
        if (head.session, chunk.session, chunk.turn) != (session.head.session, session.head.session, turn):
            mine, theirs = f"{session.head.session.hex()}, turn {turn}", f"{head.session.hex()}, turn {chunk.turn}"
            raise _differs("session-differs", "a chunk is of another session or turn", mine, theirs)
        if head.size != chunk.first + len(chunk.leaves):
            expected = chunk.first + len(chunk.leaves)
            raise _differs("counts-differ", "a chunk's head has another size", expected, head.size)
        if chunk.first != at:
            raise _differs("sequence-broken", "a chunk does not follow on the one before", f"leaf {at}", chunk.first)
        at = head.size
        heads.append(head)
    if at != span.end.seq:
        raise _differs("sequence-broken", "the chunks do not end where the turn does", f"leaf {span.end.seq}", at)
    hashes = [value for chunk in chunks for value in chunk.leaves]
    bound = Bound.of(held.receipt.opening, session.head)
    node = _nodes(bound, span.first, hashes)
    for head in heads:
        root = range_hash(node, 0, head.size)
        if root != head.root:
            what = f"the leaves of a chunk are not those of its head of {head.size} leaves"
            raise _differs("root-differs", what, head.root.hex(), root.hex())
    where = bound.first_difference(span.first, hashes)
    if where is not None:
        told = f"leaves {where[0]} to {where[1] - 1} as in the receipt"
        raise _differs(
            "two-histories", "other records were signed with the chunks than with the receipt", told, "others"
        )
    return len(hashes)


def _nodes(bound: Bound, first: int, hashes: Sequence[bytes]) -> Node:
    """The nodes of the tree of the receipt's leaves up to `first`, and these hashes after them.

    A subtree that the receipt hides before `first` is one of every later tree, too.
    """
    leaves = {index: leaf_hash(data) for index, data in bound.opening.leaves.items() if index < first}
    leaves |= {first + index: value for index, value in enumerate(hashes)}
    hidden = {(low, high): value for low, high, value in bound.subtrees if high <= first}

    @cache
    def node(height: int, index: int) -> bytes:
        place = index << height, (index + 1) << height
        if place in hidden:
            return hidden[place]
        return node_hash(node(height - 1, 2 * index), node(height - 1, 2 * index + 1)) if height else leaves[index]

    return node


def _differs(code: str, what: str, expected: object, found: object) -> VerificationError:
    return VerificationError(what, code=code, expected=expected, found=found)
