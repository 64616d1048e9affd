"""A step's work: decode the rows of a plan, and take each sequence from its logits to what the reader gets.

The stages are taken with every sequence before the next stage, since what a stage computes with is then still in the
processor's cache. Where a sequence fails in one, its turn ends, and no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar, TypeVarTuple

from engine.counters import Counters
from engine.scheduling.plan import Part
from engine.scheduling.sequence import Sequence
from verifiable.errors import EngineError
from verifiable.llama.context import Batch, Context
from verifiable.sampling.logits import Floats

log = logging.getLogger(__name__)

Given = TypeVarTuple("Given")
Result = TypeVar("Result")


class Spent(NamedTuple):
    """Seconds in llama.cpp: by the clock, and the scheduler's thread's own processor time."""

    seconds: float
    cpu: float


class Executor:
    """Owns the batch."""

    def __init__(self, context: Context, counters: Counters) -> None:
        self._context = context
        self._counters = counters
        self._batch = Batch(context.n_batch)

    def carry_out(self, parts: list[Part]) -> Spent:
        """Decode the rows and emit what follows.

        Where a batch fails, each of its sequences is tried alone, so that one request's failure ends that one only.
        """
        rows = self._fill(parts)
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            logits = self._context.decode(self._batch)
        except EngineError as error:
            if len(parts) > 1:
                log.error("decode failed; trying each sequence alone: %s", error)
                self._counters.isolated += 1
                alone = [self.carry_out([part]) for part in parts]
                return Spent(sum(spent.seconds for spent in alone), sum(spent.cpu for spent in alone))
            log.error("decode failed: %s", error)
            _fail_without_memory(parts[0].sequence, error)
            return Spent(time.perf_counter() - began, 0.0)
        spent = Spent(time.perf_counter() - began, time.thread_time() - cpu)
        self._counters.rows += len(self._batch)
        answers = []
        for part, wanted in zip(parts, rows, strict=True):
            if wanted:
                answers.append((part, [logits[row] for row in wanted]))
            else:
                part.sequence.evaluated += len(part.tokens)
        self._emit(answers)
        return spent

    def _fill(self, parts: list[Part]) -> list[list[int]]:
        """Write the batch. Returns, for each part, the rows whose logits it wants."""
        batch, rows = self._batch, []
        batch.clear()
        for part in parts:
            first = len(part.tokens) - part.wanted
            added = [
                batch.add(part.slot.seq, part.start + index, token, index >= first)
                for index, token in enumerate(part.tokens)
            ]
            rows.append(added[first:])
        return rows

    def _emit(self, answers: list[tuple[Part, list[Floats]]]) -> None:
        """Take the sequences of the parts, each with the logits of its rows, through the stages of a step."""
        looked = [
            (part, rows, record)
            for part, rows in answers
            if (record := _attempt(part.sequence, part.sequence.look, rows[0])) is not None
        ]
        drawn = [
            (part, rows, record, token)
            for part, rows, record in looked
            if (token := _attempt(part.sequence, part.sequence.draw, record)) is not None
        ]
        for part, rows, record, token in drawn:
            _attempt(part.sequence, part.sequence.advance, rows, part.draft, record, token)
        # Only now may the memory be touched: cutting a sequence back would invalidate the rows still to be read.
        for part, *_ in drawn:
            if not part.sequence.ended and part.sequence.finish is None:
                self._cut_back(part)
        # Readers wake up last: they would only wait for Python's lock, or take it.
        for part, *_ in drawn:
            if not part.sequence.ended:
                _attempt(part.sequence, part.sequence.hand_out)

    def _cut_back(self, part: Part) -> None:
        """Bring a sequence's memory in line with its ids: without the drafts that were not accepted."""
        sequence = part.sequence
        if sequence.evaluated == part.start + len(part.tokens):
            return
        try:
            self._context.remove(part.slot.seq, sequence.evaluated)
        except EngineError as error:
            _fail_without_memory(sequence, error)


def _attempt(sequence: Sequence, stage: Callable[[*Given], Result], *given: *Given) -> Result | None:
    """What a stage of a sequence returns; None where it failed, and the turn has ended."""
    try:
        return stage(*given)
    except EngineError as error:
        sequence.fail(error)
    except Exception as error:
        log.exception("an answer could not be continued")
        sequence.fail(EngineError("the engine failed", found=repr(error), hint="See the provider's log."))
    return None


def _fail_without_memory(sequence: Sequence, error: EngineError) -> None:
    """End a turn of which nobody knows any more what the memory holds."""
    sequence.evaluated = 0
    sequence.fail(error)
