"""No honest answer is ever accused: every bit comes out again, at every batch width, with and without drafting.

    python -m benchmarks.exactness                       # a small budget
    python -m benchmarks.exactness --tokens 20000        # full size, both models
    python -m benchmarks.exactness --matrix              # every combination, answers compared with each other

Answers of the real engine, greedy and sampled, are audited as a stranger would: from their evidence, in large chunks.
With `--matrix` every width, drafter, processor and temperature is asked for once more, and what was committed to is
compared bit for bit with one sequence without a drafter.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks._matrix import CELLS, CONDITIONS, WIDTHS, commitments
from benchmarks._serving import SUBJECTS, engine
from benchmarks.measure import Figure
from benchmarks.measure import main as report_main
from engine.drafting.choice import DRAFTERS
from engine.engine import Engine
from engine.generation import QueueSink, collect
from fixtures import models
from verifiable.checking.verdict import Status, Verdict
from verifiable.llama.probe.cache import default_folder
from verifiable.request.request import CHAT, COMPLETION, parse_body
from verifiable.session.evidence import Kind
from verifier.auditing.session import audit
from verifier.model.reexecute import Worker

TEMPERATURES = (0.0, 0.8)
N_CTX = 512
SHORTEST = 8
"""Tokens of an answer at least: where the share of a cell is small, its answers are shorter, down to this."""


@dataclass(frozen=True, slots=True)
class Options:
    """How many tokens to audit, how long answers are at most, and with which models."""

    tokens: int = 1200
    answer: int = 48
    models: tuple[str, ...] = ("smollm2", "gemma3")


def measure(options: Options) -> list[Figure]:
    verdicts: list[Verdict] = []
    cells = list(itertools.product(WIDTHS, DRAFTERS))
    share = -(-options.tokens // (len(cells) * len(options.models)))
    for model in options.models:
        with Worker(models.ensure(model), cache=default_folder()) as worker:
            for width, drafter in cells:
                verdicts += audited(worker, model, width, drafter, options.answer, share, len(verdicts))
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


def audited(worker: Worker, model: str, width: int, drafter: str, answer: int, share: int, seed: int) -> list[Verdict]:
    """The verdicts on `share` tokens at least, of answers that were generated `width` at once, greedy and sampled."""
    found: list[Verdict] = []
    with engine(width, model=model, drafter=drafter, n_ctx=N_CTX) as provider:
        while (left := share - sum(verdict.tokens_total for verdict in found)) > 0:
            length = min(answer, max(SHORTEST, -(-left // (width * len(TEMPERATURES)))))
            sessions = [
                session
                for temperature in TEMPERATURES
                for session in ask(provider, model, width, length, temperature, seed + len(found))
            ]
            rows = [provider.store.session(session) for session in sessions]
            evidence = [provider.evidence.evidence(row, Kind.TOKENS).encode() for row in rows if row is not None]
            found += [audit(data, worker, [provider.keys.provider.public]) for data in evidence]
    return found


def ask(provider: Engine, model: str, width: int, length: int, temperature: float, seed: int) -> list[bytes]:
    """Have `width` answers generated at once. Returns their sessions."""
    started = []
    for at in range(seed, seed + width):
        text = f"Tell a long story about {SUBJECTS[at % len(SUBJECTS)]}, part {at}."
        body: dict[str, object] = {"max_tokens": length, "temperature": temperature}
        body["verifiable"] = {"nonce": f"{at:020x}"}
        # The small Gemma file is a base model: it continues text.
        path = CHAT if model == "smollm2" else COMPLETION
        body |= {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
        sink = QueueSink()
        started.append((provider.submit(parse_body(path, json.dumps(body).encode()), sink), sink))
    for _, sink in started:
        collect(sink)
    return [bytes.fromhex(generation.session or "") for generation, _ in started]


def measure_matrix(options: Options) -> list[Figure]:
    """All combinations, each compared with one sequence without a drafter."""
    compared = differing = tokens = 0
    for model in options.models:
        chat = model == "smollm2"
        with engine(1, model=model, n_ctx=N_CTX) as provider:
            expected, _ = commitments(provider, 1, options.answer, chat)
        for width, drafter in CELLS:
            with engine(width, model=model, drafter=drafter, n_ctx=N_CTX) as provider:
                found, accepted = commitments(provider, width, options.answer, chat)
            compared += len(found)
            tokens += sum(map(len, found))
            for condition, mine, other in zip(CONDITIONS, found, expected, strict=True):
                if mine != other:
                    differing += 1
                    print(f"  differs: {model}, {width}, {drafter}, {condition}", file=sys.stderr, flush=True)
            print(f"  {model}, {width} at once, {drafter}: {accepted} drafts came true", file=sys.stderr, flush=True)
    note = f"{', '.join(options.models)}; widths × drafters × processors × temperatures; {tokens} tokens"
    return [
        Figure("answers compared", float(compared), "answers", note=note),
        Figure("answers with another token or bit", float(differing), f"of {compared}", at_most=0.0, note=note),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", add_help=False)
    parser.add_argument("--tokens", type=int, default=Options().tokens)
    parser.add_argument("--answer", type=int, default=Options().answer)
    parser.add_argument("--model", action="append")
    parser.add_argument("--matrix", action="store_true")
    options, rest = parser.parse_known_args(arguments)
    chosen = Options(options.tokens, options.answer, tuple(options.model or Options().models))
    run = measure_matrix if options.matrix else measure
    return report_main(lambda: run(chosen), "exactness", __doc__, rest)


if __name__ == "__main__":
    raise SystemExit(main())
