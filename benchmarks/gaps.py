"""Four answers in eight slots: throughput where gaps among them are closed, against where they stay.

llama.cpp computes sequences in one piece only where their numbers follow each other. Every other of eight answers ends
at once, and the others go on; one engine moves them together after four steps, the other leaves them where they are.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks._serving import SUBJECTS, TimedSink, decoding_rate, engine, submit
from benchmarks.measure import Figure, in_turn, main, paired
from engine.engine import Engine
from engine.generation import collect

SLOTS = 8
TOKENS = 32
SETTLED = 10
"""Tokens after which the rate is taken."""
ROUNDS = 9


def rate(provider: Engine) -> float:
    """Tokens a second of the answers that go on."""
    sinks = []
    for number, subject in enumerate(SUBJECTS):
        sinks.append(TimedSink())
        body = {"prompt": f"A long story about {subject}:", "max_tokens": TOKENS if number % 2 else 2}
        body |= {"temperature": 0, "ignore_eos": True}
        submit(provider, body, sinks[-1])
    for sink in sinks:
        collect(sink)
    return decoding_rate([sink.times for sink in sinks if len(sink.times) == TOKENS], SETTLED)


def measure() -> Sequence[Figure]:
    with ExitStack() as stack:
        together, apart = (stack.enter_context(engine(SLOTS, gap_steps=steps)) for steps in (4, None))
        rates = in_turn({"together": partial(rate, together), "apart": partial(rate, apart)}, ROUNDS)
        return [
            Figure("4 answers in 8 slots, moved together", statistics.median(rates["together"]), "tokens/s"),
            paired("moved together ÷ with gaps", rates["together"], rates["apart"], at_least=1.1),
            Figure("sequences moved in a round", together.scheduler.counters.moved / ROUNDS, ""),
        ]


if __name__ == "__main__":
    sys.exit(main(measure, "gaps", __doc__))
