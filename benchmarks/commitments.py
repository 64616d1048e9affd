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

from benchmarks._serving import ask, engine
from benchmarks.measure import Figure, main, paired

ROUNDS = 31
TOKENS = 24


def measure() -> Sequence[Figure]:
    figures = []
    for count in (1, 4, 8):
        with engine(count) as provider:
            ask(provider, count, 16, {"temperature": 0.8, "seed": 1})
            counters = provider.scheduler.counters
            rates: dict[str, list[float]] = {"receipt": [], "none": []}
            beside = {"receipt": 0.0, "none": 0.0}
            began = counters.python_seconds + counters.decode_seconds
            for turn in range(ROUNDS):
                kinds = ("receipt", "none") if turn % 2 else ("none", "receipt")
                for kind in kinds:
                    fields = {"temperature": 0.8, "seed": 1, "verifiable": {"commitments": kind}}
                    before = counters.python_seconds
                    rates[kind].append(ask(provider, count, TOKENS, fields)[1])
                    beside[kind] += counters.python_seconds - before
            seconds = (counters.python_seconds + counters.decode_seconds - began) / 2
        figures.append(Figure(f"{count} at once, commitments on", statistics.median(rates["receipt"]), "tokens/s"))
        share = 100 * (beside["receipt"] - beside["none"]) / seconds
        figures.append(Figure(f"{count} at once, the scheduler's time for commitments", share, "%", at_most=1))
        figures.append(paired(f"{count} at once, on ÷ off", rates["receipt"], rates["none"], at_least=0.99))
    return figures


if __name__ == "__main__":
    sys.exit(main(measure, "commitments", __doc__))
