"""Mixtures of experts, whose routers are float32: served with rows in pairs, and audited exactly like all others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.engine import Engine, EngineSettings
from engine.generation import QueueSink, collect
from engine.scheduling.scheduler import SchedulerSettings
from fixtures.small_models import Shape, write_moe
from verifiable.checking.verdict import Status
from verifiable.llama import library
from verifiable.llama.settings import RuntimeSettings
from verifiable.request.request import COMPLETION, parse_body
from verifiable.session.evidence import Kind
from verifier.auditing.session import audit
from verifier.model.worker import Worker

SHAPE = Shape(4, 256, 4, 2, 256, experts=8)
TOKENS = 40


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_moe(tmp_path_factory.mktemp("moe") / "moe.gguf", shape=SHAPE)


def serve(model: Path, folder: Path, width: int, drafter: str = "none") -> tuple[Engine, list[bytes]]:
    """Answers to `width` questions asked at once, as evidence. The engine is closed."""
    settings = EngineSettings(
        RuntimeSettings(n_ctx=256, n_seq_max=width), SchedulerSettings(slots=width), drafter=drafter
    )
    with Engine(model, folder / "data", settings) as engine:
        sinks = []
        for number in range(width):
            body = {
                "prompt": f"number {number} of the people and the people of the number",
                "max_tokens": TOKENS + number,  # so that the last one is alone in the end
                "temperature": 0.7 * (number % 2),
                "ignore_eos": True,
                "verifiable": {"nonce": f"{number:016x}"},
            }
            sink = QueueSink()
            engine.submit(parse_body(COMPLETION, json.dumps(body).encode()), sink)
            sinks.append(sink)
        for sink in sinks:
            collect(sink)
        rows = [row for _, row in engine.store.sessions(100)]
        return engine, [engine.evidence.evidence(row, Kind.TOKENS).encode() for row in rows]


@pytest.mark.parametrize(("width", "drafter"), [(1, "none"), (1, "ngram"), (3, "ngram"), (5, "none")])
def test_a_mixture_of_experts_is_audited_exactly(moe: Path, tmp_path: Path, width: int, drafter: str) -> None:
    engine, evidence = serve(moe, tmp_path, width, drafter)
    runtime = engine.manifest.runtime
    assert runtime.invariant
    assert runtime.pairs == ("LLAMAFILE = 1" in library.build_info().system)
    with Worker(moe) as worker:
        for data in evidence:
            verdict = audit(data, worker, [engine.keys.provider.public])
            assert verdict.status is Status.EXACT, verdict
            assert verdict.tokens_checked >= TOKENS
