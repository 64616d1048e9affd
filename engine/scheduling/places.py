"""Where running answers lie. llama.cpp computes sequences in one piece only where their numbers follow each other; each
gap among them costs another pass over the model's weights, in every step.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from engine.counters import Counters
from engine.scheduling.cache import PrefixCache
from engine.scheduling.slot import Slot, idle, longest_idle, running
from verifiable.errors import EngineError
from verifiable.llama.context import Context

log = logging.getLogger(__name__)


class Mover:
    """Brings running sequences together. `gap_steps` is how many steps a gap may last before (None: for ever)."""

    def __init__(
        self, slots: list[Slot], context: Context, cache: PrefixCache, counters: Counters, gap_steps: int | None
    ) -> None:
        self._slots = slots
        self._context = context
        self._cache = cache
        self._counters = counters
        self._gap_steps = gap_steps
        self._gap = 0

    def close_gaps(self) -> None:
        """Move sequences that have been apart for a while: a move costs about a step."""
        busy = [slot.seq for slot, _ in running(self._slots)]
        self._gap = self._gap + 1 if gaps(busy) else 0
        if self._gap_steps is None or self._gap <= self._gap_steps:
            return
        try:
            for source, target in moves(busy, len(self._slots)):
                self._move(source, target)
        except EngineError as error:  # what runs is where it was; only idle places were written to
            log.warning("sequences can't be moved, and won't be: %s", error)
            self._gap_steps = None
            for slot in idle(self._slots):
                self._cache.forget(slot)

    def _move(self, source: int, target: int) -> None:
        """Move a running sequence to an idle slot's place. What that slot keeps goes to the place of the idle slot that
        was used longest ago, which is given up.
        """
        slots = {slot.seq: slot for slot in self._slots}
        moved, there, oldest = slots[source], slots[target], longest_idle(self._slots)
        if there is not oldest and there.kept is not None:
            self._context.copy(target, oldest.seq)
            there.seq, oldest.seq, there = oldest.seq, target, oldest
        there.kept = None
        self._context.copy(source, target)
        moved.seq, there.seq = target, source
        self._context.remove(source, 0)
        self._counters.moved += 1


def gaps(busy: Collection[int]) -> bool:
    """Whether some number between the least and the greatest of `busy` is missing."""
    return bool(busy) and max(busy) - min(busy) >= len(busy)


def moves(busy: Collection[int], places: int) -> list[tuple[int, int]]:
    """The fewest moves (from, to) that leave no gap among `busy`, numbers below `places`."""
    starts = range(places - len(busy) + 1)
    start = max(starts, key=lambda first: sum(first <= place < first + len(busy) for place in busy))
    window = range(start, start + len(busy))
    return list(
        zip(
            sorted(place for place in busy if place not in window),
            (place for place in window if place not in busy),
            strict=True,
        )
    )
