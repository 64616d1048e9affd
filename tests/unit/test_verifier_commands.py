"""`verifiable verify` end to end, and what `verifiable audit` refuses before it starts anything."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gguf_files import small, write
from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import PROVIDER, SESSION, TRUST, Recording, ask, made_up
from verifiable.checking.caveats import CAVEATS
from verifiable.checking.checks import check_receipt
from verifiable.checking.verdict import Status
from verifiable.cli import main
from verifiable.errors import MalformedError, VerificationError
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingParams, choose
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.receipt import Receipt
from verifiable.wire.keys import PrivateKey
from verifier.auditing.session import audit
from verifier.commands import files, run
from verifier.commands.options import CopyOptions, DrawOptions, MachineOptions, ProviderOptions, parse_seed
from verifier.offline.offline import readings, verify_with_evidence


@pytest.fixture(scope="module")
def made() -> Recording:
    recording = Recording()
    for tokens in (4, 6):
        recording.turn(ask(max_tokens=tokens), PROMPT)
    return recording


@pytest.fixture
def folder(tmp_path: Path, made: Recording) -> Path:
    (tmp_path / "a.receipt").write_bytes(made.receipt().encode())
    (tmp_path / "tokens.evidence").write_bytes(made.evidence().encode())
    (tmp_path / "full.evidence").write_bytes(made.evidence(Kind.FULL).encode())
    (tmp_path / "acme.pub").write_text(f"# the provider's key\n{PROVIDER.public.vkey()}\n")
    (tmp_path / "answer.txt").write_text(made.texts[-1] + "\n", encoding="utf-8")
    write(tmp_path, small())
    (tmp_path / "other.pub").write_text(PrivateKey.generate("acme", b"o" * 32).public.vkey())
    return tmp_path


def verify(folder: Path, *more: str, receipt: str = "a.receipt", trust: str = "acme.pub") -> int:
    key = str(folder / trust) if (folder / trust).exists() else trust
    return main(["verify", str(folder / receipt), "--trust", key, *more])


def test_a_receipt_is_verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(folder, "--text", str(folder / "answer.txt")) == 0
    out = capsys.readouterr().out
    assert "Signed by acme" in out
    model = check_receipt(Receipt.load(folder / "a.receipt"), TRUST).session.manifest.model
    assert f"Model, by the provider's word: {model.files[0].name} (sha256 {model.files[0].sha256.hex()[:8]}…)" in out
    assert "2 turns" in out
    assert "the text that turn 1 committed to" in out
    assert "verifiable audit" in out


def test_what_turns_do_not_show_is_said_on_every_surface(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cancelled turn that pins no manifest, with a nonce of the provider's; the turn before it has none of that."""
    made = Recording()
    made.turn(ask(max_tokens=5), PROMPT)
    made.turn(ask(max_tokens=5, verifiable={}), PROMPT, cut=3)
    (tmp_path / "a.receipt").write_bytes(made.receipt().encode())
    (tmp_path / "one.evidence").write_bytes(made.evidence(turns=[1]).encode())
    (tmp_path / "mine.json").write_bytes(json.dumps(json.loads(made.requests[1])).encode())
    trust = ["--trust", PROVIDER.public.vkey(), "--json"]
    receipt, evidence, request = (str(tmp_path / name) for name in ("a.receipt", "one.evidence", "mine.json"))
    leaves = {"provider-nonce", "ending-unexplained"}
    for more, said in (
        ([], leaves),
        (["--request", request], {*leaves, "manifest-not-pinned"}),
        (["--evidence", evidence], {*leaves, "manifest-not-pinned"}),
    ):
        assert main(["verify", receipt, *more, *trust]) == 0
        notes = json.loads(capsys.readouterr().out)["not_shown"]
        shown = [note["id"] for note in notes if note["id"] in ("manifest-not-pinned", *leaves)]
        assert sorted(shown) == sorted(said)
        assert all(note["what"] == f"Turn 1: {CAVEATS[note['id']]}" for note in notes if note["id"] in said)
    verdict = audit(made.evidence(turns=[1]), MadeUpModel(), TRUST)
    assert {note.id: note.turns for note in verdict.notes if note.id in said} == dict.fromkeys(said, (1,))


def test_the_key_itself_and_a_receipt_in_text_form_do_as_well(folder: Path, made: Recording) -> None:
    text = base64.urlsafe_b64encode(made.receipt().encode()).decode().rstrip("=")
    (folder / "b.receipt").write_text(text + "\n")
    assert verify(folder, receipt="b.receipt", trust=PROVIDER.public.vkey()) == 0


