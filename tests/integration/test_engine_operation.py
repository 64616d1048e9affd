"""What an operator relies on: fairness, admission, shutdown, metrics, logs, self-audit, draft models, caches."""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from engine.engine import Engine, EngineSettings
from engine.generation import Delta, QueueSink, collect
from engine.scheduling.admission import QueueFullError, StoppingError
from engine.scheduling.scheduler import SchedulerSettings
from engine.scheduling.sequence import Sequence
from fixtures.quantise import variant
from tests.integration.serving import evidence_of, http, idle, opened, receipt_of, tokens_of
from verifiable.checking.verdict import Status
from verifiable.errors import EngineError, PolicyError, VerifiableError
from verifiable.llama.context import Batch, Context, LogitRows
from verifiable.llama.probe.cache import default_folder
from verifiable.llama.settings import RuntimeSettings
from verifiable.request.request import CHAT, COMPLETION, parse_body
from verifiable.session.records import Finish, Token, parse
from verifier.auditing.session import audit
from verifier.model.worker import Worker

KEYS = ["sk-one", "sk-two"]


def body(text: str = "Count.", **fields: Any) -> bytes:
    return json.dumps(
        {"messages": [{"role": "user", "content": text}], "temperature": 0, "ignore_eos": True, **fields}
    ).encode()


def small(slots: int = 2, **settings: Any) -> EngineSettings:
    return EngineSettings(RuntimeSettings(n_ctx=512, n_seq_max=slots), SchedulerSettings(slots=slots), **settings)


