"""Providers whose bits can't be repeated: honest ones are not accused, cheating ones are, on a real model.

The providers run llama.cpp's own defaults (KV f16, repacked weights), under which logits depend on how requests are
batched, so no exact audit is possible. A small budget; the full size is `python -m benchmarks.detection`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from engine.engine import Engine, EngineSettings
from engine.keys.auditors import Auditors
from engine.scheduling.scheduler import SchedulerSettings
from fixtures.quantise import variant
from tests.adversary.cheats import EighthBest, HigherTemperature, OtherQuantisation, Steering
from tests.integration.serving import http
from tests.real_model import HonestProvider, provider
from tests.sessions import TRUST, Recording, ask
from verifiable.checking.verdict import Status, Verdict
from verifiable.cli import main as command
from verifiable.llama.chat.prompt import prompt_ids
from verifiable.llama.model import Model
from verifiable.llama.probe.cache import default_folder
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.manifest import Runtime
from verifiable.request.request import Request
from verifiable.sampling.logits import Entries
from verifiable.session.evidence import Kind
from verifier.auditing.rounding import decide_sessions
from verifier.auditing.scope import audited
from verifier.auditing.session import audit
from verifier.model.worker import Worker
from verifier.tolerant.calibrate import calibrate
from verifier.tolerant.calibration import Calibration
from verifier.tolerant.tolerant import Comparison

pytestmark = pytest.mark.slow

TOKENS = 16
STOCK = RuntimeSettings(n_ctx=256, type_k="f16", type_v="f16")
ALONE = replace(STOCK, n_seq_max=1)
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


def serve(
    make: Callable[..., Engine],
    model: Path,
    folder: Path,
    worker: Worker,
    given: Calibration,
    subjects: Sequence[str] = SUBJECTS,
    **fields: Any,
) -> list[Verdict]:
    """Ask a provider some questions, and audit its answers."""
    settings = EngineSettings(runtime=STOCK, scheduler=SchedulerSettings(slots=2), drafter="none")
    with make(model, folder, settings) as provider:
        for subject in subjects:
            question = [{"role": "user", "content": f"Tell me something about {subject}."}]
            nonce = subject.encode().ljust(16, b".")
            provider.chat(question, max_tokens=TOKENS, temperature=0.8, nonce=nonce, **fields)
        found = [provider.evidence.evidence(row, Kind.FULL).encode() for _, row in provider.store.sessions(100)]
        trust = [provider.keys.provider.public]
    return [audit(data, worker, trust, calibration=given) for data in found]


def test_an_honest_provider_is_not_accused_and_a_pass_says_what_it_is_worth(
    smollm2: Path, tmp_path: Path, worker: Worker, calibration: Calibration
) -> None:
    verdicts = serve(Engine, smollm2, tmp_path, worker, calibration)
    assert all(audited(verdict).comparison is not None for verdict in verdicts)
    settled, decision = decide_sessions(calibration, verdicts)
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
    settled, decision = decide_sessions(calibration, serve(make, smollm2, tmp_path, worker, calibration))
    assert decision is not None
    assert decision.path.crossed is not None
    assert "distribution-differs" in {verdict.code for verdict in settled}
    assert Status.FAILED in {verdict.status for verdict in settled}


MASKED: tuple[dict[str, Any], ...] = ({"ignore_eos": True}, {"grammar": "root ::= [A-Za-z ,.]+"})


@pytest.mark.parametrize("fields", MASKED, ids=["ignore_eos", "grammar"])
def test_the_eighth_best_token_is_proven_where_the_draw_depends_on_the_vocabulary(
    fields: dict[str, Any], smollm2: Path, tmp_path: Path, worker: Worker, calibration: Calibration
) -> None:
    verdicts = serve(EighthBest, smollm2, tmp_path, worker, calibration, SUBJECTS[:1], **fields)
    assert {(verdict.status, verdict.code) for verdict in verdicts} == {(Status.FAILED, "text-not-sampled")}


@pytest.mark.parametrize("fields", MASKED, ids=["ignore_eos", "grammar"])
def test_an_honest_provider_is_verified_where_the_draw_depends_on_the_vocabulary(
    fields: dict[str, Any], smollm2: Path, tmp_path: Path, worker: Worker, calibration: Calibration
) -> None:
    settled, decision = decide_sessions(calibration, serve(Engine, smollm2, tmp_path, worker, calibration, **fields))
    assert decision is not None
    assert decision.path.highest < 3.0
    assert {verdict.status for verdict in settled} == {Status.STATISTICAL}


def test_a_provider_that_moves_records_to_choose_tokens_fails(
    smollm2: Path, tmp_path: Path, worker: Worker, calibration: Calibration
) -> None:
    settled, decision = decide_sessions(calibration, serve(Steering, smollm2, tmp_path, worker, calibration))
    assert decision is not None
    assert decision.path.crossed is not None
    assert {verdict.code for verdict in settled} <= {"draws-differ", "too-little-evidence"}
    assert "draws-differ" in {verdict.code for verdict in settled}


def audit_over_http(
    make: Callable[..., Engine], model: Path, folder: Path, given: Calibration, questions: int, **fields: Any
) -> int:
    """A client asks over HTTP, and `verifiable audit URL` draws all that was answered; its exit status."""
    settings = EngineSettings(runtime=STOCK, scheduler=SchedulerSettings(slots=2), drafter="none")
    key, calibrated = "k" * 43, folder / "calibration.json"
    given.save(calibrated)
    with make(model, folder / "provider", settings) as provider, http(provider, []) as url:
        Auditors(provider.keys.auditors_file).register("auditor", key, int(time.time()))
        for number in range(questions):
            question = [{"role": "user", "content": f"Tell me something about {SUBJECTS[number % 6]}, please."}]
            body = {"messages": question, "max_tokens": TOKENS, "temperature": 0.8, **fields}
            body["verifiable"] = {"nonce": f"{number:032x}"}
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
        trust = str(provider.keys.public_file)
        options = ["--trust", trust, "--model", str(model), "--calibration", str(calibrated), "--auditor-key", key]
        drawn = ["--sessions", str(questions), "--save", str(folder / "kept"), "--state", str(folder / "state")]
        return command(["audit", url, *options, *drawn])


def test_over_http_and_on_the_command_line_steering_fails_and_the_report_says_which_statistic(
    smollm2: Path, tmp_path: Path, calibration: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit_over_http(Steering, smollm2, tmp_path, calibration, 6) == 1
    out = capsys.readouterr().out
    assert "draws-differ" in out
    assert "Of each statistic alone" in out
    assert "Calibration: made" in out


def test_over_http_and_on_the_command_line_the_eighth_best_token_fails(
    smollm2: Path, tmp_path: Path, calibration: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit_over_http(EighthBest, smollm2, tmp_path, calibration, 1, ignore_eos=True) == 1
    assert "text-not-sampled" in capsys.readouterr().out


def comparison(verdict: Verdict) -> Comparison:
    made = audited(verdict).comparison
    assert made is not None
    return made


class LateCheat(HonestProvider):
    """Computes the first tokens of each answer with the promised file, and all that follow with a smaller one."""

    def __init__(self, honest: HonestProvider, cheap: HonestProvider, after: int) -> None:
        super().__init__(honest.model, honest.manifest, ALONE)
        self._cheap, self._after, self._turns = cheap, after, 0

    def answer(self, request: Request, recording: Recording | None = None, cut: int | None = None) -> Recording:
        self._turns = len(prompt_ids(self.model, request)) + self._after
        self._cheap.forget()
        return super().answer(request, recording, cut)

    def row(self, ids: Sequence[int]) -> Entries:
        return super().row(ids) if len(ids) < self._turns else self._cheap.row(ids)


def test_a_model_that_is_swapped_after_the_first_tokens_is_caught(
    smollm2: Path, worker: Worker, calibration: Calibration
) -> None:
    """Q4_0 from token 32 on; nothing longer than 16 tokens is compared, so where it is compared must be drawn."""
    verdicts = []
    with provider(smollm2, ALONE) as honest, Model.load(variant("Q4_0")) as small:
        cheap = HonestProvider(small, honest.manifest, ALONE)
        cheat = LateCheat(honest, cheap, 32)
        for number, subject in enumerate(SUBJECTS):
            question = [{"role": "user", "content": f"Tell me a long story about {subject}."}]
            request = ask(messages=question, max_tokens=96, temperature=0.8, verifiable={"nonce": f"{number:020x}"})
            made = Recording(manifest=honest.manifest, session=bytes([number]) * 16)
            cheat.answer(request, made)
            data = made.evidence(Kind.FULL).encode()
            verdicts.append(audit(data, worker, TRUST, calibration=calibration, seed=b"c" * 32))
        cheat.close()
        cheap.close()
    conversations = [each.distances for each in map(comparison, verdicts)]
    starts = [conversation.start for conversation in conversations]
    assert max(starts) > 32 > min(starts)
    settled, decision = decide_sessions(calibration, verdicts)
    assert decision is not None
    assert decision.path.crossed is not None
    assert "distribution-differs" in {verdict.code for verdict in settled}
    # What was compared before the swap is honest: the provider could not have known that it would not be enough.
    early = [conversation for conversation in conversations if conversation.start + TOKENS <= 32]
    assert all(np.log(conversation.claim / conversation.replays).mean() < 0.5 for conversation in early)


def test_another_temperature_is_proven_by_replay_whatever_the_numerics(
    smollm2: Path, tmp_path: Path, worker: Worker, calibration: Calibration
) -> None:
    verdicts = serve(HigherTemperature, smollm2, tmp_path, worker, calibration)
    assert {verdict.status for verdict in verdicts} <= {Status.FAILED, Status.INCONCLUSIVE}
    assert "temperature-differs" in {verdict.code for verdict in verdicts}