@pytest.mark.parametrize("kind", ["tokens", "full"])
def test_evidence_is_checked_with_the_receipt(folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(folder, "--evidence", str(folder / f"{kind}.evidence"), "--json") == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["status"] == "verified-receipt"
    names = [check["name"] for check in verdict["checks"]]
    assert "Evidence" in names
    assert ("Sampler replay" in names) is (kind == "full")


def test_failures_say_what_and_exit_with_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "answer.txt").write_text("another answer")
    assert verify(folder, "--text", str(folder / "answer.txt")) == 1
    out = capsys.readouterr().out
    assert out.startswith("FAILED  text-differs")
    assert "means" in out
    assert "does not prove" in out


def test_an_untrusted_key_is_inconclusive(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = PrivateKey.generate("acme", b"o" * 32).public
    assert verify(folder, "--json", trust=other.vkey()) == 3
    assert json.loads(capsys.readouterr().out)["code"] == "untrusted-key"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "a.receipt").write_bytes(b"not a receipt"), "CBOR"),
        (lambda folder: (folder / "a.receipt").write_bytes((folder / "a.receipt").read_bytes()[:-5]), "too early"),
        (lambda folder: (folder / "acme.pub").write_text("nothing\n"), "name+hash+base64"),
        (lambda folder: (folder / "acme.pub").write_text("# only a comment\n"), "holds no key"),
        (lambda folder: (folder / "acme.pub").unlink(), "no such key file"),
    ],
)
def test_wrong_files_are_errors_of_the_call(
    folder: Path, change: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder)  # type: ignore[operator]
    assert verify(folder) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert said in captured.err


def test_a_missing_file_is_said_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(folder, receipt="none") == 4
    assert "No such file" in capsys.readouterr().err


def test_evidence_of_other_histories_fails(made: Recording) -> None:
    def other_model(ids: object) -> Entries:
        entries = made_up(ids)  # type: ignore[arg-type]
        return Entries(entries.ids, entries.logits + entries.logits.dtype.type(1e-6))

    other = Recording()
    for tokens in (4, 6):
        other.turn(ask(max_tokens=tokens), PROMPT, other_model)
    assert verify_with_evidence(made.receipt(), other.evidence(), TRUST).code == "two-histories"
    # The same landmarks in a longer log: the records themselves are held against the receipt.
    assert other.texts == made.texts
    other.close()
    assert verify_with_evidence(made.receipt(), other.evidence(Kind.FULL), TRUST).code == "two-histories"
    foreign = Recording(session=b"\x09" * 16)
    foreign.turn(ask(max_tokens=3), PROMPT)
    assert verify_with_evidence(made.receipt(), foreign.evidence(), TRUST).code == "no-evidence"
    # Of another session nothing else is looked at, so it accuses nobody.
    damaged = replace(foreign.evidence(), opening=made.evidence().opening)
    assert verify_with_evidence(made.receipt(), damaged, TRUST).code == "no-evidence"


def test_replay_of_shown_records_needs_no_model() -> None:
    def hotter(entries: Entries, params: SamplingParams, key: bytes, position: int) -> int:
        return choose(entries, replace(params, temperature=2.0), key, position)

    cheat = Recording(draws=hotter)
    cheat.turn(ask(max_tokens=40), PROMPT)
    verdict = verify_with_evidence(cheat.receipt(), cheat.evidence(Kind.FULL), TRUST)
    assert (verdict.status, verdict.code) == (Status.FAILED, "temperature-differs")
    assert verify_with_evidence(cheat.receipt(), cheat.evidence(), TRUST).status is Status.RECEIPT


def test_a_final_newline_is_forgiven_only_where_it_is_all_that_differs(made: Recording) -> None:
    text = made.texts[-1]
    for given in (text, text + "\n"):
        assert check_receipt(made.receipt(), TRUST, *readings(given)).text == text
    for given in (text + "\n\n", "other\n", text[:-1]):
        assert readings(given)[0] == given
        with pytest.raises(VerificationError) as caught:
            check_receipt(made.receipt(), TRUST, *readings(given))
        assert caught.value.code == "text-differs"
        assert caught.value.found == hashlib.sha256(given.encode()).hexdigest()


# Files.


def test_targets_are_told_apart(folder: Path, made: Recording) -> None:
    assert isinstance(files.read_target(folder / "a.receipt"), Receipt)
    assert isinstance(files.read_target(folder / "tokens.evidence"), Evidence)
    for data in (b"", b"\xa1", made.manifest.sign(PROVIDER), b"text that is none of it"):
        (folder / "x").write_bytes(data)
        with pytest.raises(MalformedError):
            files.read_target(folder / "x")


