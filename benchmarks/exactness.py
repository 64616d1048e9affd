"""No honest answer is ever accused: every bit comes out again, at every batch width, with and without drafting.

    python -m benchmarks.exactness                       # a small budget
    python -m benchmarks.exactness --tokens 20000        # full size, both models
    python -m benchmarks.exactness --matrix              # every combination, answers compared with each other

Answers of the real engine, greedy and sampled, plain and with penalties, biases, grammars, schemas and tools, are
audited as a stranger would: from their evidence, in large chunks.
With `--matrix` every width, drafter, processor and temperature is asked for once more, and what was committed to is
compared bit for bit with one sequence without a drafter.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks._matrix import CELLS, CONDITIONS, PROCESSORS, WIDTHS, commitments
from benchmarks._serving import SUBJECTS, engine, submit
from benchmarks.measure import Figure, main
from engine.drafting.choice import DRAFTERS
from engine.engine import Engine
from engine.generation import QueueSink, collect
from fixtures import models
from verifiable.checking.verdict import Status, Verdict
from verifiable.llama.probe.cache import default_folder
from verifiable.request.request import CHAT, COMPLETION
from verifiable.session.evidence import Kind
from verifier.auditing.session import audit
from verifier.model.worker import Worker

TEMPERATURES = (0.0, 0.8)
MODELS = ("smollm2", "gemma3")
N_CTX = 512
_SCENE = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "scenes": {"type": "array", "items": {"type": "string"}, "minItems": 3},
    },
    "required": ["title", "scenes"],
}
_TELL = {"type": "function", "function": {"name": "tell", "parameters": _SCENE}}
FORMS: dict[str, dict[str, Any]] = {
    **PROCESSORS,
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "story", "schema": _SCENE}}},
    "tools": {"tools": [_TELL], "tool_choice": "required"},
}
"""What a request can ask for that changes draws. A forced call takes a chat template."""
SHORTEST = 8
"""Tokens of an answer at least: where the share of a cell is small, its answers are shorter, down to this."""


def measure(tokens: int, answer: int, names: Sequence[str] | None, matrix: bool) -> list[Figure]:
    return measure_matrix(answer, names or MODELS) if matrix else measure_audits(tokens, answer, names or MODELS)


def measure_audits(wanted: int, answer: int, names: Sequence[str]) -> list[Figure]:
    verdicts: list[tuple[str, Verdict]] = []
    cells = list(itertools.product(WIDTHS, DRAFTERS))
    share = -(-wanted // (len(cells) * len(names)))
    for model in names:
        with Worker(models.ensure(model), cache=default_folder()) as worker:
            for width, drafter in cells:
                verdicts += audited(worker, model, width, drafter, answer, share, len(verdicts))
                print(f"  {model}, {width} at once, drafter {drafter}", file=sys.stderr, flush=True)
    exact = sum(verdict.tokens_checked for _, verdict in verdicts)
    by_form = Counter[str]()
    for form, verdict in verdicts:
        by_form[form] += verdict.tokens_total
    total = by_form.total()
    wrong = [(form, verdict) for form, verdict in verdicts if verdict.status is not Status.EXACT]
    for form, verdict in wrong:
        print(f"  accused, {form}: {verdict.to_json()}", file=sys.stderr, flush=True)
    note = f"{', '.join(names)}; {', '.join(map(str, WIDTHS))} at once; drafters {', '.join(DRAFTERS)}"
    return [
        Figure("honest tokens audited", float(total), "tokens", at_least=float(wanted), note=note),
        *(Figure(f"of them, {form}", float(count), "tokens") for form, count in by_form.items()),
        Figure("of them with the very same bits", exact / total, "", at_least=1.0, note=note),
        Figure(
            "honest sessions accused or undecided", float(len(wrong)), f"of {len(verdicts)}", at_most=0.0, note=note
        ),
    ]


def audited(
    worker: Worker, model: str, width: int, drafter: str, answer: int, share: int, seed: int
) -> list[tuple[str, Verdict]]:
    """The verdicts on `share` tokens at least, of answers that were generated `width` at once, greedy and sampled; and
    what was asked for.
    """
    verdicts: list[tuple[str, Verdict]] = []
    with engine(width, model=model, drafter=drafter, n_ctx=N_CTX) as provider:
        while (left := share - sum(verdict.tokens_total for _, verdict in verdicts)) > 0:
            length = min(answer, max(SHORTEST, -(-left // (width * len(TEMPERATURES)))))
            asked = [
                each
                for temperature in TEMPERATURES
                for each in ask(provider, model, width, length, temperature, seed + len(verdicts))
            ]
            for form, session in asked:
                row = provider.store.session(session)
                if row is not None:
                    evidence = provider.evidence.evidence(row, Kind.TOKENS).encode()
                    verdicts.append((form, audit(evidence, worker, [provider.keys.provider.public])))
    return verdicts


def ask(
    provider: Engine, model: str, width: int, length: int, temperature: float, seed: int
) -> list[tuple[str, bytes]]:
    """Have `width` answers generated at once. Returns what each was asked for, and its session."""
    started = []
    forms = [form for form in FORMS if model == "smollm2" or form != "tools"]
    for at in range(seed, seed + width):
        form = forms[at % len(forms)]
        text = f"Tell a long story about {SUBJECTS[at % len(SUBJECTS)]}, part {at}."
        body: dict[str, object] = {"max_tokens": length, "temperature": temperature}
        body["verifiable"] = {"nonce": f"{at:020x}"}
        # The small Gemma file is a base model: it continues text.
        path = CHAT if model == "smollm2" else COMPLETION
        body |= {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
        sink = QueueSink()
        started.append((form, submit(provider, {**body, **FORMS[form]}, sink, path), sink))
    for *_, sink in started:
        collect(sink)
    return [(form, bytes.fromhex(generation.session or "")) for form, generation, _ in started]


def measure_matrix(answer: int, names: Sequence[str]) -> list[Figure]:
    """All combinations, each compared with one sequence without a drafter."""
    compared = differing = tokens = 0
    for model in names:
        chat = model == "smollm2"
        with engine(1, model=model, n_ctx=N_CTX) as provider:
            expected, _ = commitments(provider, 1, answer, chat)
        for width, drafter in CELLS:
            with engine(width, model=model, drafter=drafter, n_ctx=N_CTX) as provider:
                committed, accepted = commitments(provider, width, answer, chat)
            compared += len(committed)
            tokens += sum(map(len, committed))
            for condition, mine, other in zip(CONDITIONS, committed, expected, strict=True):
                if mine != other:
                    differing += 1
                    print(f"  differs: {model}, {width}, {drafter}, {condition}", file=sys.stderr, flush=True)
            print(f"  {model}, {width} at once, {drafter}: {accepted} drafts accepted", file=sys.stderr, flush=True)
    note = f"{', '.join(names)}; widths × drafters × processors × temperatures; {tokens} tokens"
    return [
        Figure("answers compared", float(compared), "answers", note=note),
        Figure("answers with another token or bit", float(differing), f"of {compared}", at_most=0.0, note=note),
    ]


if __name__ == "__main__":
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--tokens", type=int, default=1200, help="to audit, at least (default 1,200)")
    options.add_argument("--answer", type=int, default=48, help="tokens of an answer, at most (default 48)")
    options.add_argument("--model", dest="names", action="append", help=f"by default {' and '.join(MODELS)}")
    options.add_argument("--matrix", action="store_true", help="every combination, answers compared with each other")
    sys.exit(main(measure, "exactness", __doc__, options=options))
