"""A slot: one sequence's place in the context, and the turn that runs in it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from engine.counters import Counters
from engine.drafting import Drafter
from engine.drafting.policy import Odds
from engine.generation import Delta, Done, Failed, Generation, StepProof, TokenInfo
from engine.scheduling.prefix import Kept
from engine.sessions.recorder import Recorder
from verifiable.errors import EngineError, StoreError
from verifiable.sampling.logits import Floats
from verifiable.sampling.sampler import choose
from verifiable.sampling.turn import Chooser, TurnSampler
from verifiable.session.delivery import TextStream
from verifiable.session.records import Finish, Source

Piece = Callable[[int], bytes]


class Slot:
    """Runs one generation at a time in sequence `seq`. Used by the scheduler's thread only.

    `ids` is the whole sequence so far and `evaluated` how many of them the model's memory holds: while it is short of
    `len(ids)` by more than one, the prompt is still being read. Between two turns `kept` says what the memory holds.
    """

    def __init__(
        self,
        seq: int,
        k: int,
        piece: Piece,
        eog: Collection[int],
        drafter: Drafter | None,
        counters: Counters,
        choose_token: Chooser = choose,
        suppressed: Collection[int] = (),
    ) -> None:
        self.seq = seq
        self.drafter = drafter
        self.generation: Generation | None = None
        self.kept: Kept | None = None
        self.namespace: str | None = None
        self.ids: list[int] = []
        self.evaluated = 0
        self.draft: list[int] = []
        self.odds = Odds()
        self._k = k
        self._piece = piece
        self._eog = eog
        self._suppressed = suppressed
        self._counters = counters
        self._choose = choose_token
        self._sampler: TurnSampler
        self._guess: list[int] = []

    def start(self, generation: Generation, recorder: Recorder, cached: int) -> None:
        """Take a generation, the first `cached` tokens of whose prompt the memory holds already: commit to what was
        asked, before anything is computed.
        """
        self.generation = generation
        self.recorder = recorder
        self.kept = None
        self.namespace = generation.namespace
        self.ids = list(generation.prompt)
        self.evaluated = self._cached = cached
        self.draft, self._guess = [], []
        self.odds = Odds()
        self._text = TextStream(generation.request.stops)
        self._text_due = ""
        self._emitted: list[TokenInfo] = []
        self._drafted = self._accepted = 0
        params, key, constraint = generation.params, generation.key, generation.constraint
        self._sampler = TurnSampler(params, key, self._k, self._eog, constraint, self._suppressed, self._choose)
        if self.drafter is not None:
            self.drafter.begin(self.ids, generation.namespace, self._sampler.sample)
        recorder.begin(generation.turn_facts(cached))

    @property
    def prefilling(self) -> bool:
        return self.generation is not None and self.evaluated < len(self.ids) - 1

    @property
    def completion(self) -> int:
        return len(self.ids) - len(self._running.prompt)

    @property
    def _running(self) -> Generation:
        if self.generation is None:
            raise EngineError("an idle slot was asked to work", hint="This is a fault of the engine.")
        return self.generation

    def make_draft(self, limit: int) -> list[int]:
        """Draft at most `limit` ids, never more than the budget can use. A guess that costs nothing is made anyway,
        to be compared with what comes.
        """
        if self.drafter is None:
            return []
        limit = min(limit, self._running.params.max_tokens - self.completion - 1)
        self._guess = self.drafter.draft(max(limit, 1 if self.drafter.free else 0))
        self.draft = self._guess[: max(limit, 0)]
        return self.draft

    def look(self, rows: list[Floats]) -> None:
        """First stage of a step: the record of the first of `rows`, the last token's; the others are drafted tokens'.

        A step goes through its stages with every slot before the next stage, since what a stage computes with is then
        still in the processor's cache. They must follow each other in order.
        """
        self._entries = self._sampler.entries(rows[0])
        self._candidates = self._sampler.candidates(self._entries)

    def draw(self, rows: list[Floats]) -> None:
        """Second stage: the token that the first row gives."""
        self._token = self._sampler.draw(self._candidates, len(self.ids))

    def advance(self, rows: list[Floats]) -> None:
        """Third stage: take that token, and what follows from the drafted tokens' rows as far as they came true.

        Afterwards the memory holds `evaluated` ids of this sequence that count; rows past that were drafts that did
        not come true.
        """
        generation, draft, ids, recorder = self._running, self.draft, self.ids, self.recorder
        if draft:
            recorder.drafted(len(draft))
        finish: Finish | None = None
        text = ""
        first, right_ones, end = len(ids), 0, len(generation.prompt) + generation.params.max_tokens
        for index, row in enumerate(rows):
            if index:
                self.look(rows[index:])
                self.draw(rows[index:])
            token = self._token
            right = index < len(draft) and token == draft[index]
            source = _source(index, len(draft), right)
            recorder.token(token, source, index == 0, self._entries)
            self._sampler.accept(token)
            right_ones += right
            ids.append(token)
            piece = self._piece(token)
            text += self._text.feed(piece)
            self._emitted.append(self._info(token, piece, source, row))
            if token in self._eog or self._text.stopped:
                finish = Finish.STOP
            elif len(ids) >= end:
                finish = Finish.LENGTH
            if finish is not None or not right:
                break
        self._score(len(draft), right_ones, ids[first])
        self.evaluated = len(ids) - 1
        self.draft = []
        if self.drafter is not None:
            self.drafter.extend(ids[first:])
        if finish is None:
            self._text_due = text
        else:
            self._finish(finish, text)

    def hand_out(self) -> None:
        """Last stage: what the step brought goes to the store, when it is time, and to the reader."""
        self.recorder.step()
        self._emit(self._text_due)

    def cancel(self) -> None:
        """End the turn as cancelled, signed and durable like any other."""
        self._finish(Finish.CANCELLED, "")

    def fail(self, error: EngineError | StoreError) -> None:
        """End this turn with an error; no other slot is touched."""
        self._finish(Finish.ERROR, "", error)

    def _score(self, drafted: int, right: int, came: int) -> None:
        self._drafted += drafted
        self._accepted += right
        if drafted:
            self.odds.score(drafted, right)
            self._counters.draft(drafted, right)
        elif self._guess:
            self.odds.score(1, int(self._guess[0] == came))

    def _finish(self, finish: Finish, text: str, error: EngineError | StoreError | None = None) -> None:
        generation, emitted = self._running, self.completion
        if not self._text.stopped:
            text += self._text.finish()
        self._emit(text)
        cached, drafted, accepted = self._cached, self._drafted, self._accepted
        self.generation = None
        self._counters.finished[finish] += 1

        def ended(receipt: bytes | None, failure: StoreError | None) -> None:
            fault = error or failure
            if fault is not None:
                generation.sink.put(Failed(fault))
                return
            generation.sink.put(
                Done(finish, len(generation.prompt), emitted, cached, drafted, accepted, receipt=receipt)
            )
            if receipt is not None and generation.durable is not None:
                generation.durable()

        self.recorder.end(finish, self._text.digest(), ended)

    def _emit(self, text: str) -> None:
        if not text and not self._emitted:
            return
        sink = self._running.sink
        delta = Delta(text, tuple(self._emitted))
        self._emitted = []
        if not self.recorder.proves:
            sink.put(delta)
            return

        def proved(proof: StepProof) -> None:
            sink.put(replace(delta, proof=proof))

        self.recorder.prove(proved)

    def _info(self, token: int, piece: bytes, source: Source, row: Floats) -> TokenInfo:
        wanted = self._running.request.top_logprobs
        if wanted is None:
            return TokenInfo(token, piece, source)
        best = self._sampler.best(row, self._entries)  # log-probabilities are those of the model
        highest = float(best.logits[0])
        total = highest + float(np.log(np.exp(row.astype(np.float64) - highest).sum()))
        top = tuple(
            (int(other), self._piece(int(other)), float(logit) - total)
            for other, logit in zip(best.ids[:wanted], best.logits[:wanted], strict=True)
        )
        return TokenInfo(token, piece, source, float(row[token]) - total, top)


def _source(index: int, drafted: int, right: bool) -> Source:
    if drafted == 0:
        return Source.PLAIN
    if right:
        return Source.DRAFT_ACCEPTED
    return Source.BONUS if index == drafted else Source.DRAFT_CORRECTED
