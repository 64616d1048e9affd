"""A provider that keeps a conversation out of its public log: found by an audit, and proven in a file."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.engine import Engine, EngineSettings
from engine.log.log import LogSettings
from engine.scheduling.scheduler import SchedulerSettings
from engine.store import HeadRow
from tests.integration.serving import http
from tests.made_up_engine import MadeUpEngine
from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import PROVIDER, SESSION, TIME, TRUST, Recording, ask, manifest
from tests.simulator import KEY, LOGGED, Log, Provider, honest, seed, serve
from verifiable import limits
from verifiable.checking.checks import check_receipt
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.checking.verdict import Status, Step, Verdict
from verifiable.cli import main as command
from verifiable.limits import MERGE_DELAY
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.manifest import Manifest
from verifiable.session.head import Head
from verifiable.session.opening import Opening
from verifiable.wire.keys import PrivateKey
from verifier.campaign.campaign import audit_provider
from verifier.campaign.fetched import TOO_LONG, Auditor, Fetched, audit_session
from verifier.provider import published
from verifier.provider.client import Client

VKEY = PROVIDER.public.vkey()


def session(number: int) -> Recording:
    return honest(number, stated=LOGGED)


def late(after: int = MERGE_DELAY) -> bytes:
    """A head of some other session, signed that long after those of `session`."""
    return Head(b"\xee" * 16, 5, bytes(32), LOGGED.digest(), TIME + 5000 + after).sign(SESSION)


def logging(recordings: list[Recording], entries: list[bytes]) -> Provider:
    """Serves sessions, and a log of the entries that it is given."""
    return Provider(recordings, Log(entries))


def audit(folder: Path, provider: Provider, **options: Any) -> tuple[list[Verdict], Auditor]:
    """The verdicts on the sessions that are served. Others that stand in the log are drawn too: see test_lists."""
    here = Auditor(MadeUpModel(), TRUST, folder / "kept", **options)
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        verdicts = audit_provider(here, client, 10, seed)[0]
    return [verdict for verdict in verdicts if verdict.session in provider.recordings], here


def files(folder: Path) -> list[Path]:
    return sorted((folder / "kept").glob("*.fraud"))


def log_check(verdict: Verdict) -> bool | None:
    (check,) = [check for check in verdict.checks if check.name is Step.LOG]
    return check.passed


def test_a_head_kept_out_of_the_log_becomes_a_file_that_anyone_can_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [session(1), session(2), session(3)]
    provider = logging(shown, [shown[0].head(), shown[2].head(), late()])
    verdicts, here = audit(tmp_path, provider)
    found = {verdict.session: (verdict.status, verdict.code, log_check(verdict)) for verdict in verdicts}
    assert found == {
        "01" * 16: (Status.EXACT, None, True),
        "02" * 16: (Status.FAILED, "missing-from-log", False),
        "03" * 16: (Status.EXACT, None, True),
    }
    (file,) = files(tmp_path)
    assert str(file) in here.saved
    assert Fraud.load(file).kind is FraudKind.MISSING
    assert command(["verify", "--fraud", str(file), "--trust", VKEY]) == 1
    assert "missing-from-log" in capsys.readouterr().out
    stranger = PrivateKey.generate("acme", b"q" * 32).public.vkey()
    assert command(["verify", "--fraud", str(file), "--trust", stranger]) == 3
    assert command(["verify", "--fraud", str(file), "--trust", VKEY, "--merge-delay", "49h"]) == 3
    assert command(["verify", "--fraud", str(file), "--trust", VKEY, "--merge-delay", "soon"]) == 2


def test_withholding_the_evidence_as_well_hides_nothing(tmp_path: Path) -> None:
    lost = session(2)
    provider = logging([session(1), lost], [session(1).head(), late()])
    provider.withheld = {lost.session.hex()}
    verdicts, _ = audit(tmp_path, provider)
    assert sorted((verdict.status, verdict.code) for verdict in verdicts if verdict.code) == [
        (Status.FAILED, "missing-from-log")
    ]
    # Nor does leaving it out of the list, from a client who kept its receipt.
    del provider.recordings[lost.session.hex()]
    here = Auditor(MadeUpModel(), TRUST, tmp_path / "client")
    with serve(provider) as url, Client(url, capability=lost.capability) as client:
        verdict = audit_session(
            here, client, Fetched(lost.session, receipt=check_receipt(lost.receipt(), TRUST), size=lost.log.size)
        )
    assert (verdict.status, verdict.code) == (Status.FAILED, "missing-from-log")
    (file,) = (tmp_path / "client").glob("*.fraud")
    assert command(["verify", "--fraud", str(file), "--trust", VKEY]) == 1


def test_evidence_of_another_session_hides_nothing(tmp_path: Path) -> None:
    """What is looked up in the log is the head of the session that was drawn, whatever is shown in its place."""
    lost, shown = session(2), session(1)
    provider = logging([shown, lost], [shown.head(), late()])
    provider.change = lambda path, body: shown.evidence().encode() if "/evidence" in path else body
    verdicts, _ = audit(tmp_path, provider)
    found = {verdict.session: (verdict.status, verdict.code) for verdict in verdicts}
    assert found["02" * 16] == (Status.FAILED, "missing-from-log")


def test_entries_that_are_no_heads_do_not_spoil_the_proof(tmp_path: Path) -> None:
    forged = Head(session(2).session, 99, bytes(32), LOGGED.digest(), TIME).sign(PROVIDER)
    junk = [b"", b"junk", late()[:-1] + b"\0", forged]
    verdicts, _ = audit(tmp_path, logging([session(2)], [*junk, late()]))
    assert [verdict.code for verdict in verdicts] == ["missing-from-log"]
    (file,) = files(tmp_path)
    assert command(["verify", "--fraud", str(file), "--trust", VKEY]) == 1


def test_a_log_longer_than_a_file_holds_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRAUD_ENTRIES", 1)
    verdicts, _ = audit(tmp_path, logging([session(2)], [session(1).head(), late()]))
    (verdict,) = verdicts
    assert (verdict.status, verdict.code, log_check(verdict)) == (Status.FAILED, "missing-from-log", False)
    assert verdict.hint == TOO_LONG
    assert not files(tmp_path)


def test_a_proof_of_something_else_is_not_believed(tmp_path: Path) -> None:
    provider = logging([session(2)], [session(1).head(), late()])
    provider.log.proves = lambda name, size: 0
    verdicts, _ = audit(tmp_path, provider)
    assert [verdict.code for verdict in verdicts] == ["missing-from-log"]


def test_entries_that_the_log_did_not_sign_show_nothing(tmp_path: Path) -> None:
    """The head stands among the entries, and not under the root."""
    made = session(1)
    provider = logging([made], [made.head()])
    provider.log.note = Log([late()]).note  # type: ignore[method-assign]
    (verdict,), _ = audit(tmp_path, provider)
    assert (verdict.status, log_check(verdict)) == (Status.EXACT, None)
    assert "can't be found out" in " ".join(verdict.not_shown)


def test_a_log_that_tells_another_history_is_fraud_without_any_delay(tmp_path: Path) -> None:
    made = session(1)
    verdicts, _ = audit(tmp_path, logging([made], [made.head(root=bytes(32))]))
    assert [(verdict.status, verdict.code) for verdict in verdicts] == [(Status.FAILED, "two-histories")]
    (file,) = files(tmp_path)
    assert Fraud.load(file).kind is FraudKind.TWO_HEADS
    assert command(["verify", "--fraud", str(file), "--trust", VKEY]) == 1


def test_another_history_under_another_manifest_is_another_history(tmp_path: Path) -> None:
    """The log has the session by another session key, under a manifest that stands there too."""
    lost = session(2)
    other = replace(Head.peek(lost.head()), root=bytes(32), manifest_digest=NEWER.digest()).sign(OTHER)
    provider = logging([lost], [NEWER.sign(PROVIDER), other, late()])
    verdict, _ = audit_held(tmp_path, provider, lost)
    assert (verdict.status, verdict.code) == (Status.FAILED, "two-histories")
    (file,) = files(tmp_path)
    assert command(["verify", "--fraud", str(file), "--trust", VKEY]) == 1


def test_heads_that_are_dated_back_at_the_end_hide_nothing(tmp_path: Path) -> None:
    tail = [at(number) for number in range(1, 20)]
    verdict, _ = audit_held(tmp_path, logging([session(2)], [at(0), at(40 * 24 * HOUR), *tail]), session(2))
    assert (verdict.status, verdict.code) == (Status.FAILED, "missing-from-log")
    (file,) = files(tmp_path)
    assert command(["verify", "--fraud", str(file), "--trust", VKEY]) == 1


def test_a_head_that_is_dated_ahead_is_said_to_be(tmp_path: Path) -> None:
    verdict, _ = audit_held(tmp_path, logging([session(2)], [at(0)]), session(2))
    assert "after this machine's clock" in " ".join(verdict.not_shown)  # the tests' clock is


def test_a_checkpoint_from_before_the_head_accuses_nobody(tmp_path: Path) -> None:
    """One machine's clock is ahead by a day and an hour, and a carrier shows the log as it was just before."""
    made = session(2)
    entries = [at(0), at(25 * HOUR), made.head()]
    provider = logging([made], entries)
    provider.log.size, provider.log.proves = 2, lambda *_: None
    verdict, here = audit_held(tmp_path, provider, made)
    assert (verdict.status, here.saved) == (Status.EXACT, [])
    old = Log(entries[:2])
    framed = Fraud(
        FraudKind.MISSING,
        (LOGGED.sign(PROVIDER),),
        (made.head(), old.note()),
        Opening(dict(enumerate(entries[:2])), ()),
    )
    (tmp_path / "framed").write_bytes(framed.encode())
    assert command(["verify", "--fraud", str(tmp_path / "framed"), "--trust", VKEY]) == 3


