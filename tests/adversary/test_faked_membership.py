"""A provider that fakes membership of its public log: a tree of one entry, made for one client and signed by the log's
key. Found offline with witnesses alone, and by an audit that reads the public log.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sessions import PROVIDER, TRUST, Recording
from tests.simulator import LOGGED, Log, honest
from verifiable import verify
from verifiable.checking.verdict import Status, Step
from verifiable.cli import main as command
from verifiable.session.receipt import Receipt
from verifiable.tlog.cosignature import Quorum, cosign, witness_key
from verifiable.tlog.note import Note
from verifiable.tlog.proof import TlogProof
from verifiable.wire.keys import PrivateKey

WITNESSES = [PrivateKey.generate(f"w{number}.example", bytes([number]) * 32) for number in (1, 2, 3)]
VKEYS = [witness_key(key.public).vkey() for key in WITNESSES]
TRUSTED = ["--trust", PROVIDER.public.vkey()]


def session(number: int = 1) -> Recording:
    return honest(number, stated=LOGGED)


def faked(made: Recording) -> bytes:
    """A sound proof that a session is in a log of the provider's key which nobody else has seen."""
    return Log([made.head()]).inclusion(0)


def cosigned(proof: bytes, *keys: PrivateKey) -> bytes:
    parsed = TlogProof.parse(proof)
    note = Note.parse(parsed.checkpoint)
    return replace(parsed, checkpoint=note.add(*[cosign(note.text, key, 1) for key in keys]).format()).format()


def receipt(proof: bytes | None) -> Receipt:
    return replace(session().receipt(), log=proof)


def ids(said: dict[str, Any]) -> set[str]:
    return {note["id"] for note in said["not_shown"]}


def told(folder: Path, proof: bytes | None, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, Any]:
    (folder / "a.receipt").write_bytes(receipt(proof).encode())
    status = command(["verify", str(folder / "a.receipt"), *TRUSTED, "--json", *more])
    out = capsys.readouterr().out
    return status, json.loads(out) if out else None


def named(*vkeys: str, quorum: int | None = None) -> list[str]:
    words = [word for vkey in vkeys for word in ("--witness", vkey)]
    return words if quorum is None else [*words, "--quorum", str(quorum)]


def test_a_proof_that_the_logs_key_alone_vouches_for_shows_nothing_of_the_public_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = told(tmp_path, faked(session()), capsys)
    assert status == 0
    assert "log-not-shown" in ids(said)
    (check,) = [check for check in said["checks"] if check["name"] == Step.LOG]
    assert "passed" not in check or check["passed"] is None
    for proof in (faked(session()), None):
        status, said = told(tmp_path, proof, capsys, *named(*VKEYS[:2], quorum=1))
        assert (status, said["code"]) == (3, "too-few-witnesses")
        assert "log-not-shown" in ids(said)
        assert command(["verify", str(tmp_path / "a.receipt"), *TRUSTED, *named(VKEYS[0])]) == 3
        assert "too-few-witnesses" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("by", "named_count", "quorum", "status"),
    [(2, 2, None, 0), (1, 2, 1, 0), (1, 2, None, 3), (1, 3, 2, 3), (2, 3, 2, 0), (3, 1, None, 0)],
)
def test_a_quorum_of_witnesses_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by: int, named_count: int, quorum: int | None, status: int
) -> None:
    proof = cosigned(faked(session()), *WITNESSES[:by])
    found, said = told(tmp_path, proof, capsys, *named(*VKEYS[:named_count], quorum=quorum))
    assert found == status
    assert ("log-not-shown" in ids(said)) is bool(status)


def test_a_cosignature_that_a_witness_did_not_make_is_refused() -> None:
    parsed = TlogProof.parse(cosigned(faked(session()), WITNESSES[0]))
    ours, line = Note.parse(parsed.checkpoint).signatures
    note = replace(Note.parse(parsed.checkpoint), signatures=(ours, replace(line, signature=bytes(72)))).format()
    quorum = Quorum.of([witness_key(WITNESSES[0].public)])
    verdict = verify(receipt(replace(parsed, checkpoint=note).format()), trust=TRUST, quorum=quorum)
    assert (verdict.status, verdict.code) == (Status.FAILED, "bad-signature")


def test_a_failed_check_is_not_hidden_behind_missing_witnesses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "answer.txt").write_text("another")
    text = ["--text", str(tmp_path / "answer.txt")]
    status, said = told(tmp_path, faked(session()), capsys, *text, *named(VKEYS[0]))
    assert (status, said["code"]) == (1, "text-differs")
    (tmp_path / "other.evidence").write_bytes(session(2).evidence().encode())
    evidence = ["--evidence", str(tmp_path / "other.evidence")]
    status, said = told(tmp_path, faked(session()), capsys, *evidence, *named(VKEYS[0]))
    assert (status, said["code"]) == (3, "no-evidence")


@pytest.mark.parametrize(
    "words",
    [
        named("nonsense"),
        named(VKEYS[0], quorum=2),
        named(VKEYS[0], VKEYS[0], quorum=2),
        named(quorum=1),
        named(VKEYS[0], quorum=0),
        named(PROVIDER.public.vkey()),
    ],
)
def test_a_mistake_about_witnesses_is_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert told(tmp_path, faked(session()), capsys, *words) == (2, None)
