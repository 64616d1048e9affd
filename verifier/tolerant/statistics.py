"""How far a claimed record is from what the auditor computes, in units of the auditor's own rounding.

For a claim and some replays of the auditor's own that differ in rounding only, each position gives two distances: of
the claim from the replays, and of the replays from each other. A distance is the root mean square of the logit
differences over the claim's ids, after their mean is subtracted (a shift of all logits changes no probability). The
ratio of the two over a conversation calibrates itself: whatever makes rounding noisy in one text (a long context, a
flat distribution) makes both noisy. An honest claim is one more rounding of the same numbers, so its ratio is near 1,
whatever the model; docs/tolerant.md has the measurements.

An id that only one of two records names is not ignored, or a cheat could hide in it: its logit in the other record
is at most that record's last one, so the difference is at least what is above that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from verifiable.sampling.logits import Entries
from verifiable.session.challenge import place_window

Reals = npt.NDArray[np.float64]

TAIL = 8
"""The tail is the largest one in this many of a conversation's positions."""
FLOOR = 1e-7
"""Smallest distance that is told from zero, in logit units: less than one bit of a float32 logit."""
FARTHEST = 20.0
"""Log ratios are cut off here: e^20 is a claim that has nothing to do with the model."""


def distance(one: Entries, other: Entries) -> float:
    """Root mean square of the centred logit differences of two records, in logit units.

    Args:
        one: the record whose ids count.
        other: may have more entries; those above `one`'s last entry that `one` does not name count as well.
    """
    logits = one.logits.astype(np.float64)
    order = np.argsort(other.ids, kind="stable")
    at = np.minimum(np.searchsorted(other.ids, one.ids, sorter=order), len(order) - 1)
    place = order[at]
    known = other.ids[place] == one.ids
    # Not named there: at most the last logit there, so at least this much apart.
    bound = np.minimum(logits, float(other.logits[-1]))
    differences = logits - np.where(known, other.logits[place].astype(np.float64), bound)
    above = int(np.count_nonzero(other.logits > one.logits[-1]))
    hidden = np.isin(other.ids[:above], one.ids, assume_unique=True, invert=True)
    if hidden.any():
        missing = logits[-1] - other.logits[:above][hidden].astype(np.float64)
        differences = np.concatenate([differences, missing])
    centred = differences - differences.mean()
    return math.sqrt(float(np.mean(centred * centred)))


@dataclass(frozen=True, slots=True)
class Distances:
    """A conversation's distances, one a position: of the claim from the replays, and of the replays from each other.

    Each is the root mean square over the replays, or over their pairs. `lot` decides where in the conversation the
    positions are, and where shorter windows of them lie (`challenge`). `tokens` are those of the whole conversation; as
    many as were measured where None.
    """

    claim: Reals
    replays: Reals
    lot: int = 0
    tokens: int | None = None

    def __len__(self) -> int:
        return len(self.replays)

    @property
    def total(self) -> int:
        return len(self) if self.tokens is None else self.tokens

    @property
    def start(self) -> int:
        """The conversation's first position that was measured."""
        return place_window(self.lot, self.total, len(self))

    def window(self, length: int) -> Distances:
        """The window of `length` positions that the lot gives; at most what was measured."""
        length = min(length, len(self))
        first = place_window(self.lot, self.total, length) - self.start
        part = slice(first, first + length)
        return Distances(self.claim[part], self.replays[part], self.lot, self.total)

    @classmethod
    def joined(cls, parts: Sequence[Distances], lot: int = 0, tokens: int | None = None) -> Distances:
        """The parts of one conversation, in order."""
        none = np.zeros(0)
        return cls(
            np.concatenate([none, *(part.claim for part in parts)]),
            np.concatenate([none, *(part.replays for part in parts)]),
            lot,
            tokens,
        )


def measure(claim: Sequence[Entries], replays: Sequence[Sequence[Entries]]) -> Distances:
    """The distances of a turn; two replays or more, each with at least as many entries a position as the claim."""
    mine = np.zeros((len(claim), len(replays)))
    pairs = list(combinations(range(len(replays)), 2))
    others = np.zeros((len(claim), len(pairs)))
    for row, said in enumerate(claim):
        count = len(said.ids)
        for column, replay in enumerate(replays):
            mine[row, column] = distance(said, replay[row])
        for column, (one, other) in enumerate(pairs):
            full = replays[one][row]
            others[row, column] = distance(Entries(full.ids[:count], full.logits[:count]), replays[other][row])
    return Distances(_across(mine), _across(others))


def _across(table: Reals) -> Reals:
    across: Reals = np.sqrt(np.mean(table * table, axis=1))
    return across


@dataclass(frozen=True, slots=True)
class Score:
    """A conversation's two statistics, natural logarithms of ratios; honest rounding gives about 0.

    mean: root mean square over all positions, claim against replays.
    tail: mean of the largest eighth of the positions, claim against replays: a few bad positions among many good
        ones show here.
    """

    mean: float
    tail: float


def score(distances: Distances) -> Score:
    """The statistics of a conversation of at least one position."""
    return Score(
        _log_ratio(_root(distances.claim), _root(distances.replays)),
        _log_ratio(_largest(distances.claim), _largest(distances.replays)),
    )


def _root(values: Reals) -> float:
    return math.sqrt(float(np.mean(values * values)))


def _largest(values: Reals) -> float:
    count = -(-len(values) // TAIL)
    return float(np.mean(np.sort(values)[-count:]))


def _log_ratio(above: float, below: float) -> float:
    ratio = math.log(max(above, FLOOR)) - math.log(max(below, FLOOR))
    return min(max(ratio, -FARTHEST), FARTHEST)
