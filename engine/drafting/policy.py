"""How many tokens to draft: decided by what a row costs and how often drafts are accepted, both measured while serving.

A step of `width` answers gives `width` tokens for the price T(width). With d drafts each it gives width + E tokens for
T(width + drafted rows), E being the drafts expected to be accepted. Whichever has the most tokens a second is taken;
drafts have to win by a margin, so that noise does not turn them on.

- T is learnt from the steps themselves, by their number of rows. Now and then, and only where drafts are accepted
  often enough to be worth the question, a step is spent on asking.
- How often drafts are accepted is counted for each sequence. A drafter that costs nothing is scored on every step
  whether or not its draft is verified: a draft that was not sent is compared with what came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

MARGIN = 1.03
"""Drafting has to promise this much more throughput than plain decoding."""
EXPLORE_EVERY = 256
"""Steps between two that are spent on learning what more rows cost."""
_FORGET = 0.1
_PRIOR = 0.3
"""Chance of a drafted token to be accepted before any was scored."""
_WORTH_ASKING = 0.35
"""Share of drafts that has to be accepted before a step is spent on learning the cost of rows."""


class Odds:
    """How often one sequence's drafted tokens are accepted, a moving average over drafted tokens."""

    __slots__ = ("share",)

    def __init__(self) -> None:
        self.share = _PRIOR

    def score(self, drafted: int, accepted: int) -> None:
        """Of `drafted` tokens the first `accepted` were; what stands after a rejected one says nothing."""
        for index in range(min(accepted + 1, drafted)):
            self.share += 0.08 * ((index < accepted) - self.share)

    def expected(self, count: int) -> float:
        """Tokens of a draft of `count` that are accepted: p + p² + … + p^count."""
        share = min(self.share, 0.98)
        return share * (1.0 - share**count) / (1.0 - share)


class Policy(Protocol):
    """Chooses the drafts of one step."""

    def limit(self, odds: Sequence[Odds], most: int) -> int:
        """How many tokens each of the answering slots may draft in this step."""
        ...

    def measured(self, rows: int, seconds: float) -> None:
        """A step of so many rows, none of them of a prompt, took this long."""
        ...


class Always:
    """Drafts whatever fits."""

    def limit(self, odds: Sequence[Odds], most: int) -> int:
        return most

    def measured(self, rows: int, seconds: float) -> None:
        """Not asked for."""


class Measured:
    """Drafts where it pays. See the module's text. `per_draft` is the drafter's own time, learnt too."""

    def __init__(self, free: bool = True) -> None:
        self._free = free
        self._times: dict[int, float] = {}
        self._steps = 0
        self._asked = -EXPLORE_EVERY

    def limit(self, odds: Sequence[Odds], most: int) -> int:
        width = len(odds)
        self._steps += 1
        if not width or most < 1:
            return 0
        plain = self._times.get(width)
        if plain is None:
            return 0  # first the price of a plain step
        best, best_rate, unknown = 0, width / plain * MARGIN, False
        for count in range(1, most + 1):
            price = self._price(width * (1 + count))
            if price is None:
                unknown = True
                break
            rate = (width + sum(each.expected(count) for each in odds)) / price
            if rate > best_rate:
                best, best_rate = count, rate
        if best:
            return best
        share = sum(each.share for each in odds) / width
        hopeful = share > _WORTH_ASKING or not self._free
        if hopeful and self._steps - self._asked >= (EXPLORE_EVERY if not unknown else 16):
            self._asked = self._steps
            return min(most, 2)
        return 0

    def measured(self, rows: int, seconds: float) -> None:
        old = self._times.get(rows)
        # A step that was held up (another process, a page fault) is not what rows cost.
        seconds = seconds if old is None else min(seconds, 3.0 * old)
        self._times[rows] = seconds if old is None else old + _FORGET * (seconds - old)

    def _price(self, rows: int) -> float | None:
        """Seconds of a step of so many rows: measured, or on the line through the nearest two that were."""
        known = sorted(self._times)
        if rows in self._times:
            return self._times[rows]
        if len(known) < 2:
            return None
        below = [each for each in known if each < rows]
        above = [each for each in known if each > rows]
        low, high = (below[-1], above[0]) if below and above else (known[-2:] if below else known[:2])
        slope = max((self._times[high] - self._times[low]) / (high - low), 0.0)
        return max(self._times[low] + slope * (rows - low), 1e-6)
