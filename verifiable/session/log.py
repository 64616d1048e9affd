"""The session log as a state machine: what may follow what, and what a complete log looks like.

`SessionLog` writes: it hands out leaves in the only order that is allowed and keeps the tree. `check_structure`
reads: given the leaves that are not tokens and the signed size, it says where each turn lies, or raises. Both are
pure: identifiers, secrets and times are arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from verifiable.errors import EngineError, VerificationError
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingParams
from verifiable.session.head import Head
from verifiable.session.records import (
    Close,
    End,
    Finish,
    Leaf,
    NonceSource,
    Open,
    Source,
    Token,
    Turn,
    encode_token,
    parse,
    salt,
    token_bytes,
    turn_secret,
)
from verifiable.tlog.merkle import Tree, leaf_hash


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What the provider commits to before the first token of a turn; fields as in `records.Turn`."""

    request_digest: bytes
    prompt_digest: bytes
    prompt_count: int
    params: SamplingParams
    stop_digest: bytes
    nonce: bytes
    nonce_source: NonceSource
    cached: int


class SessionLog:
    """One session's append-only log. Each method appends one leaf and returns its bytes; out of order raises
    EngineError. `landmarks` are the leaves that are not tokens, by index.
    """

    __slots__ = (
        "_accepted",
        "_drafted",
        "_facts",
        "_row",
        "_secret",
        "_step",
        "_tokens",
        "_turn_secret",
        "closed",
        "completion",
        "landmarks",
        "manifest_digest",
        "session",
        "tree",
        "turns",
    )

    def __init__(self, session: bytes, secret: bytes, manifest_digest: bytes) -> None:
        self.session = session
        self.manifest_digest = manifest_digest
        self.tree = Tree()
        self.turns = 0
        self.completion = 0
        self.landmarks: dict[int, bytes] = {}
        self.closed = False
        self._secret = secret
        self._facts: TurnFacts | None = None
        self._turn_secret = b""
        self._step = self._row = -1
        self._drafted = self._accepted = 0
        self._tokens = hashlib.sha256()

    @classmethod
    def restore(cls, secret: bytes, leaves: Iterable[Leaf]) -> SessionLog:
        """Rebuild a log from its stored leaves, all of them, whatever state a crash left it in."""
        ordered = list(leaves)
        if not ordered or not isinstance(ordered[0], Open):
            raise EngineError("restoring a session", expected="its open leaf first", found="something else")
        log = cls(ordered[0].session, secret, ordered[0].manifest_digest)
        for leaf in ordered:
            log._append(leaf)
            log.turns += isinstance(leaf, End)
            log.closed = isinstance(leaf, Close)
        return log

    @classmethod
    def resume(cls, secret: bytes, leaves: Iterable[Leaf]) -> SessionLog:
        """Rebuild the log of a session to go on with it. Raises EngineError where it stopped in mid-turn."""
        log = cls.restore(secret, leaves)
        if log.size - 1 not in log.landmarks or isinstance(parse(log.landmarks[log.size - 1]), Turn):
            raise EngineError("resuming a session", expected="a finished turn", found="a turn without its end")
        return log

    @property
    def size(self) -> int:
        return self.tree.size

    @property
    def in_turn(self) -> bool:
        return self._facts is not None

    def open(self, time: int) -> bytes:
        self._expect(self.size == 0, "open")
        return self._append(Open(self.session, 0, salt(self._secret, 0), self.manifest_digest, time))

    def begin_turn(self, facts: TurnFacts) -> bytes:
        self._expect(self.size > 0 and self._facts is None and not self.closed, "turn")
        self._facts = facts
        self._turn_secret = turn_secret(self._secret, self.turns)
        self._step = self._row = -1
        self._drafted = self._accepted = self.completion = 0
        self._tokens = hashlib.sha256()
        return self._append(
            Turn(
                self.session,
                self.size,
                self._salt(),
                self.turns,
                facts.request_digest,
                facts.prompt_digest,
                facts.prompt_count,
                facts.params,
                facts.stop_digest,
                facts.nonce,
                facts.nonce_source,
                facts.cached,
            )
        )

    def drafted(self, count: int) -> None:
        """Note that a step verified `count` drafted tokens; only the turn's end leaf shows the sum."""
        self._drafted += count

    def token(self, token: int, source: Source, new_step: bool, entries: Entries) -> bytes:
        """Append a token's record. `new_step` is true for the first token that a decode step emits."""
        facts = self._facts
        if facts is None:
            raise _out_of_order("token")
        self._step, self._row = (self._step + 1, 0) if new_step else (self._step, self._row + 1)
        self._accepted += source is Source.DRAFT_ACCEPTED
        self._tokens.update(token_bytes(token, source, new_step))
        position = facts.prompt_count + self.completion
        self.completion += 1
        data = encode_token(
            self.session,
            self.tree.size,
            self._salt(),
            self.turns,
            position,
            token,
            source,
            self._step,
            self._row,
            entries,
        )
        self.tree.append(leaf_hash(data))
        return data

    def end_turn(self, finish: Finish, text_digest: bytes) -> bytes:
        facts = self._facts
        if facts is None:
            raise _out_of_order("end")
        leaf = End(
            self.session,
            self.size,
            self._salt(),
            self.turns,
            finish,
            facts.prompt_count,
            self.completion,
            text_digest,
            self._tokens.digest(),
            self._drafted,
            self._accepted,
        )
        self._facts = None
        self.turns += 1
        return self._append(leaf)

    def close(self) -> bytes:
        self._expect(self.size > 0 and self._facts is None and not self.closed, "close")
        self.closed = True
        return self._append(Close(self.session, self.size, salt(self._secret, self.size), self.turns))

    def head(self, time: int) -> Head:
        """The head of the log as it stands, to be signed."""
        return Head(self.session, self.size, self.tree.root(), self.manifest_digest, time)

    def _salt(self) -> bytes:
        return salt(self._turn_secret, self.size)

    def _append(self, leaf: Leaf) -> bytes:
        data = leaf.encode()
        index = self.tree.append(leaf_hash(data))
        if not isinstance(leaf, Token):
            self.landmarks[index] = data
        return data

    def _expect(self, condition: bool, what: str) -> None:
        if not condition:
            raise _out_of_order(what)


