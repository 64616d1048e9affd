"""Commitments cost nothing that a client notices: decoding with them on against off, at 1, 4 and 8 answers at once.

The same engine answers the same questions in turn with `commitments` "receipt" and "none": records, tree, store with
fsync and receipts against nothing of that kind. Sampling is the same in both. The median of the ratios of neighbouring
rounds counts; what the scheduler computes for them beside llama.cpp is given too, as a share of a step, since it varies
less.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks._serving import ask, engine
from benchmarks.measure import Figure, in_turn, main, paired
from engine.engine import Engine

ROUNDS = 31
TOKENS = 24


def measure() -> Sequence[Figure]:
    figures = []
    for count in (1, 4, 8):
        with engine(count) as provider:
            ask(provider, count, 16, {"temperature": 0.8, "seed": 1})
            counters = provider.scheduler.counters
            began = counters.python_seconds + counters.decode_seconds
            given = in_turn({kind: partial(once, provider, count, kind) for kind in ("receipt", "none")}, ROUNDS)
            seconds = (counters.python_seconds + counters.decode_seconds - began) / 2
        (on, beside), (off, without) = (zip(*given[kind], strict=True) for kind in ("receipt", "none"))
        figures.append(Figure(f"{count} at once, commitments on", statistics.median(on), "tokens/s"))
        share = 100 * (sum(beside) - sum(without)) / seconds
        figures.append(Figure(f"{count} at once, the scheduler's time for commitments", share, "%", at_most=1))
        figures.append(paired(f"{count} at once, on ÷ off", on, off, at_least=0.99))
    return figures


def once(provider: Engine, count: int, kind: str) -> tuple[float, float]:
    """Decoded tokens a second, and the seconds that the scheduler took beside llama.cpp."""
    before = provider.scheduler.counters.python_seconds
    fields = {"temperature": 0.8, "seed": 1, "verifiable": {"commitments": kind}}
    rate = ask(provider, count, TOKENS, fields)[1]
    return rate, provider.scheduler.counters.python_seconds - before


if __name__ == "__main__":
    sys.exit(main(measure, "commitments", __doc__))
