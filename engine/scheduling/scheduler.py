"""The scheduler: one thread, one context, a fixed pool of slots, and every running request in every step.

A step is schedule → decode → emit. Decode rows come first (one for each answer, plus its draft); what is left of the
batch is shared among the prompts that are being read, in chunks, so that a long prompt never holds up running answers
for more than one chunk. Requests join and leave at every step. A slot has room for a whole context, so that a running
answer is never put out for another.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.counters import Counters
from engine.drafting import Drafter
from engine.drafting.policy import Always, Policy
from engine.generation import MAX_BACKLOG, Failed, Generation
from engine.scheduling import places
from engine.scheduling.prefix import Kept
from engine.scheduling.prefix import choose as choose_slot
from engine.scheduling.slot import Slot
from engine.sessions.recorder import Recorder
from verifiable.errors import EngineError, PolicyError
from verifiable.llama.context import Batch, Context, RollbackError
from verifiable.llama.model import Model
from verifiable.sampling.logits import Floats
from verifiable.sampling.sampler import choose
from verifiable.sampling.turn import Chooser

log = logging.getLogger(__name__)

_SWITCH = 0.0005
"""Seconds after which a thread that computes gives way. Python's own 5 ms are half a decode step of a small model: the
scheduler would wait that long, each time llama.cpp returns while another thread is in the middle of something."""


class QueueFullError(PolicyError):
    """More requests are waiting than the queue takes."""


class StoppingError(EngineError):
    """The provider takes no more requests."""


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


class IdleWork(Protocol):
    """What may be done while no request is there (`engine.scheduling.selfaudit`)."""

    def pending(self) -> bool: ...

    def run(self, context: Context, seq: int) -> None:
        """Do a piece of it, no longer than a step, in an empty sequence or the one that the last piece left."""
        ...

    def interrupt(self) -> None:
        """The sequence is needed: forget what the memory holds, and start again later."""
        ...


class _Part(NamedTuple):
    """One slot's rows in a step: `tokens` from position `start`. An answer wants the logits of all of them, a prompt
    those of its last token (`wanted` 1), or none while more of it is to come.
    """

    slot: Slot
    start: int
    tokens: list[int]
    wanted: int


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
        idle: IdleWork | None = None,
    ) -> None:
        recurrent = model.is_recurrent or model.is_hybrid
        drafting = make_drafter is not None and not recurrent
        self.counters = Counters()
        self._settings = settings
        self._queue = settings.slots if settings.queue is None else settings.queue
        self._context = context
        self._batch = Batch(context.n_batch)
        self._slots = [
            Slot(
                seq,
                k,
                model.piece,
                model.eog,
                make_drafter(seq) if drafting and make_drafter else None,
                self.counters,
                chooser,
                model.suppressed,
            )
            for seq in range(settings.slots)
        ]
        self._policy: Policy = policy or Always()
        self._idle = idle
        self._gap_steps = None if recurrent else settings.gap_steps
        self._gap = 0
        self._uses = 0
        self._decode_cpu = 0.0
        self._waiting: deque[tuple[Generation, Recorder]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH))
        self._thread.start()

    def submit(self, generation: Generation, recorder: Recorder) -> None:
        """Queue a generation. Raises QueueFullError, or StoppingError; the recorder is then unused."""
        with self._wake:
            if self._stopping:
                raise StoppingError("the provider is shutting down", hint="Try again later.")
            self._sweep()
            if len(self._waiting) >= len(self._idle_slots()) + self._queue:
                self.counters.refused += 1
                raise QueueFullError("too many requests are waiting", expected=f"at most {self._queue}")
            self._waiting.append((generation, recorder))
            self._wake.notify()

    def nudge(self) -> None:
        """Idle work has come up."""
        with self._wake:
            self._wake.notify()

    def load(self) -> tuple[int, int]:
        """How many answers are running and how many requests are waiting."""
        return len(self._active()), len(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and not self._stopping

    def stop(self, grace: float = 0.0) -> None:
        """Take no more requests, let what runs finish for up to `grace` seconds, cancel the rest (each session is ended
        and signed), and stop the thread.
        """
        with self._wake:
            self._stopping = True
            self._deadline = time.monotonic() + grace
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        for slot in self._slots:
            if slot.drafter is not None:
                slot.drafter.close()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._anything)
                if self._stopping:
                    self._turn_away()
                    if not self._active() or time.monotonic() >= self._deadline:
                        break
            try:
                self._step()
            except Exception as error:  # a fault of ours must not leave every client waiting for ever
                log.exception("the scheduler failed in a step")
                for slot in self._active():
                    slot.fail(EngineError("the engine failed", found=repr(error), hint="See the provider's log."))
                    self._leave(slot)
        for slot in self._active():
            slot.cancel()

    def _anything(self) -> bool:
        pending = self._idle is not None and self._idle.pending()
        return bool(self._stopping or self._waiting or self._active() or pending)

    def _turn_away(self) -> None:
        for generation, recorder in self._waiting:
            recorder.abandon()
            generation.sink.put(Failed(StoppingError("the provider is shutting down", hint="Try again later.")))
        self._waiting.clear()

    def _active(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.generation is not None]

    def _idle_slots(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.generation is None]

    def _step(self) -> None:
        began, cpu = time.perf_counter(), time.thread_time()
        self._decode_cpu = 0.0
        if self._waiting:
            with self._wake:
                self._sweep()
            self._admit()
        for slot in self._active():
            if slot.generation is not None and self._gone(slot.generation):
                slot.cancel()
                self._leave(slot)
        self._close_gaps()
        drafting = time.perf_counter()
        parts = self._schedule()
        if not parts:
            self._work_idly()
            return
        plain = all(not part.slot.prefilling for part in parts)
        drafted = time.perf_counter() - drafting if any(part.wanted > 1 for part in parts) else 0.0
        decode = self._carry_out(parts)
        self.counters.step(time.perf_counter() - began, decode, time.thread_time() - cpu - self._decode_cpu)
        if plain:
            self._policy.measured(sum(len(part.tokens) for part in parts), decode + drafted)

    def _sweep(self) -> None:
        """Drop waiting requests whose client has left: they never run. Call with the lock held."""
        if not any(generation.cancelled.is_set() for generation, _ in self._waiting):
            return
        left = [entry for entry in self._waiting if entry[0].cancelled.is_set()]
        self._waiting = deque(entry for entry in self._waiting if not entry[0].cancelled.is_set())
        for generation, recorder in left:
            recorder.abandon()
            self.counters.abandoned += 1
            generation.sink.put(Failed(EngineError("the request was cancelled while it waited")))

    def _admit(self) -> None:
        while True:
            with self._wake:
                idle = sorted(self._idle_slots(), key=lambda slot: slot.seq)
                if not idle or not self._waiting:
                    return
                generation, recorder = self._waiting.popleft()
            if self._idle is not None:
                self._idle.interrupt()
            kept = [(number, slot.kept) for number, slot in enumerate(idle)]
            number, held = choose_slot(kept, generation.namespace, generation.prompt)
            slot = idle[number]
            cached = self._trim(slot, held)
            slot.start(generation, recorder, cached)
            self.counters.cached_tokens += cached
            self.counters.prompt_tokens += len(generation.prompt)

    def _close_gaps(self) -> None:
        """Bring running sequences together, where they have been apart for a while: a move costs about a step."""
        busy = [slot.seq for slot in self._active()]
        self._gap = self._gap + 1 if places.gaps(busy) else 0
        if self._gap_steps is None or self._gap <= self._gap_steps:
            return
        try:
            for source, target in places.moves(busy, len(self._slots)):
                self._move(source, target)
        except EngineError as error:  # what runs is where it was; only idle places were written to
            log.warning("sequences can't be moved, and won't be: %s", error)
            self._gap_steps = None
            for slot in self._idle_slots():
                slot.kept = None
                self._context.remove(slot.seq, 0)

    def _move(self, source: int, target: int) -> None:
        """Move a running sequence to an idle slot's place. What that slot keeps goes to the place of the idle slot that
        was used longest ago, which is given up.
        """
        slots = {slot.seq: slot for slot in self._slots}
        moved, there, oldest = slots[source], slots[target], self._oldest()
        if there is not oldest and there.kept is not None:
            self._context.copy(target, oldest.seq)
            there.seq, oldest.seq, there = oldest.seq, target, oldest
        there.kept = None
        self._context.copy(source, target)
        moved.seq, there.seq = target, source
        self._context.remove(source, 0)
        self.counters.moved += 1

    def _oldest(self) -> Slot:
        """The idle slot that keeps nothing, or was used longest ago."""
        return min(self._idle_slots(), key=lambda slot: slot.kept.used if slot.kept else 0)

    def _trim(self, slot: Slot, held: int) -> int:
        """Cut a slot's memory back to the first `held` tokens; 0 where it can't be done exactly."""
        try:
            self._context.remove(slot.seq, held)
        except RollbackError:
            self._context.remove(slot.seq, 0)
        return self._context.length(slot.seq)

    def _schedule(self) -> list[_Part]:
        active = self._active()
        reading = [slot for slot in active if slot.prefilling]
        answering = [slot for slot in active if slot not in reading] if reading else active
        most = min(self._settings.draft_limit, self._batch.capacity // max(len(active), 1) - 1)
        drafters = [slot.odds for slot in answering if slot.drafter is not None]
        limit = self._policy.limit(drafters, most) if drafters and not reading else 0
        parts, used = [], 0
        for slot in answering:
            at = slot.evaluated
            tokens = [slot.ids[at], *slot.make_draft(limit)]
            parts.append(_Part(slot, at, tokens, len(tokens)))
            used += len(tokens)
        room = self._batch.capacity - used
        if answering:
            room = min(room, self._settings.prefill_chunk)
        for index, slot in enumerate(reading):
            share = max(room // (len(reading) - index), 1) if room else 0
            tokens = slot.ids[slot.evaluated : slot.evaluated + share]
            room -= len(tokens)
            if tokens:
                last = slot.evaluated + len(tokens) == len(slot.ids)
                parts.append(_Part(slot, slot.evaluated, tokens, 1 if last else 0))
        parts.sort(key=lambda part: part.slot.seq)
        return parts

    def _carry_out(self, parts: list[_Part]) -> float:
        """Decode the rows and emit what follows. Returns the seconds in llama.cpp.

        Where a batch fails, each of its sequences is tried alone, so that one request's failure ends that one only.
        """
        batch = self._batch
        batch.clear()
        rows = []
        for part in parts:
            first = len(part.tokens) - part.wanted
            added = [
                batch.add(part.slot.seq, part.start + index, token, index >= first)
                for index, token in enumerate(part.tokens)
            ]
            rows.append(added[first:])
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            logits = self._context.decode(batch)
        except EngineError as error:
            if len(parts) > 1:
                log.error("decode failed; trying each sequence alone: %s", error)
                self.counters.isolated += 1
                return sum(self._carry_out([part]) for part in parts)
            log.error("decode failed: %s", error)
            parts[0].slot.fail(error)
            self._leave(parts[0].slot, keep=False)
            return time.perf_counter() - began
        seconds = time.perf_counter() - began
        self._decode_cpu += time.thread_time() - cpu
        self.counters.rows += len(batch)
        answers = []
        for part, wanted in zip(parts, rows, strict=True):
            if wanted:
                answers.append((part.slot, [logits[row] for row in wanted]))
            else:
                part.slot.evaluated += len(part.tokens)
        for stage in (Slot.look, Slot.draw, Slot.advance):
            for slot, wanted_rows in answers:
                if slot.generation is not None:  # it has not failed in an earlier stage
                    self._go_on(slot, stage, wanted_rows)
        # Only now may the memory be touched: cutting a sequence back would invalidate the rows still to be read.
        for part in parts:
            self._settle(part)
        # Readers wake up last: they would only wait for Python's lock, or take it.
        for slot, _ in answers:
            if slot.generation is not None and not self._go_on(slot, Slot.hand_out):
                self._leave(slot)
        return seconds

    def _go_on(self, slot: Slot, stage: Callable[..., None], *rows: list[Floats]) -> bool:
        """One stage of a slot's step. Where it fails, this answer ends, and no other; False then."""
        before = len(slot.ids)
        try:
            stage(slot, *rows)
            return True
        except EngineError as error:
            slot.fail(error)
        except Exception as error:
            log.exception("an answer could not be continued")
            slot.fail(EngineError("the engine failed", found=repr(error), hint="See the provider's log."))
        finally:
            self.counters.tokens += len(slot.ids) - before
        return False

    def _settle(self, part: _Part) -> None:
        """Bring a sequence's memory in line with what was emitted: without the drafts that did not come true."""
        slot = part.slot
        if slot.generation is None:
            self._leave(slot)
            return
        if slot.evaluated == part.start + len(part.tokens):
            return
        try:
            self._context.remove(slot.seq, slot.evaluated)
        except EngineError as error:
            slot.fail(error)
            self._leave(slot, keep=False)

    def _leave(self, slot: Slot, keep: bool = True) -> None:
        """A slot's turn is over: keep its sequence for the next one of the same namespace, or empty it."""
        namespace = slot.namespace if keep else None
        if namespace is not None and 0 < slot.evaluated < len(slot.ids):
            try:
                self._context.remove(slot.seq, slot.evaluated)
                self._uses += 1
                slot.kept = Kept(namespace, tuple(slot.ids[: slot.evaluated]), self._uses)
                return
            except EngineError:
                log.debug("sequence %d can't be cut back, so it is not kept", slot.seq)
        slot.kept = None
        self._context.remove(slot.seq, 0)

    def _gone(self, generation: Generation) -> bool:
        if generation.sink.backlog() > MAX_BACKLOG and not generation.cancelled.is_set():
            self.counters.slow_readers += 1
            generation.cancel()
        return generation.cancelled.is_set()

    def _work_idly(self) -> None:
        """No request is there. The slot used longest ago lends its sequence."""
        if self._idle is None or not self._idle.pending():
            return
        slot = self._oldest()
        if slot.kept is not None:
            slot.kept = None
            self._context.remove(slot.seq, 0)
        self._idle.run(self._context, slot.seq)