def _out_of_order(what: str) -> EngineError:
    return EngineError(f"a session log can't take a leaf of kind '{what}' now", hint="This is a fault of the engine.")


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """A complete turn: its leaves are `turn.seq`, the tokens `first` to `end.seq - 1`, and `end.seq`."""

    turn: Turn
    end: End

    @property
    def first(self) -> int:
        return self.turn.seq + 1


def check_structure(leaves: Mapping[int, Leaf], size: int, session: bytes) -> tuple[TurnSpan, ...]:
    """Find the turns of a log of `size` leaves from every leaf in it that is not a token.

    Raises VerificationError: `sequence-broken` where leaves stand in an order that no honest log has, `counts-differ`
    where the counts contradict each other, and `incomplete` where a turn has no end or leaves are missing.
    """
    for seq, given in leaves.items():
        if given.seq != seq or given.session != session:
            raise _broken(
                f"leaf {seq}", f"number {seq} of session {session.hex()}", f"{given.seq} of {given.session.hex()}"
            )
    ordered = [leaves[seq] for seq in sorted(leaves)]
    if size == 0 or not ordered or not isinstance(ordered[0], Open) or ordered[0].seq != 0:
        raise _broken("leaf 0", "an open leaf", "none")
    spans: list[TurnSpan] = []
    at, index = 1, 1
    while at < size:
        if index >= len(ordered) or ordered[index].seq != at:
            raise _broken(f"leaf {at}", "a turn or a close leaf", "no such leaf shown")
        leaf = ordered[index]
        if isinstance(leaf, Close):
            if at != size - 1:
                raise _broken(f"leaf {at}", f"nothing after the close leaf, size {at + 1}", f"size {size}")
            if leaf.turns != len(spans):
                raise _counts("the close leaf's turns", len(spans), leaf.turns)
            return tuple(spans)
        if not isinstance(leaf, Turn):
            raise _broken(f"leaf {at}", "a turn or a close leaf", type(leaf).__name__.lower())
        end = ordered[index + 1] if index + 1 < len(ordered) else None
        spans.append(_span(leaf, end, len(spans), size))
        at, index = spans[-1].end.seq + 1, index + 2
    if index < len(ordered) or at != size:
        raise _broken(f"leaf {at}", f"a log of {size} leaves", "leaves past its end")
    return tuple(spans)


