"""Honest answers verify exactly, whatever ran beside them: width, speculation and slots change no bit of a record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.engine import Engine, EngineSettings
from engine.generation import QueueSink, collect
from engine.scheduling.scheduler import SchedulerSettings
from tests.real_model import Remembering
from verifiable.checking.verdict import Status
from verifiable.llama.settings import RuntimeSettings
from verifiable.request.request import CHAT, parse_body
from verifiable.session.evidence import Kind
from verifiable.session.records import Source, Token, parse
from verifier.auditing.session import audit
from verifier.model.worker import Worker

SUBJECTS = (
    "rivers bridges bread clocks winter maps glass sleep salt wolves "
    "ink paper copper tides moss kites bells rope sand tea"
).split()
TOKENS = 20
CONDITIONS = [(1, "none"), (1, "ngram"), (4, "none"), (4, "ngram"), (8, "none"), (8, "ngram")]

pytestmark = pytest.mark.slow

Committed = tuple[tuple[int, bytes, bytes], ...]
"""A turn's tokens with the bytes of their committed ids and logits."""


@pytest.fixture(scope="module")
def worker(smollm2: Path) -> Iterator[Worker]:
    with Remembering(smollm2) as opened:
        yield opened


def body(number: int) -> bytes:
    """Half of the answers are greedy, half sampled; every third question invites repetition, which drafters like."""
    subject = SUBJECTS[number]
    question = f"Repeat five times: {subject} and {subject}." if number % 3 == 0 else f"Tell me about {subject}."
    return json.dumps(
        {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": TOKENS,
            "temperature": 0.0 if number % 2 else 0.9,
            "top_p": 0.95,
            "verifiable": {"nonce": f"{number:016x}"},
        }
    ).encode()


def serve(engine: Engine, width: int) -> dict[int, bytes]:
    """Ask all questions, `width` at a time. Returns each question's session id."""
    sessions = {}
    for start in range(0, len(SUBJECTS), width):
        group = range(start, min(start + width, len(SUBJECTS)))
        sinks = {number: QueueSink() for number in group}
        for number, sink in sinks.items():
            session = engine.submit(parse_body(CHAT, body(number)), sink).session
            sessions[number] = bytes.fromhex(session or "")
        for sink in sinks.values():
            collect(sink)
    return sessions


@pytest.fixture(scope="module")
def expected() -> dict[int, Committed]:
    """What the first condition committed to; the others must commit to the same."""
    return {}


@pytest.mark.parametrize(("width", "drafter"), CONDITIONS)
def test_every_answer_verifies_exactly_and_is_the_same(
    width: int, drafter: str, smollm2: Path, tmp_path: Path, worker: Worker, expected: dict[int, Committed]
) -> None:
    settings = EngineSettings(
        runtime=RuntimeSettings(n_ctx=256, n_seq_max=width),
        scheduler=SchedulerSettings(slots=width, queue=width),
        drafter=drafter,
    )
    drafted = 0
    with Engine(smollm2, tmp_path, settings) as engine:
        for number, session in serve(engine, width).items():
            leaves = [parse(leaf) for leaf in engine.store.leaves(session)]
            tokens = [leaf for leaf in leaves if isinstance(leaf, Token)]
            drafted += sum(token.source in (Source.DRAFT_ACCEPTED, Source.BONUS) for token in tokens)
            committed = tuple((t.token, t.entries.id_bytes(), t.entries.logit_bytes()) for t in tokens)
            assert committed == expected.setdefault(number, committed), SUBJECTS[number]
            row = engine.store.session(session)
            assert row is not None
            evidence = engine.evidence.evidence(row, Kind.TOKENS).encode()
            assert len(evidence) <= 4 * len(tokens) + 3000
            verdict = audit(evidence, worker, [engine.keys.provider.public])
            assert verdict.status is Status.EXACT, verdict
            assert verdict.tokens_checked == len(tokens)
    if drafter == "ngram":
        assert drafted > 0, "no draft was accepted: the condition was not tested"
