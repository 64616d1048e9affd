"""Penalties, bias, ignore_eos, grammar and schema: replayed exactly, and the same with every drafter and width."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine, EngineSettings
from engine.generation import QueueSink, collect
from engine.scheduling.scheduler import SchedulerSettings
from verifiable.checking.checks import check_evidence
from verifiable.checking.verdict import Status
from verifiable.llama.probe.cache import default_folder
from verifiable.llama.settings import RuntimeSettings
from verifiable.request.request import CHAT, parse_body
from verifiable.sampling.sampler import choose
from verifiable.sampling.turn import TurnSampler
from verifiable.session.evidence import Kind
from verifiable.session.records import Finish, Source, Token, parse
from verifier.auditing.session import audit
from verifier.model.worker import Worker
from verifier.offline.replay import replay_records

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
ASKED: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.95},
    {"temperature": 0, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    {"temperature": 0.8, "repeat_penalty": 1.3, "repeat_last_n": 16},
    {"temperature": 0, "repeat_penalty": 0.8, "repeat_last_n": -1, "frequency_penalty": -0.5},
    {"temperature": 0.7, "logit_bias": {"28": 6, "198": -100, "30": 1.5}},
    {"temperature": 0, "ignore_eos": True, "logit_bias": {"2": 100}},
    {"temperature": 0.9, "response_format": {"type": "json_object"}},
    {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
    {"temperature": 0.6, "grammar": 'root ::= ("yes" | "no") ("," [ ] ("yes" | "no"))*', "presence_penalty": 0.3},
)
CONDITIONS = ((1, "none"), (1, "ngram"), (2, "map"), (4, "ngram"), (8, "model"), (8, "auto"))

Committed = tuple[tuple[int, bytes, bytes], ...]


@pytest.fixture(scope="module")
def worker(smollm2: Path) -> Iterator[Worker]:
    with Worker(smollm2, cache=default_folder()) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected() -> dict[int, Committed]:
    return {}


def body(number: int) -> bytes:
    question = "Repeat five times: red green blue." if number % 2 else "Tell me about a person, with name and age."
    asked = {"messages": [{"role": "user", "content": question}], "max_tokens": 24, **ASKED[number]}
    return json.dumps({**asked, "verifiable": {"nonce": f"{number:016x}"}}).encode()


def settings(width: int, drafter: str, draft_model: Path | None = None) -> EngineSettings:
    return EngineSettings(
        runtime=RuntimeSettings(n_ctx=256, n_seq_max=width),
        scheduler=SchedulerSettings(slots=width),
        drafter=drafter,
        draft_model=draft_model,
    )


@pytest.mark.parametrize(("width", "drafter"), CONDITIONS)
def test_every_processor_verifies_and_no_drafter_changes_it(
    width: int,
    drafter: str,
    smollm2: Path,
    smollm2_variant: Any,
    tmp_path: Path,
    worker: Worker,
    expected: dict[int, Committed],
) -> None:
    draft_model = smollm2_variant("Q2_K") if drafter == "model" else None
    accepted = 0
    with Engine(smollm2, tmp_path, settings(width, drafter, draft_model)) as engine:
        for start in range(0, len(ASKED), width):
            group = range(start, min(start + width, len(ASKED)))
            sinks = {number: QueueSink() for number in group}
            sessions = {
                number: engine.submit(parse_body(CHAT, body(number)), sink).session for number, sink in sinks.items()
            }
            for number, sink in sinks.items():
                answer = collect(sink)
                row = engine.store.session(bytes.fromhex(sessions[number] or ""))
                assert row is not None
                tokens = [leaf for leaf in map(parse, engine.store.leaves(row.session)) if isinstance(leaf, Token)]
                accepted += sum(token.source is Source.DRAFT_ACCEPTED for token in tokens)
                committed = tuple((t.token, t.entries.id_bytes(), t.entries.logit_bytes()) for t in tokens)
                assert committed == expected.setdefault(number, committed), ASKED[number]
                verdict = audit(engine.evidence.evidence(row, Kind.TOKENS), worker, [engine.keys.provider.public])
                assert verdict.status is Status.EXACT, (ASKED[number], verdict)
                full = engine.evidence.evidence(row, Kind.FULL)
                turns = check_evidence(full, [engine.keys.provider.public]).turns
                assert replay_records(turns[0]) is None
                check_answer(number, answer.text, answer.done.finish, tokens, engine)
    if drafter in ("ngram", "model", "map"):
        assert accepted > 0, "no draft was accepted: the condition was not tested"


def check_answer(number: int, text: str, finish: Finish, tokens: list[Token], engine: Engine) -> None:
    asked = ASKED[number]
    ids = [token.token for token in tokens]
    if "ignore_eos" in asked:
        assert engine.model is not None
        assert not set(ids) & engine.model.eog
        assert len(ids) == 24
    if "logit_bias" in asked and "ignore_eos" not in asked:
        assert 198 not in ids
    if "response_format" in asked and finish is Finish.STOP:
        value = json.loads(text)
        assert isinstance(value, dict)
        if asked["response_format"]["type"] == "json_schema":
            assert set(value) == {"name", "age"}
            assert isinstance(value["age"], int)
    if "grammar" in asked:
        assert set(text.replace(" ", "").split(",")[:-1]) <= {"yes", "no"}


@pytest.mark.parametrize("number", [2, 3, 5])
def test_a_provider_that_skips_a_processor_is_caught(
    number: int, smollm2: Path, tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[Any] = []

    class Forgets(Engine):
        """Draws from the raw record, as if no processor had been asked for."""

        def _choose(self, ranked: Any, params: Any, key: bytes, position: int) -> int:
            return choose(records[-1] if records else ranked, params, key, position)

    candidates = TurnSampler.candidates

    def remember(sampler: TurnSampler, entries: Any) -> Any:
        records.append(entries)
        return candidates(sampler, entries)

    monkeypatch.setattr(TurnSampler, "candidates", remember)
    with Forgets(smollm2, tmp_path, settings(1, "none")) as engine:
        sink = QueueSink()
        session = engine.submit(parse_body(CHAT, body(number)), sink).session
        collect(sink)
        row = engine.store.session(bytes.fromhex(session or ""))
        assert row is not None
        verdict = audit(engine.evidence.evidence(row, Kind.TOKENS), worker, [engine.keys.provider.public])
        assert verdict.status is Status.FAILED, verdict
