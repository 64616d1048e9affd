"""A sequence: one turn in progress, from its prompt to its end."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from engine.counters import Counters
from engine.drafting import Drafter
from engine.drafting.policy import Odds
from engine.generation import MAX_BACKLOG, Delta, Done, Failed, Generation, StepProof, TokenInfo
from engine.sessions.recorder import Recorder
from verifiable.errors import EngineError, StoreError
from verifiable.llama.model import Model
from verifiable.sampling.logits import Entries, Floats, Ranked
from verifiable.sampling.turn import TurnSampler
from verifiable.session.delivery import TextStream
from verifiable.session.records import Finish, Source


class Draft(NamedTuple):
    """A drafter's guess. The first `verified` of `ids` go into the step; what is not verified costs nothing to make,
    and is only compared with what comes.
    """

    ids: list[int]
    verified: int


NO_DRAFT = Draft([], 0)


class Record(NamedTuple):
    """A row's record, and what the draw sees of it."""

    entries: Entries
    candidates: Ranked


class Sequence:
    """Runs one generation. Used by the scheduler's thread only.

    `ids` is the whole sequence so far and `evaluated` how many of them the model's memory holds: while it is short of
    `len(ids)` by more than one, the prompt is still being read.

    A step goes through the stages `look`, `draw`, `advance` and `hand_out`. What `advance` brought is due to the reader
    until it is handed out, or the turn ends; `finish` is then why the turn is over, if it is.

    Args:
        cached: tokens of the prompt that the memory holds already.
    """

    def __init__(
        self,
        generation: Generation,
        recorder: Recorder,
        sampler: TurnSampler,
        model: Model,
        drafter: Drafter | None,
        counters: Counters,
        cached: int,
    ) -> None:
        self.generation = generation
        self.drafter = drafter
        self.ids = list(generation.prompt)
        self.evaluated = cached
        self.ended = False
        self.finish: Finish | None = None
        self._full = len(generation.prompt) + generation.params.max_tokens
        self.odds = Odds()
        self._recorder = recorder
        self._sampler = sampler
        self._piece, self._ends = model.piece, model.eog
        self._counters = counters
        self._cached = cached
        self._drafted = self._accepted = 0
        self._text = TextStream(generation.request.stops)
        self._due_text = ""
        self._due_tokens: list[TokenInfo] = []

    def begin(self) -> None:
        """Commit to what was asked, before anything is computed."""
        if self.drafter is not None:
            self.drafter.begin(self.ids, self.generation.namespace, self._sampler.sample)
        self._recorder.begin(self.generation.turn_facts(self._cached))

    @property
    def prefilling(self) -> bool:
        return self.evaluated < len(self.ids) - 1

    def unwanted(self) -> bool:
        """Whether it was cancelled. One whose reader is too far behind is."""
        generation = self.generation
        if generation.sink.backlog() > MAX_BACKLOG and not generation.cancelled.is_set():
            self._counters.slow_readers += 1
            generation.cancel()
        return generation.cancelled.is_set()

    def draft(self, limit: int) -> Draft:
        """Draft at most `limit` ids to be verified, never more than the budget can use."""
        if self.drafter is None:
            return NO_DRAFT
        limit = max(min(limit, self._full - len(self.ids) - 1), 0)
        ids = self.drafter.draft(max(limit, 1) if self.drafter.free else limit)
        return Draft(ids, min(limit, len(ids)))

    def look(self, row: Floats) -> Record:
        """First stage: the record of the last token's row."""
        entries = self._sampler.entries(row)
        return Record(entries, self._sampler.candidates(entries))

    def draw(self, record: Record) -> int:
        """Second stage: the token that follows."""
        return self._sampler.draw(record.candidates, len(self.ids))

    def advance(self, rows: list[Floats], draft: Draft, record: Record, token: int) -> None:
        """Third stage: take that token, and what follows from the rows of drafted tokens as far as they are accepted.

        `rows` begins with the one of `record`. Afterwards the memory holds `evaluated` ids of this sequence that
        count; rows past that were drafts that were not accepted.
        """
        drafted = draft.ids[: draft.verified]
        if drafted:
            self._recorder.drafted(len(drafted))
        first, accepted = len(self.ids), 0
        for index, row in enumerate(rows):
            if index:
                record = self.look(row)
                token = self.draw(record)
            accepts = index < len(drafted) and token == drafted[index]
            source = _source(index, len(drafted), accepts)
            self._recorder.token(token, source, index == 0, record.entries)
            self.ids.append(token)
            self._counters.tokens += 1
            accepted += accepts
            piece = self._piece(token)
            self._due_text += self._text.feed(piece)
            if token in self._ends or self._text.stopped:
                self.finish = Finish.STOP
            elif len(self.ids) >= self._full:
                self.finish = Finish.LENGTH
            self._due_tokens.append(self._info(token, piece, source, row, record.entries))
            self._sampler.accept(token)
            if self.finish is not None or not accepts:
                break
        self._score(draft, accepted, self.ids[first])
        self.evaluated = len(self.ids) - 1
        if self.drafter is not None:
            self.drafter.extend(self.ids[first:])

    def hand_out(self) -> None:
        """Last stage: what the step brought goes to the store, when it is time, and to the reader."""
        if self.finish is not None:
            self._end(self.finish)
            return
        self._recorder.step()
        self._deliver()

    def cancel(self) -> None:
        """End the turn as cancelled, signed and durable like any other."""
        self._end(Finish.CANCELLED)

    def fail(self, error: EngineError | StoreError) -> None:
        """End this turn with an error; no other is touched. The reader still gets what is due."""
        self._end(Finish.ERROR, error)

    def _score(self, draft: Draft, accepted: int, came: int) -> None:
        self._drafted += draft.verified
        self._accepted += accepted
        if draft.verified:
            self.odds.score(draft.verified, accepted)
            self._counters.draft(draft.verified, accepted)
        elif draft.ids:
            self.odds.score(1, int(draft.ids[0] == came))

    def _end(self, finish: Finish, error: EngineError | StoreError | None = None) -> None:
        if self.finish is not None:  # whole by its tokens, so nothing that happened since makes it another answer
            finish, error = self.finish, None
        if not self._text.stopped:
            self._due_text += self._text.finish()
        self._deliver()
        self.ended = True
        self._counters.finished[finish] += 1
        generation = self.generation
        done = Done(
            finish=finish,
            prompt_count=len(generation.prompt),
            completion_count=len(self.ids) - len(generation.prompt),
            cached=self._cached,
            drafted=self._drafted,
            accepted=self._accepted,
        )

        def durable(receipt: bytes | None, failure: EngineError | StoreError | None) -> None:
            fault = error or failure
            if fault is not None:
                generation.sink.put(Failed(fault))
                return
            generation.sink.put(replace(done, receipt=receipt))
            if receipt is not None and generation.durable is not None:
                generation.durable()

        self._recorder.end(finish, self._text.digest(), durable)

    def _deliver(self) -> None:
        if not self._due_text and not self._due_tokens:
            return
        sink, delta = self.generation.sink, Delta(self._due_text, tuple(self._due_tokens))
        self._due_text, self._due_tokens = "", []
        if not self._recorder.proves:
            sink.put(delta)
            return

        def proved(proof: StepProof) -> None:
            sink.put(replace(delta, proof=proof))

        self._recorder.prove(proved)

    def _info(self, token: int, piece: bytes, source: Source, row: Floats, entries: Entries) -> TokenInfo:
        wanted = self.generation.request.top_logprobs
        if wanted is None:
            return TokenInfo(token, piece, source)
        best = self._sampler.best(row, entries)  # log-probabilities are those of the model
        highest = float(best.logits[0])
        total = highest + float(np.log(np.exp(row.astype(np.float64) - highest).sum()))
        top = tuple(
            (int(other), self._piece(int(other)), float(logit) - total)
            for other, logit in zip(best.ids[:wanted], best.logits[:wanted], strict=True)
        )
        return TokenInfo(token, piece, source, float(row[token]) - total, top)


def _source(index: int, drafted: int, accepted: bool) -> Source:
    if drafted == 0:
        return Source.PLAIN
    if accepted:
        return Source.DRAFT_ACCEPTED
    return Source.BONUS if index == drafted else Source.DRAFT_CORRECTED
