"""No honest answer is ever accused: every bit comes out again, at every batch width, with and without drafting.

    python -m benchmarks.exactness                       # a small budget
    python -m benchmarks.exactness --tokens 20000        # full size, both models

Answers of the real engine, greedy and sampled, are audited as a stranger would: from their evidence, in large chunks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks._serving import SUBJECTS, engine
from benchmarks.measure import Figure
from benchmarks.measure import main as report_main
from engine.generation import QueueSink, collect
from fixtures import models
from verifiable.evidence import Kind
from verifiable.llama.probe_cache import default_folder
from verifiable.request import CHAT, COMPLETION, parse_body
from verifiable.verdict import Status, Verdict
from verifier.reexecute import Worker
from verifier.session import audit

WIDTHS = (1, 4, 8)
DRAFTERS = ("none", "ngram")
TEMPERATURES = (0.0, 0.8)
N_CTX = 512


@dataclass(frozen=True, slots=True)
class Options:
    """How many tokens to audit, how long answers are, and with which models."""

    tokens: int = 1200
    answer: int = 48
    models: tuple[str, ...] = ("smollm2", "gemma3")


def measure(options: Options) -> list[Figure]:
    verdicts: list[Verdict] = []
    cells = list(itertools.product(options.models, WIDTHS, DRAFTERS))
    for model, width, drafter in cells:
        done = 0
        while done * len(cells) < options.tokens:  # each cell its share, and one round at least
            fresh = audited(model, width, drafter, options.answer, len(verdicts))
            done += sum(verdict.tokens_total for verdict in fresh)
            verdicts += fresh
        print(f"  {model}, {width} at once, drafter {drafter}", file=sys.stderr, flush=True)
    exact = sum(verdict.tokens_checked for verdict in verdicts)
    total = sum(verdict.tokens_total for verdict in verdicts)
    accused = sum(verdict.status is not Status.EXACT for verdict in verdicts)
    for verdict in verdicts:
        if verdict.status is not Status.EXACT:
            print(f"  accused: {verdict.to_json()}", file=sys.stderr, flush=True)
    note = f"{', '.join(options.models)}; {', '.join(map(str, WIDTHS))} at once; drafters {', '.join(DRAFTERS)}"
    return [
        Figure("honest tokens audited", float(total), "tokens", at_least=float(options.tokens), note=note),
        Figure("of them with the very same bits", exact / total, "", at_least=1.0, note=note),
        Figure("honest sessions accused or undecided", float(accused), f"of {len(verdicts)}", at_most=0.0, note=note),
    ]


def audited(model: str, width: int, drafter: str, answer: int, seed: int) -> list[Verdict]:
    """The verdicts on `width` answers that were generated at once, twice: greedy and sampled."""
    with engine(width, model=model, drafter=drafter, n_ctx=N_CTX) as provider:
        for temperature in TEMPERATURES:
            sinks = []
            for at in range(width):
                text = f"Tell a long story about {SUBJECTS[(seed + at) % len(SUBJECTS)]}, part {seed + at}."
                body: dict[str, object] = {"max_tokens": answer, "temperature": temperature}
                body["verifiable"] = {"nonce": f"{seed + at:020x}"}
                # The small Gemma file is a base model: it continues text.
                path = CHAT if model == "smollm2" else COMPLETION
                body |= {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
                sink = QueueSink()
                provider.submit(parse_body(path, json.dumps(body).encode()), sink)
                sinks.append(sink)
            for sink in sinks:
                collect(sink)
        rows = [row for _, row in provider.store.sessions(1000)]
        evidence = [provider.evidence.evidence(row, Kind.TOKENS).encode() for row in rows]
        trust = [provider.keys.provider.public]
    with Worker(models.ensure(model), cache=default_folder()) as worker:
        return [audit(data, worker, trust) for data in evidence]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", add_help=False)
    parser.add_argument("--tokens", type=int, default=Options().tokens)
    parser.add_argument("--answer", type=int, default=Options().answer)
    parser.add_argument("--model", action="append")
    options, rest = parser.parse_known_args(arguments)
    chosen = Options(options.tokens, options.answer, tuple(options.model or Options().models))
    return report_main(lambda: measure(chosen), "exactness", __doc__, rest)


if __name__ == "__main__":
    raise SystemExit(main())
