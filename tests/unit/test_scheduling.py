"""What the scheduler is made of, each by itself and without a model."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from engine.counters import Counters
from engine.drafting.policy import Always, Odds
from engine.generation import Delta, Done, Failed, Generation, QueueSink
from engine.scheduling.admission import Admission, QueueFullError, StoppingError
from engine.scheduling.cache import PrefixCache
from engine.scheduling.plan import Planner
from engine.scheduling.prefix import Kept
from engine.scheduling.sequence import Draft, Sequence
from engine.scheduling.slot import Slot, idle, longest_idle, running
from engine.sessions.recorder import NoRecorder
from verifiable.errors import EngineError
from verifiable.llama.context import RollbackError
from verifiable.request.request import COMPLETION, parse_body
from verifiable.sampling.sampler import SamplingDefaults
from verifiable.sampling.turn import TurnSampler
from verifiable.session.records import Finish


class Asked:
    """A generation and its recorder in one, as far as admission looks at them."""

    def __init__(self, namespace: str | None = None, prompt: tuple[int, ...] = (1, 2, 3)) -> None:
        self.cancelled = threading.Event()
        self.namespace = namespace
        self.prompt = list(prompt)
        self.sink = SimpleNamespace(put=lambda event: self.events.append(event))
        self.events: list[Any] = []
        self.abandoned = 0

    def abandon(self) -> None:
        self.abandoned += 1


def submit(admission: Admission, asked: Any) -> None:
    admission.submit(asked, asked)


def test_the_queue_is_bounded_and_who_has_left_takes_no_place() -> None:
    free, counters = [1], Counters()
    admission = Admission(2, lambda: free[0], counters)
    asked = [Asked() for _ in range(4)]
    for each in asked[:3]:  # one for the free slot, and two that wait
        submit(admission, each)
    with pytest.raises(QueueFullError):
        submit(admission, asked[3])
    asked[1].cancelled.set()
    submit(admission, asked[3])
    assert (counters.refused, counters.abandoned, asked[1].abandoned) == (1, 1, 1)
    assert isinstance(asked[1].events[0], Failed)
    admitted = [admission.next() for _ in range(2)]
    assert [cast(Any, each).generation for each in admitted] == [asked[0], asked[2]]
    free[0] = 0
    assert admission.next() is None
    assert len(admission) == 1


def test_after_the_end_nothing_is_admitted_and_who_waited_is_told() -> None:
    admission = Admission(2, lambda: 0, Counters())
    asked = Asked()
    submit(admission, asked)
    assert admission.wait(lambda: False, lambda: False)
    admission.stop(grace=60.0)
    assert admission.wait(lambda: True, lambda: False)  # what runs has its time
    assert isinstance(asked.events[0].error, StoppingError)
    assert asked.abandoned == 1
    with pytest.raises(StoppingError):
        submit(admission, Asked())
    assert not admission.wait(lambda: False, lambda: False)
    admission.stop(grace=0.0)
    assert not admission.wait(lambda: True, lambda: False)


def sequence(length: int, evaluated: int, drafted: int = 0, namespace: str | None = None) -> Any:
    return SimpleNamespace(
        ids=list(range(100, 100 + length)),
        evaluated=evaluated,
        prefilling=evaluated < length - 1,
        drafter=object(),
        odds=Odds(),
        draft=lambda limit: Draft([7] * drafted, min(limit, drafted)),
        generation=Asked(namespace),
        ended=False,
    )


def test_a_long_prompt_gets_what_the_running_answers_leave_and_no_more_than_a_chunk() -> None:
    planner = Planner(Always(), capacity=32, prefill_chunk=10, draft_limit=3)
    slots = [Slot(seq) for seq in range(3)]
    answering, reading, nearly = sequence(9, 8, drafted=2), sequence(50, 0), sequence(12, 8)
    parts = planner.schedule([(slots[2], answering), (slots[0], reading), (slots[1], nearly)])
    assert [part.slot.seq for part in parts] == [0, 1, 2]
    assert [(part.start, len(part.tokens), part.wanted) for part in parts] == [(0, 5, 0), (8, 4, 1), (8, 1, 1)]
    alone = planner.schedule([(slots[0], reading)])
    assert [(part.start, len(part.tokens), part.wanted) for part in alone] == [(0, 32, 0)]


@pytest.mark.parametrize(("answers", "drafted"), [(1, 2), (8, 2), (16, 1), (32, 0)])
def test_drafts_are_made_only_as_far_as_the_batch_has_room(answers: int, drafted: int) -> None:
    planner = Planner(Always(), capacity=32, prefill_chunk=10, draft_limit=3)
    parts = planner.schedule([(Slot(seq), sequence(9, 8, drafted=2)) for seq in range(answers)])
    assert {part.draft.verified for part in parts} == {drafted}
    assert sum(len(part.tokens) for part in parts) <= 32


class Memory:
    """A context's memory that counts tokens; with `exact` false it can only be emptied."""

    def __init__(self, exact: bool = True) -> None:
        self.lengths = {0: 8, 1: 8}
        self.exact = exact

    def remove(self, seq: int, p0: int) -> None:
        if p0 and not self.exact:
            raise RollbackError("this memory can't be cut back")
        self.lengths[seq] = min(self.lengths[seq], p0)

    def length(self, seq: int) -> int:
        return self.lengths[seq]


