"""A provider that steers: it moves records, as little as it takes, so that ids it does not want are not drawn.

A calibration has it among its deviations, and tests serve with it: what an audit is worth against it is measured.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np

from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import choose, gumbel, survivors
from verifier.tolerant.margin import Draw

Unwanted = Callable[[int], bool]

LEAD = 1e-3
"""By how many logits the id that is wanted then wins: more than a float32 rounds."""


def one_in(count: int) -> Unwanted:
    """One id in so many is unwanted, as a hash gives it."""
    return lambda token: int.from_bytes(hashlib.sha256(b"%d" % token).digest()[:4], "big") % count == 0


def steer(record: Entries, draw: Draw, budget: float, unwanted: Unwanted) -> Entries:
    """The record to commit to: its draw gives the token.

    It is the true one unless that draws an unwanted token, and the next id that is wanted can be made to win with moves
    whose root mean square over the record is at most `budget` logits. The moves are the smallest that do it: what is
    above is lowered and the wanted id raised until they meet.
    """
    kept = survivors(record, draw.params)
    ids, logits = record.ids[:kept], record.logits[:kept].astype(np.float64)
    scores = logits + draw.params.temperature * gumbel(draw.key, draw.position, ids)
    order = np.argsort(-scores)
    rank = next((rank for rank, at in enumerate(order) if not unwanted(int(ids[at]))), 0)
    if rank == 0:
        return record
    wanted, above = order[rank], scores[order[:rank]]
    counts = np.arange(1, rank + 1)
    levels = (scores[wanted] + above.cumsum()) / (counts + 1)  # where so many of those above would meet it
    meet = float(levels.max())
    moves = np.zeros(len(record.ids))
    lowered = order[:rank][above > meet - LEAD]
    moves[lowered] = meet - LEAD - scores[lowered]
    moves[wanted] = meet + LEAD - scores[wanted]
    if math.sqrt(float(np.mean(moves * moves))) > budget:
        return record
    moved = (record.logits + moves).astype(np.float32)
    places = np.lexsort((record.ids, -moved))
    made = Entries(record.ids[places], moved[places])
    return record if unwanted(choose(made, draw.params, draw.key, draw.position)) else made