def test_keys_come_from_files_and_from_the_line_itself(folder: Path) -> None:
    both = files.read_trust([str(folder / "acme.pub"), SESSION.public.vkey()])
    assert both == [PROVIDER.public, SESSION.public]
    assert files.read_trust([]) == []
    damaged = PROVIDER.public.vkey()[:-2] + "AA"
    with pytest.raises(MalformedError):
        files.read_trust([damaged])


def test_texts_and_secrets_are_read(folder: Path) -> None:
    (folder / "secret").write_text("hush\n")
    assert files.read_secret(str(folder / "secret")) == "hush"
    assert files.read_secret("hush") == "hush"
    assert files.read_secret(None) is None
    (folder / "bad").write_bytes(b"\xff")
    with pytest.raises(MalformedError):
        files.read_text(folder / "bad")


# What `verifiable audit` refuses.


@pytest.mark.parametrize("text", ["", "zz" * 32, "ab" * 31, "ab" * 33, " " + "ab" * 32])
def test_seeds_have_one_form(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_seed(text)
    assert parse_seed("AB" * 32) == b"\xab" * 32


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["{}/a.receipt", "--model", "{}/none.gguf", "--trust", "{}/acme.pub"], 2, "no such model file"),
        (["{}/a.receipt", "--model", "{}/model.gguf", "--trust", "{}/acme.pub"], 2, "--provider URL"),
        (["{}/acme.pub", "--model", "{}/model.gguf", "--trust", "{}/acme.pub"], 2, "is no receipt, no evidence"),
        (["{}/none", "--model", "{}/model.gguf", "--trust", "{}/acme.pub"], 2, "no such file to audit"),
        (["acme.example", "--model", "{}/model.gguf", "--trust", "{}/acme.pub"], 2, "http://"),
        (["{}/a.receipt", "--model", "{}/answer.txt", "--trust", "{}/acme.pub"], 2, "is not a usable GGUF file"),
        (["{}/a.receipt", "--model", "{}/model.gguf", "--trust", "{}/other.pub"], 2, "--trust names no key"),
        (["{}/tokens.evidence", "--model", "{}/model.gguf", "--trust", "{}/other.pub"], 2, "--trust names no key"),
        (["{}/a.receipt", "--model", "{}/model.gguf", "--trust", "{}/acme.pub", "--receipts", "{}"], 2, "--receipts"),
        (["http://h", "--model", "{}/model.gguf", "--trust", "{}/acme.pub", "--receipts", "{}/none"], 2, "a folder"),
        (["{}/a.receipt", "--model", "{}/model.gguf", "--trust", "{}/none.pub"], 2, "no such key file"),
        (["{}/a.receipt", "--model", "{}/model.gguf"], 2, "--trust"),
        (["{}/a.receipt", "--trust", "{}/acme.pub"], 2, "--model"),
        (["http://h", "--model", "{}/model.gguf", "--trust", "{}/acme.pub", "--sessions", "0"], 2, "--sessions"),
        (["http://h", "--model", "{}/model.gguf", "--trust", "{}/acme.pub", "--seed", "5"], 2, "64 hexadecimal"),
        (["http://h", "--model", "{}/model.gguf", "--trust", "{}/acme.pub", "--rate", "2"], 2, "--rate"),
        (
            ["http://h.invalid", "--model", "{}/model.gguf", "--trust", "{}/acme.pub"],
            2,
            "expected a host, found h.invalid",
        ),
        (
            ["{}/a.receipt", "--provider", "http://h.invalid", "--model", "{}/model.gguf", "--trust", "{}/acme.pub"],
            2,
            "expected a host, found h.invalid",
        ),
    ],
)
def test_wrong_calls_are_refused(
    folder: Path, arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    signed = ["--sign", str(folder / "me.key"), "--signed-report", str(folder / "audit.report")]
    assert main(["audit", *[argument.format(folder) for argument in arguments], *signed]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert not (folder / "audit.report").exists()
    assert said in captured.err


def test_the_command_that_repeats_an_audit_holds_no_secret(folder: Path) -> None:
    plan = run.Plan(
        target="https://p.example",
        model=folder / "my model.gguf",
        trust=TRUST,
        trust_names=("acme.pub",),
        auditor_key="hush",
        provider=ProviderOptions(auditor_key="hush"),
        draw=DrawOptions(sessions=7, turns=2),
        machine=MachineOptions(),
        copy=CopyOptions(),
        folder=folder,
    )
    command = plan.command(b"\xab" * 32)
    assert "hush" not in command
    assert "--sessions 7" in command
    assert "--turns 2" in command
    assert "--seed " + "ab" * 32 in command
    assert "'" in command  # the space in the model's name
    assert len(plan.draw_seed()) == 32
    assert plan.draw_seed() != plan.draw_seed()
