"""`verifiable serve` with an adapter, RoPE and sampling of the operator's, and its `verifiable audit`, as commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx

from fixtures.adapters import write_lora
from verifiable.manifest.manifest import verify_manifest
from verifiable.manifest.rope import Rope
from verifiable.wire.keys import PublicKey

VERIFIABLE = [sys.executable, "-m", "verifiable"]


def run(*command: str | Path) -> tuple[int, dict[str, object]]:
    done = subprocess.run([*VERIFIABLE, *map(str, command)], capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_what_the_options_say_is_signed_and_audited(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    model, data = tiny_models["llama"], tmp_path / "data"
    lora = f"{write_lora(tmp_path / 'style.gguf', model)}:0.5"
    options = ["--lora", lora, "--rope-freq-base", "500000", "--device", "none", "--temperature", "0.7", "--ctx", "256"]
    provider = subprocess.Popen(
        [*VERIFIABLE, "serve", "--model", str(model), "--data", str(data), "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "log").open("w"),
        text=True,
    )
    try:
        assert provider.stdout is not None
        url = provider.stdout.readline().split()[1].removesuffix("/v1")
        body = {"messages": [{"role": "user", "content": "And then?"}], "max_tokens": 8}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200
        key = PublicKey.parse((data / "keys" / "provider.pub").read_text().strip())
        manifest = verify_manifest(httpx.get(f"{url}/v1/manifest", timeout=60).content, [key])
        (adapter,) = manifest.model.adapters
        assert (adapter.name, adapter.scale) == ("style.gguf", 0.5)
        assert (manifest.runtime.rope, manifest.runtime.device) == (Rope(freq_base=500_000.0), "none")
        assert manifest.defaults.temperature == 0.7
        page = httpx.get(url, headers={"Accept": "text/html"}, timeout=60).text
        assert "style.gguf × 0.5" in page
        keys: list[str | Path] = [
            "--trust",
            data / "keys" / "provider.pub",
            "--auditor-key",
            data / "keys" / "auditor.key",
            "--json",
        ]
        status, found = run("audit", url, "--model", model, *keys, "--lora", lora)
        assert (status, found["status"]) == (0, "verified-exact"), found
        status, found = run("audit", url, "--model", model, *keys)
        assert status == 3
        assert "model-differs" in json.dumps(found)
    finally:
        provider.terminate()
        provider.wait(timeout=30)
    log = (tmp_path / "log").read_text()
    assert "Adapter style.gguf × 0.5" in log
    assert "RoPE freq_base 500000.0" in log
