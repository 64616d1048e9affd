"""A provider that changes its story between two audits, over HTTP: found, proven in a file, checked by a stranger."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.made_up_model import MadeUpModel
from tests.sessions import PROVIDER, TIME, TRUST, Recording, ask, made_up
from tests.simulator import KEY, LOGGED, Log, Provider, honest, other_model, seed, send, serve
from verifiable.checking.checks import check_receipt
from verifiable.checking.verdict import Status, Verdict
from verifiable.cli import main as command
from verifiable.errors import VerificationError
from verifiable.net import client as net
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import choose
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.head import Head
from verifiable.wire.keys import PrivateKey
from verifier.campaign.campaign import audit_provider
from verifier.campaign.fetched import Auditor, Fetched, audit_session
from verifier.campaign.plan import ChallengePlan
from verifier.provider.client import Client
from verifier.provider.published import check_log
from verifier.provider.remember import Contradiction, Memory


def with_log(recordings: list[Recording]) -> Provider:
    """A provider with a log of its own making: it has published ten of forty entries."""
    return Provider(recordings, Log([bytes([at]) for at in range(40)], size=10))


def auditor(folder: Path) -> Auditor:
    return Auditor(MadeUpModel(), TRUST, folder / "kept", memory=Memory(folder / "state", TRUST))


def audit(folder: Path, provider: Provider, **options: Any) -> tuple[list[Verdict], Auditor]:
    here = auditor(folder)
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        return audit_provider(here, client, 10, seed, **options)[0], here


def test_a_session_told_otherwise_the_second_time_is_fraud_that_anyone_can_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = audit(tmp_path, with_log([honest(1)]))
    assert [verdict.status for verdict in first] == [Status.EXACT]
    again, _ = audit(tmp_path, with_log([honest(1)]))
    assert [verdict.status for verdict in again] == [Status.EXACT]
    second, here = audit(tmp_path, with_log([honest(1, temperature=0.3)]))
    assert [(verdict.status, verdict.code) for verdict in second] == [(Status.FAILED, "two-histories")]
    (file,) = [path for path in here.saved if path.endswith(".fraud")]
    trust = PROVIDER.public.vkey()
    assert command(["verify", "--fraud", file, "--trust", trust]) == 1
    assert "two-histories" in capsys.readouterr().out
    assert command(["verify", "--fraud", file, "--trust", trust, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["code"] == "two-histories"
    stranger = PrivateKey.generate("acme", b"q" * 32).public.vkey()
    assert command(["verify", "--fraud", file, "--trust", stranger]) == 3
    assert command(["verify", "--trust", trust]) == 2
    assert command(["verify", file, "--fraud", file, "--trust", trust]) == 2


def other_head(made: Recording) -> str:
    """The head of another history, of the same session and size."""
    signed = Recording.head(honest(1, temperature=0.3))
    assert Head.peek(signed).size == made.log.size
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")


def in_the_list(made: Recording, path: str, body: bytes) -> bytes:
    if path != "/v1/sessions":
        return body
    page = json.loads(body)
    page["sessions"][0]["head"] = other_head(made)
    return json.dumps(page).encode()


def in_the_full_records(made: Recording, path: str, body: bytes) -> bytes:
    """Another answer each time: the tokens do not replay, and the records asked for then are of another history."""
    if not path.endswith("/evidence") or Evidence.parse(body).kind is not Kind.FULL:
        return body
    return honest(1, temperature=0.3).evidence(Kind.FULL).encode()


@pytest.mark.parametrize("change", [in_the_list, in_the_full_records])
def test_two_histories_within_one_audit_are_fraud_that_anyone_can_check(
    tmp_path: Path, change: Callable[[Recording, str, bytes], bytes]
) -> None:
    made = honest(1, other_model if change is in_the_full_records else made_up)
    provider = with_log([made])
    provider.change = functools.partial(change, made)
    here = Auditor(MadeUpModel(), TRUST, tmp_path / "kept")  # without any memory
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        (verdict,) = audit_provider(here, client, 10, seed)[0]
    assert verdict.status is Status.FAILED
    (file,) = [path for path in here.saved if path.endswith("-heads.fraud")]
    assert command(["verify", "--fraud", file, "--trust", PROVIDER.public.vkey()]) == 1


def test_a_receipt_of_another_history_is_fraud_that_anyone_can_check(tmp_path: Path) -> None:
    mine = honest(1)
    here = Auditor(MadeUpModel(), TRUST, tmp_path / "kept")
    with serve(with_log([honest(1, temperature=0.3)])) as url, Client(url, capability=mine.capability) as client:
        verdict = audit_session(
            here, client, Fetched(mine.session, receipt=check_receipt(mine.receipt(), TRUST), size=mine.log.size)
        )
    assert (verdict.status, verdict.code) == (Status.FAILED, "two-histories")
    (file,) = [path for path in here.saved if path.endswith(".fraud")]
    assert command(["verify", "--fraud", file, "--trust", PROVIDER.public.vkey()]) == 1


def test_a_session_that_lost_a_turn_is_noticed(tmp_path: Path) -> None:
    audit(tmp_path, with_log([honest(1, turns=2)]))
    verdicts, _ = audit(tmp_path, with_log([honest(1, turns=1)]))
    assert [(verdict.status, verdict.code) for verdict in verdicts] == [(Status.INCONCLUSIVE, "list-differs")]


def test_a_replaced_token_becomes_a_file_of_its_own(tmp_path: Path) -> None:
    def draw(entries: Entries, params: Any, key: bytes, position: int) -> int:
        token = choose(entries, params, key, position)
        return int(next(other for other in entries.ids if other != token)) if position == 9 else token

    made = Recording(session=b"\x01" * 16, capability=b"\x01" * 32, draws=draw)
    made.turn(ask(max_tokens=5), range(1, 8))
    made.close()
    verdicts, here = audit(tmp_path, with_log([made]))
    assert [verdict.code for verdict in verdicts] == ["token-not-sampled"]
    (file,) = [path for path in here.saved if path.endswith(".fraud")]
    assert command(["verify", "--fraud", file, "--trust", PROVIDER.public.vkey()]) == 1
    assert Path(file).stat().st_size < 3000


def test_a_log_that_was_rewritten_is_noticed_before_anything_is_drawn(tmp_path: Path) -> None:
    provider = with_log([honest(1)])
    audit(tmp_path, provider)
    provider.log.size = 20
    audit(tmp_path, provider)
    provider.log.entries[3] = b"rewritten"
    with pytest.raises(Contradiction) as caught:
        audit(tmp_path, provider)
    assert caught.value.code == "two-histories"
    assert (tmp_path / "kept" / "log.fraud").exists()
    file = str(tmp_path / "kept" / "log.fraud")
    assert command(["verify", "--fraud", file, "--trust", PROVIDER.public.vkey()]) == 1
    provider.log.size = 30
    with pytest.raises(Contradiction):
        audit(tmp_path, provider)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"path": 5}',
        b'{"path": ["00"]}',
        b'{"path": ["' + b"G" * 64 + b'"]}',
        b'{"path": [' + b'"' + b"0" * 64 + b'"' + b"]}",
        json.dumps({"path": ["0" * 64] * 1000}).encode(),
        b"[" * 100_000,
        b"x" * (2 << 20),
    ],
)
def test_a_proof_that_is_none_ends_within_limits_and_the_entries_decide(tmp_path: Path, body: bytes) -> None:
    provider = with_log([honest(1)])
    audit(tmp_path, provider)
    provider.log.size = 20
    provider.log.consistency = lambda old, new: body
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        found = check_log(Memory(tmp_path / "state", TRUST), client)
        assert found is not None
        assert found.checkpoint.size == 20
        provider.log.entries[3] = b"rewritten"
        provider.log.size = 21
        with pytest.raises(Contradiction) as caught:
            check_log(Memory(tmp_path / "state", TRUST), client)
    assert caught.value.code == "log-forked"


def test_an_endless_checkpoint_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "TOTAL_SECONDS", 2.0)

    def endless(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/v1/manifest":
            return send(handler, LOGGED.sign(PROVIDER))
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65536)

    with serve(endless) as url, Client(url) as client, pytest.raises(VerificationError) as caught:
        check_log(Memory(tmp_path, TRUST), client)
    assert caught.value.code == "unreachable"


def test_a_rate_is_planned_before_anything_is_fetched(tmp_path: Path) -> None:
    provider = with_log([honest(number) for number in range(1, 11)])
    plans: list[ChallengePlan] = []

    def announce(plan: ChallengePlan) -> None:
        assert not any("evidence" in path for path in provider.asked)
        plans.append(plan)

    verdicts, _ = audit(tmp_path, provider, rate=0.3, announce=announce)
    assert len(verdicts) == plans[0].sessions == 3
    assert plans[0].population == 10


def test_a_budget_that_is_used_up_ends_the_draw(tmp_path: Path) -> None:
    provider = with_log([honest(number) for number in range(1, 11)])
    verdicts, _ = audit(tmp_path, provider, budget=1e-6)
    assert len(verdicts) == 1


def test_sessions_younger_than_the_beacon_are_not_drawn(tmp_path: Path) -> None:
    provider = with_log([honest(number) for number in range(1, 5)])
    assert len(audit(tmp_path, provider, before=TIME + 5001)[0]) == 4  # heads are signed at TIME + 5000
    assert audit(tmp_path, provider, before=TIME + 5000)[0] == []
