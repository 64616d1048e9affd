"""Steps of the real scheduler without a model: a context with prepared logits, and a store that keeps nothing.

What a step costs here is what it computes. Beside a model it costs more, since the model's weights have pushed Python
out of the processor's cache by the time that a step goes on.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import numpy as np

from benchmarks.measure import in_turn
from engine.generation import Generation, QueueSink
from engine.scheduling.scheduler import Scheduler, SchedulerSettings
from engine.sessions.dates import Dates
from engine.sessions.manifests import Signed
from engine.sessions.recorder import NoRecorder, Recorder, SessionRecorder
from engine.store import SessionRow, Store
from verifiable.llama.context import Batch, Context, LogitRows
from verifiable.llama.model import Model
from verifiable.request.request import COMPLETION, parse_body
from verifiable.sampling.sampler import SamplingDefaults
from verifiable.session.log import SessionLog
from verifiable.wire.keys import PrivateKey

VOCABULARY = 49_152
K = 40
WARM_UP = 20


class _Model:
    is_recurrent = is_hybrid = False
    eog = suppressed = frozenset[int]()

    def __init__(self) -> None:
        self._pieces = [f" w{token}".encode() for token in range(VOCABULARY)]

    def piece(self, token: int) -> bytes:
        return self._pieces[token]


class _Context:
    """Neighbouring rows of one imagined text, in turn; written anew each time, as a model would."""

    n_batch = 512
    generation = 0

    def __init__(self, slots: int) -> None:
        random = np.random.default_rng(7)
        base = random.standard_normal(VOCABULARY) * 3
        self._pool = [(base + random.standard_normal(VOCABULARY)).astype(np.float32) for _ in range(4 * slots)]
        self._rows = np.zeros((slots, VOCABULARY), np.float32)
        self._lengths = [0] * slots
        self._turn = 0

    def decode(self, batch: Batch) -> LogitRows:
        self.generation += 1
        for seq, (_, end) in batch.spans.items():
            self._lengths[seq] = end
        for row in self._rows:
            self._turn = (self._turn + 1) % len(self._pool)
            row[:] = self._pool[self._turn]
        return LogitRows(cast(Context, self), self.generation, self._rows, batch._index)

    def remove(self, seq: int, p0: int) -> None:
        self._lengths[seq] = min(self._lengths[seq], p0)

    def length(self, seq: int) -> int:
        return self._lengths[seq]


class _Store:
    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def python_in_a_step(slots: int, steps: int, fields: Mapping[str, Any]) -> float:
    """Median seconds of processor time that a step of `slots` answers takes; `fields` are those of their requests."""
    scheduler = Scheduler(
        cast(Model, _Model()), cast(Context, _Context(slots)), K, SchedulerSettings(slots=slots, queue=slots)
    )
    for slot in range(slots):
        scheduler.submit(*_answer(slot, WARM_UP + steps + 8, fields))
    taken = []
    for _ in range(WARM_UP + steps):
        before = scheduler.counters.python_cpu
        scheduler._step()
        taken.append(scheduler.counters.python_cpu - before)
    return statistics.median(taken[WARM_UP:])


def _answer(slot: int, max_tokens: int, fields: Mapping[str, Any]) -> tuple[Generation, Recorder]:
    body = {"prompt": "a", "max_tokens": max_tokens, **fields, "seed": slot}
    request = parse_body(COMPLETION, json.dumps(body).encode())
    prompt = list(range(1, 9))
    params = request.params(SamplingDefaults(), K, 4096, len(prompt))
    nonce = request.turn_nonce(b"")
    key = request.turn_facts(prompt, params, nonce).key()
    generation = Generation(request=request, prompt=prompt, params=params, nonce=nonce, key=key, sink=QueueSink())
    if not request.commitments:
        return generation, NoRecorder()
    session = bytes([slot]) * 16
    recorder = SessionRecorder(
        cast(SessionRow, _Row(session)),
        SessionLog(session, bytes(32), bytes(32)),
        request,
        keep_open=False,
        manifest=cast(Signed, _Valid()),
        key=PrivateKey.generate("benchmark", seed=bytes(32)),
        store=cast(Store, _Store()),
        dates=Dates(cast(Store, _Store()), lambda: 0),
        release=lambda: None,
    )
    return generation, recorder


class _Valid:
    envelope = b""

    def covers(self, time: int) -> bool:
        return True


class _Row:
    opened = 0

    def __init__(self, session: bytes) -> None:
        self.session = session


def rounds(cases: Mapping[str, Mapping[str, Any]], slots: int, steps: int, count: int = 5) -> dict[str, float]:
    """Median of `count` rounds for each case, taken in turn."""
    taken = in_turn({name: partial(python_in_a_step, slots, steps, fields) for name, fields in cases.items()}, count)
    return {name: statistics.median(values) for name, values in taken.items()}
