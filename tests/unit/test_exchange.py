"""What a client keeps of its own: the file, and what it is held against. The vectors `exchange` have the rest."""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import TIME, TRUST, Recording, ask
from verifiable import Asked, Exchange, limits, verify
from verifiable.checking.checks import check_evidence, check_receipt
from verifiable.checking.near import difference
from verifiable.checking.verdict import Status, Step
from verifiable.errors import MalformedError, PolicyError
from verifiable.request.exchange import read_asked
from verifiable.request.request import COMPLETION
from verifiable.session.evidence import Kind
from verifiable.session.records import NonceSource
from verifiable.wire.keys import PrivateKey
from verifier import audit
from verifier.commands.files import read_copies
from verifier.offline.offline import readings, verify_with_evidence

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    "max_tokens": 5,
    "verifiable": {"nonce": "00112233445566778899", "session": "new"},
}


@pytest.fixture(scope="module")
def made() -> Recording:
    recording = Recording()
    recording.turn(ask(**BODY), PROMPT)
    return recording


@pytest.fixture
def kept(made: Recording) -> Exchange:
    return Exchange.of(BODY, text=made.texts[0], receipt=made.receipt().encode(), sent=TIME - 5, received=TIME + 5)


def test_what_is_saved_is_loaded_and_private(kept: Exchange, tmp_path: Path) -> None:
    path = tmp_path / "answer.exchange"
    kept.save(path)
    assert Exchange.load(path) == kept
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = json.loads(path.read_text())
    assert list(written) == ["version", "path", "body", "text", "receipt", "sent", "received"]
    assert written["body"] == BODY
    alone = Exchange(kept.request)
    assert list(json.loads(alone.encode())) == ["version", "path", "body"]
    assert Exchange.parse(alone.encode()) == alone


def test_a_request_is_read_in_each_form_that_people_keep(kept: Exchange) -> None:
    for data in (json.dumps(BODY).encode(), kept.request.canonical, kept.encode()):
        assert read_asked(data).request == kept.request
    assert read_asked(b'{"prompt": "Say"}').request.path == COMPLETION
    deep = b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}"
    for wrong in (b"[]", b"5", b'{"version": 2}', b'{"messages": 5}', b"\xff", deep):
        with pytest.raises(MalformedError):
            read_asked(wrong)


def test_the_api_holds_a_clients_copy_against_the_receipt(made: Recording, kept: Exchange) -> None:
    verdict = verify(kept, trust=TRUST)
    assert verdict.status is Status.RECEIPT
    assert {Step.REQUEST, Step.TEXT} <= {check.name for check in verdict.checks}
    other = Exchange.of({**BODY, "max_tokens": 6}, receipt=made.receipt())
    assert verify(other, trust=TRUST).code == "request-differs"
    assert verify(replace(kept, sent=TIME + 10**7, received=None), trust=TRUST).code == "time-differs"
    assert verify(made.receipt(), trust=TRUST, asked=Asked(nonce=bytes(10))).code == "nonce-differs"
    assert verify(made.receipt(), trust=TRUST, asked=kept.asked, text=kept.text).status is Status.RECEIPT
    assert verify(replace(kept, text="no"), trust=TRUST, text=kept.text).status is Status.RECEIPT  # given apart
    with pytest.raises(PolicyError):
        verify(replace(kept, receipt=None), trust=TRUST)


def test_the_audit_says_what_differs(made: Recording, kept: Exchange) -> None:
    evidence = made.evidence(Kind.FULL)
    good = audit(evidence, MadeUpModel(), TRUST, receipt=kept.receipt, text=kept.text, asked=kept.asked)
    assert good.status is Status.EXACT
    assert "request-not-given" not in {note.id for note in good.notes}
    asked = Asked(ask(**{**BODY, "temperature": 0.5}))
    verdict = audit(evidence, MadeUpModel(), TRUST, asked=asked)
    assert (verdict.status, verdict.code) == (Status.FAILED, "request-differs")
    assert verdict.summary.endswith("temperature differs")
    assert (verdict.expected, verdict.found) == ('{"temperature": 0.5}', "{}")
    assert verdict.hint is not None
    assert "your own copy" in verdict.hint
    without = audit(evidence, MadeUpModel(), TRUST)
    assert {"request-not-given", "receipt-not-given", "text-not-given", "log-not-shown"} <= {
        note.id for note in without.notes
    }
    assert "text-not-given" not in {note.id for note in good.notes}
    shell = replace(kept.asked, texts=readings(f"{kept.text}\n"))
    assert audit(evidence, MadeUpModel(), TRUST, asked=shell).status is Status.EXACT
    assert audit(evidence, MadeUpModel(), TRUST, asked=kept.asked, text="no").code == "text-differs"


