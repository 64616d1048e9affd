"""How far a claimed record is from what the auditor computes, in units of the auditor's own rounding.

For a claim and some replays of the auditor's own that differ in rounding only, each position gives two distances: of
the claim from the replays, and of the replays from each other. A distance is the root mean square of the logit
differences over the claim's ids, after their mean is subtracted (a shift of all logits changes no probability). The
ratio of the two over a conversation calibrates itself: whatever makes rounding noisy in one text (a long context, a
flat distribution) makes both noisy. An honest claim is one more rounding of the same numbers, so its ratio is near 1,
whatever the model; docs/tolerant.md has the measurements.

An id that only one of two records names is not ignored, or a cheat could hide in it: its logit in the other record
is at most that record's last one, so the difference is at least what is above that.

Distances say nothing of the draw: a record that was moved just so far that another token is drawn is hardly further
away. So each position also has the margin by which its token loses under the auditor's own logits (`margin`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from verifiable.sampling.logits import Candidates, Entries, Ranked
from verifiable.session.challenge import place_window
from verifier.tolerant.margin import FLOOR, Draw, Odds

Reals = npt.NDArray[np.float64]

TAIL = 8
"""The tail is the largest one in this many of a conversation's positions."""
FARTHEST = 20.0
"""Log ratios are cut off here: e^20 is a claim that has nothing to do with the model."""


def distance(one: Ranked, other: Ranked) -> float:
    """Root mean square of the centred logit differences of what two draws see of their records, in logit units.

    Args:
        one: the one whose ids count.
        other: may have more ids; those above `one`'s last entry that `one` does not name count as well.
    """
    if not len(one.ids) or not len(other.ids):
        return 0.0 if len(one.ids) == len(other.ids) else FARTHEST
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


def leading(record: Ranked, count: int) -> Ranked:
    """The first entries of a record."""
    if isinstance(record, Entries):
        return Entries(record.ids[:count], record.logits[:count])
    return Candidates(record.ids[:count], record.logits[:count])


@dataclass(frozen=True, slots=True)
class Distances:
    """A conversation's distances, one a position, in logits.

    Args:
        claim, replays: of the claim from the replays, and of the replays from each other: root mean squares.
        lost: the margin of the drawn token.
        likely, variance: what rounding makes of such a margin: its mean, and its variance.
        lot: decides where in the conversation the positions are, and where shorter windows of them lie (`challenge`).
        tokens: those of the whole conversation; as many as were measured where None.
    """

    claim: Reals
    replays: Reals
    lost: Reals
    likely: Reals
    variance: Reals
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
        claim, replays, lost, likely, variance = (column[part] for column in self.columns)
        return Distances(claim, replays, lost, likely, variance, self.lot, self.total)

    @property
    def informative(self) -> int:
        """At how many positions there was anything to compare: more than one id that a draw could take."""
        return int(np.count_nonzero(self.replays))

    @property
    def columns(self) -> tuple[Reals, Reals, Reals, Reals, Reals]:
        return self.claim, self.replays, self.lost, self.likely, self.variance

    @classmethod
    def joined(cls, parts: Sequence[Distances], lot: int = 0, tokens: int | None = None) -> Distances:
        """The parts of one conversation, in order."""
        none = np.zeros((5, 0))
        claim, replays, lost, likely, variance = np.concatenate([none, *(np.stack(part.columns) for part in parts)], 1)
        return cls(claim, replays, lost, likely, variance, lot, tokens)


@dataclass(frozen=True, slots=True)
class Ground:
    """What the auditor knows of a turn's positions before it looks at a claim.

    Args:
        replays: what a draw sees of the auditor's records, one a position for each replay.
        apart: how far the replays are from each other, (positions,).
        odds: what they say of each draw.
    """

    replays: Sequence[Sequence[Ranked]]
    apart: Reals
    odds: Sequence[Odds]

    @classmethod
    def of(
        cls,
        replays: Sequence[Sequence[Ranked]],
        draws: Sequence[Draw],
        sizes: Sequence[int],
    ) -> Ground:
        """Two replays or more; `sizes` are how many ids a draw sees of the claim's records."""
        pairs = list(combinations(range(len(replays)), 2))
        others = np.zeros((len(sizes), len(pairs)))
        for row, size in enumerate(sizes):
            for column, (one, other) in enumerate(pairs):
                others[row, column] = distance(leading(replays[one][row], size), replays[other][row])
        apart = _across(others)
        odds = [Odds.of([one[row] for one in replays], draw, float(apart[row])) for row, draw in enumerate(draws)]
        return cls(replays, apart, odds)

    def measure(self, claim: Sequence[Ranked], tokens: Sequence[int]) -> Distances:
        """The distances of a claim, a record a position, of which these tokens were drawn."""
        mine = np.zeros((len(claim), len(self.replays)))
        for row, said in enumerate(claim):
            for column, replay in enumerate(self.replays):
                mine[row, column] = distance(said, replay[row])
        lost = [odds.lost(token) for odds, token in zip(self.odds, tokens, strict=True)]
        likely, variance = np.array([(odds.mean, odds.variance) for odds in self.odds]).reshape(-1, 2).T
        return Distances(_across(mine), self.apart, np.array(lost, np.float64), likely, variance)


def _across(table: Reals) -> Reals:
    across: Reals = np.sqrt(np.mean(table * table, axis=1))
    return across


@dataclass(frozen=True, slots=True)
class Score:
    """A conversation's three statistics; honest rounding gives about 0.

    mean: natural logarithm of a ratio: root mean square over all positions, claim against replays.
    tail: the same of the mean of the largest eighth of the positions: a few bad positions among many good ones show
        here.
    margin: by how much the drawn tokens lose in all, less what rounding makes likely, in its standard deviations.
    """

    mean: float
    tail: float
    margin: float


def score(distances: Distances) -> Score:
    """The statistics of a conversation of at least one position."""
    rounding = max(_root(distances.replays), FLOOR)
    # One rounding more, so that a text where nothing is nearly drawn does not make much of one token.
    spread = math.sqrt(float(distances.variance.sum()) + rounding * rounding)
    return Score(
        _log_ratio(_root(distances.claim), _root(distances.replays)),
        _log_ratio(_largest(distances.claim), _largest(distances.replays)),
        float(distances.lost.sum() - distances.likely.sum()) / spread,
    )


def _root(values: Reals) -> float:
    return math.sqrt(float(np.mean(values * values)))


def _largest(values: Reals) -> float:
    count = -(-len(values) // TAIL)
    return float(np.mean(np.sort(values)[-count:]))


def _log_ratio(above: float, below: float) -> float:
    ratio = math.log(max(above, FLOOR)) - math.log(max(below, FLOOR))
    return min(max(ratio, -FARTHEST), FARTHEST)
