"""A slot: a place in the context, where one sequence runs at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.drafting import Drafter
from engine.scheduling.prefix import Kept
from engine.scheduling.sequence import Sequence


@dataclass(slots=True, eq=False)
class Slot:
    """The place with number `seq` of the context's memory. Between two turns `kept` says what the memory holds there.

    A sequence that has ended is still there until its memory was seen to (`PrefixCache.release`); the slot counts as
    idle then.
    """

    seq: int
    drafter: Drafter | None = None
    sequence: Sequence | None = None
    kept: Kept | None = None

    @property
    def running(self) -> Sequence | None:
        sequence = self.sequence  # read once: another thread may ask
        return None if sequence is None or sequence.ended else sequence


def running(slots: Iterable[Slot]) -> list[tuple[Slot, Sequence]]:
    """The slots in which a turn is in progress, each with its sequence."""
    return [(slot, sequence) for slot in slots if (sequence := slot.running) is not None]


def idle(slots: Iterable[Slot]) -> list[Slot]:
    return [slot for slot in slots if slot.running is None]


def longest_idle(slots: Iterable[Slot]) -> Slot:
    """The idle slot that keeps nothing, or was used longest ago."""
    return min(idle(slots), key=lambda slot: slot.kept.used if slot.kept else 0)
