"""What the draws of a turn saw of its records: the processors done again, with or without the model's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from verifiable.errors import VerificationError
from verifiable.sampling.logits import Entries, Ids, Ranked
from verifiable.sampling.processors import Mask, Processor, needs_vocabulary, visible
from verifiable.sampling.sampler import SamplingParams


class _Masks:
    """What was masked, where it is known: the answers for one record after another."""

    def __init__(self, entries: Sequence[Entries], masks: Sequence[bytes]) -> None:
        self._known = iter(
            [dict(zip(row.ids.tolist(), mask, strict=True)) for row, mask in zip(entries, masks, strict=True)]
        )
        self._now: dict[int, int] = {}

    def next(self) -> None:
        self._now = next(self._known)

    def allowed(self, ids: Ids) -> Mask:
        return np.array([self._now[token] != 0 for token in ids.tolist()], np.bool_)

    def accept(self, token: int) -> None:
        """What is allowed after it is known already."""


def ranked(
    entries: Sequence[Entries],
    tokens: Sequence[int],
    params: SamplingParams,
    masks: Sequence[bytes],
    suppressed: Sequence[int] = (),
    before: Sequence[int] = (),
) -> list[Ranked]:
    """What each draw saw of its record: the processors done again over a turn, of which `before` is not looked at.

    Raises VerificationError (`not-replayed`) where that needs masks, and none are given.
    """
    if not params.processed:
        return [visible(row, suppressed) for row in entries]
    if needs_vocabulary(params) and not masks and entries:
        raise VerificationError(
            "which tokens were masked is not known, so no draw can be replayed",
            code="not-replayed",
            expected="a model that knows the grammar and the tokens that end an answer",
            found="no masks",
        )
    known = _Masks(entries, masks) if masks else None
    processor = Processor(params, len(entries[0].ids) if entries else 1, constraint=known, suppressed=suppressed)
    for token in before:
        processor.accept(token)
    seen: list[Ranked] = []
    for row, token in zip(entries, tokens, strict=True):
        if known is not None:
            known.next()
        seen.append(processor.candidates(row))
        processor.accept(token)
    return seen
