"""A proxy that rewrites requests before an honest provider: found by the client's own copy, and by nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.engine import Engine, EngineSettings
from tests.adversary.proxy import PRAISE, grinding, rewriting
from tests.integration.serving import http
from verifiable import Exchange
from verifiable.checking.caveats import CAVEATS
from verifiable.cli import main
from verifiable.llama.settings import RuntimeSettings

NONCE = bytes(range(16))
NOT_SHOWN = CAVEATS["request-not-given"]


@dataclass(frozen=True, slots=True)
class World:
    """An honest provider, a proxy before it, and what a client of each kept."""

    model: Path
    folder: Path
    honest: str
    proxy: str

    def ask(self, url: str, name: str) -> Exchange:
        """Ask, as a client does that keeps all; writes its exchange and its receipt."""
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "Which shoes are good?"}],
            "max_tokens": 12,
            "verifiable": {"nonce": NONCE.hex()},
        }
        sent = time.time_ns() // 1_000_000
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status().json()
        received = time.time_ns() // 1_000_000
        text = answer["choices"][0]["message"]["content"]
        receipt = answer["verifiable"]["receipt"]
        kept = Exchange.of(body, text=text, receipt=receipt, sent=sent, received=received)
        kept.save(self.folder / f"{name}.exchange")
        assert kept.receipt is not None
        (self.folder / f"{name}.receipt").write_bytes(kept.receipt.encode())
        (self.folder / f"{name}.json").write_text(json.dumps(body))
        return kept

    def verify(self, target: str, *more: str) -> int:
        return main(["verify", str(self.folder / target), "--trust", str(self.folder / "acme.pub"), *more])

    def audit(self, target: str, *more: str) -> int:
        options = ["--model", str(self.model), "--trust", str(self.folder / "acme.pub"), "--provider", self.proxy]
        return main(["audit", str(self.folder / target), *options, *more])

    def file(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def world(tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("client")
    model = tiny_models["llama"]
    settings = EngineSettings(runtime=RuntimeSettings(n_ctx=256), name="acme")
    with Engine(model, tmp_path_factory.mktemp("provider"), settings) as engine:
        (folder / "acme.pub").write_bytes(engine.keys.public_file.read_bytes())
        with http(engine, []) as honest, rewriting(honest, grinding) as proxy:
            made = World(model, folder, honest, proxy)
            made.ask(honest, "honest")
            made.ask(proxy, "rewritten")
            yield made


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an audit writes evidence of failures unless told otherwise."""
    monkeypatch.chdir(tmp_path)


