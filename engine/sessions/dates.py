"""The times that a provider signs. Its log has to keep their order: no head is older by the merge delay than one before
it (spec/log.md), or anybody could show that it is missing where it should stand.

So nothing is signed with a clock that is far behind what was signed already, and no turn begins after a clock has leapt
ahead while it served: what is dated ahead once would keep the provider from serving until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.store import Store
from verifiable import limits
from verifiable.errors import EngineError

SLACK = limits.MERGE_DELAY // 2
"""Milliseconds by which the clock may be behind the latest head, or leap ahead: the other half is for turns under way,
and for what several machines sign at once."""


class ClockError(EngineError):
    """The clock can't be right."""


def steady() -> int:
    """Milliseconds since the machine was started, asleep or not."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Dates:
    """What the clock says, and whether it may be signed. Safe to call from any thread.

    `clock` tells milliseconds since 1970; `ticks` milliseconds that nobody can set; without, leaps are not looked for.
    """

    def __init__(self, store: Store, clock: Callable[[], int], ticks: Callable[[], int] | None = None) -> None:
        self._store = store
        self.clock = clock
        self._ticks = ticks
        self._offset = 0 if ticks is None else clock() - ticks()

    def fault(self) -> ClockError | None:
        """Why no turn may begin now; None where one may."""
        now, latest = self.clock(), self._store.newest_head()
        if now < latest - SLACK:
            return ClockError(
                "the clock is behind what was signed already",
                expected=f"{latest - SLACK} or later (ms since 1970)",
                found=str(now),
                hint="Set it right. Where it was ahead before: docs/operators.md, Clocks.",
            )
        if self._ticks is not None:
            offset = now - self._ticks()
            if offset > self._offset + SLACK:
                return ClockError(
                    "the clock went ahead while it served",
                    expected=f"{now - offset + self._offset} (ms since 1970)",
                    found=str(now),
                    hint="Set it right, or start again where it is right now.",
                )
            self._offset = offset
        return None

    def check(self) -> None:
        """Raise ClockError where no turn may begin now."""
        fault = self.fault()
        if fault is not None:
            raise fault

    def keeps_order(self, time: int) -> bool:
        """Whether a head of a time may follow all that were signed."""
        return time > self._store.newest_head() - limits.MERGE_DELAY + limits.CLOCK_SKEW
