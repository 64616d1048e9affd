"""Verdicts in logs: published and found by command over HTTP; and whoever would hide, bend or make up one."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from engine.api.app import log_app, proof_app
from engine.keys import life
from engine.ledger import LedgerSettings
from engine.log.log import LogSettings
from engine.registry import Registry
from engine.web.limits import ProofRates, Rate
from fixtures.synthetic import VOCABULARY, SyntheticProvider
from tests.needs import ROOT
from tests.simulator import send, serve
from verifiable.checking.registry import TYPE, VerdictStatement, verify_verdict
from verifiable.checking.verdict import Status, Verdict
from verifiable.cli import main as command
from verifiable.errors import VerificationError
from verifiable.manifest.statements import KeysFile, Role, Succession
from verifiable.tlog.checkpoint import Checkpoint, sign_checkpoint
from verifiable.tlog.cosignature import witness_key
from verifiable.tlog.merkle import leaf_hash
from verifiable.wire import cose
from verifiable.wire.key_file import write_line
from verifiable.wire.keys import PrivateKey, PublicKey
from verifiable.wire.text import write_base64url
from verifier.campaign.outcome import Challenge, Outcome
from verifier.campaign.plan import plan
from verifier.report.signed import sign_report, verify_report
from verifier.report.statement import statement_of

AUDITOR = PrivateKey.generate("alice", b"a" * 32)
TIME = 1_800_000_000_000
QUICK = LedgerSettings(log=LogSettings(integrate_every=0.01, publish_every=0.02))


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """An application on a free port of the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[SyntheticProvider]:
    made = SyntheticProvider(tmp_path / "provider", QUICK)
    made.answer()
    made.ledger.start(VOCABULARY)
    yield made
    made.close()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    made = Registry(tmp_path / "registry", "board", QUICK)
    yield made
    made.close()


def report(about: PublicKey) -> bytes:
    """The auditor's signed report on three sessions of a provider, of which one failed."""
    return sign_report(facts(about), AUDITOR, TIME)


def facts(about: PublicKey) -> dict[str, Any]:
    """What that report says."""
    verdicts = (
        Verdict(Status.FAILED, "found", "logits-differ", "01" * 16, tokens_checked=5, tokens_total=7),
        *(Verdict(Status.EXACT, "found", None, f"0{at}" * 16, tokens_checked=9, tokens_total=9) for at in (2, 3)),
    )
    challenge = Challenge(b"s" * 32, plan([9] * 40, 3), 3, signer=about)
    trusted = (about.vkey(),)
    made = Outcome("http://provider", verdicts, challenge, trusted=trusted, providers=(trusted,)).to_json()
    for verdict in made["verdicts"]:
        verdict["details"] = {"manifest": "ab" * 32, "model": {"sha256": "cd" * 32}}
    return made


def stated(about: PublicKey, key: PrivateKey = AUDITOR, **changes: Any) -> bytes:
    """A statement as it is signed, with changes."""
    made = statement_of(verify_report(report(about), [AUDITOR.public]), about)
    return cose.sign1(replace(made, **changes).payload(), key, TYPE, about)


def files(folder: Path, about: PublicKey) -> list[str]:
    """The words of the command that publishes, without its URL: the report, the auditor's key and the provider's."""
    if not (folder / "alice.key").exists():
        write_line(folder / "alice.key", AUDITOR.skey())
    (folder / "audit.report").write_bytes(report(about))
    (folder / "acme.pub").write_text(about.vkey())
    words = ["registry", "publish", str(folder / "audit.report"), "--key", str(folder / "alice.key")]
    return [*words, "--about", str(folder / "acme.pub"), "--to"]


