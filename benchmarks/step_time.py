"""A step at 8 answers costs less than a millisecond of Python: top-k, sampling, records and bookkeeping together.

The scheduler's own processor time outside llama.cpp, for each decode step, with commitments and without, greedy and
sampled. Time in which it waits for a processor or for Python's lock is not in it. Each case is measured twice: by steps
that follow each other without a model, which shows what a step computes, and in an engine, where the model has pushed
Python out of the processor's cache before each step, and where answers begin and end.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks._serving import ask, engine
from benchmarks._steps import rounds
from benchmarks.measure import Figure, main

SLOTS = 8
TOKENS = 64
STEPS = 100
CASES: Mapping[str, tuple[Mapping[str, Any], float | None]] = {
    "sampled, with commitments": ({}, 1.0),
    "sampled, without": ({"verifiable": {"commitments": "none"}}, 1.0),
    "greedy, with commitments": ({"temperature": 0.0}, 1.0),
    "sampled, with commitments and penalties": ({"frequency_penalty": 0.5}, None),
}


def measure() -> Sequence[Figure]:
    asked = {name: {"temperature": 0.8, "seed": 1, **fields} for name, (fields, _) in CASES.items()}
    figures = [
        Figure(f"Python in a step of {SLOTS}, {name}, no model", 1000.0 * taken, "ms", at_most=CASES[name][1])
        for name, taken in rounds(asked, SLOTS, STEPS).items()
    ]
    with engine(SLOTS, drafter="auto") as provider:
        counters = provider.scheduler.counters
        ask(provider, SLOTS, 8, {"temperature": 0.8, "seed": 1})
        for name, fields in asked.items():
            cpu, steps = counters.python_cpu, counters.steps
            ask(provider, SLOTS, TOKENS, fields)
            taken = 1000.0 * (counters.python_cpu - cpu) / (counters.steps - steps)
            figures.append(Figure(f"Python in a step of {SLOTS}, {name}", taken, "ms", at_most=CASES[name][1]))
    return figures


if __name__ == "__main__":
    sys.exit(main(measure, "step_time", __doc__))
