"""A provider that fakes membership of its public log: a tree of one entry, made for one client and signed by the log's
key. Found offline with witnesses alone, and by an audit that reads the public log.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.made_up_model import MadeUpModel
from tests.sessions import PROVIDER, TRUST, Recording
from tests.simulator import KEY, LOGGED, Log, Provider, honest, seed, serve
from verifiable import verify
from verifiable.checking.checks import check_receipt
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.checking.verdict import Status, Step, Verdict
from verifiable.cli import main as command
from verifiable.session.receipt import Receipt
from verifiable.tlog.cosignature import NOBODY, Quorum, cosign, witness_key
from verifiable.tlog.note import Note
from verifiable.tlog.proof import TlogProof
from verifiable.wire.keys import PrivateKey
from verifier.campaign.campaign import audit_provider
from verifier.campaign.fetched import Auditor, Fetched, audit_session
from verifier.provider.client import Client
from verifier.provider.remember import Contradiction, Memory

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
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "bad-signature")


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


# The same in an audit, which reads what the log publishes.


def audit(folder: Path, provider: Provider, state: bool = False, **options: Any) -> tuple[list[Verdict], Auditor]:
    here = Auditor(MadeUpModel(), TRUST, folder / "kept", **options)
    here.memory = Memory(folder / "state", TRUST) if state else None
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        return audit_provider(here, client, 10, seed)[0], here


def audit_held(folder: Path, provider: Provider, held: Receipt, **options: Any) -> tuple[Verdict, Auditor]:
    """As a client audits its own receipt."""
    here = Auditor(MadeUpModel(), TRUST, folder / "kept", **options)
    opened = check_receipt(held, TRUST)
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        wanted = Fetched(opened.session.head.session, receipt=opened, size=opened.session.head.size)
        return audit_session(here, client, wanted), here


def proving(provider: Provider, proof: bytes) -> Provider:
    """A provider that answers with this proof, whatever head is asked for."""
    provider.log.proves = lambda name, size: 0
    provider.change = lambda path, body: proof if path == "/v1/log/proof" else body
    return provider


def others(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


def test_a_log_made_for_one_reader_is_told_from_the_public_one(tmp_path: Path) -> None:
    """Its tree is smaller than the public log: the entries of that have another root at its size."""
    made = session()
    (verdict,), _ = audit(tmp_path, proving(Provider([made], Log(others(3))), faked(made)))
    assert (verdict.status, verdict.code) == (Status.FAILED, "log-differs")
    assert "log-not-shown" in {note.id for note in verdict.notes}
    honest_log = Log([made.head(), *others(3)])
    early = Log([made.head()]).inclusion(0)
    (verdict,), _ = audit(tmp_path, proving(Provider([made], honest_log), early))
    assert verdict.status is Status.EXACT
    assert "log-not-shown" not in {note.id for note in verdict.notes}


def test_two_roots_at_the_public_size_become_a_file_that_anyone_can_check(tmp_path: Path) -> None:
    made = session()
    (verdict,), here = audit(tmp_path, proving(Provider([made], Log(others(1))), faked(made)))
    assert (verdict.status, verdict.code) == (Status.FAILED, "two-histories")
    (file,) = [path for path in here.saved if path.endswith("-log.fraud")]
    assert Fraud.load(file).kind is FraudKind.TWO_CHECKPOINTS
    assert command(["verify", "--fraud", file, *TRUSTED]) == 1


def test_a_checkpoint_beyond_the_public_one_is_no_pass_without_a_proof(tmp_path: Path) -> None:
    made = session()
    fake = Log([*others(2), made.head()]).inclusion(2)
    provider = proving(Provider([made], Log([b"x", b"y"])), fake)
    (verdict,), _ = audit(tmp_path, provider)
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "no-evidence")
    assert provider.asked.count("/log/checkpoint") == 1
    # One that extends the public one is the same log, a moment later.
    grown = Log([b"x", b"y", made.head()])
    provider = proving(Provider([made], Log([b"x", b"y"])), grown.inclusion(2))
    provider.log.consistency = grown.proof
    (verdict,), _ = audit(tmp_path, provider)
    assert verdict.status is Status.EXACT
    assert "log-not-shown" not in {note.id for note in verdict.notes}


def test_the_proof_in_a_clients_receipt_has_to_be_of_the_public_log(tmp_path: Path) -> None:
    made = session()
    public = Provider([made], Log([*others(3), made.head()]))
    verdict, _ = audit_held(tmp_path, public, made.receipt())
    assert verdict.status is Status.EXACT
    verdict, _ = audit_held(tmp_path, public, receipt(faked(made)))
    assert (verdict.status, verdict.code) == (Status.FAILED, "log-differs")
    verdict, here = audit_held(tmp_path, Provider([made], Log(others(1))), receipt(faked(made)))
    assert (verdict.status, verdict.code) == (Status.FAILED, "two-histories")
    assert command(["verify", "--fraud", here.saved[0], *TRUSTED]) == 1


def test_a_proof_is_remembered_and_held_against_the_public_log_of_later(tmp_path: Path) -> None:
    """The log's key signed a tree of 5 for one reader, and publishes another once it has got there."""
    made = session()
    for_one = Log([*others(4), made.head()])
    provider = Provider([made], Log(others(2)))
    provider.log.consistency = for_one.proof
    (verdict,), _ = audit(tmp_path, proving(provider, for_one.inclusion(4)), state=True)
    assert verdict.status is Status.EXACT
    with pytest.raises(Contradiction) as caught:
        audit(tmp_path, Provider([made], Log(others(5))), state=True)
    assert caught.value.code == "two-histories"
    assert command(["verify", "--fraud", str(tmp_path / "kept" / "log.fraud"), *TRUSTED]) == 1


