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
from verifiable.checking.checks import OpenedReceipt, OpenedSession, check_text
from verifiable.errors import MalformedError, VerificationError
from verifiable.session.head import Head, verify_head
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


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer's event stream: what was signed with its chunks, and the text that came in them, where some did."""

    chunks: tuple[Chunk, ...]
    text: str | None = None


def read_stream(data: bytes) -> Stream:
    """Step 1: an event stream as it came. Raises MalformedError."""
    chunks, texts = [], []
    for line in data.splitlines():
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            continue
        try:
            event = json.loads(line[5:])
        except (ValueError, RecursionError) as error:
            raise MalformedError("an event of the stream", expected="JSON", found=str(error)) from None
        if not isinstance(event, dict):
            continue
        texts += _texts(event)
        extra = event.get("verifiable")
        if isinstance(extra, dict) and "leaves" in extra:
            chunks.append(Chunk.parse(extra))
            if len(chunks) > limits.SESSION_LEAVES:
                raise MalformedError("the stream", expected=f"at most {limits.SESSION_LEAVES} chunks", found="more")
    return Stream(tuple(chunks), "".join(texts) if texts else None)


def _texts(event: Mapping[str, Any]) -> list[str]:
    """What an event has of the answer's text."""
    choices = event.get("choices")
    some = [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
    parts = [each["delta"].get("content") if isinstance(each.get("delta"), dict) else each.get("text") for each in some]
    return [part for part in parts if isinstance(part, str)]


def check_stream(held: OpenedReceipt, stream: Stream) -> int:
    """Steps 2 to 7. Returns the number of tokens that the chunks committed to: all of the receipt's turn.

    Raises:
        VerificationError: `incomplete` or `stream-differs` for a stream that is not the one of that answer, or was
            changed on its way, which proves nothing against anybody; else what the provider signed contradicts itself,
            or `text-differs`.
        MalformedError: a head is none.
    """
    session, turn, chunks = held.session, held.receipt.turn, stream.chunks
    span, at = session.spans[turn], session.spans[turn].first
    if not chunks and span.end.completion_count:
        raise _other("the stream has no commitments", "a chunk with leaves", "none", "incomplete")
    heads: list[Head] = []
    for chunk in chunks:
        head = _head(chunk, session)
        if (head.session, chunk.session, chunk.turn) != (session.head.session, session.head.session, turn):
            mine, theirs = f"{session.head.session.hex()}, turn {turn}", f"{head.session.hex()}, turn {chunk.turn}"
            raise _other("the stream is of another session or turn than the receipt", mine, theirs)
        if head.size != chunk.first + len(chunk.leaves):
            raise _other("a chunk's head has another size", chunk.first + len(chunk.leaves), head.size)
        if chunk.first != at:
            raise _other("a chunk does not follow on the one before", f"leaf {at}", chunk.first)
        at = head.size
        heads.append(head)
    if at < span.end.seq:
        raise _other("the stream breaks off before the answer's end", f"leaf {span.end.seq}", at, "incomplete")
    if at != span.end.seq:
        raise _other("the chunks do not end where the turn does", f"leaf {span.end.seq}", at)
    hashes = [value for chunk in chunks for value in chunk.leaves]
    bound = Bound.of(held.receipt.opening, session.head)
    node = _nodes(bound, span.first, hashes)
    for head in heads:
        root = range_hash(node, 0, head.size)
        if root != head.root:
            what = f"the leaves of a chunk are not those of its head of {head.size} leaves"
            raise _other(what, head.root.hex(), root.hex())
    where = bound.first_difference(span.first, hashes)
    if where is not None:
        told = f"leaves {where[0]} to {where[1] - 1} as in the receipt"
        what = "other records were signed with the chunks than with the receipt"
        raise VerificationError(what, code="two-histories", expected=told, found="others")
    _check_signed(session, heads)
    if stream.text is not None:
        check_text(session, turn, stream.text)
    return len(hashes)


def _head(chunk: Chunk, session: OpenedSession) -> Head:
    try:
        return verify_head(chunk.head, session.manifest.session_keys)
    except VerificationError as error:
        raise _other(f"a chunk's head: {error.what}", error.expected, error.found) from error


def _check_signed(session: OpenedSession, heads: Sequence[Head]) -> None:
    """Step 6: the manifest and the times of heads that are the session's own."""
    statement, low = session.manifest, session.opened.time - limits.CLOCK_SKEW
    high = session.head.time + limits.CLOCK_SKEW
    for head in heads:
        if head.manifest_digest != statement.digest():
            raise VerificationError(
                "a chunk's head was made under another manifest",
                code="manifest-differs",
                expected=statement.digest().hex(),
                found=head.manifest_digest.hex(),
            )
        statement.check_valid_at(head.time, "chunk's head")
        if not low <= head.time <= high:
            raise VerificationError(
                "a chunk's head is of another time than the answer",
                code="time-reversed",
                expected=f"{low} to {high} (ms)",
                found=f"{head.time} (ms)",
            )


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


def _other(what: str, expected: object, found: object, code: str = "stream-differs") -> VerificationError:
    hint = "Look at your own copy of the stream first: is it all of this answer's, as it came? Nobody signs a stream."
    return VerificationError(what, code=code, expected=expected, found=found, hint=hint)
