"""Commitments cost nothing that a client notices: decoding with them on against off, at 1, 4 and 8 answers at once.

The same engine answers the same questions in turn with `commitments` "receipt" and "none": records, tree, store with
fsync and receipts against nothing of that kind. Sampling is the same in both. The median of the ratios of neighbouring
rounds counts.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from benchmarks._serving import ask, engine
from benchmarks.measure import Figure, main

ROUNDS = 5
TOKENS = 96


def measure() -> Sequence[Figure]:
    figures = []
    for count in (1, 4, 8):
        with engine(count) as provider:
            ask(provider, count, 16, {"temperature": 0.8, "seed": 1})
            rates: dict[str, list[float]] = {"receipt": [], "none": []}
            for turn in range(ROUNDS):
                kinds = ("receipt", "none") if turn % 2 else ("none", "receipt")
                for kind in kinds:
                    fields = {"temperature": 0.8, "seed": 1, "verifiable": {"commitments": kind}}
                    rates[kind].append(ask(provider, count, TOKENS, fields)[1])
        ratios = [on / off for on, off in zip(rates["receipt"], rates["none"], strict=True)]
        figures.append(Figure(f"{count} at once, commitments on", statistics.median(rates["receipt"]), "tokens/s"))
        figures.append(Figure(f"{count} at once, on ÷ off", statistics.median(ratios), "×", at_least=0.99))
    return figures


if __name__ == "__main__":
    sys.exit(main(measure, "commitments", __doc__))
