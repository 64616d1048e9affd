"""Planning a challenge before it starts: how many sessions and turns a budget allows, and what that can show.

What an audit costs is measured here, not guessed: the first session's tokens a second set the pace. What it can show
is arithmetic: sessions are drawn without replacement, each in proportion to its weight, the tokens that its signed size
has room for. So the chance to meet cheating is stated for a share of that room, not of the sessions, which a provider
can make more of at will. How much of the room holds tokens is known once sessions are audited.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from verifiable.errors import MalformedError, PolicyError

SHARES = (0.01, 0.05, 0.1, 0.25)
"""Shares of the room, that of the sessions with cheated tokens, for which a plan says what it would catch."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_BUDGET = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smh])", re.ASCII)


def parse_time(text: str, option: str = "--budget") -> float:
    """Seconds, from `90s`, `10m` or `1.5h`. Raises MalformedError, which names the option."""
    match = _BUDGET.fullmatch(text)
    if match is None or float(match[1]) <= 0.0:
        raise MalformedError(option, expected="a time such as 90s, 10m or 1.5h", found=text)
    return float(match[1]) * _UNITS[match[2]]


def at_least(chance: float, digits: int = 0) -> str:
    """A least probability in percent, never rounded up."""
    return f"{100 * floored(chance, 100 * 10**digits):.{digits}f}%"


def floored(chance: float, steps: int) -> float:
    """A probability in whole steps of 1 / `steps`, never rounded up: what may fail is never called certain."""
    least = math.floor(chance * steps + 1e-9)
    return (least if chance >= 1.0 else min(least, steps - 1)) / steps


def caught(weights: Sequence[int], drawn: int, share: float) -> float:
    """The least probability that a draw meets a session with cheating, where such sessions have `share` of the weight.

    `weights` are those of all the sessions, ascending. Whichever sessions these are, and however the others are cut up,
    it is no less: after j others were drawn, the next draw meets one with a chance of at least their weight over
    what is left when the j lightest are gone. A provider that cheats at all does so in at least one session. Where all
    weights are equal this is the hypergeometric probability.
    """
    if not weights or not drawn:
        return 0.0
    if drawn >= len(weights):
        return 1.0
    total = sum(weights)
    bad, missed = max(share * total, float(weights[0])), 1.0
    for gone in accumulate(weights[: drawn - 1], initial=0):
        missed *= max(1.0 - bad / (total - gone), 0.0)
    return min(1.0 - missed, math.nextafter(1.0, 0.0)) if missed else 1.0


@dataclass(frozen=True, slots=True)
class Pool:
    """What is drawn from: the sessions' weights, ascending; and how many are planned to be drawn."""

    weights: tuple[int, ...]
    sessions: int

    @property
    def population(self) -> int:
        return len(self.weights)

    def chances(self, drawn: int) -> dict[float, float]:
        """Share of the room -> least probability of meeting a session of those that have it, with `drawn` sessions."""
        return {share: caught(self.weights, drawn, share) for share in SHARES}

    def to_json(self, drawn: int, checked: int | None) -> dict[str, Any]:
        """With the chances where so many were checked; none where that is None."""
        chances = {} if checked is None else self.chances(checked)
        return {
            "population": self.population,
            "tokens": sum(self.weights),
            "planned": self.sessions,
            "drawn": drawn,
            "chances": {f"{share:g}": floored(chance, 10**6) for share, chance in chances.items()} or None,
        }