COMMITTED = "Aller guten Dinge\nsind drei: \u00e4, \u00f6."


def test_times_that_say_nothing_of_a_turn_are_not_said_to_be_compared(made: Recording, kept: Exchange) -> None:
    again = {**BODY, "verifiable": {"nonce": "99" * 8, "session": made.session.hex()}}
    two = Recording()
    two.turn(ask(**BODY), PROMPT)
    two.turn(ask(**again), PROMPT)
    later = Exchange.of(again, text=two.texts[1], receipt=two.receipt().encode(), sent=TIME + 5)
    assert "times-not-given" in {note.id for note in verify(later, trust=TRUST).notes}
    for given in (replace(kept, sent=None), replace(kept, received=None)):
        verdict = verify(given, trust=TRUST)
        assert verdict.status is Status.RECEIPT
        (check,) = [check for check in verdict.checks if check.name is Step.REQUEST]
        assert "times" in check.detail
        assert "times-not-given" in {note.id for note in verdict.notes}
    assert "times-not-given" not in {note.id for note in verify(kept, trust=TRUST).notes}
    whole = audit(two.evidence(), MadeUpModel(), TRUST, receipt=two.receipt(), asked=later.asked)
    assert whole.status is Status.EXACT
    offline = verify_with_evidence(two.receipt(), two.evidence(), TRUST, later.asked)
    for of in ("request-not-given", "text-not-given"):
        for verdict in (whole, offline):
            assert [note.turns for note in verdict.notes if note.id == of] == [(0,)]


def test_the_times_of_a_later_turn_are_held_against_the_head_of_its_receipt(kept: Exchange) -> None:
    """The session was opened for the turn before; the head was signed at TIME + 5000."""
    two = Recording()
    again = {**BODY, "verifiable": {"nonce": "99" * 8, "session": two.session.hex()}}
    two.turn(ask(**BODY), PROMPT)
    two.turn(ask(**again), PROMPT)
    skew, signed = limits.CLOCK_SKEW, TIME + 5000
    later = Exchange.of(
        again, text=two.texts[1], receipt=two.receipt(1), sent=signed + skew, received=signed + skew + 1
    )
    years = replace(later, sent=signed + skew + 1)
    before = replace(later, sent=TIME - skew, received=signed - skew - 1)
    for given, code, noted in ((later, None, False), (years, "time-differs", False), (before, None, True)):
        verdict = verify(given, trust=TRUST)
        assert verdict.code == code
        assert ("answer-time-not-shown" in {note.id for note in verdict.notes}) is noted
        for held in (given.receipt, None):
            whole = audit(two.evidence(), MadeUpModel(), TRUST, receipt=held, asked=given.asked)
            assert whole.code == code
            assert ("answer-time-not-shown" in {note.id for note in whole.notes}) is noted


def test_the_copy_of_another_turn_is_the_clients_mistake() -> None:
    two = Recording()
    again = {**BODY, "verifiable": {"nonce": "99" * 8, "session": two.session.hex()}}
    for body in (BODY, again):
        two.turn(ask(**body), PROMPT)
    mine = [Exchange.of(body, text=two.texts[turn]) for turn, body in enumerate((BODY, again))]
    for asked in (mine[0].asked, replace(mine[1].asked, texts=mine[0].asked.texts), Asked(texts=mine[0].asked.texts)):
        verdict = verify(two.receipt(1), trust=TRUST, asked=asked)
        assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "other-turn")
    for turn in (0, 1):  # without a receipt, the copy says of which turn it is
        for asked in (mine[turn].asked, Asked(texts=mine[turn].asked.texts)):
            verdict = audit(two.evidence(), MadeUpModel(), TRUST, asked=asked)
            assert verdict.status is Status.EXACT
            assert [note.turns for note in verdict.notes if note.id == "text-not-given"] == [(1 - turn,)]


