"""The k largest logits of a row, in the order that a record commits to, and their byte form.

Order: descending logit; equal logits, lower token id first. The order is total, so two machines that have the same
bits write the same record. Finding them costs a fraction of what `argpartition` of the row does, and always the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verifiable import limits
from verifiable.errors import EngineError, MalformedError

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.uint32]

_SETS = 2048
"""Sets that a row is dealt out to; twice as many where each would have 64 entries or more. More sets take longer to
rank, and fewer entries are then looked at twice."""


@dataclass(frozen=True, slots=True)
class Entries:
    """A record's entries: `ids` (k,) uint32 and `logits` (k,) float32, in record order."""

    ids: Ids
    logits: Floats

    def id_bytes(self) -> bytes:
        return self.ids.astype("<u4", copy=False).tobytes()

    def logit_bytes(self) -> bytes:
        return self.logits.astype("<f4", copy=False).tobytes()

    @classmethod
    def from_bytes(cls, ids: bytes, logits: bytes) -> Entries:
        """Read entries strictly: equal counts, finite logits, record order, no id twice. Raises MalformedError."""
        if len(ids) != len(logits) or len(ids) % 4 or not 4 <= len(ids) <= 4 * limits.ENTRIES:
            raise MalformedError(
                "record entries",
                expected=f"as many 4-byte ids as 4-byte logits, 1 to {limits.ENTRIES} of each",
                found=f"{len(ids)} bytes of ids and {len(logits)} bytes of logits",
            )
        entries = cls(np.frombuffer(ids, "<u4"), np.frombuffer(logits, "<f4"))
        if not np.isfinite(entries.logits).all():
            raise MalformedError("record logits", expected="finite numbers", found="a NaN or an infinity")
        left, right = entries.logits[:-1], entries.logits[1:]
        ordered = (left > right) | ((left == right) & (entries.ids[:-1] < entries.ids[1:]))
        if not ordered.all() or len(np.unique(entries.ids)) != len(entries.ids):
            raise MalformedError(
                "record entries", expected="descending logits, ties by lower id, no id twice", found="another order"
            )
        return entries


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a draw chooses from where a processor is active: `ids` (n,) uint32 in descending order of the processed
    logit (equal ones: lower id first), and those `logits` (n,) float64.
    """

    ids: Ids
    logits: npt.NDArray[np.float64]


Ranked = Entries | Candidates
"""Ids in the order of their logits: a record as it stands, or what the processors made of it."""


class TopK:
    """Finds the k entries of one logits row after another."""

    __slots__ = ("k",)

    def __init__(self, k: int) -> None:
        if not 1 <= k <= limits.ENTRIES:
            raise EngineError("top-k size", expected=f"1 to {limits.ENTRIES}", found=str(k))
        self.k = k

    def __call__(self, row: Floats) -> Entries:
        """The `min(k, n_vocab)` largest entries of `row` (n_vocab,) float32; a NaN or infinity is an EngineError."""
        index = superset(row, min(self.k, len(row)))
        values = row.take(index)
        order = (-values).argsort(kind="stable")[: self.k]  # equal logits stay in the order of their ids
        logits = values.take(order)
        if not (math.isfinite(logits[0]) and math.isfinite(logits[-1])):
            raise not_finite()
        return Entries(index.take(order).astype(np.uint32), logits)


def not_finite() -> EngineError:
    return EngineError(
        "the model's logits",
        expected="finite numbers",
        found="a NaN or an infinity",
        hint="The model file may be damaged: compare its hash with the published one.",
    )


def superset(row: Floats, k: int) -> npt.NDArray[np.intp]:
    """Indices of a superset of the k largest, ascending. Raises EngineError where the row has a NaN.

    The row is dealt out to sets. Each of the k sets with the largest maxima has an entry that is not below the k-th of
    these maxima, so the row has k such entries, and no other entry is among the k largest. They all lie in sets whose
    maximum is not below it either, or in the rest that was not dealt out.
    """
    size = len(row)
    sets = _SETS if size < 64 * _SETS else 2 * _SETS
    if size < 4 * sets or 2 * k > sets:
        if np.isnan(row).any():  # comparisons would pass over it
            raise not_finite()
        if size <= k:
            return np.arange(size)
        return np.flatnonzero(row >= np.partition(row, size - k)[size - k])
    dealt = size // sets * sets
    maxima = np.maximum.reduce(row[:dealt].reshape(-1, sets))  # whole slices at once: this order is the fast one
    ranked = maxima.copy()
    ranked.partition(sets - k)
    best = ranked[sets - k :]
    if math.isnan(np.maximum.reduce(best)):  # a set with a NaN has it as its maximum, and is sorted last
        raise not_finite()
    bound = best[0]
    places = (np.arange(0, dealt, sets)[:, None] + (maxima >= bound).nonzero()[0]).reshape(-1)
    indices: npt.NDArray[np.intp] = places.take((row.take(places) >= bound).nonzero()[0])
    if dealt < size:
        rest = row[dealt:]
        if np.isnan(rest).any():
            raise not_finite()
        indices = np.concatenate((indices, dealt + (rest >= bound).nonzero()[0]))
    return indices
