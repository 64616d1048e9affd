"""An audit costs little more than reading the text: an answer of 1,024 tokens, audited, prefilled and generated.

One answer is generated under invariant settings with one thread. Then, in turn: the audit (all its checks, in its child
process, the model loaded before), a bare prefill of the same tokens with the logits of the same rows, and one with the
last row's logits only. Medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Figure, in_turn, main
from engine.engine import Engine, EngineSettings
from fixtures import models
from verifiable.checking.verdict import Status
from verifiable.llama.chat.prompt import prompt_ids
from verifiable.llama.context import Batch, Context
from verifiable.llama.model import Model
from verifiable.llama.settings import RuntimeSettings
from verifiable.request.request import parse_canonical
from verifiable.session.evidence import Kind
from verifiable.session.records import Token, parse
from verifier.auditing.session import audit
from verifier.model.worker import Worker

TOKENS = 1024
ROUNDS = 3
ROWS = 128
"""Rows whose logits are wanted that a bare prefill computes at once: as an audit, so that memory is the same."""


def prefill(model: Model, settings: RuntimeSettings, ids: list[int], first: int) -> float:
    """Seconds to compute `ids` in batches, with the logits of rows from `first` on."""
    with Context(model, settings) as context:
        batch = Batch(context.n_batch)
        start = time.perf_counter()
        at = 0
        while at < len(ids):
            batch.clear()
            room = context.n_batch if at + context.n_batch <= first else ROWS
            for position in range(at, min(at + room, len(ids))):
                batch.add(0, position, ids[position], position >= first)
            rows = context.decode(batch)
            if len(rows):
                rows[len(batch) - 1]
            at += len(batch)
        return time.perf_counter() - start


def measure() -> Sequence[Figure]:
    path = models.ensure("smollm2")
    settings = RuntimeSettings(n_ctx=2048, n_seq_max=1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        provider = stack.enter_context(Engine(path, folder, EngineSettings(runtime=settings)))
        start = time.perf_counter()
        provider.complete("Once upon a time", max_tokens=TOKENS, temperature=0.9, seed=2)
        generating = time.perf_counter() - start
        row = provider.store.sessions(1)[0][1]
        evidence = provider.evidence.evidence(row, Kind.TOKENS)
        tokens = [leaf.token for data in provider.store.leaves(row.session) if isinstance(leaf := parse(data), Token)]
        trust = [provider.keys.provider.public]
        worker = stack.enter_context(Worker(path, cache=provider.settings.cache))
        model = stack.enter_context(Model.load(path))
        prompt = prompt_ids(model, parse_canonical(evidence.turns[0].request))
        ids = [*prompt, *tokens[:-1]]
        alone = replace(settings, n_seq_max=1)
        audit(evidence, worker, trust)  # loads the model, and takes the fingerprint from the cache

        def audited() -> float:
            start = time.perf_counter()
            verdict = audit(evidence, worker, trust)
            if verdict.status is not Status.EXACT:
                raise RuntimeError(f"the audit found {verdict.code}")
            return time.perf_counter() - start

        calls: dict[str, Callable[[], float]] = {
            "audit": audited,
            "rows": partial(prefill, model, alone, ids, len(prompt) - 1),
            "last": partial(prefill, model, alone, ids, len(ids) - 1),
        }
        taken = in_turn(calls, ROUNDS)
    median = {name: statistics.median(seconds) for name, seconds in taken.items()}
    return [
        Figure("tokens audited", len(tokens), "tokens"),
        Figure("audit", median["audit"], "s"),
        Figure("audit ÷ prefill with the same rows' logits", median["audit"] / median["rows"], "×", at_most=1.15),
        Figure("audit ÷ prefill with the last row's logits", median["audit"] / median["last"], "×"),
        Figure("audit ÷ generating the answer", median["audit"] / generating, "×"),
    ]


if __name__ == "__main__":
    sys.exit(main(measure, "audit", __doc__))
