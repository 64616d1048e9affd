"""Providers that look for a draw that they like after they have seen the request: all are equal, or the proof fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_files import small, write
from tests.made_up_model import PROMPT, MadeUpProcess
from tests.sessions import PROVIDER, TIME, Recording, ask, manifest
from tests.simulator import Provider, serve
from verifiable import Exchange
from verifiable.checking.caveats import CAVEATS
from verifiable.cli import main
from verifiable.manifest.manifest import TYPE, Manifest
from verifiable.request.request import Request, parse_body
from verifiable.sampling.sampler import SamplingDefaults
from verifiable.session.receipt import Receipt
from verifiable.wire import cose, encoding
from verifier.commands import run
from verifier.provider.client import Client

NONCE = "00112233445566778899"
Run = Callable[..., int]


def request(**extra: Any) -> Request:
    """A client's request, silent about its sampling."""
    return ask(max_tokens=8, verifiable={"nonce": NONCE, **extra})


def answered(asked: Request, before: int = 0, stated: Manifest | None = None) -> Recording:
    """The session in which a provider has placed the request as it is, after `before` turns of its own."""
    made = Recording(manifest=stated or manifest(), alone=True)
    for number in range(before):
        made.turn(ask(max_tokens=2, verifiable={"nonce": f"{number:016x}"}), PROMPT)
    made.turn(asked, PROMPT)
    return made


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A client that keeps what it gets from a provider over HTTP, and runs a command over it: its exit status."""
    monkeypatch.setattr(run, "Worker", MadeUpProcess)
    monkeypatch.chdir(tmp_path)
    write(tmp_path, small())
    trust = ("--trust", PROVIDER.public.vkey())

    def command(name: str, made: Recording, asked: Request) -> int:
        with serve(Provider([made])) as url:
            with Client(url, capability=made.capability) as fetching:
                receipt = Receipt.parse(fetching.receipt(made.session))
            kept = Exchange(asked, made.texts[-1], receipt, TIME, TIME + 1000)
            kept.save(tmp_path / "answer.exchange")
            if name == "verify":
                return main(["verify", "answer.exchange", *trust])
            return main(["audit", "answer.exchange", *trust, "--model", "model.gguf", "--provider", url])

    return command


def test_one_request_at_nine_turns_has_one_answer(client: Run, capsys: pytest.CaptureFixture[str]) -> None:
    asked = request()
    sessions = [answered(asked, before) for before in range(9)]
    assert len({made.texts[-1] for made in sessions}) == 1
    assert client("verify", sessions[0], asked) == client("audit", sessions[0], asked) == 0
    capsys.readouterr()
    for made in (sessions[1], sessions[8]):
        for name in ("verify", "audit"):
            assert client(name, made, asked) == 1
            assert "session-differs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "before"),
    [({"session": "new"}, 1), ({"session": "07" * 16}, 0), ({"session": "09" * 16}, 1), ({"turn": 3}, 0)],
)
def test_a_request_has_one_place(
    client: Run, capsys: pytest.CaptureFixture[str], extra: dict[str, Any], before: int
) -> None:
    asked = request(**extra)
    for name in ("verify", "audit"):
        assert client(name, answered(asked, before), asked) == 1
        assert "session-differs" in capsys.readouterr().out


def test_a_session_that_goes_on_after_a_turn_that_was_to_be_alone_fails(
    client: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    made = answered(request())
    made.turn(ask(max_tokens=2, verifiable={"session": made.session.hex()}), PROMPT)
    asked = request()
    made.texts[-1] = made.texts[0]
    made.receipt = lambda turn=0: Recording.receipt(made, 0)  # type: ignore[method-assign]
    assert client("verify", made, asked) == 1
    assert "session-differs" in capsys.readouterr().out


def test_a_manifest_made_for_a_request_fails_one_that_pins_its_own(
    client: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    heats = [0.6, 0.8, 1.0, 1.5, 2.0, 3.0]
    stated = [manifest(defaults=SamplingDefaults(temperature=heat)) for heat in heats]
    texts = {answered(request(), stated=each).texts[0] for each in stated}
    assert len(texts) > 1  # this is what there is to choose from
    asked = request(manifest=stated[0].digest().hex())
    assert client("audit", answered(asked, stated=stated[0]), asked) == 0
    assert CAVEATS["manifest-not-pinned"] not in capsys.readouterr().out
    for name in ("verify", "audit"):
        assert client(name, answered(asked, stated=stated[-1]), asked) == 1
        assert "manifest-differs" in capsys.readouterr().out
    # Without a pin it passes, and every verdict says so.
    for name in ("verify", "audit"):
        assert client(name, answered(request(), stated=stated[-1]), request()) == 0
        assert CAVEATS["manifest-not-pinned"] in capsys.readouterr().out


@pytest.mark.parametrize("temperature", [5e-324, 1e-5])
def test_a_default_temperature_that_accepts_every_draw_is_refused(
    client: Run, capsys: pytest.CaptureFixture[str], temperature: float
) -> None:
    made = answered(request())
    fields = encoding.map_(encoding.decode(made.manifest.payload()), range(1, 13), "manifest")
    defaults = {**made.manifest.defaults.to_cbor(), 1: temperature}
    signed = cose.sign1(encoding.encode({**fields, 8: [2, defaults]}), PROVIDER, TYPE)
    honest = made.receipt()
    made.receipt = lambda turn=None: replace(honest, manifest=signed)  # type: ignore[method-assign]
    assert client("verify", made, request()) == 1
    assert "malformed" in capsys.readouterr().out


def test_a_newer_provider_is_not_called_a_cheat(client: Run, capsys: pytest.CaptureFixture[str]) -> None:
    made = answered(request(), stated=manifest(forms=3))
    for name in ("verify", "audit"):
        assert client(name, made, request()) == 3
        out = capsys.readouterr().out
        assert "newer-version" in out
        assert "3" in out


def test_a_field_that_no_form_of_request_has_stays_malformed(client: Run, capsys: pytest.CaptureFixture[str]) -> None:
    asked = request()
    unknown = replace(asked, canonical=asked.canonical.replace(b'"max_tokens"', b'"max_tokenz"'))
    made = Recording(alone=True)
    made.turn(unknown, PROMPT)
    assert client("audit", made, parse_body(asked.path, b'{"messages":[{"role":"user","content":"?"}]}')) == 1
    assert "malformed" in capsys.readouterr().out
