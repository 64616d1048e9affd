"""What a complete session log looks like: which leaf may follow which, and where each turn lies.

`check_structure` is given the leaves that are not tokens and the signed size; `check_tokens` and `check_marks` are
given what is known of a turn's tokens. The counterpart, which writes a log: `log.SessionLog`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from verifiable.errors import VerificationError
from verifiable.session.records import Close, End, Finish, Leaf, Open, Source, Token, Turn


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """A complete turn: its leaves are `turn.seq`, the tokens `first` to `end.seq - 1`, and `end.seq`."""

    turn: Turn
    end: End

    @property
    def number(self) -> int:
        return self.turn.turn

    @property
    def first(self) -> int:
        return self.turn.seq + 1


def check_structure(
    leaves: Mapping[int, Leaf], size: int, session: bytes, last: Token | None = None
) -> tuple[TurnSpan, ...]:
    """Find the turns of a log of `size` leaves from every leaf in it that is not a token.

    `last` is the log's last leaf, where that is a token and is shown: then nothing is hidden behind it.

    Raises VerificationError: `sequence-broken` where leaves stand in an order that no honest log has, `counts-differ`
    where the counts contradict each other, `interrupted` where the log stops in a turn, and `incomplete` where a leaf
    is not shown: a turn's end, unless it is shown that the log has none, or any other. Nobody signs which leaves are
    shown.
    """
    for seq, given in leaves.items():
        if given.seq != seq or given.session != session:
            raise _broken(
                f"leaf {seq}", f"number {seq} of session {session.hex()}", f"{given.seq} of {given.session.hex()}"
            )
    ordered = [leaves[seq] for seq in sorted(leaves)]
    if not ordered or ordered[0].seq != 0:
        raise _hidden(0, "an open leaf")
    if not isinstance(ordered[0], Open):
        raise _broken("leaf 0", "an open leaf", type(ordered[0]).__name__.lower())
    spans: list[TurnSpan] = []
    at, index = 1, 1
    while at < size:
        if index >= len(ordered) or ordered[index].seq != at:
            if last is not None and last.seq == at:
                raise _broken(f"leaf {at}", "a turn or a close leaf", "a token")
            raise _hidden(at, "a turn or a close leaf")
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
        if end is None and leaf.turn == len(spans):
            raise _unended(leaf, size, last)
        spans.append(_span(leaf, end, len(spans)))
        at, index = spans[-1].end.seq + 1, index + 2
    if index < len(ordered) or at != size:
        raise _broken(f"leaf {at}", f"a log of {size} leaves", "leaves past its end")
    return tuple(spans)


def _unended(turn: Turn, size: int, last: Token | None) -> VerificationError:
    number = turn.turn
    if turn.seq == size - 1 or (last is not None and last.turn == number):
        return VerificationError(
            f"the log stops in turn {number}",
            code="interrupted",
            expected="an end leaf",
            found=f"{size} leaves, the last of which is no end",
            hint="The provider stopped or crashed there. Nothing after the last end can be checked.",
        )
    return VerificationError(
        f"turn {number} has no end",
        code="incomplete",
        expected="an end leaf, or the log's last leaf to show that there is none",
        found=f"a log of {size} leaves of which neither is shown",
        hint="The provider holds a part back, or cut the log short. Ask for the rest.",
    )


def _span(turn: Turn, end: Leaf | None, number: int) -> TurnSpan:
    if turn.turn != number:
        raise _counts(f"the turn number at leaf {turn.seq}", number, turn.turn)
    if not isinstance(end, End) or end.turn != number:
        if end is None or end.seq > turn.seq + 1:
            raise _hidden(turn.seq + 1, f"the end of turn {number}, or all of its tokens")
        raise _broken(f"leaf {turn.seq}", f"the end of turn {number}", type(end).__name__.lower())
    count, between = end.completion_count, end.seq - turn.seq - 1
    if count != between:
        raise _counts(f"the tokens of turn {number}", between, count)
    if end.prompt_count != turn.prompt_count:
        raise _counts(f"the prompt tokens of turn {number}", turn.prompt_count, end.prompt_count)
    if count > turn.params.max_tokens:
        raise _counts(f"the tokens of turn {number}", f"at most {turn.params.max_tokens}", count)
    if end.finish is Finish.LENGTH and count != turn.params.max_tokens:
        raise _counts(f"the tokens of turn {number}, said to be cut by length", turn.params.max_tokens, count)
    if end.finish in (Finish.CANCELLED, Finish.ERROR) and count == turn.params.max_tokens:
        raise _counts(f"the tokens of turn {number}, said to have ended before its length", f"below {count}", count)
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
        if token.turn != span.number or token.position != position or token.seq != span.first + index:
            raise _broken(
                f"token {index} of turn {span.number}",
                f"turn {span.number}, position {position}, leaf {span.first + index}",
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
                f"token {index} of turn {span.number}", "the next step or row", f"step {at_step}, row {at_row}"
            )
        step, row = at_step, at_row
        fresh = source is not Source.DRAFT_ACCEPTED
    if len(marks) != span.end.completion_count:
        raise _counts(f"the tokens of turn {span.number}", span.end.completion_count, len(marks))
    accepted = sum(source is Source.DRAFT_ACCEPTED for source, _, _ in marks)
    if accepted != span.end.accepted:
        raise _counts(f"the accepted drafts of turn {span.number}", accepted, span.end.accepted)


def _hidden(at: int, expected: str) -> VerificationError:
    return VerificationError(
        f"a leaf of the session log is not shown: leaf {at} or a later one",
        code="incomplete",
        expected=expected,
        found="a hash in its place",
        hint="Anybody who had the file may have left it out. Get it again, from the provider.",
    )


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
