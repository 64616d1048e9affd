"""No answer in the place of another makes a verdict wrong: the whole substitution matrix of tests/adversary.

Each question that a verifier asks of a world of two providers, with every answer of the routes that it takes replaced
by every other that anybody there ever gave. Wrong is a verdict that verifies a cheated turn, accuses an honest
provider, or verifies less than was asked.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Figure, main
from tests.adversary.substitution import World, judge


def measure() -> Sequence[Figure]:
    cells, wrong, statuses = 0, 0, Counter[str]()
    with TemporaryDirectory() as folder:
        for name, question in World(Path(folder)).cells():
            cells += 1
            for asked, verdict in question():
                statuses[verdict.status.value] += 1
                fault = judge(asked, verdict)
                if fault is not None:
                    wrong += 1
                    print(f"{name}: {fault}", file=sys.stderr)
    return [
        Figure("cells", cells, "cells"),
        *(Figure(f"verdicts that are {status}", count, "verdicts") for status, count in sorted(statuses.items())),
        Figure("wrong verdicts", wrong, "verdicts", at_most=0),
    ]


if __name__ == "__main__":
    sys.exit(main(measure, "substitution", __doc__))