def cosigning(provider: Provider, *keys: PrivateKey) -> Provider:
    """A provider whose published checkpoint these witnesses have cosigned."""

    def change(path: str, body: bytes) -> bytes:
        if path != "/log/checkpoint":
            return body
        note = Note.parse(body)
        return note.add(*[cosign(note.text, key, 1) for key in keys]).format()

    provider.change = change
    return provider


def test_an_audit_counts_only_what_the_witnesses_saw_where_some_are_named(tmp_path: Path) -> None:
    made = session()
    quorum = Quorum.of([witness_key(key.public) for key in WITNESSES[:2]])

    def found(entries: list[bytes], *keys: PrivateKey, proves: bool = True) -> tuple[Status, str | None, bool]:
        provider = cosigning(Provider([made], Log(entries)), *keys)
        if not proves:
            provider.log.proves = lambda name, size: None
        (verdict,), _ = audit(tmp_path, provider, quorum=quorum)
        return verdict.status, verdict.code, "log-not-shown" in {note.id for note in verdict.notes}

    for proves in (True, False):  # by its proof, or by the entries
        assert found([made.head()], *WITNESSES[:2], proves=proves) == (Status.EXACT, None, False)
        assert found([made.head()], WITNESSES[0], proves=proves) == (Status.INCONCLUSIVE, "too-few-witnesses", True)
    assert found(others(1)) == (Status.EXACT, None, True)  # not there yet: the delay is not over


def test_without_a_checkpoint_to_compare_with_only_witnesses_count(tmp_path: Path) -> None:
    made = session()
    quorum = Quorum.of([witness_key(WITNESSES[0].public)])
    for proof, named, shown in (
        (faked(made), NOBODY, False),
        (faked(made), quorum, False),
        (cosigned(faked(made), WITNESSES[0]), quorum, True),
    ):
        provider = Provider([made], Log([made.head()]))
        answers = {"/v1/log/proof": proof, "/log/checkpoint": b"none"}
        provider.change = lambda path, body, answers=answers: answers.get(path, body)  # type: ignore[misc]
        (verdict,), _ = audit(tmp_path, provider, quorum=named)
        assert verdict.status is Status.EXACT
        assert ("log-not-shown" in {note.id for note in verdict.notes}) is not shown