def test_a_clock_that_was_ahead_gives_nobody_a_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operator sets it right again: until what was signed is not far ahead any more, nothing more is signed."""
    shift = [0]
    now = Engine._now
    monkeypatch.setattr(MadeUpEngine, "_now", lambda self: now(self) + shift[0])
    engine = MadeUpEngine(tmp_path / "data", valid_from=0, valid_to=90 * 24 * HOUR)
    question = {"prompt": [1, 2, 3], "max_tokens": 4}
    with http(engine, []) as url, httpx.Client(base_url=url, timeout=60) as client:

        def ask(path: str = "/v1/completions") -> int:
            return client.post(path, json=question).status_code

        assert (ask(), client.get("/ready").status_code) == (200, 200)
        shift[0] = 3 * 24 * HOUR
        assert ask() == 200
        shift[0] = 0
        refused = client.post("/v1/completions", json=question)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "clock")
        assert client.get("/ready").status_code == 503
        shift[0] = 2 * 24 * HOUR + HOUR
        assert (ask(), client.get("/ready").status_code) == (200, 200)
    engine.close()


HONEST: list[tuple[str, Callable[[Recording], list[bytes]]]] = [
    ("nothing was logged yet", lambda made: []),
    ("the log's newest head is a moment too young", lambda made: [late(MERGE_DELAY - 1)]),
    ("only somebody else's entries are late", lambda made: [b"junk", late()[:-1] + b"\0"]),
    ("the machine that signed the others is behind by a day", lambda made: [late(-MERGE_DELAY)]),
    ("the machine that signed the others is ahead by less than the delay", lambda made: [late(MERGE_DELAY // 2)]),
]


@pytest.mark.parametrize("entries", [entries for _, entries in HONEST], ids=[name for name, _ in HONEST])
def test_an_honest_provider_is_never_accused(tmp_path: Path, entries: Callable[[Recording], list[bytes]]) -> None:
    made = session(1)
    verdicts, here = audit(tmp_path, logging([made], entries(made)))
    assert [verdict.status for verdict in verdicts] == [Status.EXACT]
    assert log_check(verdicts[0]) in (True, None)
    assert not here.saved


def test_a_client_whose_session_went_on_accuses_nobody(tmp_path: Path) -> None:
    made, longer = (Recording(manifest=LOGGED, session=b"\1" * 16, capability=b"\1" * 32) for _ in range(2))
    for each in (made, longer, longer):
        each.turn(ask(max_tokens=5), PROMPT)
    provider = logging([made], [longer.head(), late()])
    provider.continues = logging([longer], []).continued
    here = Auditor(MadeUpModel(), TRUST, tmp_path / "client")
    with serve(provider) as url, Client(url, capability=made.capability) as client:
        held = check_receipt(made.receipt(), TRUST)
        verdict = audit_session(here, client, Fetched(made.session, receipt=held, size=made.log.size))
    assert (verdict.status, log_check(verdict)) == (Status.EXACT, True)
    assert not here.saved


def test_without_a_log_nothing_is_asked_of_it(tmp_path: Path) -> None:
    made = Recording(session=b"\1" * 16)
    made.turn(ask(max_tokens=5), PROMPT)
    provider = Provider([made])
    verdicts, here = audit(tmp_path, provider)
    assert [verdict.status for verdict in verdicts] == [Status.EXACT]
    assert not any("log" in path for path in provider.asked)
    assert not here.saved


def test_a_list_with_a_head_that_the_provider_never_signed_accuses_nobody(tmp_path: Path) -> None:
    def forged(path: str, body: bytes) -> bytes:
        if path != "/v1/sessions":
            return body
        page = json.loads(body)
        page["sessions"][0]["head"] = "AAAA"
        return json.dumps(page).encode()

    provider = logging([session(1)], [late()])
    provider.change = forged
    provider.withheld = {"01" * 16}
    verdicts, here = audit(tmp_path, provider)
    assert [verdict.status for verdict in verdicts] == [Status.INCONCLUSIVE]
    assert not here.saved


def wrong_key(provider: Provider, _: pytest.MonkeyPatch) -> None:
    provider.log.keys = [PrivateKey.generate("acme/log", b"z" * 32)]


def too_long(provider: Provider, _: pytest.MonkeyPatch) -> None:
    provider.log.claimed = limits.LOG_ENTRIES


def not_all(provider: Provider, _: pytest.MonkeyPatch) -> None:
    provider.log.claimed = 1


@pytest.mark.parametrize("hinder", [wrong_key, too_long, not_all])
def test_a_log_that_cannot_be_read_is_said_to_be_so_and_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hinder: Callable[[Provider, pytest.MonkeyPatch], None]
) -> None:
    provider = logging([session(1), session(2)], [late()])
    hinder(provider, monkeypatch)
    verdicts, here = audit(tmp_path, provider)
    assert [verdict.status for verdict in verdicts] == [Status.EXACT] * 2
    assert all("can't be found out" in " ".join(verdict.not_shown) for verdict in verdicts)
    assert not here.saved
    assert provider.asked.count("/log/checkpoint") == 1


HOUR = 3_600_000
OTHER = PrivateKey.generate("acme/other", b"o" * 32)
NEWER = manifest(log=LOGGED.log, session_keys=(OTHER.public,))


def at(time: int, stated: Manifest = LOGGED, key: PrivateKey = SESSION) -> bytes:
    """A head of some session, signed that long after those of `session`."""
    return Head(hashlib.sha256(b"%d" % time).digest()[:16], 5, bytes(32), stated.digest(), TIME + 5000 + time).sign(key)


def test_a_manifest_whose_key_is_never_logged_hides_nothing(tmp_path: Path) -> None:
    """What else the log holds is signed with another key, under another manifest of the same provider."""
    provider = logging([session(2)], [at(0, NEWER, OTHER), at(MERGE_DELAY, NEWER, OTHER)])
    provider.change = lambda path, body: NEWER.sign(PROVIDER) if path == "/v1/manifest" else body
    verdicts, _ = audit(tmp_path, provider)
    assert [(verdict.status, verdict.code) for verdict in verdicts] == [(Status.FAILED, "missing-from-log")]
    (file,) = files(tmp_path)
    assert len(Fraud.load(file).manifests) == 2
    assert command(["verify", "--fraud", str(file), "--trust", VKEY]) == 1
    held, _ = audit_held(tmp_path / "held", provider, session(2))  # by a client of its own receipt
    assert (held.status, held.code) == (Status.FAILED, "missing-from-log")


def test_a_manifest_that_stands_in_the_log_tells_whose_heads_it_holds(tmp_path: Path) -> None:
    """The provider shows the one that it never logs a head under, and has to log the other."""
    provider = logging([session(2)], [NEWER.sign(PROVIDER), at(0, NEWER, OTHER), at(MERGE_DELAY, NEWER, OTHER)])
    verdicts, _ = audit(tmp_path, provider)
    assert [(verdict.status, verdict.code) for verdict in verdicts] == [(Status.FAILED, "missing-from-log")]
    provider.log.entries[0] = NEWER.sign(OTHER)  # a stranger's tells nothing
    verdicts, _ = audit(tmp_path / "stranger", provider)
    assert [verdict.status for verdict in verdicts] == [Status.EXACT]


def audit_held(folder: Path, provider: Provider, made: Recording) -> tuple[Verdict, Auditor]:
    """As a client audits its own receipt."""
    here = Auditor(MadeUpModel(), TRUST, folder / "kept")
    with serve(provider) as url, Client(url, capability=made.capability) as client:
        held = check_receipt(made.receipt(), TRUST)
        return audit_session(here, client, Fetched(made.session, receipt=held, size=made.log.size)), here


def test_of_a_long_log_that_part_is_read_where_the_head_would_stand(tmp_path: Path) -> None:
    """Ten thousand heads, one each hour: neither length nor a refused proof lets a head disappear."""
    provider = logging([session(2)], [at(hours * HOUR) for hours in range(-5000, 5000)])
    tree = provider.log.tree()
    provider.log.tree = lambda size=None: tree  # type: ignore[method-assign]
    verdict, _ = audit_held(tmp_path, provider, session(2))
    assert (verdict.status, verdict.code) == (Status.FAILED, "missing-from-log")
    (file,) = files(tmp_path)
    shown = Fraud.load(file).opening.leaves
    assert (min(shown), max(shown)) == (4952, 5048)
    assert file.stat().st_size < 50_000
    assert sum("/tile/entries/" in path for path in provider.asked) == 1
    assert command(["verify", "--fraud", str(file), "--trust", VKEY]) == 1


@pytest.mark.parametrize("behind", [0, 20, 47])
def test_a_machine_that_was_out_of_reach_for_a_day_accuses_nobody(tmp_path: Path, behind: int) -> None:
    """What it signed meanwhile came into the log so many hours late, and the provider gives no proof of it."""
    made = session(1)
    hours = [*range(-100, behind), None, *range(behind, 200)]
    provider = logging([made], [made.head() if hour is None else at(hour * HOUR + 1) for hour in hours])
    provider.log.proves = lambda name, size: None
    verdict, here = audit_held(tmp_path, provider, made)
    assert (verdict.status, log_check(verdict)) == (Status.EXACT, True)
    assert not here.saved


@pytest.mark.parametrize("hinder", ["many", "slow"])
def test_a_head_that_is_neither_proven_nor_to_be_looked_for_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hinder: str
) -> None:
    """An honest provider gives its proof. One that gives none, of a log that nobody can read, hides something."""
    if hinder == "many":
        monkeypatch.setattr(limits, "LOG_ENTRIES", 1)
    else:
        monkeypatch.setattr(published, "SECONDS", -1.0)
    provider = logging([session(2)], [at(0), late()])
    verdicts, here = audit(tmp_path, provider)
    (verdict,) = verdicts
    code = "no-evidence" if hinder == "many" else "unreachable"
    assert (verdict.status, verdict.code, log_check(verdict)) == (Status.INCONCLUSIVE, code, None)
    assert not here.saved


# The same with the real engine and a real model.


class Hiding:
    """A log's store under which the first session ever is not among the heads that wait to be taken in."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.first: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def integration(self) -> Iterator[Any]:
        with self._store.integration() as transaction:
            real = transaction.pending

            def pending(limit: int) -> list[HeadRow]:
                heads: list[HeadRow] = real(limit)
                self.first = self.first or (heads[0].session if heads else None)
                return [head for head in heads if head.session != self.first]

            transaction.pending = pending
            yield transaction


