"""What happened so far, counted where it happens. Read by metrics and benchmarks without a lock."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from verifiable.session.records import Finish

STEP_BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the step time's histogram, seconds."""
LENGTHS = 17
"""Accepted drafts of a step are counted one by one up to 15; longer ones share the last place."""


@dataclass(slots=True)
class Counters:
    """Each is written by the scheduler's thread alone. `python_seconds` is the time of steps outside llama.cpp, and
    `python_cpu` how much of it the scheduler's thread computed; the rest it waited for a processor or Python's lock.

    `accepted_lengths[n]` counts the drafts of which n tokens were accepted, for each slot and step that had a draft.
    """

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    finished: dict[Finish, int] = field(default_factory=lambda: dict.fromkeys(Finish, 0))
    abandoned: int = 0
    refused: int = 0
    slow_readers: int = 0
    isolated: int = 0
    moved: int = 0
    decode_seconds: float = 0.0
    python_seconds: float = 0.0
    python_cpu: float = 0.0
    step_counts: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS) + 1))
    accepted_lengths: list[int] = field(default_factory=lambda: [0] * LENGTHS)

    def step(self, seconds: float, decode: float, python_cpu: float) -> None:
        """A step is over that took `seconds`, `decode` of them in llama.cpp."""
        self.steps += 1
        self.python_cpu += python_cpu
        self.decode_seconds += decode
        self.python_seconds += seconds - decode
        self.step_counts[bisect_left(STEP_BOUNDS, seconds)] += 1

    def draft(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted
        self.accepted_lengths[min(accepted, LENGTHS - 1)] += 1