def found(capsys: pytest.CaptureFixture[str], status: int, *words: str) -> dict[str, Any]:
    """What `verifiable log reports` finds, with its exit status."""
    capsys.readouterr()
    assert command(["log", "reports", *words, "--json"]) == status
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def taken(registry: Registry | SyntheticProvider, *statements: bytes) -> None:
    """Have a log take statements in and publish them."""
    for each in statements:
        registry.store.add_statement("verdict", each)
    log = registry.ledger.log
    assert log is not None
    while (row := registry.store.statement(leaf_hash(statements[-1]))) is None or row.index is None:
        log.integrate()
    log.publish()


def test_a_verdict_is_published_and_found_by_whoever_never_audited(
    provider: SyntheticProvider, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about, token = provider.keys.provider.public, provider.keys.auditor_key
    with served(proof_app(provider)) as url:
        words = [*files(tmp_path, about), url, "--auditor-key", token, "--where", "https://alice.example/1"]
        assert command(words) == 0
        size = provider.store.log_size()
        assert command(words) == 0  # again: the same bytes are taken in once
        assert provider.store.log_size() == size
        reading = [url, "--about", str(tmp_path / "acme.pub")]
        for more, left_out in ((["--auditor", AUDITOR.public.vkey()], None), (["--scan"], 0)):
            facts = found(capsys, 0, *reading, *more)
            (said,) = facts["reports"]
            assert (said["auditor"], said["about"], said["own"]) == (AUDITOR.public.vkey(), about.vkey(), False)
            assert said["known"] is ("--auditor" in more)
            assert (said["status"], said["codes"], said["time"]) == ("failed", ["logits-differ"], TIME)
            assert (said["sessions"], said["counts"]) == (3, [2, 0, 1, 0, 0, 0])
            assert (said["tokens_checked"], said["tokens_total"]) == (23, 25)
            assert (said["draw"]["population"], said["draw"]["drawn"]) == (40, 3)
            assert (said["models"], said["manifests"]) == (["cd" * 32], ["ab" * 32])
            assert said["where"] == "https://alice.example/1"
            assert facts["logs"][0]["left_out"] == left_out
        assert command(["log", "reports", *reading, "--report", str(tmp_path / "audit.report")]) == 0
        out = capsys.readouterr().out
        assert f"failed  about {about.label}, by alice+" in out
        assert "3 drawn of 40" in out
        assert "logits-differ" in out
        assert "an index may leave" in out.lower()


def test_a_provider_that_takes_no_bad_verdict_is_told_of_in_a_log_of_the_auditors_own(
    provider: SyntheticProvider, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about, log = provider.keys.provider.public, registry.keys.log.public
    words, refusal = files(tmp_path, about), {"error": {"message": "we do not\x1b[31m log this"}}
    with serve(lambda handler: send(handler, json.dumps(refusal).encode(), 403)) as url:
        assert command([*words, url, "--auditor-key", "x"]) == 3
    told = capsys.readouterr().err
    assert "does not take the verdict in" in told
    assert "registry serve" in told
    assert "\x1b" not in told
    with served(proof_app(provider)) as url, served(log_app(registry)) as board:
        token = registry.keys.auditor_key
        assert command([*words, board, "--auditor-key", token, "--log", log.vkey()]) == 0
        reading = [url, board, "--about", about.vkey()]
        assert found(capsys, 3, *reading)["errors"][0]["code"] == "untrusted-key"  # a log that nobody named
        facts = found(capsys, 0, *reading, "--log", log.vkey())
        assert [each["entries"] for each in facts["reports"]] == [["board/log 0"]]
        other = PrivateKey.generate(log.name, b"x" * 32).public
        assert found(capsys, 3, *reading, "--log", other.vkey())["reports"] == []


def test_a_provider_is_each_of_the_keys_that_it_ever_had(provider: SyntheticProvider) -> None:
    old = provider.keys
    for role in Role:
        life.rotate(old.folder, role, life.milliseconds())
    provider.look()
    client, headers = TestClient(proof_app(provider)), {"Authorization": f"Bearer {old.auditor_key}"}
    for about in (old.provider.public, provider.keys.provider.public):
        assert client.post("/v1/log/reports", content=stated(about), headers=headers).status_code == 202
        for own in (old.signer, old.session, old.log):
            answer = client.post("/v1/log/reports", content=stated(about, own), headers=headers)
            assert answer.status_code == 400
            assert "by the provider that it is about" in answer.text


def test_who_may_publish_what(provider: SyntheticProvider, registry: Registry) -> None:
    about, own = provider.keys.provider.public, provider.keys
    client, board = TestClient(proof_app(provider)), TestClient(log_app(registry))
    right = {"Authorization": f"Bearer {own.auditor_key}"}

    def post(body: bytes, headers: dict[str, str] = right) -> tuple[int, str]:
        answer = client.post("/v1/log/reports", content=body, headers=headers)
        return answer.status_code, answer.json().get("error", {}).get("message", "")

    good = stated(about)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": own.auditor_key}):
        assert post(good, headers)[0] == 401
    assert provider.store.statement(leaf_hash(good)) is None
    stranger = PrivateKey.generate("other", b"o" * 32).public
    for body, why in (
        (bytes(65_536), "65,535"),
        (b"nonsense", "CBOR"),
        (good[:-1] + bytes([good[-1] ^ 1]), "signature"),
        (provider.manifests.in_force().envelope, "header"),
        (stated(stranger), "about another provider"),
        (stated(about, own.session), "by the provider that it is about"),
        (stated(about, own.log), "by the provider that it is about"),
        (stated(about, own.signer), "by the provider that it is about"),
    ):
        status, message = post(body)
        assert (status, why.lower() in message.lower()) == (400, True), message
    assert post(good) == (202, "")
    assert provider.store.statement(leaf_hash(good)) is not None
    mine = {"Authorization": f"Bearer {registry.keys.auditor_key}"}
    assert board.post("/v1/log/reports", content=stated(stranger), headers=mine).status_code == 202
    slow = TestClient(log_app(registry, ProofRates(reports=Rate(0.001, 2))))
    statuses = [slow.post("/v1/log/reports", content=good, headers=mine).status_code for _ in range(3)]
    assert statuses == [202, 202, 429]
    assert slow.get("/v1/log/reports?about=xyz").status_code == 400
    assert slow.get(f"/v1/log/reports?about={'g' * 64}").status_code == 400


def test_an_index_that_hides_a_verdict_is_found_out_by_the_entries(
    provider: SyntheticProvider, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    about = provider.keys.provider.public
    taken(provider, stated(about), stated(about, time=TIME + 1))
    real = provider.store.statements

    def hiding(*asked: Any) -> Any:
        return [row for row in real(*asked) if verify_verdict(row.signed).statement.time == TIME]

    monkeypatch.setattr(provider.store, "statements", hiding)
    with served(proof_app(provider)) as url:
        reading = [url, "--about", about.vkey()]
        facts = found(capsys, 0, *reading)
        assert (len(facts["reports"]), facts["logs"][0]["left_out"]) == (1, None)
        facts = found(capsys, 3, *reading, "--scan")
        assert (len(facts["reports"]), facts["logs"][0]["left_out"]) == (2, 1)
        assert facts["errors"][0]["code"] == "list-differs"


@pytest.mark.parametrize("what", ["another entry", "another place", "another tree"])
def test_an_index_that_shows_what_the_log_lacks_is_not_believed(
    registry: Registry, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    about = PrivateKey.generate("acme", b"p" * 32).public
    kept = [stated(about, time=TIME + number) for number in range(4)]
    taken(registry, *kept)
    client, made_up = TestClient(log_app(registry)), stated(about, status=Status.EXACT)
    lone = sign_checkpoint(Checkpoint(registry.keys.log.name, 1, leaf_hash(made_up)), registry.keys.log)

    def lying(handler: Any) -> None:
        answer = client.get(handler.path)
        body = answer.content
        if "reports" in handler.path:
            facts = answer.json()
            entry = write_base64url(made_up)
            if what == "another entry":
                facts["reports"][0]["entry"] = entry
            elif what == "another place":
                facts["reports"][0]["index"] = 3
            else:
                facts |= {"checkpoint": lone.decode(), "reports": [{"index": 0, "entry": entry, "path": []}]}
            body = json.dumps(facts).encode()
        send(handler, body, answer.status_code)

    log = registry.keys.log.public.vkey()
    with serve(lying) as url:
        facts = found(capsys, 1 if what == "another tree" else 3, url, "--about", about.vkey(), "--log", log)
    assert facts["reports"] == []
    assert facts["errors"][0]["code"] == ("log-differs" if what == "another tree" else "bad-inclusion-proof")


def test_a_provider_counts_for_nothing_in_any_log(
    provider: SyntheticProvider, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    about = provider.keys.provider.public
    taken(registry, stated(about, provider.keys.session, status=Status.EXACT), stated(about, provider.keys.signer))
    log = registry.keys.log.public.vkey()
    with served(log_app(registry)) as board, served(proof_app(provider)) as url:
        facts = found(capsys, 0, board, url, "--about", about.vkey(), "--log", log, "--auditor", AUDITOR.public.vkey())
        assert [(each["own"], each["status"]) for each in facts["reports"]] == [(True, "verified-exact")]
        assert facts["logs"][0]["unsound"] == 1  # by the very key that it is about
        assert command(["log", "reports", board, url, "--about", about.vkey(), "--log", log]) == 0
    out = capsys.readouterr().out
    assert "the provider itself: counts for nothing" in out
    assert "0 verdicts by others" in out


def test_many_auditors_that_nobody_knows_are_no_auditor_that_the_reader_knows(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    about = PrivateKey.generate("acme", b"p" * 32).public
    sybils = [PrivateKey.generate("alice", bytes([number, 1]) * 16) for number in range(1, 120)]
    taken(registry, *(stated(about, key, status=Status.EXACT, codes=()) for key in sybils), stated(about))
    words = ["--about", about.vkey(), "--log", registry.keys.log.public.vkey(), "--auditor", AUDITOR.public.vkey()]
    with served(log_app(registry)) as url:
        facts = found(capsys, 0, url, *words)  # more than a page of the index
        assert [each["known"] for each in facts["reports"]].count(True) == 1
        assert len(facts["reports"]) == 120
        assert command(["log", "reports", url, *words]) == 0
    assert "120 verdicts by others, 1 by auditors whom you named" in capsys.readouterr().out


def test_an_auditor_that_states_otherwise_than_he_reported_is_shown_by_his_own_report(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = PrivateKey.generate("acme", b"p" * 32).public
    taken(registry, stated(about, status=Status.EXACT, codes=(), counts=(3, 0, 0, 0, 0, 0)))
    path = tmp_path / "audit.report"
    path.write_bytes(report(about))
    words = ["--about", about.vkey(), "--log", registry.keys.log.public.vkey(), "--report", str(path)]
    with served(log_app(registry)) as url:
        assert found(capsys, 1, url, *words)["errors"][0]["code"] == "report-differs"
        path.write_bytes(report(PrivateKey.generate("other", b"o" * 32).public))  # on which nothing is logged
        assert found(capsys, 3, url, *words)["errors"][0]["code"] == "no-evidence"


def of_two(first: PublicKey, second: PublicKey) -> bytes:
    """A signed report on three sessions of one provider, drawn from its list, one of which failed, and one session of
    another, which is verified.
    """
    made, other = facts(first), facts(second)
    made["verdicts"].append({**other["verdicts"][1], "session": "09" * 16})
    made |= {"sessions": 4, "verified": 3, "tokens_checked": 32, "tokens_total": 34}
    made |= {name: made[name] + other[name] for name in ("trusted", "providers")}
    return sign_report(made, AUDITOR, TIME)


ACME, CAROL = (PrivateKey.generate(name, seed * 32).public for name, seed in (("acme", b"p"), ("carol", b"c")))
BOB = PrivateKey.generate("bob", b"b" * 32)


def test_a_statement_is_about_those_whose_sessions_its_report_has(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, log = tmp_path / "audit.report", registry.keys.log.public.vkey()
    path.write_bytes(report(ACME))
    framing = statement_of(verify_report(report(ACME), [AUDITOR.public]), ACME).payload()
    taken(registry, cose.sign1(framing, AUDITOR, TYPE, CAROL))
    with served(log_app(registry)) as url:
        told = found(capsys, 1, url, "--about", CAROL.vkey(), "--log", log, "--report", str(path))
    assert [each["code"] for each in told["errors"]] == ["report-differs"]


def test_a_report_on_two_providers_says_of_each_what_was_found_there(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, log = tmp_path / "two.report", registry.keys.log.public.vkey()
    path.write_bytes(of_two(ACME, CAROL))
    write_line(tmp_path / "alice.key", AUDITOR.skey())
    words = ["registry", "publish", str(path), "--key", str(tmp_path / "alice.key"), "--log", log]
    words += ["--auditor-key", registry.keys.auditor_key]
    with served(log_app(registry)) as url:
        for about in (ACME, CAROL):
            assert command([*words, "--to", url, "--about", about.vkey()]) == 0
        stranger = PrivateKey.generate("dora", b"d" * 32).public
        assert command([*words, "--to", url, "--about", stranger.vkey()]) == 2
        assert "no session of dora" in capsys.readouterr().err
        reading = [url, "--about", ACME.vkey(), "--about", CAROL.vkey(), "--log", log, "--report", str(path)]
        told = {each["about"]: each for each in found(capsys, 0, *reading)["reports"]}
        first, second = (told[key.vkey()] for key in (ACME, CAROL))
        assert (first["status"], first["counts"], first["tokens_checked"]) == ("failed", [2, 0, 1, 0, 0, 0], 23)
        assert (second["status"], second["counts"], second["codes"]) == ("verified-exact", [1, 0, 0, 0, 0, 0], [])
        assert (second["tokens_checked"], second["tokens_total"], second["draw"]) == (9, 9, None)
        assert first["draw"]["population"] == 40
        assert command(["log", "reports", *reading]) == 0
    out = capsys.readouterr().out
    assert f"failed  about {ACME.label}, by alice+" in out
    assert f"verified-exact  about {CAROL.label}, by alice+" in out


def test_who_states_otherwise_than_anothers_report_is_told_of_and_only_whom_one_knows_counts(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, digest = tmp_path / "audit.report", verify_report(report(ACME), [AUDITOR.public]).digest
    path.write_bytes(report(ACME))
    good = stated(ACME, BOB, report=digest, status=Status.EXACT, codes=(), counts=(3, 0, 0, 0, 0, 0), checked=25)
    taken(registry, stated(ACME), good)
    words = ["--about", ACME.vkey(), "--log", registry.keys.log.public.vkey(), "--report", str(path)]
    with served(log_app(registry)) as url:
        for auditor, status in ((BOB.public, 1), (AUDITOR.public, 0)):
            told = found(capsys, status, url, *words, "--auditor", auditor.vkey())["errors"]
            assert [each["code"] for each in told] == ["report-differs"]
            assert "bob+" in told[0]["what"]


def test_one_audit_signed_at_two_times_is_two_reports(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken(registry, stated(ACME))
    path = tmp_path / "later.report"
    words = ["--about", ACME.vkey(), "--log", registry.keys.log.public.vkey(), "--report", str(path)]
    with served(log_app(registry)) as url:
        for time, code in ((TIME, None), (TIME + 1, "no-evidence")):
            path.write_bytes(sign_report(facts(ACME), AUDITOR, time))
            told = found(capsys, 3 if code else 0, url, *words)["errors"]
            assert [each["code"] for each in told] == ([code] if code else [])


def test_a_session_that_could_not_be_opened_is_about_whose_list_it_is_of_or_the_only_provider() -> None:
    missing, listed = Verdict(Status.INCONCLUSIVE, "", "no-evidence", "01" * 16), frozenset({"01" * 16})
    both = ((ACME.vkey(),), (CAROL.vkey(),))
    drawn = Challenge(b"s" * 32, plan([9] * 40, 1), 1, signer=CAROL)
    for challenge, providers, about in (
        (None, both[:1], ACME),
        (None, both, None),
        (drawn, both, None),  # a client's receipt, of whomever
        (replace(drawn, of_list=listed), both, CAROL),
    ):
        told = Outcome("", (missing,), challenge, providers=providers).to_json()["verdicts"]
        assert [each["about"] for each in told] == [about and about.vkey()]


def test_without_the_readers_witnesses_a_log_is_not_believed(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    about = PrivateKey.generate("acme", b"p" * 32).public
    taken(registry, stated(about))
    witness = witness_key(PrivateKey.generate("witness", b"w" * 32).public).vkey()
    with served(log_app(registry)) as url:
        words = [url, "--about", about.vkey(), "--log", registry.keys.log.public.vkey()]
        assert found(capsys, 3, *words, "--witness", witness)["errors"][0]["code"] == "too-few-witnesses"
        assert found(capsys, 0, *words)["logs"][0]["witnesses"] == []


def test_a_statement_is_by_an_auditor_about_one_that_he_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = PrivateKey.generate("acme", b"p" * 32).public
    words = files(tmp_path, about)
    words[words.index("--about") + 1] = PrivateKey.generate("acme", b"q" * 32).public.vkey()
    assert command([*words, "http://127.0.0.1:1"]) == 2
    assert "the report has no session of acme" in capsys.readouterr().err
    made = statement_of(verify_report(report(about), [AUDITOR.public]), about)
    assert verify_verdict(made.sign(AUDITOR, about)).statement == made == VerdictStatement.parse(made.payload())
    with pytest.raises(VerificationError, match="by the provider that it is about"):
        made.sign(AUDITOR, AUDITOR.public)


def test_the_command_serves_a_log_that_the_other_commands_publish_to_and_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = PrivateKey.generate("acme", b"p" * 32).public
    words = [sys.executable, "-m", "verifiable", "registry", "serve", "--data", str(tmp_path / "board"), "--port", "0"]
    process = subprocess.Popen(
        [*words, "--name", "board"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        log, url = (process.stdout.readline() if process.stdout else "").split()
        token = str(tmp_path / "board" / "keys" / "auditor.key")
        assert command([*files(tmp_path, about), url, "--auditor-key", token, "--log", log]) == 0
        assert "entry 0 of board/log" in capsys.readouterr().out
        assert command([*files(tmp_path, about)[:-1], "--to", url, "--auditor-key", "wrong", "--log", log]) == 2
        assert len(found(capsys, 0, url, "--about", about.vkey(), "--log", log, "--scan")["reports"]) == 1
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert command(["log", "fsck", "--data", str(tmp_path / "board")]) == 0


def test_verdicts_on_a_key_that_followed_are_found_by_whoever_trusts_the_first(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (PrivateKey.generate("acme", name * 32) for name in (b"1", b"2"))
    taken(registry, stated(first.public), stated(second.public, time=TIME + 1))
    said = KeysFile((Succession.sign(first, second, Role.PROVIDER, TIME),)).encode()
    client = TestClient(log_app(registry))

    def board(handler: Any) -> None:
        answer = client.get(handler.path)
        keys = handler.path == "/v1/keys"
        send(handler, said if keys else answer.content, 200 if keys else answer.status_code)

    log = registry.keys.log.public.vkey()
    with serve(board) as url:
        for key, count in ((first, 2), (second, 1)):
            facts = found(capsys, 0, url, "--about", key.public.vkey(), "--log", log, "--scan")
            assert len(facts["reports"]) == count
