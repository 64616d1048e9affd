"""An auditor's signed report: a stranger learns who said it, and any change to it is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from verifiable.checking.caveats import Caveat
from verifiable.checking.verdict import Status, Verdict
from verifiable.cli import main as command
from verifiable.errors import MalformedError, StoreError, VerifiableError, VerificationError
from verifiable.wire import encoding
from verifiable.wire.cose import sign1
from verifiable.wire.keys import PrivateKey
from verifiable.wire.sealed import seal, unseal
from verifier.campaign.outcome import Challenge, Outcome
from verifier.campaign.plan import plan
from verifier.report.signed import MAX_BYTES, TYPE, sign_report, signing_key, verify_report

KEY = PrivateKey.generate("auditor", b"a" * 32)
TIME = 1_800_000_000_000


NOTE = Caveat("receipt-not-given")


def outcome(*statuses: Status) -> Outcome:
    verdicts = tuple(
        Verdict(
            status,
            "what was found \x1b[31m",
            None if status is Status.EXACT else "logits-differ",
            f"{at:032x}",
            notes=(NOTE,),
        )
        for at, status in enumerate(statuses)
    )
    challenge = Challenge(b"s" * 32, plan([9] * 9, len(verdicts)), len(verdicts))
    return Outcome("http://provider", verdicts, challenge, command="verifiable audit …")


def file(*statuses: Status) -> bytes:
    return sign_report(outcome(*statuses).to_json(), KEY, TIME)


def changed(data: bytes, **changes: Any) -> bytes:
    """The file with another report in it, sealed again as if nothing had happened."""
    fields = unseal(data, 3, "signed report", MAX_BYTES)
    report = {**json.loads(encoding.bytes_(fields[3], "report")), **changes}
    return seal({1: 2, 2: fields[2], 3: json.dumps(report, sort_keys=True, separators=(",", ":")).encode()})


STATUSES = [(), (Status.EXACT,), (Status.EXACT, Status.STATISTICAL), (Status.EXACT, Status.FAILED)]


@pytest.mark.parametrize("statuses", [*STATUSES, (Status.INCONCLUSIVE, Status.EXACT)])
def test_what_was_signed_is_read_back(statuses: tuple[Status, ...]) -> None:
    checked = verify_report(file(*statuses), [PrivateKey.generate("x", b"x" * 32).public, KEY.public])
    assert checked.report == json.loads(json.dumps(outcome(*statuses).to_json()))
    assert (checked.signer, checked.time, checked.status) == (KEY.public, TIME, outcome(*statuses).status)


def test_a_stranger_verifies_it_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, trust = tmp_path / "audit.report", KEY.public.vkey()
    for statuses, code in ((STATUSES[1], 0), (STATUSES[3], 1), (STATUSES[0], 3)):
        path.write_bytes(file(*statuses))
        assert command(["verify", "--report", str(path), "--trust", trust]) == code
        out = capsys.readouterr().out
        assert "Signed by auditor" in out
        assert (str(NOTE) in out) is bool(statuses)
        assert "\x1b" not in out
        assert command(["verify", "--report", str(path), "--trust", trust, "--json"]) == code
        told = json.loads(capsys.readouterr().out)
        assert told["signed_by"] == {"key": trust, "time": TIME}
        assert told["report"]["exit_code"] == code
    other = PrivateKey.generate("auditor", b"b" * 32).public.vkey()
    assert command(["verify", "--report", str(path), "--trust", other]) == 3
    assert "untrusted-key" in capsys.readouterr().out
    path.write_bytes(changed(file(Status.FAILED), status="verified-exact", exit_code=0, failed=0, verified=1))
    assert command(["verify", "--report", str(path), "--trust", trust]) == 3
    assert "bad-signature" in capsys.readouterr().out
    assert command(["verify", "--report", str(path), "--fraud", str(path), "--trust", trust]) == 2


def test_nobody_vouches_for_an_audit_of_himself() -> None:
    audited = PrivateKey.generate("provider", b"p" * 32)
    report = {**outcome(Status.EXACT).to_json(), "trusted": [audited.public.vkey()]}
    assert verify_report(sign_report(report, KEY, TIME), [KEY.public]).status is Status.EXACT
    with pytest.raises(VerificationError, match="a provider that it audits") as caught:
        verify_report(sign_report(report, audited, TIME), [audited.public])
    assert caught.value.code == "untrusted-key"
    report = {**report, "trusted": [], "session_keys": [audited.public.vkey()]}
    with pytest.raises(VerificationError, match="a provider that it audits"):
        verify_report(sign_report(report, audited, TIME), [audited.public])
    for trusted in (5, ["no key"], None):
        with pytest.raises((MalformedError, VerificationError)):
            verify_report(sign_report({**report, "trusted": trusted}, KEY, TIME), [KEY.public])


def test_another_report_under_the_same_signature_is_noticed() -> None:
    for changes in ({"status": "verified-exact"}, {"source": "http://other"}, {"seconds": 1}):
        with pytest.raises(VerificationError, match="another report") as caught:
            verify_report(changed(file(Status.FAILED), **changes), [KEY.public])
        assert caught.value.code == "bad-signature"


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "verified-exact"},
        {"failed": 0},
        {"sessions": 2},
        {"exit_code": 0},
        {"verdicts": []},
        {"verdicts": 5},
        {"verdicts": [{"status": "fine"}]},
        {"verified": True},
        {"verified": None},
        {"verdicts": [{**outcome(Status.FAILED).to_json()["verdicts"][0], "about": KEY.public.vkey()}]},
        {"providers": [5]},
        {"providers": 5},
    ],
)
def test_an_auditor_who_signs_sums_that_are_wrong_is_noticed(changes: dict[str, Any]) -> None:
    report = {**outcome(Status.FAILED).to_json(), **changes}
    with pytest.raises(VerificationError) as caught:
        verify_report(sign_report(report, KEY, TIME), [KEY.public])
    assert caught.value.code in ("counts-differ", "signed-malformed")


def test_junk_is_the_users_mistake_and_wrong_sums_are_the_auditors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, trust = tmp_path / "audit.report", KEY.public.vkey()
    for junk in (b"", b"junk", file(Status.EXACT)[:-1]):
        path.write_bytes(junk)
        assert command(["verify", "--report", str(path), "--trust", trust]) == 2
    capsys.readouterr()
    path.write_bytes(sign_report({**outcome(Status.FAILED).to_json(), "failed": 0}, KEY, TIME))
    assert command(["verify", "--report", str(path), "--trust", trust]) == 1
    assert "counts-differ" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["status", "sessions", "verdicts", "verified_statistical"])
def test_a_report_that_is_none_is_malformed(missing: str) -> None:
    report = outcome(Status.EXACT).to_json()
    del report[missing]
    with pytest.raises(VerificationError, match="not well formed"):
        verify_report(sign_report(report, KEY, TIME), [KEY.public])


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b"{", b"[" * 100_000, b"\xff", b'{"verdicts":[[]]}'])
def test_a_body_that_is_no_report_is_malformed(body: bytes) -> None:
    import hashlib

    statement = encoding.encode({1: 2, 2: hashlib.sha256(body).digest(), 3: TIME})
    with pytest.raises(VerificationError, match="not well formed"):
        verify_report(seal({1: 2, 2: sign1(statement, KEY, TYPE), 3: body}), [KEY.public])


def test_a_signature_for_something_else_is_no_report() -> None:
    fields = unseal(file(Status.EXACT), 3, "signed report", MAX_BYTES)
    payload = encoding.encode({1: 2, 2: bytes(32), 3: TIME})
    for typ in ("application/vnd.verifiable.head+cbor", ""):
        with pytest.raises(VerifiableError):
            verify_report(seal({1: 2, 2: sign1(payload, KEY, typ), 3: fields[3]}), [KEY.public])


@given(at=st.integers(0, 10**6), mask=st.integers(1, 255))
def test_no_byte_can_be_changed(at: int, mask: int) -> None:
    data = bytearray(file(Status.EXACT, Status.FAILED))
    data[at % len(data)] ^= mask
    with pytest.raises(VerifiableError):
        verify_report(bytes(data), [KEY.public])


def test_a_key_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    path = tmp_path / "my auditor+1.key"
    key, made = signing_key(path)
    again, anew = signing_key(path)
    assert (made, anew) == (True, False)
    assert key.seed == again.seed
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "my auditor+1.key.pub").read_text().strip() == key.public.vkey()
    path.chmod(0o644)
    with pytest.raises(StoreError, match="read by others"):
        signing_key(path)
    path.write_text("nonsense")
    path.chmod(0o600)
    with pytest.raises(MalformedError):
        signing_key(path)
    with pytest.raises(StoreError, match="can't be made"):
        signing_key(tmp_path / "nowhere" / "key")
    with pytest.raises(StoreError, match="can't be made"):
        signing_key(tmp_path / ("k" * 300))
