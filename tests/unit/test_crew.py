"""Many sessions over one process or several: the same verdicts in the order of the draw, whoever executed them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import TRUST, Recording, ask, made_up
from verifiable.checking.verdict import Status, Verdict
from verifiable.errors import EngineError, PolicyError, VerificationError
from verifiable.request.request import COMPLETION, Request
from verifiable.sampling.logits import Entries
from verifiable.session.evidence import TurnEvidence
from verifier.campaign.crew import Member, audit_all, check_cores, prompt_key
from verifier.campaign.fetched import Auditor, Fetched, Received
from verifier.provider.client import Client


@dataclass
class Noting(MadeUpModel):
    """Notes what it scored, and complains when two threads are in it at once."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answers: list[int] = field(default_factory=list)
    fails: bool = False

    def score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, *, as_generated: bool = False
    ) -> list[Entries]:
        if not self.lock.acquire(blocking=False):
            raise EngineError("two sessions at once in one process")
        if self.fails:
            raise RuntimeError("a fault of ours")
        try:
            time.sleep(0.002)
            self.answers.append(tokens[0])
            return super().score(prompt, tokens, k, as_generated=as_generated)
        finally:
            self.lock.release()


@dataclass
class Asked(MadeUpModel):
    """Notes the requests in the order in which it was asked for their prompts."""

    asked: list[Request] = field(default_factory=list)

    def prompt_ids(self, request: Request, opened: int | None = None) -> list[int]:
        self.asked.append(request)
        return super().prompt_ids(request, opened)


def session(number: int, system: str, row=made_up) -> Fetched:
    made = Recording(session=bytes([number]) * 16)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Question {number}"}]
    made.turn(ask(messages=messages, max_tokens=4, verifiable={"nonce": f"{number:020x}"}), PROMPT, row)
    made.close()
    received = Received(made.evidence().encode())
    received.open(*received.parse(TRUST))
    return Fetched(made.session, evidence=received)


def other(ids: Sequence[int]) -> Entries:
    entries = made_up(ids)
    return Entries(entries.ids, entries.logits + entries.logits.dtype.type(0.25))


@pytest.fixture
def group() -> list[Fetched]:
    """Two system prompts in turn, a session that lies, one whose evidence never came, and one that is damaged."""
    found = [session(number, f"You are {'A' if number % 2 else 'B'}.") for number in range(1, 18)]
    found.append(session(18, "You are A.", other))
    found.insert(3, Fetched(b"\xaa" * 16, error=VerificationError("withheld", code="no-evidence")))
    found.insert(7, Fetched(b"\xbb" * 16, evidence=Received(b"no evidence")))
    return found


def run(group: Sequence[Fetched], crew: Sequence[MadeUpModel], tell=lambda: None) -> list[Verdict]:
    auditor = Auditor(crew[0], TRUST, Path("unused"))
    with Client("http://127.0.0.1:9") as client:
        return audit_all(auditor, [Member(worker, client) for worker in crew], group, tell)


def test_the_number_of_processes_changes_no_verdict(group):
    told: list[int] = []
    alone = run(group, [Noting()], lambda: told.append(1))
    assert len(told) == len(group)
    assert [verdict.session for verdict in alone if verdict.status is Status.EXACT] == [
        found.session.hex() for found in group if found.session[0] in range(1, 18)
    ]
    assert [verdict.code for verdict in alone if verdict.code] == ["no-evidence", "malformed", "records-differ"]
    for count in (2, 3, 50):
        crew = [Noting() for _ in range(count)]
        assert run(group, crew) == alone
        assert sum(len(worker.answers) > 0 for worker in crew) > 1


def test_conversations_that_begin_alike_are_executed_together(group):
    worker = Asked()
    assert len(run(group, [worker])) == len(group)  # what can't be read is no reason to stop
    systems = [str(request.messages[0]["content"]) for request in worker.asked if request.messages is not None]
    assert systems == ["You are A."] * 10 + ["You are B."] * 8


def test_completions_of_text_and_of_ids_have_a_place_too():
    texts = []
    for prompt in ("Once upon", "Once more", [5, 6, 7]):
        made = Recording()
        made.turn(ask(COMPLETION, prompt=prompt, max_tokens=2), PROMPT)
        texts.append(prompt_key(made.evidence()))
    assert len(set(texts)) == 3


@pytest.mark.parametrize("asked", [b"", b"[1]", b"5", b"{", b'{"messages":[{"role":"tool"}]}', b"[" * 99_999, b"\xff"])
def test_whatever_was_asked_has_a_place(asked: bytes):
    evidence = Recording().evidence()
    assert isinstance(prompt_key(replace(evidence, turns=(TurnEvidence(0, asked, bytes(32), None),))), str)
    assert prompt_key(replace(evidence, turns=())) == ""


def test_nothing_to_do_is_done(group):
    assert run([], [Noting()]) == []
    assert run([], [Noting(), Noting()]) == []
    assert len(run(group[:1], [Noting(), Noting()])) == 1


def test_a_fault_of_ours_in_one_process_ends_the_run(group):
    with pytest.raises(RuntimeError, match="a fault of ours"):
        run(group, [Noting(), Noting(fails=True)])


def test_more_processes_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    check_cores(1, 64)  # threads alone are nobody's business here
    check_cores(4, 1)
    check_cores(2, 2)
    for processes, threads in ((5, 1), (2, 3)):
        with pytest.raises(PolicyError, match="processes") as caught:
            check_cores(processes, threads)
        assert "at most 4" in str(caught.value.expected)
