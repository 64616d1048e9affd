"""Every cheat of `cheats.py` is caught at the first turn audited, with the reason code that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.engine import EngineSettings
from tests.adversary.cheats import CHEATS, Cheat
from tests.real_model import Remembering
from verifiable.checking.verdict import Status
from verifiable.llama.settings import RuntimeSettings
from verifiable.session.evidence import Kind
from verifiable.session.receipt import Receipt
from verifier.auditing.session import audit
from verifier.model.worker import Worker

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "Write two sentences about the sea."}]


@pytest.fixture(scope="module")
def worker(smollm2: Path) -> Iterator[Worker]:
    with Remembering(smollm2) as opened:
        yield opened


@pytest.mark.parametrize("cheat", CHEATS, ids=[cheat.name for cheat in CHEATS])
def test_cheat_is_caught(cheat: Cheat, smollm2: Path, tmp_path: Path, worker: Worker) -> None:
    settings = EngineSettings(runtime=RuntimeSettings(n_ctx=256), drafter="ngram")
    with cheat.engine(smollm2, tmp_path, settings) as provider:
        answer = provider.chat(QUESTION, max_tokens=32, temperature=0.8, nonce=b"client's nonce")
        row = provider.store.sessions(1)[0][1]
        evidence = {kind: provider.evidence.evidence(row, kind) for kind in (Kind.TOKENS, Kind.FULL)}
        trust = [provider.keys.provider.public]
    receipt = Receipt.parse(answer.receipt or b"")
    full = evidence[Kind.FULL].encode()
    for kind in evidence:
        verdict = audit(evidence[kind], worker, trust, receipt=receipt, fetch_full=lambda turn: full)
        assert verdict.status is Status.FAILED, verdict
        assert verdict.code == cheat.code
        assert verdict.turn == 0
        if cheat.code == "logits-differ":
            assert verdict.token == 0
        if cheat.code == "token-not-sampled":
            assert verdict.token == 5
