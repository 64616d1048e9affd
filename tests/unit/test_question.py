"""The question of an audit: what came is held against each part of it, before anything is made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.made_up_model import MadeUpModel
from tests.sessions import TRUST, Recording, recording
from verifiable.checking.checks import check_evidence
from verifiable.errors import VerificationError
from verifiable.session.evidence import Kind
from verifier.campaign.fetched import Auditor, Fetched, count_turns, fetch
from verifier.offline.question import Question
from verifier.provider.client import Listed

MADE = recording(2)
SIZE = MADE.log.size
OTHER = Recording(session=b"\x08" * 16)


@pytest.mark.parametrize(
    "question",
    [
        Question(OTHER.session),
        Question(MADE.session, SIZE - 1),
        Question(MADE.session, turns=(0,)),
        Question(MADE.session, turns=(1, 0)),
        Question(MADE.session, turns=(0, 1, 2)),
        Question(MADE.session, kind=Kind.FULL),
        Question(MADE.session, held=2),
    ],
)
def test_evidence_that_answers_another_question_is_none(question: Question) -> None:
    opened = check_evidence(MADE.evidence(), TRUST)
    Question(MADE.session, SIZE, (0, 1), Kind.TOKENS, 1).check(opened)
    with pytest.raises(VerificationError) as caught:
        question.check(opened)
    assert caught.value.code == "no-evidence"


@pytest.fixture
def auditor(tmp_path: Path) -> Auditor:
    return Auditor(MadeUpModel(), TRUST, tmp_path)


def gives(body: bytes) -> Any:
    """A provider that answers everything alike."""
    return SimpleNamespace(evidence=lambda *_: body, receipt=lambda *_: body)


def test_of_another_session_nothing_else_is_looked_at(auditor: Auditor) -> None:
    """So it accuses nobody."""
    damaged = replace(MADE.evidence(), opening=recording(1).evidence().opening)
    assert getattr(fetch(auditor, gives(damaged.encode()), Fetched(MADE.session)).error, "code", "") == "root-differs"
    assert getattr(fetch(auditor, gives(damaged.encode()), Fetched(OTHER.session)).error, "code", "") == "no-evidence"


def listed(made: Recording) -> Listed:
    return Listed(made.session, made.log.size, 0, made.head())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda: recording(2, body={"temperature": 0.1}), "two-histories"),
        (lambda: recording(1), "no-evidence"),
        (lambda: recording(2, session=OTHER.session), "no-evidence"),
    ],
)
def test_what_is_listed_is_what_is_handed_out(auditor: Auditor, change: Callable[[], Recording], code: str) -> None:
    other = change()
    assert count_turns(auditor, gives(MADE.receipt().encode()), listed(MADE)) == 2
    with pytest.raises(VerificationError) as caught:
        count_turns(auditor, gives(other.receipt().encode()), listed(MADE))
    assert caught.value.code == code
    wanted = Fetched(MADE.session, listed(MADE), size=SIZE)
    assert fetch(auditor, gives(MADE.evidence().encode()), wanted).error is None
    assert getattr(fetch(auditor, gives(other.evidence().encode()), wanted).error, "code", "") == code