@dataclass(frozen=True, slots=True)
class ChallengePlan:
    """How many of the sessions that a provider lists will be drawn, and what that can show.

    Args:
        listed: the sessions of the provider's list.
        known: those of clients that the auditor knows, by their receipts; None where none were brought.
        rate: the share that was asked for, where one was.
        budget: seconds after which the audit stops drawing, if any.
        turns: most turns of a session that are drawn, where there is a bound.
        unproven: sessions of the list whose head could not be checked before the draw. Nobody signed their sizes, so
            they are drawn apart, each as likely as another: they thin out no others, and no chance is about them.
        excluded: sessions whose heads say that they were signed at the beacon's round or later.
        ahead: sessions whose heads say that they were signed after this machine's clock, and the skew of clocks.
        given: the seed was given to the auditor, so it may have been known before the sessions were committed to.
        compared: how much of the log the list was held against, where that is not all.
    """

    listed: Pool
    known: Pool | None = None
    rate: float | None = None
    budget: float | None = None
    turns: int | None = None
    unproven: Pool = Pool((), 0)
    excluded: int = 0
    ahead: int = 0
    given: bool = False
    compared: str = ""

    @property
    def population(self) -> int:
        """Sessions of the list, those whose head could not be checked too."""
        return self.listed.population + self.unproven.population

    @property
    def sessions(self) -> int:
        """How many of the list are drawn."""
        return self.listed.sessions + self.unproven.sessions

    @property
    def silent(self) -> str | None:
        """Why nothing can be said of chances, where that is so."""
        if self.given:
            return "No chance is stated: the seed was given, and a provider that knew it knew what is drawn."
        if self.turns is not None:
            return f"No chance is stated: at most {self.turns} turns of a session are opened, and no other is met."
        return None

    def lines(self) -> list[str]:
        """What is said before the audit starts."""
        how = f"{self.sessions:,} of the {self.population:,} sessions that the provider lists or logged"
        if self.known is not None:
            how += f", {self.known.sessions:,} of {self.known.population:,} receipts of clients that you know"
        if self.budget is not None:
            how += f", for at most {self.budget:g} seconds: it may end with fewer, and will say so"
        return [f"Plan        {how}", *(f"            {line}" for line in (*self.table(), *self.assumes()))]

    def table(self) -> list[str]:
        """Share of the room -> chance, one line each, for what is planned; none where nothing can be said of it."""
        if self.silent is not None:
            return []
        columns = [self.listed.chances(self.listed.sessions)]
        what = "cheats in sessions with this share of the room"
        head = f"{what}   is caught with at least"
        if self.known is not None:
            columns.append(self.known.chances(self.known.sessions))
            head += "   in the receipts' own room"
        rows = [
            f"{share:>{len(what)}.0%}" + "".join(f"{at_least(column[share], 1):>26}" for column in columns).rstrip()
            for share in SHARES
        ]
        return [head, *rows]

    def assumes(self) -> list[str]:
        """What the chances rest on, a sentence each."""
        tokens = sum(self.listed.weights)
        made = [
            f"The list has room for {tokens:,} tokens, by its signed sizes; sessions are drawn in that proportion. It "
            "is the provider's: what it leaves out, or adds by asking itself, changes what a share of it means. Not "
            "all room holds tokens: what was drawn shows how much of it does."
        ]
        if self.compared:
            made.append(f"It was held against a sample of the log: {self.compared}.")
        if self.known is None:
            made.append("Receipts of clients that you know (--receipts) can't be thinned out so.")
        if self.silent is not None:
            made.append(self.silent)
        if self.unproven.population:
            made.append(
                f"The heads of {self.unproven.population:,} sessions could not be checked: {self.unproven.sessions:,} "
                "of them are drawn apart, and the chances say nothing about them."
            )
        if self.excluded:
            made.append(
                f"{self.excluded:,} sessions are left out: their heads say that they are younger than the round."
            )
        if self.ahead:
            made.append(f"{self.ahead:,} heads say that they were signed later than this machine's clock: is it right?")
        return made

    def to_json(self, drawn: int, checked: int | None, known: int = 0) -> dict[str, Any]:
        """The plan, with the chances for what was checked in the end; see `Pool.to_json`."""
        return {
            **self.listed.to_json(drawn, checked),
            "rate": self.rate,
            "budget_seconds": self.budget,
            "unproven": self.unproven.population,
            "excluded": self.excluded,
            "ahead": self.ahead,
            "receipts": None if self.known is None else self.known.to_json(known, None if checked is None else known),
            "assumes": self.assumes(),
        }


def plan(
    weights: Sequence[int],
    sessions: int,
    rate: float | None = None,
    budget: float | None = None,
    *,
    turns: int | None = None,
    known: Sequence[int] | None = None,
    unproven: int = 0,
    excluded: int = 0,
    ahead: int = 0,
    given: bool = False,
    compared: str = "",
) -> ChallengePlan:
    """A plan for a list of sessions with these weights, in any order.

    Args:
        sessions: how many to draw where no rate is given; as many of the known receipts at most.
        rate: the share of all sessions to draw, above 0 and at most 1; at least one is drawn.
        budget: seconds; see `Clocked`.
        unproven: how many sessions have a head that could not be checked; as many of them are drawn at most.
        turns, excluded, ahead, given, compared: as in `ChallengePlan`.
        known: the weights of the receipts' sessions.

    Raises:
        PolicyError: the rate is out of range.
    """
    if rate is not None and not 0.0 < rate <= 1.0:
        raise PolicyError("the rate", expected="above 0 and at most 1", found=rate)

    def pool(weights: Sequence[int]) -> Pool:
        count = sessions if rate is None else max(1, math.ceil(len(weights) * rate - 1e-9))
        return Pool(tuple(sorted(weights)), min(count, len(weights)))

    return ChallengePlan(
        pool(weights),
        None if known is None else pool(known),
        rate,
        budget,
        turns,
        pool([1] * unproven),
        excluded,
        ahead,
        given,
        compared,
    )


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
