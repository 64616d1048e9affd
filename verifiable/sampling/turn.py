"""One turn's way from logits to tokens: row → record → candidates → draw → accept.

The provider answers with it, audits itself with it, and an auditor makes records with it. Where the turn has no
processor (`processors`), the record itself is what the draw chooses from, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from verifiable.sampling.logits import Entries, Floats, Ids, Ranked, TopK
from verifiable.sampling.processors import Constraint, Mask, Processor
from verifiable.sampling.sampler import SamplingParams, choose

Chooser = Callable[[Ranked, SamplingParams, bytes, int], int]
"""Draws a token: candidates, parameters, sampling key, position in the whole sequence. `sampler.choose`, if honest."""


class TurnSampler:
    """The sampler of one turn, prompt to end. Its steps are apart so that a batch can take each for all its turns.

    Args:
        params: the turn's parameters.
        key: its sampling key.
        k: entries of a record.
        ends: the model's ids that end a generation.
        constraint: the grammar's state at the start of the answer, where `params.constraint` names one.
        suppressed: ids that the model's own list bars from every answer.
        chooser: what draws.
    """

    __slots__ = ("_chooser", "_key", "_params", "_processor", "_topk")

    def __init__(
        self,
        params: SamplingParams,
        key: bytes,
        k: int,
        ends: Collection[int] = (),
        constraint: Constraint | None = None,
        suppressed: Collection[int] = (),
        chooser: Chooser = choose,
    ) -> None:
        self._params = params
        self._key = key
        self._chooser = chooser
        self._topk = TopK(k)
        self._processor: Processor | None = None
        if params.processed or suppressed:
            self._processor = Processor(params, k, ends, constraint, suppressed)

    def entries(self, row: Floats) -> Entries:
        """The record of a row (n_vocab,). Raises EngineError where it holds a NaN or an infinity, or the grammar
        allows no token.
        """
        return self._topk(row) if self._processor is None else self._processor.entries(row)

    def best(self, row: Floats, record: Entries | None = None) -> Entries:
        """The k largest entries of a row as the model gave it: its `record`, where no processor had a say in that."""
        return self._topk(row) if record is None or self._processor is not None else record

    def candidates(self, entries: Entries) -> Ranked:
        """What the draw sees of a record."""
        return entries if self._processor is None else self._processor.candidates(entries)

    def allowed(self, ids: Ids) -> Mask:
        """Which of these ids the draw may take."""
        return np.ones(len(ids), np.bool_) if self._processor is None else self._processor.allowed(ids)

    def draw(self, candidates: Ranked, position: int) -> int:
        """The token at a position of the whole sequence, prompt included."""
        return self._chooser(candidates, self._params, self._key, position)

    def sample(self, row: Floats, position: int) -> int:
        """The token that a row gives at a position: all steps at once, short of accepting it."""
        return self.draw(self.candidates(self.entries(row)), position)

    def accept(self, token: int) -> None:
        """The answer goes on with this token."""
        if self._processor is not None:
            self._processor.accept(token)
