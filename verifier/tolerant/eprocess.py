"""An anytime-valid sequential test: is this provider's conversation one more honest one?

Evidence is wealth in a fair game. Before each conversation the auditor bets on where its statistic will rank among
honest ones; as long as the provider is honest no strategy of betting makes the wealth grow, so the probability that
it ever reaches 1/alpha is at most alpha (Ville's inequality), however often and whenever the auditor looks. The unit
is the conversation, since the noise of its positions is correlated. See Vovk, Gammerman, Shafer, "Algorithmic
Learning in a Random World", 2nd ed., chapter 8, for the ranks, and Ramdas et al., "Game-theoretic statistics and
safe anytime-valid inference" (2023), for the rest.

Two kinds of bets, half of the wealth on each:

- rank: the conformal p-value of a conversation among the calibration's and all earlier ones of the provider. Exact
  when conversations are exchangeable, whatever their distribution; n conversations of calibration and m of the
  provider can give at most the binomial coefficient (n + m over m).
- far: how far beyond the calibration it lies, under a tail that is heavier than any that was seen: Student's t with
  4 degrees of freedom at 1.5 times the calibration's spread. One conversation of another model needs no more than
  this; the assumption is part of what a verdict states.

Both are against a claim somewhat noisier than the calibration (`MARGIN`). Each is held for every statistic of a score,
with a third of the wealth, and against every honest class of the calibration; the e-value is that of the class that
fits best. A mean of wealths is wealth in a fair game too, so the bound on accusations is one for all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from verifiable.errors import PolicyError
from verifier.tolerant.statistics import Score

Reals = npt.NDArray[np.float64]

ALPHA = 1e-6
"""Default bound on the probability of ever accusing an honest provider."""
RUNS = 1000
"""Simulated audits from which a calibration tells what would have been caught."""
FEWEST = 12
"""Fewest calibration conversations of a class."""

SHARES = (0.95, 0.5, 0.2, 0.08)
"""Shares of the provider's conversations that are taken for dishonest, each in its own bet."""
WIDTHS = (1.0, 3.0)
"""How much wider than the ranks of the earlier outliers a bet is."""
NEAR = 0.15
"""Ranks below this count as outliers when the next bet is made."""
POWERS = (0.04, 0.1, 0.25, 0.6)
"""Exponents of the bets k p^(k-1) on the far tail."""
SPREAD = 1.5
"""The tail's scale, in calibrated standard deviations."""
MARGIN = 0.1
"""How much larger an honest log ratio may be than the calibration's, which knows only the roundings of one machine.

A long enough test tells any two roundings apart. So the claim that is tested is "no more than a tenth noisier than a
calibrated class"; what lies within that can't be told, and is reported as such.
"""
LEAST_SPREAD = 0.01
"""Smallest standard deviation of a log ratio that is believed."""
LEAST_MARGIN_SPREAD = 1.0
"""The same of margins, which are in standard deviations of what rounding makes likely."""
STATISTICS = ("mean", "tail", "margin")
"""The statistics of a score, in the order of bets and of columns."""


def student4(t: Reals) -> Reals:
    """P(T > t) of Student's t with 4 degrees of freedom, in closed form and without cancellation for large t."""
    root = np.sqrt(t * t + 4.0)
    rest = np.where(t > 0.0, 4.0 / (root * (root + np.abs(t))), 1.0 + np.abs(t) / root)
    tail: Reals = np.maximum(rest * rest * (3.0 - rest) / 4.0, 1e-300)
    return tail


class Bets:
    """The wealth of all bets on one statistic against one class, for several independent runs at once: 1 for an audit,
    many for a simulation. `calibration` has the class's statistics, one a conversation; `least` is the smallest
    standard deviation that they are believed to have.
    """

    def __init__(self, calibration: Reals, runs: int = 1, least: float = LEAST_SPREAD) -> None:
        if len(calibration) < FEWEST:
            raise PolicyError("too few conversations to calibrate with", expected=str(FEWEST), found=len(calibration))
        self._known = np.sort(calibration)
        self._mean = float(calibration.mean())
        spread = max(float(calibration.std(ddof=1)), least)
        self._scale = SPREAD * spread * math.sqrt(1.0 + 1.0 / len(calibration))
        self._seen = np.zeros((runs, 0))
        self._outliers = np.zeros(runs)
        self._rank = np.zeros((runs, len(SHARES) * (len(WIDTHS) + 1)))
        self._far = np.zeros((runs, len(SHARES) * len(POWERS)))

    def add(self, values: Reals) -> None:
        """Settle the bets on each run's next conversation, whose statistics are `values` (runs,)."""
        total = len(self._known) + self._seen.shape[1] + 1
        # How many are at least as large, the new one included: never smaller than the smoothed rank, so still valid.
        above = len(self._known) - np.searchsorted(self._known, values, side="left")
        above = above + (self._seen >= values[:, None]).sum(axis=1) + 1
        ranks = above / total
        column = 0
        for width in (*WIDTHS, None):
            edge = np.full_like(ranks, NEAR) if width is None else np.minimum(width * (self._outliers + 1) / total, 0.5)
            for share in SHARES:
                self._rank[:, column] += np.log(1.0 - share + np.where(ranks <= edge, share / edge, 0.0))
                column += 1
        far = student4((values - self._mean) / self._scale)
        for column, (share, power) in enumerate(product(SHARES, POWERS)):
            bet = math.log(power) + (power - 1.0) * np.log(far)
            self._far[:, column] += np.logaddexp(math.log(1.0 - share), math.log(share) + bet)
        self._outliers += ranks <= NEAR
        self._seen = np.concatenate([self._seen, values[:, None]], axis=1)

    def rank(self) -> Reals:
        """Natural logarithm of the wealth of the rank bets, (runs,)."""
        return _average(self._rank)

    def far(self) -> Reals:
        """Natural logarithm of the wealth of the bets on the far tail, (runs,)."""
        return _average(self._far)


