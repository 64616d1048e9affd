"""The prefix cache: what idle slots hold of earlier turns, cut back to what a new one begins with (see `prefix`)."""

from __future__ import annotations

import logging

from engine.counters import Counters
from engine.generation import Generation
from engine.scheduling.prefix import Kept, choose
from engine.scheduling.slot import Slot
from verifiable.errors import EngineError
from verifiable.llama.context import Context, RollbackError

log = logging.getLogger(__name__)


class PrefixCache:
    """Chooses the slot of a turn, and keeps what it leaves behind."""

    def __init__(self, context: Context, counters: Counters) -> None:
        self._context = context
        self._counters = counters
        self._uses = 0

    def take(self, idle: list[Slot], generation: Generation) -> tuple[Slot, int]:
        """The idle slot for a generation, and how many of its prompt's tokens the memory holds there."""
        ordered = sorted(idle, key=lambda slot: slot.seq)
        kept = [(number, slot.kept) for number, slot in enumerate(ordered)]
        number, held = choose(kept, generation.namespace, generation.prompt)
        slot = ordered[number]
        slot.kept = None
        try:
            self._context.remove(slot.seq, held)
        except RollbackError:  # it can't be done exactly
            self._context.remove(slot.seq, 0)
        cached = self._context.length(slot.seq)
        self._counters.cached_tokens += cached
        self._counters.prompt_tokens += len(generation.prompt)
        return slot, cached

    def release(self, slot: Slot) -> None:
        """The slot's turn is over: keep its sequence for the next one of the same namespace, or empty it."""
        sequence, slot.sequence = slot.sequence, None
        namespace = None if sequence is None else sequence.generation.namespace
        if sequence is not None and namespace is not None and 0 < sequence.evaluated < len(sequence.ids):
            try:
                self._context.remove(slot.seq, sequence.evaluated)
                self._uses += 1
                slot.kept = Kept(namespace, tuple(sequence.ids[: sequence.evaluated]), self._uses)
                return
            except EngineError:
                log.debug("sequence %d can't be cut back, so it is not kept", slot.seq)
        self.forget(slot)

    def forget(self, slot: Slot) -> None:
        """Empty a slot."""
        slot.kept = None
        self._context.remove(slot.seq, 0)
