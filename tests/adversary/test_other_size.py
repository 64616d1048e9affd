"""A provider that gives a client one history and logs, lists or shows another of another length. No two heads have one
size, but a later head has to continue the client's, by a proof that it can't give.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import PROVIDER, TRUST, Recording, ask
from tests.simulator import KEY, LOGGED, Log, Provider, seed, serve
from verifiable.checking.checks import check_receipt
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.checking.verdict import Status, Verdict
from verifiable.cli import main as command
from verifier.campaign.campaign import audit_provider
from verifier.campaign.fetched import Auditor, Fetched, audit_session
from verifier.campaign.weigh import Held
from verifier.provider.client import Client
from verifier.provider.remember import Memory

TRUSTED = ["--trust", PROVIDER.public.vkey()]


def told(turns: int = 1, temperature: float = 0.7) -> Recording:
    """The session, after so many turns; at another temperature it is another history of it."""
    made = Recording(manifest=LOGGED, session=b"\1" * 16, capability=b"\1" * 32)
    for _ in range(turns):
        made.turn(ask(max_tokens=5, temperature=temperature), PROMPT)
    return made


def fork(turns: int) -> Recording:
    return told(turns, 0.2)


def serving(mine: Recording, logged: Recording, continues: Recording | None) -> Provider:
    """A provider that shows a client its history, and has logged another; it proves what its tree of that proves."""
    provider = Provider([mine], Log([b"x", logged.head()]))
    provider.log.proves = lambda name, size: None
    shown = Provider([] if continues is None else [continues])
    provider.continues = shown.continued
    return provider


def audit(folder: Path, provider: Provider, mine: Recording, state: bool = False) -> tuple[Verdict, Auditor]:
    here = Auditor(MadeUpModel(), TRUST, folder / "kept")
    here.memory = Memory(folder / "state", TRUST) if state else None
    with serve(provider) as url, Client(url, capability=mine.capability) as client:
        wanted = Fetched(mine.session, receipt=check_receipt(mine.receipt(), TRUST), size=mine.log.size)
        return audit_session(here, client, wanted), here


def proven(here: Auditor) -> None:
    """What the audit saved proves itself to anybody."""
    files = [path for path in here.saved if path.endswith(".fraud")]
    assert files
    for file in files:
        assert Fraud.load(file).kind is FraudKind.TWO_SIZES
        assert command(["verify", "--fraud", file, *TRUSTED]) == 1


def test_a_later_head_that_continues_the_clients_is_in_the_log(tmp_path: Path) -> None:
    verdict, here = audit(tmp_path, serving(told(), told(2), told(2)), told())
    assert verdict.status is Status.EXACT
    assert "log-not-shown" not in {note.id for note in verdict.notes}
    assert not here.saved


def test_a_later_head_of_another_history_hides_nothing(tmp_path: Path) -> None:
    verdict, here = audit(tmp_path, serving(told(), fork(2), fork(2)), told())
    assert (verdict.status, verdict.code) == (Status.FAILED, "two-histories")
    proven(here)


def test_who_refuses_the_proof_does_not_pass(tmp_path: Path) -> None:
    for continues in (None, told(2)):  # nothing, or the proof of a history that it did not log
        verdict, _ = audit(tmp_path, serving(told(), fork(2), continues), told())
        assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "no-evidence")
        assert "log-not-shown" in {note.id for note in verdict.notes}


def test_an_earlier_head_of_another_history_is_told_by_the_clients_own_receipt(tmp_path: Path) -> None:
    provider = serving(told(2), fork(1), None)
    verdict, here = audit(tmp_path, provider, told(2))
    assert (verdict.status, verdict.code) == (Status.FAILED, "two-histories")
    proven(here)
    assert not any("consistency" in path for path in provider.asked)


@pytest.mark.parametrize(("continues", "code"), [(fork(2), "two-histories"), (None, "no-evidence")])
def test_what_was_remembered_of_another_size_is_no_way_out(
    tmp_path: Path, continues: Recording | None, code: str
) -> None:
    verdict, here = audit(tmp_path, serving(fork(2), fork(2), None), fork(2), state=True)
    assert verdict.status is Status.EXACT
    mine = told()
    provider = Provider([mine], Log([mine.head()]))
    if continues is not None:
        provider.continues = Provider([continues]).continued
    else:
        provider.continues = lambda session, old, new: None
    verdict, here = audit(tmp_path, provider, mine, state=True)
    assert verdict.code == code
    if code == "two-histories":
        proven(here)


@pytest.mark.parametrize(
    ("listed", "continues", "code"),
    [(told(2), told(2), None), (fork(2), fork(2), "two-histories"), (fork(2), None, "two-histories")],
)
def test_a_clients_receipt_is_held_against_the_list(
    tmp_path: Path, listed: Recording, continues: Recording | None, code: str | None
) -> None:
    mine = told()
    provider = Provider([listed], Log([mine.head()]))
    provider.earlier = {(mine.session.hex(), mine.log.size): mine}
    provider.log.proves = lambda name, size: 0
    provider.continues = Provider([] if continues is None else [continues]).continued
    here = Auditor(MadeUpModel(), TRUST, tmp_path / "kept")
    held = [Held(check_receipt(mine.receipt(), TRUST))]
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        verdicts, _ = audit_provider(here, client, 1, seed, known=held)
    assert verdicts[0].code == code
    if code == "two-histories":
        proven(here)


def test_offline_the_receipt_and_evidence_of_another_size_are_compared_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def status(mine: Recording, shown: Recording) -> int:
        (tmp_path / "a.receipt").write_bytes(mine.receipt(0).encode())
        (tmp_path / "b.evidence").write_bytes(shown.evidence(turns=[0]).encode())
        return command(["verify", str(tmp_path / "a.receipt"), "--evidence", str(tmp_path / "b.evidence"), *TRUSTED])

    assert status(told(1), told(2)) == 0
    assert status(told(2), told(1)) == 0
    assert status(told(1), fork(2)) == 1
    assert "two-histories" in capsys.readouterr().out
    assert status(told(2), fork(1)) == 1
