"""Providers that lie about their runtime, so that an audit ends in the auditor's machine and not in a finding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine, EngineSettings
from tests.adversary.cheats import HiddenPrompt
from tests.integration.serving import http
from verifiable.cli import main
from verifiable.llama.probe.probe import ProbeResult
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.manifest import Library, Manifest, ModelIdentity
from verifiable.request.request import Request

pytestmark = pytest.mark.slow


class FalseRuntime(HiddenPrompt):
    """States another runtime than it has, and while `hides` puts a system prompt in front of what the client asked."""

    states: Mapping[str, Any] = {}
    hides = False

    def _stated(self, identity: ModelIdentity, probed: ProbeResult) -> Manifest:
        stated = super()._stated(identity, probed)
        return replace(stated, runtime=replace(stated.runtime, **self.states))

    def _prompt(self, request: Request, opened: int | None = None) -> list[int]:
        return super()._prompt(request, opened) if self.hides else Engine._prompt(self, request, opened)


LIES = {
    "a device of another build": ({"device": "CUDA0", "n_gpu_layers": 99, "libraries": ()}, "environment"),
    "a device that its files do not know": ({"device": "CUDA0", "n_gpu_layers": 99}, "runtime-impossible"),
    "a fingerprint of its own": ({"fingerprint": b"f" * 32}, "fingerprint-unexplained"),
    "a fingerprint and a compiler of its own": (
        {"fingerprint": b"f" * 32, "compiler": "GCC: 11.3.0", "libraries": (Library("libggml", b"l" * 32),)},
        "fingerprint-differs",
    ),
    "a context that no machine has": ({"n_ctx": 2**31 - 1}, "runtime-impossible"),
    "an unknown type of cache": ({"type_k": "q1_9"}, "runtime-impossible"),
    "a quantised cache without fused attention": ({"type_v": "q8_0", "flash_attn": False}, "runtime-impossible"),
    "batches of nothing": ({"n_batch": 0}, "runtime-impossible"),
}
INCONCLUSIVE = {"environment", "fingerprint-differs", "fingerprint-unexplained"}


@pytest.mark.parametrize("lie", LIES)
def test_no_runtime_hides_a_wrong_prompt(
    lie: str, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    states, code = LIES[lie]
    monkeypatch.setattr(FalseRuntime, "states", states)
    key = tmp_path / "provider.pub"
    with FalseRuntime(smollm2, tmp_path / "data", EngineSettings(runtime=RuntimeSettings(n_ctx=256))) as engine:
        key.write_bytes(engine.keys.public_file.read_bytes())
        with http(engine, []) as url:
            for hides, expected in ((True, "prompt-differs"), (False, code)):
                monkeypatch.setattr(FalseRuntime, "hides", hides)
                answer = engine.chat(
                    [{"role": "user", "content": "Why is the sky blue?"}], max_tokens=4, nonce=b"n" * 8
                )
                receipt = tmp_path / f"{hides}.receipt"
                receipt.write_bytes(answer.receipt or b"")
                options = ["--model", str(smollm2), "--trust", str(key), "--provider", url, "--json"]
                status = main(["audit", str(receipt), *options])
                (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
                assert verdict["code"] == expected, verdict
                assert status == (3 if expected in INCONCLUSIVE else 1)
                assert ("compiled by GCC: 11.3.0" in verdict.get("hint", "")) == (expected == "fingerprint-differs")
