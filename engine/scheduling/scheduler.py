"""The scheduler: one thread, one context, a fixed pool of slots, and every running request in every step.

A step is schedule → decode → emit (`plan`, then `execution`). Requests join and leave at every step (`admission`). A
slot has room for a whole context, so that a running answer is never preempted.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.counters import Counters
from engine.drafting import Drafter
from engine.drafting.policy import Always, Policy
from engine.generation import Generation
from engine.scheduling.admission import Admission
from engine.scheduling.cache import PrefixCache
from engine.scheduling.execution import Executor
from engine.scheduling.idle import IdleWork, NoIdleWork, work_idly
from engine.scheduling.places import Mover
from engine.scheduling.plan import Planner
from engine.scheduling.sequence import Sequence
from engine.scheduling.slot import Slot, idle, running
from engine.sessions.recorder import Recorder
from verifiable.errors import EngineError
from verifiable.llama.context import Context
from verifiable.llama.model import Model
from verifiable.sampling.sampler import choose
from verifiable.sampling.turn import Chooser, TurnSampler

log = logging.getLogger(__name__)

_SWITCH = 0.0005
"""Seconds after which a thread that computes gives way. Python's own 5 ms are half a decode step of a small model: the
scheduler would wait that long, each time llama.cpp returns while another thread is in the middle of something."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`queue` bounds the requests that wait when every slot is taken (None: as many as there are slots).
    `prefill_chunk` bounds the prompt rows of a step while answers are running; `draft_limit` the drafted tokens of one.
    `gap_steps` is how many steps a gap among running sequences may last before one is moved into it; None: for ever.
    """

    slots: int = 4
    queue: int | None = None
    prefill_chunk: int = 64
    draft_limit: int = 3
    gap_steps: int | None = 4


class Scheduler:
    """Owns the context. `submit` may be called from any thread; everything else happens in the scheduler's own."""

    def __init__(
        self,
        model: Model,
        context: Context,
        k: int,
        settings: SchedulerSettings,
        make_drafter: Callable[[int], Drafter | None] | None = None,
        chooser: Chooser = choose,
        policy: Policy | None = None,
        idle_work: IdleWork | None = None,
    ) -> None:
        recurrent = model.is_recurrent or model.is_hybrid
        if make_drafter is None or recurrent:
            make_drafter = _no_drafter
        self.counters = Counters()
        self._model = model
        self._context = context
        self._k = k
        self._chooser = chooser
        self._idle_work = idle_work or NoIdleWork()
        self._slots = [Slot(seq, make_drafter(seq)) for seq in range(settings.slots)]
        queue = settings.slots if settings.queue is None else settings.queue
        self._admission = Admission(queue, lambda: len(idle(self._slots)), self.counters)
        self._cache = PrefixCache(context, self.counters)
        gap_steps = None if recurrent else settings.gap_steps
        self._mover = Mover(self._slots, context, self._cache, self.counters, gap_steps)
        self._planner = Planner(policy or Always(), context.n_batch, settings.prefill_chunk, settings.draft_limit)
        self._executor = Executor(context, self.counters)
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH))
        self._thread.start()

    def submit(self, generation: Generation, recorder: Recorder) -> None:
        """Queue a generation. Raises QueueFullError, or StoppingError; the recorder is then unused."""
        self._admission.submit(generation, recorder)

    def nudge(self) -> None:
        """Idle work has come up."""
        self._admission.nudge()

    def load(self) -> tuple[int, int]:
        """How many answers are running and how many requests are waiting."""
        return len(running(self._slots)), len(self._admission)

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and not self._admission.stopping

    def stop(self, grace: float = 0.0) -> None:
        """Take no more requests, let what runs finish for up to `grace` seconds, cancel the rest (each session is ended
        and signed), and stop the thread.
        """
        self._admission.stop(grace)
        if self._thread.is_alive():
            self._thread.join()
        for slot in self._slots:
            if slot.drafter is not None:
                slot.drafter.close()

    def _run(self) -> None:
        while self._admission.wait(lambda: bool(running(self._slots)), self._idle_work.pending):
            try:
                self._step()
            except Exception as error:  # a fault of ours must not leave every client waiting for ever
                log.exception("the scheduler failed in a step")
                for _, sequence in running(self._slots):
                    sequence.fail(EngineError("the engine failed", found=repr(error), hint="See the provider's log."))
                self._release()
        for _, sequence in running(self._slots):
            sequence.cancel()

    def _step(self) -> None:
        began, cpu = time.perf_counter(), time.thread_time()
        self._admit()
        self._cancel()
        self._mover.close_gaps()
        planning = time.perf_counter()
        parts = self._planner.schedule(running(self._slots))
        planned = time.perf_counter() - planning
        if not parts:
            work_idly(self._idle_work, self._slots, self._context, self._cache)
            return
        spent = self._executor.carry_out(parts)
        self._release()
        self.counters.step(time.perf_counter() - began, spent.seconds, time.thread_time() - cpu - spent.cpu)
        self._planner.measured(parts, planned, spent.seconds)

    def _admit(self) -> None:
        """Give free slots to the requests that wait, in their order."""
        while (waiting := self._admission.next()) is not None:
            generation, recorder = waiting
            self._idle_work.preempt()
            slot, cached = self._cache.take(idle(self._slots), generation)
            sampler = TurnSampler(
                generation.params,
                generation.key,
                self._k,
                ends=self._model.eog,
                constraint=generation.constraint,
                suppressed=self._model.suppressed,
                chooser=self._chooser,
            )
            slot.sequence = Sequence(generation, recorder, sampler, self._model, slot.drafter, self.counters, cached)
            slot.sequence.begin()

    def _cancel(self) -> None:
        """End the turns that nobody wants any more."""
        for _, sequence in running(self._slots):
            if sequence.unwanted():
                sequence.cancel()
        self._release()

    def _release(self) -> None:
        """See to the memory of the turns that have ended; their slots are free."""
        for slot in self._slots:
            if slot.sequence is not None and slot.running is None:
                self._cache.release(slot)


def _no_drafter(seq: int) -> None:
    return None
