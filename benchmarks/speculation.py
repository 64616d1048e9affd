"""Speculation never lowers throughput by more than a few percent: `auto` against none, at 1, 4 and 8 answers at once.

Questions that invite repetition, and others. The two engines answer them in turn. What always drafting would do on
this machine is shown beside it, and what share of the drafts was accepted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks._serving import ask, engine
from benchmarks.measure import Figure, in_turn, main, paired

ROUNDS = 9
TOKENS = 64
DRAFTERS = ("none", "auto", "ngram")


def measure() -> Sequence[Figure]:
    figures = []
    for count in (1, 4, 8):
        with ExitStack() as stack:
            engines = {name: stack.enter_context(engine(count, drafter=name)) for name in DRAFTERS}
            calls = {name: partial(ask, opened, count, TOKENS, {"temperature": 0}) for name, opened in engines.items()}
            in_turn(calls, 1)  # warm, and measured by `auto`
            answered = in_turn(calls, ROUNDS)
            rates = {name: [rate for _, rate in rounds] for name, rounds in answered.items()}
            counters = engines["ngram"].scheduler.counters
        figures.append(paired(f"{count} at once, auto ÷ none", rates["auto"], rates["none"], at_least=0.96))
        figures.append(paired(f"{count} at once, always ÷ none", rates["ngram"], rates["none"]))
        share = counters.accepted / max(counters.drafted, 1)
        figures.append(Figure(f"{count} at once, drafts accepted", share, ""))
    return figures


if __name__ == "__main__":
    sys.exit(main(measure, "speculation", __doc__))
