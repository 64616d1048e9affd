"""Providers whose LoRA adapters are not those of their manifest: each fails at its first token."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.engine import Engine, EngineSettings
from fixtures.adapters import write_lora
from tests.adversary.cheats import MissingAdapter, ScaledAdapter, UndeclaredAdapter
from verifiable.checking.verdict import Status, Verdict
from verifiable.llama.gguf.lora import Adapter
from verifiable.llama.probe.cache import default_folder
from verifiable.llama.settings import RuntimeSettings
from verifiable.session.evidence import Kind
from verifier.auditing.session import audit
from verifier.model.worker import Worker

QUESTION = [{"role": "user", "content": "Write two sentences about the sea."}]


@pytest.fixture(scope="module")
def style(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    return Adapter(write_lora(tmp_path_factory.mktemp("lora") / "style.gguf", smollm2))


def served(kind: type[Engine], model: Path, declared: tuple[Adapter, ...], folder: Path) -> tuple[str, Verdict]:
    """What a provider answers, and the verdict of an auditor who has what the manifest declares."""
    settings = EngineSettings(runtime=RuntimeSettings(n_ctx=256), adapters=declared)
    with kind(model, folder, settings) as provider:
        answer = provider.chat(QUESTION, max_tokens=24, temperature=0.8, nonce=b"client's nonce")
        row = provider.store.sessions(1)[0][1]
        evidence = provider.evidence.evidence(row, Kind.FULL)
        trust = [provider.keys.provider.public]
    with Worker(model, adapters=declared, cache=default_folder()) as worker:
        return answer.text, audit(evidence, worker, trust)


def test_an_honest_provider_with_an_adapter_verifies_exactly(smollm2: Path, style: Adapter, tmp_path: Path) -> None:
    text, verdict = served(Engine, smollm2, (style,), tmp_path / "with")
    plain, other = served(Engine, smollm2, (), tmp_path / "without")
    assert verdict.status is other.status is Status.EXACT
    assert text != plain


@pytest.mark.parametrize("kind", [MissingAdapter, ScaledAdapter, UndeclaredAdapter])
def test_another_adapter_than_declared_fails_at_the_first_token(
    kind: type[Engine], smollm2: Path, style: Adapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UndeclaredAdapter, "adapter", style, raising=False)
    declared = () if kind is UndeclaredAdapter else (style,)
    _, verdict = served(kind, smollm2, declared, tmp_path)
    assert verdict.status is Status.FAILED, verdict
    assert (verdict.code, verdict.turn, verdict.token) == ("logits-differ", 0, 0)