def _span(turn: Turn, end: Leaf | None, number: int, size: int) -> TurnSpan:
    if turn.turn != number:
        raise _counts(f"the turn number at leaf {turn.seq}", number, turn.turn)
    if end is None:
        raise VerificationError(
            f"turn {number} has no end",
            code="incomplete",
            expected="an end leaf",
            found=f"a log of {size} leaves that stops in the turn",
            hint="The provider stopped, or cut the log short. Ask for the rest.",
        )
    if not isinstance(end, End) or end.turn != number:
        raise _broken(f"leaf {end.seq}", f"the end of turn {number}", type(end).__name__.lower())
    count, between = end.completion_count, end.seq - turn.seq - 1
    if count != between:
        raise _counts(f"the tokens of turn {number}", between, count)
    if end.prompt_count != turn.prompt_count:
        raise _counts(f"the prompt tokens of turn {number}", turn.prompt_count, end.prompt_count)
    if count > turn.params.max_tokens:
        raise _counts(f"the tokens of turn {number}", f"at most {turn.params.max_tokens}", count)
    if end.finish is Finish.LENGTH and count != turn.params.max_tokens:
        raise _counts(f"the tokens of turn {number}, said to be cut by length", turn.params.max_tokens, count)
    if end.accepted > min(end.drafted, count) or turn.cached >= max(turn.prompt_count, 1):
        raise _counts(f"the drafted or cached tokens of turn {number}", "no more than there are", "more")
    return TurnSpan(turn, end)


def check_tokens(span: TurnSpan, tokens: Iterable[Token]) -> None:
    """Check the token leaves of a turn against each other and the turn; all of them, in order.

    Raises VerificationError: `sequence-broken` or `counts-differ`.
    """
    marks = []
    for index, token in enumerate(tokens):
        position = span.turn.prompt_count + index
        if token.turn != span.turn.turn or token.position != position or token.seq != span.first + index:
            raise _broken(
                f"token {index} of turn {span.turn.turn}",
                f"turn {span.turn.turn}, position {position}, leaf {span.first + index}",
                f"turn {token.turn}, position {token.position}, leaf {token.seq}",
            )
        marks.append((token.source, token.step, token.row))
    check_marks(span, marks)


def check_marks(span: TurnSpan, marks: Sequence[tuple[Source, int, int]]) -> None:
    """Check (source, step, row) of all tokens of a turn: a step's rows go on only past accepted drafts.

    Raises VerificationError: `sequence-broken` or `counts-differ`.
    """
    step = row = -1
    fresh = True
    for index, (source, at_step, at_row) in enumerate(marks):
        starts = (at_step, at_row) == (step + 1, 0)
        follows = (at_step, at_row) == (step, row + 1) and not fresh
        if not (starts or follows):
            raise _broken(
                f"token {index} of turn {span.turn.turn}", "the next step or row", f"step {at_step}, row {at_row}"
            )
        step, row = at_step, at_row
        fresh = source is not Source.DRAFT_ACCEPTED
    if len(marks) != span.end.completion_count:
        raise _counts(f"the tokens of turn {span.turn.turn}", span.end.completion_count, len(marks))
    accepted = sum(source is Source.DRAFT_ACCEPTED for source, _, _ in marks)
    if accepted != span.end.accepted:
        raise _counts(f"the accepted drafts of turn {span.turn.turn}", accepted, span.end.accepted)


def _broken(where: str, expected: str, found: str) -> VerificationError:
    return VerificationError(
        f"the session log's order is broken at {where}",
        code="sequence-broken",
        expected=expected,
        found=found,
        hint="Leaves were removed, reordered or taken from another session.",
    )


def _counts(what: str, expected: object, found: object) -> VerificationError:
    return VerificationError(f"{what} do not add up", code="counts-differ", expected=str(expected), found=str(found))
