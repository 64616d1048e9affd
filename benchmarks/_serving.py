"""What the benchmarks of the engine share: an engine on the small model, prompts, and timed rounds of answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engine.engine import Engine, EngineSettings
from engine.generation import Answer, Generation, QueueSink, collect
from engine.scheduling.scheduler import SchedulerSettings
from fixtures import models
from fixtures.quantise import variant
from verifiable.llama.settings import RuntimeSettings
from verifiable.request.request import COMPLETION, parse_body

SUBJECTS = ("rivers", "bridges", "bread", "clocks", "winter", "maps", "glass", "sleep")


@contextmanager
def engine(
    slots: int, *, model: str = "smollm2", drafter: str = "none", n_ctx: int = 1024, gap_steps: int | None = 4
) -> Iterator[Engine]:
    """An engine with its data in a folder that goes away; one thread, invariant settings. A draft model is the model
    itself in two bits.
    """
    settings = EngineSettings(
        runtime=RuntimeSettings(n_ctx=n_ctx, n_seq_max=slots),
        scheduler=SchedulerSettings(slots=slots, queue=slots, gap_steps=gap_steps),
        drafter=drafter,
        draft_model=variant("Q2_K", model) if drafter == "model" else None,
    )
    with TemporaryDirectory() as folder, Engine(models.ensure(model), Path(folder), settings) as opened:
        yield opened


def ask(provider: Engine, count: int, max_tokens: int, fields: Mapping[str, Any]) -> tuple[list[Answer], float]:
    """Ask `count` questions at once; returns the answers and the decoded tokens a second from first to last delta.

    The time starts when the last prompt has been read, so that it is decoding that is measured; no answer ends early,
    so that it is the same number of steps of the same width in each round.
    """
    sinks = []
    for subject in SUBJECTS[:count]:
        body = {"prompt": f"A long story about {subject}:", "max_tokens": max_tokens, "ignore_eos": True, **fields}
        sinks.append(TimedSink())
        submit(provider, body, sinks[-1])
    answers = [collect(sink) for sink in sinks]
    return answers, decoding_rate([sink.times for sink in sinks])


def submit(provider: Engine, body: Mapping[str, Any], sink: QueueSink, path: str = COMPLETION) -> Generation:
    """Ask the engine what a client would have asked with this body."""
    return provider.submit(parse_body(path, json.dumps(body).encode()), sink)


def decoding_rate(times: Sequence[Sequence[float]], settled: int = 0) -> float:
    """Tokens a second of streams that go on together, by the times at which their tokens came: from when each has
    `settled` tokens and one to when the first of them ends.
    """
    start, end = max(each[settled] for each in times), min(each[-1] for each in times)
    return sum(sum(start < at <= end for at in each) for each in times) / (end - start)


class TimedSink(QueueSink):
    """Notes when each token came."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def put(self, event: Any) -> None:
        tokens = len(getattr(event, "tokens", ()))
        self.times += [time.perf_counter()] * tokens
        super().put(event)
