"""A slot: one sequence's place in the context, and the turn that runs in it."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from engine.drafting import Drafter
from engine.generation import Delta, Done, Failed, Generation, TokenInfo
from engine.recorder import Recorder
from verifiable import records
from verifiable.errors import EngineError, StoreError
from verifiable.logits import Entries, Floats, TopK
from verifiable.records import Finish, Source
from verifiable.sampling import SamplingParams, choose
from verifiable.session import TurnFacts
from verifiable.text import TextStream

Piece = Callable[[int], bytes]
Chooser = Callable[[Entries, SamplingParams, bytes, int], int]


class Slot:
    """Runs one generation at a time in sequence `seq`. Used by the scheduler's thread only.

    `ids` is the whole sequence so far and `evaluated` how many of them the model's memory holds: while it is short of
    `len(ids)` by more than one, the prompt is still being read.
    """

    __slots__ = (
        "_accepted",
        "_drafted",
        "_emitted",
        "_eog",
        "_fresh",
        "_piece",
        "_text",
        "_topk",
        "draft",
        "drafter",
        "evaluated",
        "generation",
        "ids",
        "recorder",
        "seq",
    )

    def __init__(self, seq: int, k: int, piece: Piece, eog: Collection[int], drafter: Drafter | None) -> None:
        self.seq = seq
        self.drafter = drafter
        self.generation: Generation | None = None
        self._topk = TopK(k)
        self._piece = piece
        self._eog = eog

    def start(self, generation: Generation, recorder: Recorder) -> None:
        """Take a generation: commit to what was asked, before anything is computed."""
        self.generation = generation
        self.recorder = recorder
        self.ids = list(generation.prompt)
        self.evaluated = 0
        self.draft: list[int] = []
        self._text = TextStream(generation.request.stops)
        self._emitted: list[TokenInfo] = []
        self._drafted = self._accepted = 0
        if self.drafter is not None:
            self.drafter.begin(self.ids)
        recorder.begin(
            TurnFacts(
                generation.request.digest(),
                records.ids_digest(generation.prompt),
                len(generation.prompt),
                generation.params,
                records.stop_digest(generation.request.stops),
                generation.nonce,
                generation.nonce_source,
                cached=0,
            )
        )

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
        """Draft at most `limit` ids, never more than the budget can use."""
        room = self._running.params.max_tokens - self.completion - 1
        self.draft = self.drafter.draft(min(limit, room)) if self.drafter is not None else []
        return self.draft

    def advance(self, rows: list[Floats], choose_token: Chooser = choose) -> Finish | None:
        """Take the logits of the last token's row and of each drafted token's row; emit what follows from them.

        Returns the finish reason when the turn is over. Afterwards the memory holds `evaluated` ids of this sequence
        that count; rows past that were drafts that did not come true.
        """
        generation, draft = self._running, self.draft
        self.recorder.drafted(len(draft))
        self._drafted += len(draft)
        finish: Finish | None = None
        text = ""
        first = len(self.ids)
        for index, row in enumerate(rows):
            entries = self._topk(row)
            position = len(self.ids)
            token = choose_token(entries, generation.params, generation.key, position)
            right = index < len(draft) and token == draft[index]
            source = _source(index, len(draft), right)
            self.recorder.token(token, source, index == 0, entries)
            self._accepted += right
            self.ids.append(token)
            piece = self._piece(token)
            text += self._text.feed(piece)
            self._emitted.append(self._info(token, piece, source, entries, row))
            if token in self._eog or self._text.stopped:
                finish = Finish.STOP
            elif self.completion >= generation.params.max_tokens:
                finish = Finish.LENGTH
            if finish is not None or not right:
                break
        self.recorder.step()
        self.evaluated = len(self.ids) - 1
        self.draft = []
        if self.drafter is not None:
            self.drafter.extend(self.ids[first:])
        if finish is None:
            self._emit(text)
        else:
            self._finish(finish, text)
        return finish

    def cancel(self) -> None:
        """End the turn as cancelled, signed and durable like any other."""
        self._finish(Finish.CANCELLED, "")

    def fail(self, error: EngineError | StoreError) -> None:
        """End this turn with an error; no other slot is touched."""
        self._finish(Finish.ERROR, "", error)

    def _finish(self, finish: Finish, text: str, error: EngineError | StoreError | None = None) -> None:
        generation, emitted = self._running, self.completion
        if not self._text.stopped:
            text += self._text.finish()
        self._emit(text)
        drafted, accepted = self._drafted, self._accepted
        self.generation = None

        def ended(receipt: bytes | None, failure: StoreError | None) -> None:
            fault = error or failure
            if fault is not None:
                generation.sink.put(Failed(fault))
                return
            generation.sink.put(Done(finish, len(generation.prompt), emitted, 0, drafted, accepted, receipt=receipt))

        self.recorder.end(finish, self._text.digest(), ended)

    def _emit(self, text: str) -> None:
        if text or self._emitted:
            self._running.sink.put(Delta(text, tuple(self._emitted)))
            self._emitted = []

    def _info(self, token: int, piece: bytes, source: Source, entries: Entries, row: Floats) -> TokenInfo:
        wanted = self._running.request.top_logprobs
        if wanted is None:
            return TokenInfo(token, piece, source)
        highest = float(entries.logits[0])
        total = highest + float(np.log(np.exp(row.astype(np.float64) - highest).sum()))
        top = tuple(
            (int(other), self._piece(int(other)), float(logit) - total)
            for other, logit in zip(entries.ids[:wanted], entries.logits[:wanted], strict=True)
        )
        return TokenInfo(token, piece, source, float(row[token]) - total, top)


def _source(index: int, drafted: int, right: bool) -> Source:
    if drafted == 0:
        return Source.PLAIN
    if right:
        return Source.DRAFT_ACCEPTED
    return Source.BONUS if index == drafted else Source.DRAFT_CORRECTED
