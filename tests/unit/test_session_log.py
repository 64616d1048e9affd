"""The session log as a state machine, and what its reader refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.sessions import Recording, ask, made_up, recording
from verifiable.errors import EngineError, VerificationError
from verifiable.session import records
from verifiable.session.log import SessionLog
from verifiable.session.records import Close, End, Finish, Leaf, Open, Source, Token, Turn
from verifiable.session.structure import check_marks, check_structure, check_tokens
from verifiable.tlog.merkle import Tree, leaf_hash


def landmarks(made: Recording) -> dict[int, Leaf]:
    return {seq: records.parse(data) for seq, data in made.log.landmarks.items()}


def check(leaves: dict[int, Leaf], made: Recording, size: int | None = None) -> Any:
    return check_structure(leaves, made.log.size if size is None else size, made.session)


def test_the_tree_is_over_the_leaves_as_written() -> None:
    made = recording(3)
    assert made.log.tree.root() == Tree.from_leaves(leaf_hash(leaf) for leaf in made.leaves).root()
    assert [records.parse(leaf).seq for leaf in made.leaves] == list(range(len(made.leaves)))
    head = made.log.head(5)
    assert (head.size, head.root, head.session, head.time) == (made.log.size, made.log.tree.root(), made.session, 5)


def test_spans_say_where_turns_lie() -> None:
    made = Recording()
    for tokens in (3, 1, 5):
        made.turn(ask(max_tokens=tokens), range(1, 8))
    made.close()
    spans = check(landmarks(made), made)
    assert [(span.first, span.end.seq) for span in spans] == [(2, 5), (7, 8), (10, 15)]


def test_leaves_come_only_in_order() -> None:
    log = SessionLog(b"s" * 16, b"k" * 32, b"m" * 32)
    facts = recording().log  # any log; only its turn's facts are needed below
    for wrong in (
        lambda: log.token(1, Source.PLAIN, True, made_up([1])),
        lambda: log.end_turn(Finish.STOP, b"d" * 32),
        lambda: log.close(),
    ):
        with pytest.raises(EngineError):
            wrong()
    log.open(1)
    with pytest.raises(EngineError):
        log.open(2)
    log.close()
    with pytest.raises(EngineError):
        log.close()
    assert log.size == 2
    assert facts.size == 15


def test_a_log_is_resumed_between_turns_and_nowhere_else() -> None:
    made = recording(2)
    leaves = [records.parse(leaf) for leaf in made.leaves]
    log = SessionLog.resume(made.secret, leaves)
    assert (log.size, log.turns, log.tree.root()) == (made.log.size, 2, made.log.tree.root())
    assert log.close() == made.log.close()
    for cut in (len(leaves) - 1, 2, 5):
        with pytest.raises(EngineError):
            SessionLog.resume(made.secret, leaves[:cut])
    with pytest.raises(EngineError):
        SessionLog.resume(made.secret, leaves[1:])
    with pytest.raises(EngineError):
        SessionLog.resume(made.secret, [])


def drop(kind: type[Leaf]) -> Callable[[dict[int, Leaf]], None]:
    def change(leaves: dict[int, Leaf]) -> None:
        seq = next(seq for seq, leaf in leaves.items() if isinstance(leaf, kind))
        del leaves[seq]

    return change


def alter(kind: type[Leaf], **changes: Any) -> Callable[[dict[int, Leaf]], None]:
    def change(leaves: dict[int, Leaf]) -> None:
        seq = next(seq for seq, leaf in leaves.items() if isinstance(leaf, kind))
        leaves[seq] = replace(leaves[seq], **changes)

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (drop(Open), "incomplete"),
        (drop(Turn), "incomplete"),
        (drop(Close), "incomplete"),
        (alter(Open, session=b"x" * 16), "sequence-broken"),
        (alter(Turn, seq=2), "sequence-broken"),
        (alter(Turn, turn=1), "counts-differ"),
        (alter(End, turn=1), "incomplete"),
        (alter(End, completion_count=11), "counts-differ"),
        (alter(End, prompt_count=1), "counts-differ"),
        (alter(End, accepted=1), "counts-differ"),
        (alter(Turn, cached=7), "counts-differ"),
        (alter(Close, turns=3), "counts-differ"),
    ],
)
def test_altered_logs_are_refused(change: Callable[[dict[int, Leaf]], None], code: str) -> None:
    made = recording(2)
    made.close()
    leaves = landmarks(made)
    change(leaves)
    with pytest.raises(VerificationError) as caught:
        check(leaves, made)
    assert caught.value.code == code


def test_a_log_that_stops_in_a_turn_is_incomplete() -> None:
    made = recording(1)
    leaves = landmarks(made)
    del leaves[made.log.size - 1]
    with pytest.raises(VerificationError) as caught:
        check(leaves, made, made.log.size - 1)
    assert caught.value.code == "incomplete"


def test_a_cut_answer_cannot_pass_as_finished() -> None:
    made = recording(1, tokens=12)
    leaves = landmarks(made)
    end = next(leaf for leaf in leaves.values() if isinstance(leaf, End))
    turn = next(leaf for leaf in leaves.values() if isinstance(leaf, Turn))
    leaves[turn.seq] = replace(turn, params=replace(turn.params, max_tokens=13))
    with pytest.raises(VerificationError) as caught:
        check(leaves, made)
    assert caught.value.code == "counts-differ"
    leaves[turn.seq] = replace(turn, params=replace(turn.params, max_tokens=11))
    leaves[end.seq] = replace(end, finish=Finish.STOP)
    with pytest.raises(VerificationError, match="at most 11"):
        check(leaves, made)


def test_a_size_beyond_what_is_shown_is_refused() -> None:
    made = recording(1)
    for size in (made.log.size + 1, made.log.size - 3, 1, 0, 2**62):
        with pytest.raises(VerificationError):
            check(landmarks(made), made, size)


def tokens_of(made: Recording) -> list[Token]:
    return [leaf for data in made.leaves if isinstance(leaf := records.parse(data), Token)]


def test_tokens_of_steps_with_drafts_are_in_order() -> None:
    made = Recording()
    made.turn(ask(max_tokens=10), range(1, 8), burst=3)
    span = check(landmarks(made), made)[0]
    tokens = tokens_of(made)
    assert [(token.step, token.row) for token in tokens[:5]] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    check_tokens(span, tokens)
    for wrong, code in (
        (tokens[:-1], "counts-differ"),
        ([tokens[1], tokens[0], *tokens[2:]], "sequence-broken"),
        ([replace(tokens[0], position=99), *tokens[1:]], "sequence-broken"),
        ([replace(tokens[0], turn=1), *tokens[1:]], "sequence-broken"),
    ):
        with pytest.raises(VerificationError) as caught:
            check_tokens(span, wrong)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("marks", "code"),
    [
        ([(Source.PLAIN, 1, 0)], "sequence-broken"),  # no step 0
        ([(Source.PLAIN, 0, 1)], "sequence-broken"),  # begins in the middle of a step
        ([(Source.PLAIN, 0, 0), (Source.PLAIN, 0, 1)], "sequence-broken"),  # a step goes on past a plain token
        ([(Source.DRAFT_CORRECTED, 0, 0), (Source.BONUS, 0, 1)], "sequence-broken"),
        ([(Source.DRAFT_ACCEPTED, 0, 0), (Source.BONUS, 0, 1)], "counts-differ"),  # accepted, but not in the end leaf
        ([(Source.PLAIN, 0, 0)], "counts-differ"),
    ],
)
def test_marks_that_no_engine_makes_are_refused(marks: list[tuple[Source, int, int]], code: str) -> None:
    span = check(landmarks(made := recording(1, tokens=2)), made)[0]
    with pytest.raises(VerificationError) as caught:
        check_marks(span, marks)
    assert caught.value.code == code
