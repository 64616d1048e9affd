"""Every width with every drafter, processor and temperature: one answer, token for token and bit for bit.

160 combinations with short answers; `python -m benchmarks.exactness --matrix` runs them with longer ones, both models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks._matrix import CELLS, CONDITIONS, PROCESSORS, Committed, commitments
from engine.engine import Engine, EngineSettings
from engine.scheduling.scheduler import SchedulerSettings
from tests.integration.serving import evidence_of
from verifiable.checking.verdict import Status
from verifiable.llama.probe.cache import default_folder
from verifiable.llama.settings import RuntimeSettings
from verifier.auditing.session import audit
from verifier.model.worker import Worker

pytestmark = pytest.mark.slow

ANSWER = 10


@pytest.fixture(scope="module")
def plain(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Committed]:
    """What one sequence without a drafter commits to. An auditor finds all of it again."""
    settings = EngineSettings(RuntimeSettings(n_ctx=256), SchedulerSettings(slots=1))
    with Engine(smollm2, tmp_path_factory.mktemp("plain"), settings) as engine:
        found, _ = commitments(engine, 1, ANSWER, chat=True)
        with Worker(smollm2, cache=default_folder()) as worker:
            for _, row in engine.store.sessions(len(CONDITIONS)):
                verdict = audit(evidence_of(engine, row.session.hex()), worker, [engine.keys.provider.public])
                assert verdict.status is Status.EXACT, verdict
    greedy = {answer for (_, temperature), answer in zip(CONDITIONS, found, strict=True) if not temperature}
    assert len(greedy) == len(PROCESSORS), "a processor did nothing"
    assert len(set(found)) > len(PROCESSORS), "the temperature did nothing"
    return found


@pytest.mark.parametrize(("width", "drafter"), CELLS)
def test_one_answer_everywhere(
    width: int, drafter: str, smollm2: Path, smollm2_variant: Any, tmp_path: Path, plain: list[Committed]
) -> None:
    settings = EngineSettings(
        RuntimeSettings(n_ctx=256, n_seq_max=width),
        SchedulerSettings(slots=width),
        drafter=drafter,
        draft_model=smollm2_variant("Q2_K") if drafter == "model" else None,
    )
    with Engine(smollm2, tmp_path, settings) as engine:
        found, accepted = commitments(engine, width, ANSWER, chat=True)
    for condition, mine, expected in zip(CONDITIONS, found, plain, strict=True):
        assert mine == expected, condition
    if drafter in ("ngram", "map", "model"):
        assert accepted > 0, "no draft was accepted: the condition was not tested"
