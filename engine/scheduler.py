"""The scheduler: one thread, one context, a fixed pool of slots, and every running request in every step.

A step is schedule → decode → emit. Decode rows come first (one for each answer, plus its draft); what is left of the
batch is shared among the prompts that are being read, in chunks, so that a long prompt never holds up running answers
for more than one chunk. Requests join and leave at every step.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.drafting import Drafter
from engine.generation import MAX_BACKLOG, Failed, Generation
from engine.recorder import Recorder
from engine.slot import Chooser, Slot
from verifiable.errors import EngineError, PolicyError
from verifiable.llama.context import Batch, Context
from verifiable.llama.model import Model
from verifiable.sampling import choose

log = logging.getLogger(__name__)


class QueueFullError(PolicyError):
    """More requests are waiting than the queue takes."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`prefill_chunk` bounds the prompt rows of a step while answers are running; `draft_limit` the drafted tokens of
    one.
    """

    slots: int = 4
    queue: int = 8
    prefill_chunk: int = 64
    draft_limit: int = 3


@dataclass(slots=True)
class Counters:
    """What happened so far, for `/health` and benchmarks. Read without a lock; each is written by one thread."""

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    finished: int = 0


class Scheduler:
    """Owns the context. `submit` may be called from any thread; everything else happens in the scheduler's own."""

    def __init__(
        self,
        model: Model,
        context: Context,
        k: int,
        settings: SchedulerSettings,
        make_drafter: Callable[[], Drafter] | None = None,
        chooser: Chooser = choose,
    ) -> None:
        drafting = make_drafter is not None and not (model.is_recurrent or model.is_hybrid)
        self.counters = Counters()
        self._settings = settings
        self._context = context
        self._batch = Batch(context.n_batch)
        self._slots = [
            Slot(seq, k, model.piece, model.eog, make_drafter() if drafting and make_drafter else None)
            for seq in range(settings.slots)
        ]
        self._waiting: deque[tuple[Generation, Recorder]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._chooser = chooser
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, generation: Generation, recorder: Recorder) -> None:
        """Queue a generation. Raises QueueFullError, or EngineError during shutdown; the recorder is then unused."""
        with self._wake:
            if self._stopping:
                raise EngineError("the provider is shutting down", hint="Try again later.")
            if len(self._waiting) >= self._settings.queue:
                raise QueueFullError("too many requests are waiting", expected=f"at most {self._settings.queue}")
            self._waiting.append((generation, recorder))
            self._wake.notify()

    def load(self) -> tuple[int, int]:
        """How many answers are running and how many requests are waiting."""
        return sum(slot.generation is not None for slot in self._slots), len(self._waiting)

    def stop(self) -> None:
        """Cancel what runs and waits (each session is ended and signed), then stop the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or self._waiting or self._active())
                if self._stopping:
                    break
            try:
                self._step()
            except Exception as error:  # a fault of ours must not leave every client waiting for ever
                log.exception("the scheduler failed in a step")
                for slot in self._active():
                    slot.fail(EngineError("the engine failed", found=repr(error), hint="See the provider's log."))
                    self._forget(slot)
        for slot in self._active():
            slot.cancel()
        for generation, recorder in self._waiting:
            recorder.abandon()
            generation.sink.put(Failed(EngineError("the provider is shutting down", hint="Try again later.")))
        self._waiting.clear()

    def _active(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.generation is not None]

    def _step(self) -> None:
        self._admit()
        for slot in self._active():
            if slot.generation is not None and _gone(slot.generation):
                slot.cancel()
                self._forget(slot)
        plan = self._schedule()
        if not plan:
            return
        try:
            logits = self._context.decode(self._batch)
        except EngineError as error:
            # Part of the work may be done: the answers in this batch end with an error, later ones are unharmed.
            log.error("decode failed: %s", error)
            for slot, _ in plan:
                slot.fail(error)
                self._forget(slot)
            return
        self.counters.steps += 1
        self.counters.rows += len(self._batch)
        waiting = [(slot, rows) for slot, rows in plan if rows]
        for slot, rows in waiting:
            before = len(slot.ids)
            try:
                slot.advance([logits[row] for row in rows], self._chooser)
            except EngineError as error:
                slot.fail(error)
            self.counters.tokens += len(slot.ids) - before
        # Only now may the memory be touched: cutting a sequence back would invalidate the rows still to be read.
        for slot, _ in waiting:
            self._settle(slot)

    def _settle(self, slot: Slot) -> None:
        """Bring a sequence's memory in line with what was emitted: without the drafts that did not come true."""
        if slot.generation is None:
            self._forget(slot)
            return
        try:
            self._context.remove(slot.seq, slot.evaluated)
        except EngineError as error:
            slot.fail(error)
            self._forget(slot)

    def _admit(self) -> None:
        for slot in self._slots:
            while slot.generation is None:
                with self._wake:
                    if not self._waiting:
                        return
                    generation, recorder = self._waiting.popleft()
                if generation.cancelled.is_set():
                    recorder.abandon()  # nobody waits for it: it never runs, and its session has no such turn
                    continue
                slot.start(generation, recorder)

    def _schedule(self) -> list[tuple[Slot, list[int]]]:
        """Fill the batch. Returns each slot in it with the batch rows whose logits it waits for."""
        batch, active = self._batch, self._active()
        batch.clear()
        plan: list[tuple[Slot, list[int]]] = []
        answering = [slot for slot in active if not slot.prefilling]
        drafts = min(self._settings.draft_limit, batch.capacity // max(len(active), 1) - 1)
        for slot in answering:
            at = slot.evaluated
            tokens = [slot.ids[at], *slot.make_draft(drafts)]
            plan.append((slot, [batch.add(slot.seq, at + i, token, True) for i, token in enumerate(tokens)]))
        reading = [slot for slot in active if slot.prefilling]
        room = batch.capacity - len(batch)
        if answering:
            room = min(room, self._settings.prefill_chunk)
        for index, slot in enumerate(reading):
            share = max(room // (len(reading) - index), 1) if room else 0
            size = min(share, len(slot.ids) - slot.evaluated)
            last = slot.evaluated + size == len(slot.ids)
            rows = [
                batch.add(slot.seq, at, slot.ids[at], last and at == len(slot.ids) - 1)
                for at in range(slot.evaluated, slot.evaluated + size)
            ]
            slot.evaluated += size
            room -= size
            plan.append((slot, rows[-1:] if last else []))
        return plan

    def _forget(self, slot: Slot) -> None:
        self.counters.finished += 1
        self._context.remove(slot.seq, 0)


def _gone(generation: Generation) -> bool:
    if generation.sink.backlog() > MAX_BACKLOG:
        generation.cancel()
    return generation.cancelled.is_set()
