"""Planning a challenge before it starts: how many sessions and turns a budget allows, and what that can show.

What an audit costs is measured here, not guessed: the first session's tokens a second set the pace. What it can show
is arithmetic: sessions are drawn without replacement, so a provider that cheats in `c` of `n` sessions is missed by a
draw of `m` with the hypergeometric probability C(n - c, m) / C(n, m).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from verifiable.errors import MalformedError, PolicyError

SHARES = (0.01, 0.05, 0.1, 0.25)
"""Shares of cheated sessions for which a plan says what it would catch."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_BUDGET = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smh])", re.ASCII)


def parse_time(text: str, option: str = "--budget") -> float:
    """Seconds, from `90s`, `10m` or `1.5h`. Raises MalformedError, which names the option."""
    match = _BUDGET.fullmatch(text)
    if match is None or float(match[1]) <= 0.0:
        raise MalformedError(option, expected="a time such as 90s, 10m or 1.5h", found=text)
    return float(match[1]) * _UNITS[match[2]]


def caught(population: int, drawn: int, share: float) -> float:
    """The probability that a draw meets a session with cheating, where the provider cheats in `share` of them.

    The number of such sessions is rounded up: a provider that cheats at all does so at least once.
    """
    bad = min(population, max(1, math.ceil(population * share - 1e-9))) if population else 0
    good = population - bad
    if drawn > good:
        return 1.0 if bad and drawn else 0.0
    missed = 1.0
    for at in range(drawn):
        missed *= (good - at) / (population - at)
    return 1.0 - missed


@dataclass(frozen=True, slots=True)
class ChallengePlan:
    """How many of the sessions that a provider lists will be drawn, and what that can show.

    `rate` is the share that was asked for, where one was. The audit stops drawing after `budget` seconds, if any.
    """

    population: int
    sessions: int
    rate: float | None = None
    budget: float | None = None

    def chances(self, drawn: int) -> dict[float, float]:
        """Share of cheated sessions -> probability of meeting one, with `drawn` sessions."""
        return {share: caught(self.population, drawn, share) for share in SHARES}

    def lines(self) -> list[str]:
        """What is said before the audit starts."""
        how = f"{self.sessions:,} of {self.population:,} sessions"
        if self.budget is not None:
            how += f", for at most {self.budget:g} seconds: it may end with fewer, and will say so"
        chances = ", ".join(f"{share:.0%}: {chance:.1%}" for share, chance in self.chances(self.sessions).items())
        return [
            f"Plan        {how}",
            f"            a provider that cheats in a share of its sessions is caught with probability {chances}",
        ]

    def to_json(self, drawn: int) -> dict[str, Any]:
        return {
            "population": self.population,
            "planned": self.sessions,
            "drawn": drawn,
            "rate": self.rate,
            "budget_seconds": self.budget,
            "chances": {f"{share:g}": round(chance, 6) for share, chance in self.chances(drawn).items()},
        }


def plan(population: int, sessions: int, rate: float | None = None, budget: float | None = None) -> ChallengePlan:
    """A plan for a list of `population` sessions.

    Args:
        sessions: how many to draw where no rate is given.
        rate: the share of all sessions to draw, above 0 and at most 1; at least one is drawn.
        budget: seconds; see `Clocked`.

    Raises:
        PolicyError: the rate is out of range.
    """
    if rate is not None:
        if not 0.0 < rate <= 1.0:
            raise PolicyError("the rate", expected="above 0 and at most 1", found=rate)
        sessions = max(1, math.ceil(population * rate - 1e-9))
    return ChallengePlan(population, min(sessions, population), rate, budget)


class Clocked:
    """Decides before each session whether the budget (seconds, None for no bound) still allows it, from what the ones
    before took by a clock that only grows.
    """

    def __init__(self, budget: float | None, clock: Callable[[], float]) -> None:
        self._budget = budget
        self._clock = clock
        self._started = clock()

    def allows(self, done: int) -> bool:
        """Whether another session is likely to end within the budget. The first always is tried."""
        if self._budget is None or not done:
            return True
        used = self._clock() - self._started
        return used + used / done <= self._budget
