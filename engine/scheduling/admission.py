"""Admission: the requests that wait for a slot, how many may, and the end of it all."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from engine.counters import Counters
from engine.generation import Failed, Generation
from engine.sessions.recorder import Recorder
from verifiable.errors import EngineError, PolicyError


class QueueFullError(PolicyError):
    """More requests are waiting than the queue takes."""


class StoppingError(EngineError):
    """The provider takes no more requests."""


class Waiting(NamedTuple):
    """A request that waits, and what will commit to its turn."""

    generation: Generation
    recorder: Recorder


class Admission:
    """`submit`, `nudge` and `stop` may be called from any thread, the rest from the scheduler's.

    `queue` bounds the requests that wait when every slot is taken; `free` counts the slots that are not.
    """

    def __init__(self, queue: int, free: Callable[[], int], counters: Counters) -> None:
        self.stopping = False
        self._queue = queue
        self._free = free
        self._counters = counters
        self._waiting: deque[Waiting] = deque()
        self._wake = threading.Condition()
        self._deadline = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, generation: Generation, recorder: Recorder) -> None:
        """Queue a generation. Raises QueueFullError, or StoppingError; the recorder is then unused."""
        with self._wake:
            if self.stopping:
                raise _stopping()
            self._sweep()
            if len(self._waiting) >= self._free() + self._queue:
                self._counters.refused += 1
                raise QueueFullError("too many requests are waiting", expected=f"at most {self._queue}")
            self._waiting.append(Waiting(generation, recorder))
            self._wake.notify()

    def nudge(self) -> None:
        """Something else than a request is to be done."""
        with self._wake:
            self._wake.notify()

    def stop(self, grace: float) -> None:
        """Take no more requests. `wait` returns False once nothing runs, or `grace` seconds are over."""
        with self._wake:
            self.stopping = True
            self._deadline = time.monotonic() + grace
            self._wake.notify()

    def wait(self, running: Callable[[], bool], pending: Callable[[], bool]) -> bool:
        """Sleep until there is something to do: a request waits or is running, or other work is pending. Returns
        whether to go on.
        """
        with self._wake:
            self._wake.wait_for(lambda: self.stopping or self._waiting or running() or pending())
            if self.stopping:
                self._turn_away()
            return not self.stopping or (running() and time.monotonic() < self._deadline)

    def next(self) -> Waiting | None:
        """The request that is admitted next, where one waits and a slot is free."""
        if not self._waiting:
            return None
        with self._wake:
            self._sweep()
            return self._waiting.popleft() if self._waiting and self._free() else None

    def _sweep(self) -> None:
        """Drop waiting requests whose client has left: they never run. Call with the lock held."""
        staying: deque[Waiting] = deque()
        for waiting in self._waiting:
            if waiting.generation.cancelled.is_set():
                self._counters.abandoned += 1
                _refuse(waiting, EngineError("the request was cancelled while it waited"))
            else:
                staying.append(waiting)
        self._waiting = staying

    def _turn_away(self) -> None:
        for waiting in self._waiting:
            _refuse(waiting, _stopping())
        self._waiting.clear()


def _refuse(waiting: Waiting, error: EngineError) -> None:
    waiting.recorder.abandon()
    waiting.generation.sink.put(Failed(error))


def _stopping() -> StoppingError:
    return StoppingError("the provider is shutting down", hint="Try again later.")