def test_what_a_client_kept_of_an_honest_answer_verifies(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (world.verify, world.audit):
        assert command("honest.exchange") == 0
        out = capsys.readouterr().out
        assert NOT_SHOWN not in out
        assert "committed to {" not in out
    assert world.verify("honest.receipt", "--request", world.file("honest.json"), "--nonce", NONCE.hex(), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert {"Your request"} <= {check["name"] for check in facts["checks"]}
    assert [each["id"] for each in facts["not_shown"] if each["id"] in ("request-not-given", "times-not-given")] == [
        "times-not-given"
    ]


def test_a_terminal_that_knows_ascii_alone_is_told_as_well(world: World) -> None:
    words = ["verify", world.file("honest.exchange"), "--trust", world.file("acme.pub")]
    ended = subprocess.run(
        [sys.executable, "-m", "verifiable", *words],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"\\u2026" in ended.stdout


def test_a_rewriting_proxy_is_found_by_the_clients_own_request(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for target, more in (
        ("rewritten.exchange", ()),
        ("rewritten.receipt", ("--request", world.file("rewritten.json"))),
        ("rewritten.receipt", ("--request", world.file("rewritten.exchange"))),
    ):
        for command in (world.verify, world.audit):
            assert command(target, *more) == 1
            out = capsys.readouterr().out
            assert "FAILED  request-differs" in out
            assert "rests on your own copy" in out
        assert "messages, verifiable differ" in out  # the audit has the committed request
        assert PRAISE["content"] in out
        assert "INCONCLUSIVE" not in out


def test_and_by_the_nonce_alone(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (world.verify, world.audit):
        assert command("rewritten.receipt", "--nonce", NONCE.hex()) == 1
        out = capsys.readouterr().out
        assert "FAILED  nonce-differs" in out
        assert NONCE.hex() in out


def test_without_the_clients_copy_the_verdict_says_what_is_not_shown(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    assert world.audit("rewritten.receipt", "--html", str(page)) == 0
    out = capsys.readouterr().out
    assert NOT_SHOWN in out
    assert PRAISE["content"] in out  # the request that was committed to is printed
    assert NOT_SHOWN in page.read_text(encoding="utf-8")
    assert world.audit("rewritten.receipt", "--json") == 0
    assert "request-not-given" in [each["id"] for each in json.loads(capsys.readouterr().out)["not_shown"]]
    assert world.verify("rewritten.receipt") == 0
    assert NOT_SHOWN in capsys.readouterr().out


def test_an_exchange_of_another_time_is_found(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    kept = json.loads((world.folder / "honest.exchange").read_text())
    hour = 3_600_000
    for sent, received in ((hour, 2 * hour), (-2 * hour, -hour)):
        other = {**kept, "sent": kept["sent"] + sent, "received": kept["sent"] + received}
        (world.folder / "other.exchange").write_text(json.dumps(other))
        for command in (world.verify, world.audit):
            assert command("other.exchange") == 1
            assert "FAILED  time-differs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "only"),
    [
        (lambda text: text.replace(" ", "\u00a0"), None),
        (lambda text: f"\ufeff{text}", "a byte order mark"),
        (lambda text: f"{text} \n", "spaces at its end"),
        (lambda text: f"\ufeff{text}\r\n", "a byte order mark and spaces at its end"),
    ],
)
def test_a_text_that_a_program_changed_is_the_clients_affair_first(
    world: World, change: Any, only: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Exchange.load(world.folder / "honest.exchange").text
    assert text is not None
    (world.folder / "saved.txt").write_text(change(f"{text}"), encoding="utf-8", newline="")
    for command in (world.verify, world.audit):
        status = command("honest.receipt", "--text", world.file("saved.txt"))
        out = capsys.readouterr().out
        assert status == 1
        assert "text-differs" in out
        assert "your own copy first" in out
        assert only is None or f"{only} only" in out


WRONG: list[tuple[list[str], str]] = [
    (["{}/alone.exchange"], "holds no receipt"),
    (["{}/honest.receipt", "--request", "{}/acme.pub"], "not JSON"),
    (["{}/honest.receipt", "--request", "{}/n.json"], "none that a provider answers"),
    (["{}/honest.receipt", "--nonce", "zz"], "--nonce"),
    (["{}/honest.receipt", "--nonce", "00" * 65], "--nonce"),
    (["{}/honest.exchange", "--nonce", "00" * 16], "not the nonce of your own request"),
    (["{}/honest.exchange", "--request", "{}/honest.json"], "holds the request already"),
    (["{}/honest.receipt", "--request", "{}/rewritten.exchange"], "of another answer than the receipt"),
    (["{}/version.exchange"], "version 2"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_a_mistake_of_the_users_is_no_verdict(
    world: World, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = json.loads((world.folder / "honest.exchange").read_text())
    (world.folder / "alone.exchange").write_text(json.dumps({**kept, "receipt": None}))
    (world.folder / "version.exchange").write_text(json.dumps({**kept, "version": 1}))
    (world.folder / "n.json").write_text(json.dumps({**kept["body"], "n": 3}))
    target, *more = (argument.format(world.folder) for argument in arguments)
    for command in (world.verify, world.audit):
        assert command(Path(target).name, *more) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert said in captured.err


def test_a_copy_is_of_one_answer_and_of_no_lottery(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", str(world.model), "--trust", world.file("acme.pub"), "--nonce", NONCE.hex()]
    assert main(["audit", world.honest, *options]) == 2
    assert "of one answer" in capsys.readouterr().err
