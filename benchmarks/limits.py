"""Whatever the engine serves is read: 1,000 random sessions up to every limit verify, audit exactly, open in the page.

The engine's own code over a made-up model, through HTTP, with manifests from the smallest to about the largest. Where
there is no Chromium the page is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Figure, main
from tests.any_request import page_runner, play, world
from tests.integration.chromium import browse, find

CASES = 1000
GROUP = 50
"""Sessions after which the page reads what was handed out."""


def measure(groups: Sequence[int] = range(CASES // GROUP)) -> Sequence[Figure]:
    program, read = find(), 0
    with ExitStack() as stack:
        made = stack.enter_context(world(Path(stack.enter_context(TemporaryDirectory()))))
        run = None if program is None else page_runner(stack.enter_context(browse(program)))
        for group in groups:
            play(made, GROUP, group)
            read += 0 if run is None else made.shown(run)
            for cases in made.handed.values():
                cases.clear()
    figures = [
        Figure("sessions played", GROUP * len(groups), ""),
        Figure("turns served, verified and audited", made.served, ""),
        Figure("requests refused, each with a reason", len(made.refused), ""),
        Figure("longest file", made.longest, "bytes"),
    ]
    return figures if run is None else [*figures, Figure("files read by the page", read, "")]


if __name__ == "__main__":
    sys.exit(main(measure, "limits", __doc__))
