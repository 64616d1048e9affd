"""Providers whose bits can't be repeated: honest ones are not accused, cheating ones are, on a real model.

The providers run llama.cpp's own defaults (KV f16, repacked weights), under which logits depend on how requests are
batched, so no exact audit is possible. A small budget; the full size is `python -m benchmarks.detection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.engine import Engine, EngineSettings
from engine.scheduler import SchedulerSettings
from tests.adversary.cheats import HigherTemperature, OtherQuantisation
from verifiable.evidence import Kind
from verifiable.llama.probe_cache import default_folder
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest import Runtime
from verifiable.verdict import Status, Verdict
from verifier.calibrate import calibrate
from verifier.calibration import Calibration
from verifier.reexecute import Worker
from verifier.session import audit
from verifier.tolerant import measured, settle

TOKENS = 16
STOCK = RuntimeSettings(n_ctx=256, type_k="f16", type_v="f16")
SUBJECTS = ("rivers", "bread", "winter", "maps", "sleep", "glass")


class CoarseCache(Engine):
    """Keeps the KV cache in 4 bits where the manifest says f16."""

    def _runtime(self) -> RuntimeSettings:
        return replace(self.settings.runtime, type_k="q4_0", type_v="q4_0")


@pytest.fixture(scope="module")
def worker(smollm2: Path) -> Iterator[Worker]:
    with Worker(smollm2, cache=default_folder()) as opened:
        yield opened


@pytest.fixture(scope="module")
def calibration(smollm2: Path) -> Calibration:
    settings = {
        name: getattr(STOCK, name) for name in RuntimeSettings.__slots__ if name not in ("n_seq_max", "n_threads")
    }
    runtime = Runtime("", "", "", **settings, fingerprint=bytes(32), invariant=False)
    return calibrate(
        smollm2, runtime, conversations=16, tokens=TOKENS, seed=b"tests", against=["small-batches", "kv-bf16"]
    )


def serve(make: Callable[..., Engine], model: Path, folder: Path, worker: Worker, given: Calibration) -> list[Verdict]:
    """Ask a provider some questions, and audit its answers."""
    settings = EngineSettings(runtime=STOCK, scheduler=SchedulerSettings(slots=2), drafter="none")
    with make(model, folder, settings) as provider:
        for subject in SUBJECTS:
            question = [{"role": "user", "content": f"Tell me something about {subject}."}]
            provider.chat(question, max_tokens=TOKENS, temperature=0.8, nonce=subject.encode().ljust(16, b"."))
        found = [provider.evidence.evidence(row, Kind.FULL).encode() for _, row in provider.store.sessions(100)]
        trust = [provider.keys.provider.public]
    return [audit(data, worker, trust, calibration=given) for data in found]


def test_an_honest_provider_is_not_accused_and_a_pass_says_what_it_is_worth(
    smollm2: Path, tmp_path: Path, worker: Worker, calibration: Calibration
) -> None:
    verdicts = serve(Engine, smollm2, tmp_path, worker, calibration)
    assert all(measured(verdict) is not None for verdict in verdicts)
    settled, decision = settle(calibration, verdicts)
    assert decision is not None
    assert decision.path.highest < 3.0
    assert {verdict.status for verdict in settled} == {Status.STATISTICAL}
    assert "kv-q4_0" in decision.caught
    assert "kv-q8_0" in decision.missed
    assert all("kv-q8_0" in " ".join(verdict.not_shown) for verdict in settled)


@pytest.mark.parametrize("make", [OtherQuantisation, CoarseCache])
def test_a_coarser_model_or_cache_fails(
    make: Callable[..., Engine], smollm2: Path, tmp_path: Path, worker: Worker, calibration: Calibration
) -> None:
    settled, decision = settle(calibration, serve(make, smollm2, tmp_path, worker, calibration))
    assert decision is not None
    assert decision.path.crossed is not None
    assert "distribution-differs" in {verdict.code for verdict in settled}
    assert Status.FAILED in {verdict.status for verdict in settled}


def test_another_temperature_is_proven_by_replay_whatever_the_numerics(
    smollm2: Path, tmp_path: Path, worker: Worker, calibration: Calibration
) -> None:
    verdicts = serve(HigherTemperature, smollm2, tmp_path, worker, calibration)
    assert {verdict.status for verdict in verdicts} <= {Status.FAILED, Status.INCONCLUSIVE}
    assert "temperature-differs" in {verdict.code for verdict in verdicts}
