"""Logit processors that can be replayed: bias, penalties, banned tokens and a grammar, before the draw.

Format and arithmetic: spec/sampling-processors.md. In short:

- Penalties look at the tokens of the answer alone, so that the records of a turn are all that a replay needs.
- A token's processed logit is computed in float64 from its raw float32 logit, in llama.cpp's order: plus its bias;
  then, if it is among the last `repeat_last_n` tokens, divided by `repeat_penalty` (multiplied, where not positive);
  then less (count in the answer × `frequency_penalty` + `presence_penalty` if it occurred).
- The record holds the k best ids *after* this, with their raw logits, in the order of any record: by raw logit. The
  draw sees the same ids with processed logits, in the order of those (`candidates`), without what is masked.
- Banned ids (the model's own list, and with `ignore_eos` those that end an answer) come after all others, and are
  masked.
- A grammar masks. The record's ids are then the best of the smallest window (k, 1024, everything) in which the grammar
  allows at least one token, those that it allows first. So a step costs k checks, hardly ever the whole vocabulary.

Nothing here goes back: a token is accepted only once it was emitted, and a draft that was rejected never is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Protocol

import numpy as np
import numpy.typing as npt

from verifiable.errors import EngineError
from verifiable.sampling.logits import Candidates, Entries, Floats, Ids, Ranked, TopK, not_finite, superset
from verifiable.sampling.sampler import SamplingParams

WINDOW = 1024
"""The second window in which tokens that a grammar allows are looked for."""

Mask = npt.NDArray[np.bool_]


class Constraint(Protocol):
    """A grammar (or a schema made into one) at one point of an answer."""

    def allowed(self, ids: Ids) -> Mask:
        """Which of these ids may come next, shape of `ids`."""
        ...

    def accept(self, token: int) -> None:
        """The answer goes on with this token."""
        ...


class Processor:
    """The processors of one turn. `accept` each emitted token, in order.

    Args:
        params: the turn's parameters.
        ends: the model's ids that end a generation; needed for `ignore_eos` alone.
        constraint: the grammar's state at the start of the answer; needed where `params.constraint` is not empty. A
            replay without the model gives one that knows what was masked, and no `ends`.
        k: entries of a record.
        suppressed: ids that the model's own list bars from every answer (`ModelIdentity.suppressed`).
    """

    __slots__ = ("_banned", "_barred", "_bias", "_constraint", "_counts", "_k", "_params", "_recent", "_topk")

    def __init__(
        self,
        params: SamplingParams,
        k: int,
        ends: Collection[int] = (),
        constraint: Constraint | None = None,
        suppressed: Collection[int] = (),
    ) -> None:
        if params.constraint and constraint is None:
            raise EngineError("a turn's grammar", expected="one where the parameters name one", found="none")
        self._params = params
        self._k = k
        self._bias = dict(params.logit_bias)
        self._banned = frozenset(suppressed).union(ends if params.ignore_eos else ())
        self._barred = np.array(sorted(self._banned), np.intp)
        self._constraint = constraint
        self._counts: dict[int, int] = {}
        self._recent: deque[int] = deque(maxlen=params.repeat_last_n)
        self._topk = TopK(k)

    def accept(self, token: int) -> None:
        """The answer goes on with this token."""
        self._counts[token] = self._counts.get(token, 0) + 1
        self._recent.append(token)
        if self._constraint is not None:
            self._constraint.accept(token)

    def entries(self, row: Floats) -> Entries:
        """The record for a row (n_vocab,): the k best ids after processing, their raw logits, in record order.

        Raises EngineError where the row has a NaN or infinity among them, or the grammar allows no token at all.
        """
        k, total = min(self._k, len(row)), len(row)
        ids = self._best(row, k)
        if self._constraint is not None:
            for window in sorted({k, min(WINDOW, total), total}):
                ids = ids if window == k else self._best(row, window)
                allowed = self.allowed(ids)
                if allowed.any():
                    break
            else:
                raise EngineError("the grammar allows no token of the vocabulary here", hint="Change the grammar.")
            ids = ids[np.argsort(~allowed, kind="stable")[:k]]
        logits = row[ids]
        if not np.isfinite(logits).all():
            raise not_finite()
        order = np.lexsort((ids, -logits))
        return Entries(ids[order].astype(np.uint32), logits[order])

    def candidates(self, entries: Entries) -> Candidates:
        """What the draw sees of a record: processed logits in their order, masked ids left out. May be empty."""
        ids = entries.ids
        values = self._processed(ids, entries.logits)
        kept = self.allowed(ids)
        ids, values = ids[kept], values[kept]
        order = np.lexsort((ids, -values))
        return Candidates(ids[order], values[order])

    def allowed(self, ids: Ids) -> Mask:
        """Which of these ids a draw may take: not banned, and allowed by the grammar."""
        allowed = np.ones(len(ids), np.bool_) if self._constraint is None else self._constraint.allowed(ids)
        return allowed & ~self._is_banned(ids) if self._banned else allowed

    def _is_banned(self, ids: Ids) -> Mask:
        banned = self._banned
        if len(ids) > 256:
            return np.isin(ids, list(banned))
        return np.array([token in banned for token in ids.tolist()], np.bool_)

    def _best(self, row: Floats, count: int) -> Ids:
        """The `count` first ids of a row: banned ones last, then by processed logit, then by id."""
        touched = self._touched(len(row))
        barred = self._barred[: np.searchsorted(self._barred, len(row))]
        if len(row) - len(barred) < count:  # some have to be among them
            touched, barred = np.union1d(touched, barred), barred[:0]
        elif not len(touched) and count == self._k:
            ranked = self._topk(row).ids
            if not self._is_banned(ranked).any():
                return ranked
        else:
            touched = np.setdiff1d(touched, barred, assume_unique=True)
        free = len(row) - len(touched) - len(barred)
        rest = row
        if len(touched) or len(barred):
            rest = row.copy()
            rest[touched] = rest[barred] = -np.inf
        if count == self._k <= free:
            best = self._topk(rest).ids.astype(np.intp)
        else:
            best = superset(rest, min(count, free)) if free else np.empty(0, np.intp)
            best = np.setdiff1d(best, touched, assume_unique=True)
        ids = np.concatenate((touched, best)).astype(np.uint32)
        values = self._processed(ids, row[ids])
        if not np.isfinite(values).all():
            values[~np.isfinite(values)] = np.inf  # first of all: the record then refuses it
        keys: tuple[npt.NDArray[np.generic], ...] = (ids, -values)
        if self._banned:
            keys = (*keys, self._is_banned(ids))
        return ids[np.lexsort(keys)[:count]]

    def _touched(self, size: int) -> npt.NDArray[np.intp]:
        """Ids whose processed logit is, or may be, another than the raw one; ascending."""
        params = self._params
        touched = set(self._bias)
        if params.frequency_penalty or params.presence_penalty:
            touched |= self._counts.keys()
        touched.update(self._recent)
        return np.array(sorted(token for token in touched if token < size), np.intp)

    def _processed(self, ids: Ids, logits: Floats) -> npt.NDArray[np.float64]:
        values = logits.astype(np.float64)
        params, counts, bias = self._params, self._counts, self._bias
        recent = set(self._recent)
        if not (counts or bias):
            return values
        for index, token in enumerate(ids.tolist()):
            count = counts.get(token, 0)
            if not count and token not in bias:
                continue
            value = float(values[index]) + bias.get(token, 0.0)
            if token in recent:
                value = value / params.repeat_penalty if value > 0.0 else value * params.repeat_penalty
            if count:
                value -= count * params.frequency_penalty + params.presence_penalty
            values[index] = value
        return values


def visible(entries: Entries, suppressed: Collection[int]) -> Ranked:
    """What a draw sees of a record where no processor is at work: all but the suppressed ids. May be empty."""
    if not suppressed:
        return entries
    barred = set(suppressed)
    kept = np.array([token not in barred for token in entries.ids.tolist()], np.bool_)
    return Candidates(entries.ids[kept], entries.logits[kept].astype(np.float64))


def needs_vocabulary(params: SamplingParams) -> bool:
    """Whether a replay needs the model's vocabulary: which ids end an answer, or what each spells."""
    return params.ignore_eos or bool(params.constraint)