@pytest.fixture(scope="module")
def engine(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(smollm2, tmp_path_factory.mktemp("operation"), small()) as one:
        yield one


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with http(engine, KEYS, per_key=2, origins=["https://app.example"]) as base:
        yield base


class Timed(QueueSink):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.count: Any = lambda: 0

    def put(self, event: Any) -> None:
        if isinstance(event, Delta):
            self.steps.append(self.count())
        super().put(event)


def test_a_long_prompt_stalls_nobody(engine: Engine) -> None:
    """While 480 tokens of prompt are read, a running answer gets a token in every step."""
    running, reading = Timed(), Timed()
    running.count = reading.count = lambda: engine.scheduler.counters.steps
    engine.submit(parse_body(CHAT, body(max_tokens=40)), running)
    while not running.steps:
        time.sleep(0.002)
    before = engine.scheduler.counters.steps
    engine.submit(parse_body(CHAT, body("word " * 430, max_tokens=1)), reading)
    collect(reading)
    after = engine.scheduler.counters.steps
    collect(running)
    assert after - before >= 430 // 64, "the prompt was not read in chunks"
    gaps = np.diff([step for step in running.steps if before <= step <= after])
    assert set(gaps.tolist()) <= {0, 1}, "the running answer missed a step"


def test_the_queue_is_bounded_and_in_order(engine: Engine) -> None:
    sinks = [QueueSink() for _ in range(4)]
    for sink in sinks:  # two slots, and as many may wait
        engine.submit(parse_body(CHAT, body(max_tokens=12)), sink)
    with pytest.raises(QueueFullError):
        engine.submit(parse_body(CHAT, body(max_tokens=12)), QueueSink())
    for sink in sinks:
        assert collect(sink).done.finish is Finish.LENGTH
    idle(engine)


def test_limits_for_each_key_and_ids_and_cors(url: str, engine: Engine) -> None:
    answers: list[httpx.Response] = []

    def ask(key: str) -> None:
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": f"id-{key}"}
        answers.append(httpx.post(url + CHAT, content=body(max_tokens=30), headers=headers, timeout=60))

    threads = [threading.Thread(target=ask, args=("sk-one",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = sorted(answer.status_code for answer in answers)
    assert codes.count(200) >= 2
    assert set(codes) <= {200, 429}
    assert 429 in codes
    assert {answer.headers["x-request-id"] for answer in answers} == {"id-sk-one"}
    ask("sk-two")
    assert answers[-1].status_code == 200  # another key has its own limit, and the first one's is free again
    ask("sk-one")
    assert answers[-1].status_code == 200
    odd = httpx.get(f"{url}/health", headers={"X-Request-Id": "no spaces\tplease", "Origin": "https://evil.example"})
    assert odd.headers["x-request-id"] != "no spaces\tplease"
    assert "access-control-allow-origin" not in odd.headers
    fine = httpx.get(f"{url}/health", headers={"Origin": "https://app.example"})
    assert fine.headers["access-control-allow-origin"] == "https://app.example"


def test_logs_hold_no_content(url: str, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"Authorization": "Bearer sk-two", "X-Request-Id": "seen"}
    with caplog.at_level(logging.INFO, logger="engine.requests"):
        answer = httpx.post(url + CHAT, content=body("My secret is HUNTER2.", max_tokens=4), headers=headers).json()
        deadline = time.monotonic() + 20
        while sum("seen" in record.getMessage() for record in caplog.records) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "engine.requests"]
    assert {line["event"] for line in lines if line.get("request") == "seen"} == {"request", "answer"}
    text = caplog.text
    assert "HUNTER2" not in text
    assert "sk-two" not in text
    assert answer["choices"][0]["message"]["content"].strip()[:8] not in text


def test_metrics_and_readiness(url: str, engine: Engine) -> None:
    collect_one(engine)
    text = httpx.get(f"{url}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    assert float(values["verifiable_completion_tokens_total"]) > 0
    assert float(values['verifiable_answers_total{finish="length"}']) > 0
    assert 'verifiable_accepted_draft_length_bucket{le="+Inf"}' in values
    assert 'verifiable_step_seconds_bucket{le="0.1"}' in values
    assert httpx.get(f"{url}/ready").json() == {"ready": True}


def collect_one(engine: Engine, **fields: Any) -> str | None:
    sink = QueueSink()
    generation = engine.submit(parse_body(CHAT, body(max_tokens=6, **fields)), sink)
    collect(sink)
    return generation.session


@pytest.fixture
def auditing(smollm2: Path, tmp_path: Path) -> Iterator[Engine]:
    """One that computes every turn again when it has nothing else to do."""
    with Engine(smollm2, tmp_path, small(self_audit=1.0)) as one:
        yield one


def test_self_audit_finds_what_an_auditor_would(auditing: Engine) -> None:
    def audited(before: int) -> bool:
        deadline = time.monotonic() + 30
        while auditing.self_audit.checked_turns == before and time.monotonic() < deadline:
            time.sleep(0.02)
        return auditing.self_audit.checked_turns > before

    grammar = {"grammar": 'root ::= ("yes" | "no") (", " ("yes" | "no"))*', "ignore_eos": False}
    asked: tuple[dict[str, Any], ...] = ({"frequency_penalty": 0.5}, grammar)
    for fields in asked:
        before = auditing.self_audit.checked_turns
        collect_one(auditing, **fields)
        assert audited(before)
        assert auditing.self_audit.differences == 0
    leaves = auditing.store.leaves

    def damaged(session: bytes, size: int | None = None) -> list[bytes]:
        found = leaves(session, size)
        token = bytearray(found[4])
        token[-4] ^= 1  # the lowest bit of the last logit
        return [*found[:4], bytes(token), *found[5:]]

    def other_token(session: bytes, size: int | None = None) -> list[bytes]:
        """The second token is another of those in its record: one that a grammar does not allow, where there is one."""
        found = leaves(session, size)
        token = parse(found[3])
        assert isinstance(token, Token)
        other = next(int(each) for each in token.entries.ids[::-1] if each != token.token)
        return [*found[:3], replace(token, token=other).encode(), *found[4:]]

    for differences, (change, fields) in enumerate(itertools.product((damaged, other_token), asked), 1):
        before = auditing.self_audit.checked_turns
        auditing.store.leaves = change  # type: ignore[method-assign]
        try:
            collect_one(auditing, **fields)
            assert audited(before)
        finally:
            auditing.store.leaves = leaves  # type: ignore[method-assign]
        assert auditing.self_audit.differences == differences, (change.__name__, fields)


class FailsDecoding(Context):
    """Fails whenever one sequence is in the batch, as llama.cpp might on a bad row of memory."""

    def decode(self, batch: Batch) -> LogitRows:
        if 1 in batch.spans and batch.spans[1][1] > 60:
            raise EngineError("llama.cpp failed to decode the batch", found="code -3")
        return super().decode(batch)


@pytest.mark.parametrize("stage", ["decode", "look", "draw", "advance", "hand_out"])
def test_one_sequences_failure_ends_that_request_alone(
    stage: str, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots: list[Any] = []
    faults = iter([PolicyError("the reader is gone")])

    class Broken(Engine):
        def _make_scheduler(self, model: Any, context: Any) -> Any:
            if stage == "decode":
                context.__class__ = FailsDecoding
            scheduler = super()._make_scheduler(model, context)
            slots.extend(scheduler._slots)
            return scheduler

    real = getattr(Sequence, stage, None)

    def stumble(sequence: Any, *given: Any) -> Any:
        if sequence is slots[1].sequence and len(sequence.ids) > 60:
            if stage == "look":
                given = (np.full_like(given[0], np.nan),)
            if stage == "draw":
                return [][0]
            if stage == "advance":
                sequence._piece = lambda token: [][token]
            for fault in faults if stage == "hand_out" else ():
                raise fault
        return real(sequence, *given)  # type: ignore[misc]

    if real is not None:
        monkeypatch.setattr(Sequence, stage, stumble)
    with Broken(smollm2, tmp_path, small()) as one:
        sinks = [QueueSink(), QueueSink()]
        started = [one.submit(parse_body(CHAT, body(max_tokens=40)), sink) for sink in sinks]
        results: list[Any] = []
        for sink in sinks:
            try:
                results.append(collect(sink).done.finish)
            except VerifiableError as error:
                results.append(error)
        assert sum(result is Finish.LENGTH for result in results) == 1
        assert sum(isinstance(result, EngineError) for result in results) == 1
        for generation in started:
            assert opened(one, generation.session).closed
        again = QueueSink()  # the slot is of use again
        one.submit(parse_body(CHAT, body(max_tokens=2)), again)
        assert collect(again).done.finish is Finish.LENGTH


@pytest.mark.parametrize("grace", [0.0, 30.0])
def test_shutdown_ends_every_session(smollm2: Path, tmp_path: Path, grace: float) -> None:
    one = Engine(smollm2, tmp_path, small())
    sinks = [QueueSink() for _ in range(3)]
    started = [one.submit(parse_body(CHAT, body(max_tokens=25)), sink) for sink in sinks]
    while one.scheduler.counters.tokens < 4:
        time.sleep(0.002)
    one.scheduler.stop(grace)
    with pytest.raises(StoppingError):
        one.submit(parse_body(CHAT, body()), QueueSink())
    finishes = [collect(sink).done.finish for sink in sinks[:2]]
    assert finishes == [Finish.CANCELLED if grace == 0 else Finish.LENGTH] * 2
    with pytest.raises(EngineError):
        collect(sinks[2])
    for generation in started[:2]:
        assert opened(one, generation.session).closed
    one.close()


def test_a_session_goes_on_from_its_own_memory(smollm2: Path, tmp_path: Path) -> None:
    with Engine(smollm2, tmp_path, small()) as one:
        first = one.chat([{"role": "user", "content": "Name a colour."}], max_tokens=8, verifiable={"session": "new"})
        session = one.store.sessions(1)[0][1].session.hex()
        messages = [
            {"role": "user", "content": "Name a colour."},
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "Another."},
        ]
        second = one.chat(messages, max_tokens=8, verifiable={"session": session}, capability=first.capability)
        assert second.done.cached > 10
        assert opened(one, session).spans[1].turn.cached == second.done.cached
        stranger = one.chat(messages, max_tokens=8)
        assert stranger.done.cached == 0
        assert [token.id for token in tokens_of_turn(one, session, 1)] == [token.id for token in second.tokens]


def tokens_of_turn(one: Engine, session: str, turn: int) -> list[Any]:
    class Id:
        def __init__(self, value: int) -> None:
            self.id = value

    return [Id(token.token) for token in tokens_of(one, session) if token.turn == turn]


def test_prefixes_with_a_sliding_window_are_exact(gemma3: Path, tmp_path: Path) -> None:
    """Gemma's memory keeps windows: what is reused there must be what a cold run computes, bit for bit."""
    text = "The river and the sea. " * 8
    with Engine(gemma3, tmp_path, small(1)) as one, Worker(gemma3, cache=default_folder()) as worker:
        for turn in range(2):
            sink = QueueSink()
            data = json.dumps({"prompt": text, "max_tokens": 6, "temperature": 0}).encode()
            generation = one.submit(parse_body(COMPLETION, data), sink, principal="me")
            answer = collect(sink)
            assert answer.done.cached == 0 if turn == 0 else answer.done.cached > 40
            text += answer.text + " And so"
        verdict = audit(evidence_of(one, generation.session), worker, [one.keys.provider.public])
        assert verdict.status is Status.EXACT, verdict


@pytest.mark.parametrize(("family", "drafter"), [("smollm2", "model"), ("smollm2", "ngram"), ("gemma3", "map")])
def test_sequences_that_are_moved_together_give_the_same_bits(
    family: str, drafter: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Answers of many lengths, beginning and ending at random, in slots that keep prefixes: whatever is moved where,
    each record is that of a machine that computes the session alone, and what a slot kept is still of use.
    """
    model: Path = request.getfixturevalue(family)
    choose = np.random.default_rng(11)
    scheduler = SchedulerSettings(slots=4, queue=40, gap_steps=0)
    draft = variant("Q2_K") if drafter == "model" else None
    runtime = RuntimeSettings(n_ctx=256, n_seq_max=4)
    settings = EngineSettings(runtime, scheduler, drafter=drafter, draft_model=draft)
    subjects = ["rivers", "bridges", "bread", "clocks", "winter", "maps"]
    with Engine(model, tmp_path, settings) as one, Worker(model, cache=default_folder()) as worker:
        started, cached = [], 0
        for number in range(0, 128, 4):
            sinks = [QueueSink() for _ in range(4)]
            for seed, sink in enumerate(sinks, number):
                who = int(choose.integers(len(subjects)))
                prompt = f"A long story about {subjects[who]} and the sea, told in the evening:"
                fields = {"max_tokens": int(choose.integers(1, 24)), "temperature": 0.8, "seed": seed}
                fields |= {"frequency_penalty": 0.5} if seed % 2 else {}
                data = json.dumps({"prompt": prompt, "ignore_eos": True, **fields}).encode()
                started.append(one.submit(parse_body(COMPLETION, data), sink, principal=f"caller {who}"))
            cached += sum(collect(sink).done.cached > 8 for sink in sinks)
            if len(started) >= 32 and one.scheduler.counters.moved >= 5 and cached >= 3:
                break  # when answers end, and so what is moved, differs from run to run
        idle(one)
        assert one.scheduler.counters.moved >= 5
        assert cached >= 3
        assert sorted(slot.seq for slot in one.scheduler._slots) == [0, 1, 2, 3]
        for generation in started:
            verdict = audit(evidence_of(one, generation.session), worker, [one.keys.provider.public])
            assert verdict.status is Status.EXACT, verdict


def test_a_model_whose_sequences_cant_be_moved_goes_on_without(smollm2: Path, tmp_path: Path) -> None:
    class Immovable(Context):
        def copy(self, src: int, dst: int) -> None:
            raise EngineError("llama.cpp cannot copy")

    class Stubborn(Engine):
        def _make_scheduler(self, model: Any, context: Any) -> Any:
            context.__class__ = Immovable
            return super()._make_scheduler(model, context)

    with Stubborn(smollm2, tmp_path, small(3)) as one:
        sinks = [QueueSink() for _ in range(3)]
        for sink, length in zip(sinks, (30, 2, 30), strict=True):
            one.submit(parse_body(CHAT, body(max_tokens=length)), sink)
        assert [collect(sink).done.completion_count for sink in sinks] == [30, 2, 30]
        assert one.scheduler.counters.moved == 0


def test_a_draft_model_with_another_vocabulary_is_refused(smollm2: Path, gemma3: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="vocabulary"):
        Engine(smollm2, tmp_path, small(drafter="model", draft_model=gemma3))


def test_receipts_of_the_api_are_whole(url: str, engine: Engine) -> None:
    answer = httpx.post(url + CHAT, content=body(max_tokens=3), headers={"Authorization": "Bearer sk-two"}).json()
    assert receipt_of(answer["verifiable"]).turn == 0
