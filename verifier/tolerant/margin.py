"""By how much a drawn token loses under the auditor's own logits and the turn's noise.

A provider that knows a turn's noise can move its record a little and have another token drawn: the records then replay,
and are hardly further from the model than rounding. The auditor's own record with the same noise gives the token that
the model draws. An honest token is that one, except where two lie closer than rounding; then it loses by about as much
as rounding moves. A steered token loses by as much as its record was moved. The idea is token-DiFR's (Karvonen et al.,
"DiFR: Inference verification despite nondeterminism", 2025).

How often honest tokens lose hangs on the text, the temperature and the filters: how many ids are nearly drawn. So each
position also has what rounding of the size that the auditor's own replays have there would make of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verifiable.sampling.logits import Ids, Ranked
from verifiable.sampling.sampler import SamplingParams, gumbel

Reals = npt.NDArray[np.float64]

REACH = 3.0
"""How many roundings from a filter's edge (top_k, top_p, min_p) an id may be on the other side of it."""
FLOOR = 1e-7
"""Smallest distance that is told from zero, in logit units: less than one bit of a float32 logit."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What a position's draw hangs on besides the record: the turn's parameters and key, and the position."""

    params: SamplingParams
    key: bytes
    position: int


@dataclass(frozen=True, slots=True)
class Losses:
    """By how many logits each of a record's candidates loses, `lost` (n,) for `ids` (n,); 0 for the one that is drawn.
    An id that the record does not name loses by `rest` at least, less its own noise times the temperature.
    """

    ids: Ids
    lost: Reals
    rest: float

    @classmethod
    def of(cls, mine: Ranked, draw: Draw, rounding: float) -> Losses:
        """What lies within `REACH` roundings of a filter's edge counts as in or out, as is better for the candidate;
        one that is further outside loses by its distance to the last one that is in, at least.
        """
        params = draw.params
        logits = mine.logits.astype(np.float64)
        if params.temperature == 0.0:
            return cls(mine.ids, logits[0] - logits, float(logits[0] - logits[-1]))
        low, high = _edges(logits, params, REACH * rounding)
        scores = logits + params.temperature * gumbel(draw.key, draw.position, mine.ids)
        best = np.maximum.accumulate(scores)
        at = np.arange(len(logits))
        lost: Reals = best[np.minimum(np.maximum(at, low - 1), high - 1)] - scores
        outside = at >= high
        lost[outside] = np.maximum(lost[outside], logits[high - 1] - logits[outside])
        return cls(mine.ids, lost, float(best[high - 1] - logits[-1]))

    def of_token(self, token: int, draw: Draw) -> float:
        at = np.flatnonzero(self.ids == token)
        if len(at):
            return float(self.lost[at[0]])
        noise = gumbel(draw.key, draw.position, np.array([token], np.uint32))
        return max(self.rest - draw.params.temperature * float(noise[0]), 0.0)


@dataclass(frozen=True, slots=True)
class Odds:
    """What the auditor's records say of a position's draw, and the mean and the variance of what rounding makes a drawn
    token lose by, in logits.
    """

    draw: Draw
    records: tuple[Losses, ...]
    mean: float
    variance: float

    @classmethod
    def of(cls, mine: Sequence[Ranked], draw: Draw, rounding: float) -> Odds:
        """`mine` are the candidates of the auditor's records, `rounding` is how far two honest records are apart."""
        records = tuple(Losses.of(one, draw, rounding) for one in mine if len(one.ids))
        size = 2.0 * max(rounding, FLOOR)
        mean = square = 0.0
        for record in records:
            # A bound of the normal distribution's tail at lost / (sqrt 2 * rounding).
            chance = 0.5 * np.exp(-((record.lost / size) ** 2)) / len(records)
            mean += float(record.lost @ chance)
            square += float((record.lost * record.lost) @ chance)
        return cls(draw, records, mean, square)

    def lost(self, token: int) -> float:
        """The margin by which a token loses: the least under any of the records."""
        return min((record.of_token(token, self.draw) for record in self.records), default=0.0)


def _edges(logits: Reals, params: SamplingParams, reach: float) -> tuple[int, int]:
    """The fewest and the most leading candidates that survive the filters if logits are moved by `reach`."""
    kept = min(params.top_k, len(logits))
    low = high = kept
    if len(logits) >= params.top_k:  # else nothing is there for the edge to be before
        low = int(np.count_nonzero(logits[:kept] > logits[min(kept, len(logits) - 1)] + reach))
        high = int(np.count_nonzero(logits >= logits[kept - 1] - reach))
    if params.top_p < 1.0:
        weights = np.exp(logits[:kept] - logits[0])
        mass = weights.cumsum() / weights.sum()
        give = reach * params.top_p * (1.0 - params.top_p)
        low = min(low, 1 + int(np.count_nonzero(mass < params.top_p - give)))
        if params.top_p + give < 1.0:
            high = min(high, 1 + int(np.count_nonzero(mass < params.top_p + give)))
    if params.min_p > 0.0:
        floor = logits[0] + math.log(params.min_p)
        low = min(low, int(np.count_nonzero(logits >= floor + reach)))
        high = min(high, int(np.count_nonzero(logits >= floor - reach)))
    low = max(low, 1)
    return low, max(high, low)