@pytest.mark.parametrize("exact", [True, False])
def test_what_a_turn_leaves_is_kept_for_its_namespace_where_the_memory_can_be_cut_back(exact: bool) -> None:
    memory, counters = Memory(exact), Counters()
    cache = PrefixCache(cast(Any, memory), counters)
    slots = [Slot(0, sequence=sequence(6, 5, namespace="alice")), Slot(1)]
    assert len(running(slots)) == 1
    cast(Any, slots[0].sequence).ended = True
    assert idle(slots) == slots  # its place is free before its memory was seen to
    cache.release(slots[0])
    assert slots[0].sequence is None
    assert slots[0].kept == (Kept("alice", (100, 101, 102, 103, 104), 1) if exact else None)
    assert memory.lengths[0] == (5 if exact else 0)
    assert longest_idle(slots) is slots[1 if exact else 0]
    slot, cached = cache.take(slots, cast(Any, Asked("alice", (100, 101, 9))))
    assert (cached, counters.cached_tokens, counters.prompt_tokens) == ((2, 2, 3) if exact else (0, 0, 3))
    assert slot is slots[0]
    assert slot.kept is None


@pytest.mark.parametrize(("namespace", "evaluated"), [(None, 5), ("alice", 0), ("alice", 6)])
def test_nothing_is_kept_for_nobody_nor_where_the_memory_is_not_known(namespace: str | None, evaluated: int) -> None:
    memory = Memory()
    slot = Slot(0, sequence=sequence(6, evaluated, namespace=namespace))
    PrefixCache(cast(Any, memory), Counters()).release(slot)
    assert slot.kept is None
    assert memory.lengths[0] == 0


class LosesItsGrammar(TurnSampler):
    """Fails when it takes the second token of a step, as a grammar may that a wrong draft has left."""

    def accept(self, token: int) -> None:
        if token == 2:
            raise EngineError("the grammar")


def failing(tokens: int) -> tuple[Sequence, QueueSink, EngineError]:
    """A turn of at most so many tokens, whose sampler failed after the second was recorded."""
    request = parse_body(COMPLETION, b'{"prompt": "a", "temperature": 0, "seed": 1, "max_tokens": %d}' % tokens)
    params = request.params(SamplingDefaults(), 2, 64, 1)
    sink = QueueSink()
    generation = Generation(request=request, prompt=[0], params=params, nonce=b"", key=bytes(32), sink=sink)
    model = SimpleNamespace(piece=lambda token: f" t{token}".encode(), eog=frozenset())
    sampler = LosesItsGrammar(params, bytes(32), 2)
    running_turn = Sequence(generation, NoRecorder(), sampler, cast(Any, model), None, Counters(), 0)
    rows = [np.eye(4, dtype=np.float32)[token] for token in (1, 2, 3)]
    record = running_turn.look(rows[0])
    with pytest.raises(EngineError) as failure:
        running_turn.advance(rows, Draft([1, 2], 2), record, running_turn.draw(record))
    return running_turn, sink, failure.value


def test_tokens_that_were_recorded_before_a_step_fails_are_delivered_with_their_text() -> None:
    turn, sink, error = failing(9)
    turn.fail(error)
    delta, failed = sink
    assert isinstance(delta, Delta)
    assert ([token.id for token in delta.tokens], delta.text) == ([1, 2], " t1 t2")
    assert failed == Failed(error)


@pytest.mark.parametrize("cancelled", [True, False])
def test_what_happens_after_the_last_token_makes_it_no_other_answer(cancelled: bool) -> None:
    turn, sink, error = failing(2)
    turn.cancel() if cancelled else turn.fail(error)
    _, done = sink
    assert isinstance(done, Done)
    assert (done.finish, done.completion_count) == (Finish.LENGTH, 2)