def test_what_is_given_apart_leaves_the_rest_of_an_exchange(kept: Exchange) -> None:
    nonce = Asked(nonce=kept.request.nonce)
    assert verify(kept, trust=TRUST, asked=nonce).notes == verify(kept, trust=TRUST).notes
    assert verify(replace(kept, text="no"), trust=TRUST, asked=nonce).code == "text-differs"
    assert verify(kept, trust=TRUST, asked=Asked(nonce=bytes(8))).code == "nonce-differs"


def test_what_was_opened_under_another_key_is_not_trusted_for_it(made: Recording) -> None:
    evidence, held = check_evidence(made.evidence(), TRUST), check_receipt(made.receipt(), TRUST)
    assert audit(evidence, MadeUpModel(), TRUST, receipt=held).status is Status.EXACT
    other = PrivateKey.generate("bank", b"q" * 32)
    again = made.manifest.sign(other)
    mine = check_evidence(replace(made.evidence(), manifest=again), [other.public])
    for given, receipt in ((evidence, None), (mine, held)):
        verdict = audit(given, MadeUpModel(), [other.public], receipt=receipt)
        assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "untrusted-key")


def test_a_nonce_that_the_provider_says_is_its_own_is_not_the_clients() -> None:
    made = Recording()
    made.turn(ask(**{**BODY, "verifiable": {}}), PROMPT)
    leaf = check_receipt(made.receipt(), TRUST).session.spans[0].turn
    assert leaf.nonce_source is NonceSource.PROVIDER
    assert verify(made.receipt(), trust=TRUST, asked=Asked(nonce=leaf.nonce)).code == "nonce-differs"


def test_a_nonce_that_ones_own_request_lacks_is_the_callers_mistake(kept: Exchange) -> None:
    seeded = Exchange.of({"messages": BODY["messages"], "seed": 7})
    for exchange, nonce in ((seeded, "00" * 8), (kept, "00" * 8)):
        with pytest.raises(PolicyError, match="not the nonce of your own request"):
            read_copies(None, None, nonce, exchange)


def test_an_exchange_is_of_one_answer(made: Recording, kept: Exchange, tmp_path: Path) -> None:
    kept.save(tmp_path / "kept.exchange")
    copies = read_copies(None, tmp_path / "kept.exchange", None, made.evidence())
    assert (copies.receipt, copies.asked) == (kept.receipt, kept.asked)
    two = Recording()
    two.turn(ask(**BODY), PROMPT)
    two.turn(ask(**{**BODY, "verifiable": {"nonce": "99" * 8, "session": two.session.hex()}}), PROMPT)
    elsewhere = Recording(session=bytes(16))
    elsewhere.turn(ask(**{**BODY, "verifiable": {"nonce": "99" * 8}}), PROMPT)
    for other in (two.receipt(1), elsewhere.receipt()):
        with pytest.raises(PolicyError, match="of another answer than the receipt"):
            read_copies(None, tmp_path / "kept.exchange", None, other)
    damaged = replace(made.receipt(), head=b"no head")
    assert read_copies(None, tmp_path / "kept.exchange", None, damaged).receipt == damaged


def test_true_is_not_one_in_what_differs(made: Recording, kept: Exchange) -> None:
    other = Exchange.of({**BODY, "user": True}).asked
    numbered = Recording()
    numbered.turn(ask(**BODY, user=1), PROMPT)
    verdict = audit(numbered.evidence(), MadeUpModel(), TRUST, asked=other)
    assert (verdict.code, verdict.expected, verdict.found) == ("request-differs", '{"user": true}', '{"user": 1}')


@pytest.mark.parametrize(
    ("text", "only"),
    [
        (COMMITTED.replace("\n", "\r\n"), "line endings"),
        (COMMITTED.replace("\n", "\r"), "line endings"),
        (f"\ufeff{COMMITTED}", "a byte order mark"),
        (COMMITTED.replace("\u00e4", "a\u0308").replace("\u00f6", "o\u0308"), "Unicode normalisation"),
        (f"{COMMITTED} ", "spaces at its end"),
        (f" {COMMITTED}\n", "spaces at its beginning and end"),
        (f"\ufeff{COMMITTED}\n".replace("\n", "\r\n"), "a byte order mark and line endings and spaces at its end"),
        (COMMITTED.replace("drei", "vier"), None),
        (COMMITTED.replace("drei", "drei "), None),
        ("", None),
    ],
)
def test_what_programs_do_to_a_text_is_told_from_another_text(text: str, only: str | None) -> None:
    assert difference(text, hashlib.sha256(COMMITTED.encode()).digest()) == only
