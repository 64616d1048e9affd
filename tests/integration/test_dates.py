"""Templates that write the date: it is that of the session's first leaf, so that an auditor writes the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine, EngineSettings
from engine.scheduling.scheduler import SchedulerSettings
from engine.sessions.sessions import Sessions
from tests.gguf_files import read
from tests.integration.serving import evidence_of, opened
from verifiable.checking.verdict import Status
from verifiable.errors import PolicyError
from verifiable.llama.chat.prompt import prompt_ids
from verifiable.llama.model import Model
from verifiable.llama.probe.cache import default_folder
from verifiable.llama.settings import RuntimeSettings
from verifiable.request.request import CHAT, Request, parse_body
from verifier.auditing.session import audit
from verifier.model.worker import Worker

DATED = "{{ 'Today is ' + strftime_now('%d %B %Y, %H:%M') + '.\n' }}{% for m in messages %}{{ m.content }}{% endfor %}"
DAY = 86_400_000
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Which day is it?"}]


@pytest.fixture(scope="module")
def dated(tiny_models: dict[str, Path]) -> Path:
    """A tiny model whose template writes the date."""
    path = tiny_models["llama"]
    file = read(path)
    file.entry("tokenizer.chat_template").value = DATED
    changed = path.with_name("dated.gguf")
    changed.write_bytes(file.build())
    return changed


@pytest.fixture(scope="module")
def worker(dated: Path) -> Iterator[Worker]:
    with Worker(dated, cache=default_folder()) as one:
        yield one


SETTINGS = EngineSettings(RuntimeSettings(n_ctx=256), SchedulerSettings(slots=1))


def prompt_of(engine: Engine, opened_at: int) -> str:
    assert engine.model is not None
    body = parse_body(CHAT, b'{"messages":[{"role":"user","content":"Which day is it?"}]}')
    return b"".join(engine.model.piece(token) for token in prompt_ids(engine.model, body, opened_at)).decode()


def test_the_date_is_that_of_the_session(
    dated: Path, tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(dated, tmp_path, SETTINGS) as engine:
        trust = [engine.keys.provider.public]
        first = engine.chat(MESSAGES, max_tokens=4, verifiable={"session": "new"})
        session = engine.store.sessions(1)[0][1].session.hex()
        time = opened(engine, session).opened.time
        said = prompt_of(engine, time)
        assert said == f"Today is {datetime.fromtimestamp(time // 1000, UTC):%d %B %Y}, 00:00.\nWhich day is it?"
        midnight = time - time % DAY
        assert {prompt_of(engine, midnight), prompt_of(engine, midnight + DAY - 1)} == {said}
        assert prompt_of(engine, midnight - 1) != said
        # Two days later the session still tells of its first day: what was computed for it stays of use.
        clock = engine.sessions._clock
        monkeypatch.setattr(engine.sessions, "_clock", lambda: clock() + 2 * DAY)
        again = engine.chat(
            MESSAGES, max_tokens=4, verifiable={"session": session}, capability=first.capability, temperature=0
        )
        assert again.done.prompt_count == first.done.prompt_count
        fresh = engine.chat(MESSAGES, max_tokens=4)
        later = engine.store.sessions(1)[0][1].session.hex()
        assert later != session
        tomorrow = opened(engine, later)
        day = datetime.fromtimestamp(time // 1000, UTC) + timedelta(days=2)
        assert f"Today is {day:%d %B %Y}" in prompt_of(engine, tomorrow.opened.time)
        for number in (session, later):
            verdict = audit(evidence_of(engine, number), worker, trust)
            assert verdict.status is Status.EXACT, verdict
        assert fresh.receipt is not None
        unsigned = engine.chat(MESSAGES, max_tokens=4, verifiable={"commitments": "none"})
        assert unsigned.receipt is None
        assert unsigned.done.prompt_count == first.done.prompt_count


def test_another_date_is_another_prompt(dated: Path, tmp_path: Path, worker: Worker) -> None:
    class Yesterday(Engine):
        def _prompt(self, request: Request, opened: int | None = None) -> list[int]:
            return super()._prompt(request, (opened or 0) - DAY)

    with Yesterday(dated, tmp_path, SETTINGS) as engine:
        engine.chat(MESSAGES, max_tokens=4)
        session = engine.store.sessions(1)[0][1].session.hex()
        verdict = audit(evidence_of(engine, session), worker, [engine.keys.provider.public])
        assert verdict.status is Status.FAILED
        assert verdict.code == "prompt-differs"


def test_a_date_that_no_calendar_has_is_refused(dated: Path) -> None:
    request = parse_body(CHAT, b'{"messages":[{"role":"user","content":"x"}]}')
    with Model.load(dated) as model:
        for time in (None, 2**62):
            with pytest.raises(PolicyError):
                prompt_ids(model, request, time)


def test_a_refused_request_leaves_no_session_behind(dated: Path, tmp_path: Path) -> None:
    with Engine(dated, tmp_path, SETTINGS) as engine:
        sessions: Sessions = engine.sessions
        opened_one = engine.chat(MESSAGES, max_tokens=2, verifiable={"session": "new"})
        session = engine.store.sessions(1)[0][1].session.hex()
        capability = opened_one.capability
        too_long = [{"role": "user", "content": "word " * 400}]
        for fields in ({}, {"verifiable": {"session": "new"}}, {"verifiable": {"session": session}}):
            with pytest.raises(PolicyError):
                engine.chat(too_long, capability=capability, **fields)
        assert len(sessions._live) == 1
        assert len(engine.store.sessions(10)) == 1
        # The session that was named is free again.
        engine.chat(MESSAGES, max_tokens=2, verifiable={"session": session}, capability=capability)
        assert len(opened(engine, session).spans) == 2