class KeepsOut(Engine):
    """Keeps its first session out of its log."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        log: Any = self.ledger.log
        log._store = Hiding(log._store)


@pytest.mark.parametrize(("make", "code"), [(KeepsOut, 1), (Engine, 0)])
def test_a_real_provider_is_audited_for_what_it_kept_out(
    smollm2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make: Callable[..., Engine],
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = EngineSettings(runtime=RuntimeSettings(n_ctx=256), scheduler=SchedulerSettings(slots=1), name="acme")
    with make(smollm2, tmp_path / "provider", settings) as engine:
        receipts = []
        for text in ("Name a colour.", "Name a bird."):
            receipts.append(engine.chat([{"role": "user", "content": text}], max_tokens=6).receipt or b"")
            time.sleep(1.2)
        log = engine.ledger.log
        assert log is not None
        while log.integrate():
            pass
        log.publish()
        Path("first.receipt").write_bytes(receipts[0])
        trust, auditor = str(engine.keys.public_file), engine.keys.auditor_key
        with http(engine, ["sk-test"]) as url:
            audits = ["audit", "--model", str(smollm2), "--trust", trust, "--auditor-key", auditor]
            assert command([*audits, url]) == 0  # a day is not over
            assert not list(tmp_path.rglob("*.fraud"))
            assert command([*audits, url, "--merge-delay", "1s", "--json"]) == code
            client = [*audits[:5], "first.receipt", "--provider", url, "--merge-delay", "1s", "--save", "client"]
            assert command(client) == code
        out = capsys.readouterr().out
    found = [*(tmp_path / "verifiable-evidence").glob("*.fraud"), *(tmp_path / "client").glob("*.fraud")]
    assert len(found) == 2 * code
    for file in found:
        assert command(["verify", "--fraud", str(file), "--trust", trust, "--merge-delay", "1s"]) == 1
        assert command(["verify", "--fraud", str(file), "--trust", trust]) == 3
    if code:
        assert "missing-from-log" in out
        assert "--merge-delay 1s" in out


def test_an_operators_defaults_keep_well_within_the_delay() -> None:
    settings = LogSettings()
    assert 100 * 1000 * (settings.integrate_every + settings.publish_every) < MERGE_DELAY
