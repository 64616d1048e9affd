"""`verifiable audit` and `verifiable verify` against a real provider over real HTTP, with a real model."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine, EngineSettings
from engine.scheduling.scheduler import SchedulerSettings
from tests.integration.serving import http
from verifiable.cli import main
from verifiable.llama.settings import RuntimeSettings
from verifiable.session.evidence import Evidence, Kind

QUESTIONS = ("Name three colours.", "Why is the sky blue?", "Write a line about the sea.")


@dataclass(frozen=True, slots=True)
class Running:
    """A provider that has answered, and the files that its clients and auditors hold."""

    url: str
    folder: Path
    model: Path

    def audit(self, target: str, *more: str, model: Path | None = None) -> int:
        arguments = ["audit", target, "--model", str(model or self.model), "--trust", str(self.folder / "acme.pub")]
        return main([*arguments, *more])

    @property
    def key(self) -> tuple[str, str]:
        return "--auditor-key", str(self.folder / "auditor")


@pytest.fixture(scope="module")
def provider(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("held")
    settings = EngineSettings(
        runtime=RuntimeSettings(n_ctx=256), scheduler=SchedulerSettings(slots=2), drafter="ngram", name="acme"
    )
    with Engine(smollm2, tmp_path_factory.mktemp("provider"), settings) as engine:
        for index, text in enumerate(QUESTIONS):
            asked: dict[str, Any] = {"max_tokens": 16, "temperature": 0.7, "nonce": bytes([index]) * 16}
            answer = engine.chat([{"role": "user", "content": text}], **asked)
            assert answer.receipt is not None
            (folder / f"{index}.receipt").write_bytes(answer.receipt)
            (folder / f"{index}.txt").write_text(answer.text, encoding="utf-8")
        (folder / "acme.pub").write_bytes(engine.keys.public_file.read_bytes())
        (folder / "auditor").write_text(engine.keys.auditor_key)
        with http(engine, ["sk-test"]) as url:
            yield Running(url, folder, smollm2)


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an audit writes evidence of failures unless told otherwise."""
    monkeypatch.chdir(tmp_path)


def test_a_provider_is_audited(provider: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    assert provider.audit(provider.url, *provider.key, "--sessions", "2", "--html", str(page)) == 0
    out = capsys.readouterr().out
    assert "VERIFIED, exactly." in out
    assert "2 of 2 sessions" in out
    assert "were checked, in 2 whole sessions" in " ".join(out.split())
    assert "Sessions not drawn: 1 of 3" in out
    assert "Verified, exactly" in page.read_text(encoding="utf-8")
    assert not (tmp_path / "verifiable-evidence").exists()


def test_the_draw_can_be_repeated(provider: Running, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = []
    for _ in range(2):
        assert (
            provider.audit(provider.url + "/v1", *provider.key, "--sessions", "1", "--seed", "5a" * 32, "--json") == 0
        )
        facts = json.loads(capsys.readouterr().out)
        assert (facts["status"], facts["exit_code"], facts["challenge"]["seed"]) == ("verified-exact", 0, "5a" * 32)
        drawn.append([verdict["session"] for verdict in facts["verdicts"]])
    assert drawn[0] == drawn[1]


def test_two_processes_say_what_one_says(
    provider: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    said = []
    for processes in ("1", "2"):
        assert provider.audit(provider.url, *provider.key, "--processes", processes, "--seed", "5a" * 32, "--json") == 0
        facts = json.loads(capsys.readouterr().out)
        said.append((facts["verdicts"], facts["tokens_checked"], facts["challenge"]))
    assert said[0] == said[1]
    for wrong in (("--processes", "3"), ("--processes", "2", "--threads", "2")):
        assert provider.audit(provider.url, *provider.key, *wrong) == 2
    assert "at most 2" in capsys.readouterr().err


def test_a_client_audits_its_own_answer(provider: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    receipt, text = str(provider.folder / "1.receipt"), str(provider.folder / "1.txt")
    save = tmp_path / "kept"
    assert provider.audit(receipt, "--provider", provider.url, "--text", text, "--save", str(save), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    names = [check["name"] for check in facts["verdicts"][0]["checks"]]
    assert {"Receipt", "Text as received", "Numerics", "Re-execution", "Sampler replay"} <= set(names)
    kept = list(save.iterdir())
    assert [Evidence.load(path).kind for path in kept] == [Kind.TOKENS]
    # And again from the file alone, as anybody with the model can.
    assert provider.audit(str(kept[0])) == 0
    assert "VERIFIED" in capsys.readouterr().out


def test_an_audit_is_signed_and_a_stranger_verifies_it(
    provider: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, report = tmp_path / "me.key", tmp_path / "signed.report"
    sign = ("--sign", str(key), "--signed-report", str(report), "--save", str(tmp_path / "kept"))
    assert provider.audit(provider.url, *provider.key, "--sessions", "1", *sign) == 0
    told = capsys.readouterr()
    assert "Signing key made" in told.err
    assert main(["verify", "--report", str(report), "--trust", f"{key}.pub"]) == 0
    assert "1 verified exactly" in capsys.readouterr().out
    assert main(["verify", "--report", str(report), "--trust", f"{key}.pub", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["report"]
    (kept,) = (tmp_path / "kept").iterdir()
    digest = hashlib.sha256(kept.read_bytes()).hexdigest()
    assert facts["verdicts"][0]["details"]["evidence_sha256"] == digest
    assert main(["verify", "--report", str(report), "--trust", str(provider.folder / "acme.pub")]) == 3


def test_verify_needs_no_model(provider: Running, capsys: pytest.CaptureFixture[str]) -> None:
    receipt, text = str(provider.folder / "0.receipt"), str(provider.folder / "0.txt")
    assert main(["verify", receipt, "--trust", str(provider.folder / "acme.pub"), "--text", text]) == 0
    assert "Signed by acme" in capsys.readouterr().out


def test_another_text_fails(provider: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.txt").write_text("not what was said")
    receipt = str(provider.folder / "0.receipt")
    assert provider.audit(receipt, "--provider", provider.url, "--text", str(tmp_path / "other.txt")) == 1
    assert "FAILED  text-differs" in capsys.readouterr().out


def test_without_a_key_or_a_provider_nothing_is_shown(provider: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert provider.audit(provider.url, "--sessions", "1") == 3
    assert "INCONCLUSIVE  no-evidence" in capsys.readouterr().out
    receipt = str(provider.folder / "0.receipt")
    assert provider.audit(receipt, "--provider", "http://127.0.0.1:9") == 3
    assert "unreachable" in capsys.readouterr().out
    assert provider.audit("http://127.0.0.1:9", "--json") == 3
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["code"] == "unreachable"


def test_your_own_wrong_file_is_told(
    provider: Running, smollm2_variant: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    receipt = str(provider.folder / "0.receipt")
    assert provider.audit(receipt, "--provider", provider.url, model=smollm2_variant("Q8_0")) == 3
    out = capsys.readouterr().out
    assert "INCONCLUSIVE  model-differs" in out
    assert "Nothing is proven" in out


def test_standard_output_carries_the_result_alone(provider: Running) -> None:
    command = [sys.executable, "-m", "verifiable", "audit", str(provider.folder / "2.receipt")]
    options = ["--provider", provider.url, "--model", str(provider.model), "--trust", str(provider.folder / "acme.pub")]
    ran = subprocess.run([*command, *options, "--json"], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["status"] == "verified-exact"
    assert ran.stderr == ""
