"""Work for the time in which no request is there, in the sequence of a slot that nobody needs."""

from __future__ import annotations

from typing import Protocol

from engine.scheduling.cache import PrefixCache
from engine.scheduling.slot import Slot, longest_idle
from verifiable.llama.context import Context


class IdleWork(Protocol):
    """What may be done (`engine.scheduling.selfaudit`)."""

    def pending(self) -> bool: ...

    def run(self, context: Context, seq: int) -> None:
        """Do a piece of it, no longer than a step, in an empty sequence or the one that the last piece left."""
        ...

    def preempt(self) -> None:
        """The sequence is needed: forget what the memory holds, and start again later."""
        ...


class NoIdleWork:
    """For a provider that rests."""

    def pending(self) -> bool:
        return False

    def run(self, context: Context, seq: int) -> None:
        """Nothing is to be done."""

    def preempt(self) -> None:
        """Nothing was begun."""


def work_idly(work: IdleWork, slots: list[Slot], context: Context, cache: PrefixCache) -> None:
    """Do a piece, if there is any. The slot used longest ago lends its sequence."""
    if not work.pending():
        return
    slot = longest_idle(slots)
    if slot.kept is not None:
        cache.forget(slot)
    work.run(context, slot.seq)
