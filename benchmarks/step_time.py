"""A step at 8 answers costs less than a millisecond of Python: top-k, sampling, records and bookkeeping together.

The scheduler's own processor time outside llama.cpp, for each decode step, with commitments and without, greedy and
sampled. Time in which it waits for a processor or for Python's lock is not in it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks._serving import ask, engine
from benchmarks.measure import Figure, main

SLOTS = 8
TOKENS = 64


def measure() -> Sequence[Figure]:
    figures = []
    with engine(SLOTS, drafter="auto") as provider:
        counters = provider.scheduler.counters
        ask(provider, SLOTS, 8, {"temperature": 0.8, "seed": 1})
        cases: tuple[tuple[str, dict[str, Any], float | None], ...] = (
            ("sampled, with commitments", {}, 1.0),
            ("sampled, without", {"verifiable": {"commitments": "none"}}, 1.0),
            ("greedy, with commitments", {"temperature": 0.0}, 1.0),
            ("sampled, with commitments and penalties", {"frequency_penalty": 0.5}, None),
        )
        for name, fields, bound in cases:
            cpu, steps = counters.python_cpu, counters.steps
            ask(provider, SLOTS, TOKENS, {"temperature": 0.8, "seed": 1, **fields})
            taken = 1000.0 * (counters.python_cpu - cpu) / (counters.steps - steps)
            figures.append(Figure(f"Python in a step of {SLOTS}, {name}", taken, "ms", at_most=bound))
    return figures


if __name__ == "__main__":
    sys.exit(main(measure, "step_time", __doc__))