def _average(logs: Reals) -> Reals:
    top = logs.max(axis=1)
    logs_of_means: Reals = top + np.log(np.mean(np.exp(logs - top[:, None]), axis=1))
    return logs_of_means


class EProcess:
    """The whole test: wealth against each honest class, and the e-value that decides.

    `classes` has the scores of each class's calibration conversations, `runs` is as in `Bets`. Raises PolicyError where
    a class has too few conversations, or there is none.
    """

    def __init__(self, classes: Mapping[str, Sequence[Score]], runs: int = 1) -> None:
        if not classes:
            raise PolicyError("a calibration without an honest class", expected="one or more", found="none")
        # What is MARGIN for log ratios is in the margins already: a calibration draws them from noisier claims.
        extra, least = (MARGIN, MARGIN, 0.0), (LEAST_SPREAD, LEAST_SPREAD, LEAST_MARGIN_SPREAD)
        self._bets = {
            name: tuple(Bets(*each) for each in zip((table(scores) + extra).T, (runs,) * 3, least, strict=True))
            for name, scores in classes.items()
        }

    def add(self, scores: Reals) -> None:
        """Take the next conversation of each run into account, (runs, 3)."""
        for bets in self._bets.values():
            for bet, values in zip(bets, scores.T, strict=True):
                bet.add(values)

    def logs(self) -> Reals:
        """Natural logarithm of the e-value of each run."""
        lowest: Reals = np.min([_of_class(bets) for bets in self._bets.values()], axis=0)
        return lowest

    def by_kind(self) -> tuple[float, float]:
        """The natural logarithms of the first run's e-values from ranks alone, and from far tails alone."""
        rank = min(float(_average(np.stack([bet.rank() for bet in bets], 1))[0]) for bets in self._bets.values())
        far = min(float(_average(np.stack([bet.far() for bet in bets], 1))[0]) for bets in self._bets.values())
        return rank, far

    def by_statistic(self) -> dict[str, float]:
        """The natural logarithms of the first run's e-values from each statistic alone."""
        return {
            name: min(float(_of_class(bets[at : at + 1])[0]) for bets in self._bets.values())
            for at, name in enumerate(STATISTICS)
        }


def table(scores: Sequence[Score]) -> Reals:
    """Scores as an array, (n, 3)."""
    rows: Reals = np.array([(one.mean, one.tail, one.margin) for one in scores], np.float64).reshape(-1, 3)
    return rows


def _of_class(bets: Sequence[Bets]) -> Reals:
    return _average(np.stack([part for bet in bets for part in (bet.rank(), bet.far())], axis=1))


@dataclass(frozen=True, slots=True)
class Path:
    """The e-value after each conversation, as natural logarithms, and where it first reached 1/alpha (None: never).

    `rank` and `far` are what the two kinds of bets come to at the end, each by itself, and `statistics` what each
    statistic does (where it crossed, at that point).
    """

    logs: tuple[float, ...]
    crossed: int | None
    rank: float
    far: float
    statistics: Mapping[str, float]

    @property
    def highest(self) -> float:
        return max(self.logs, default=0.0)


def run(classes: Mapping[str, Sequence[Score]], scores: Sequence[Score], alpha: float = ALPHA) -> Path:
    """Follow one provider's conversations in the order in which they were drawn."""
    process = EProcess(classes)
    logs: list[float] = []
    crossed, statistics = None, process.by_statistic()
    for at, row in enumerate(table(scores)):
        process.add(row[None])
        logs.append(float(process.logs()[0]))
        if crossed is None:
            statistics = process.by_statistic()
            crossed = at if logs[-1] >= -math.log(alpha) else None
    return Path(tuple(logs), crossed, *process.by_kind(), statistics)


def power(
    classes: Mapping[str, Sequence[Score]],
    scores: Sequence[Score],
    *,
    alpha: float = ALPHA,
    share: float = 1.0,
    honest: Sequence[Score] = (),
    most: int = 64,
    runs: int = RUNS,
    seed: int = 0,
) -> Reals:
    """The probability of having crossed 1/alpha after 1, 2, … `most` conversations, (most,).

    Conversations are drawn with replacement from `scores`, and with probability 1 - `share` from `honest`.
    """
    rng = np.random.default_rng(seed)
    process = EProcess(classes, runs)
    bad = table(scores)
    good = table(honest) if honest else bad
    crossed = np.zeros(runs, bool)
    curve = np.zeros(most)
    for at in range(most):
        rows = bad[rng.integers(len(bad), size=runs)]
        if share < 1.0:
            other = good[rng.integers(len(good), size=runs)]
            rows = np.where((rng.random(runs) < share)[:, None], rows, other)
        process.add(rows)
        crossed |= process.logs() >= -math.log(alpha)
        curve[at] = crossed.mean()
    return curve


def needed(curve: Reals, wanted: float) -> int | None:
    """How many conversations a power curve needs to reach `wanted`; None where it does not."""
    reached = np.flatnonzero(curve >= wanted)
    return int(reached[0]) + 1 if len(reached) else None
