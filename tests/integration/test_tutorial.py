"""The tutorial's code runs as it stands there, on a tiny model: the client, the commands after it, the Python API."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.engine import Engine, EngineSettings
from tests.integration.serving import http
from tests.needs import ROOT
from verifiable import Exchange
from verifiable.cli import main
from verifiable.llama.settings import RuntimeSettings

TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
MODEL = "SmolLM2-135M-Instruct.Q4_1"
SERVED = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    """The tutorial's pieces of code in a language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def commands(name: str) -> list[list[str]]:
    """Every call of a command of ours, as its arguments."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith(f"verifiable {name} ")]


@contextmanager
def serving(model: Path, data: Path) -> Iterator[str]:
    settings = EngineSettings(runtime=RuntimeSettings(n_ctx=256), name="acme")
    with Engine(model, data, settings) as engine, http(engine, []) as url:
        yield url


def run(code: str, folder: Path) -> str:
    """What a script prints. The models' own file and the server's address are replaced before."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tutorials_code_runs(
    tiny_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_models["llama"]
    ask, api = blocks("python")
    with serving(model, tmp_path / "provider") as url:

        def here(text: str) -> str:
            return text.replace(f".models/{MODEL}.gguf", str(model)).replace(MODEL, model.stem).replace(SERVED, url)

        run(here(ask), tmp_path)
        kept = Exchange.load("answer.exchange")
        assert kept.receipt is not None
        assert None not in (kept.text, kept.sent, kept.received, kept.request.manifest)
        calls = [*commands("verify"), *commands("audit")]
        assert len(calls) == 3
        for call in calls:
            assert main([here(word) for word in call]) == 0, call
    out = capsys.readouterr().out
    assert out.count("VERIFIED, exactly.") == 2
    assert (tmp_path / "report.html").exists()
    said = run(here(api), tmp_path).splitlines()
    assert said.count("verified-receipt") == 2
