"""Evidence takes two to three bytes a token: `tokens` evidence of answers of two lengths, and the constant beside it.

The bytes a token are the difference of two evidence files divided by the difference of their tokens, so that the
request, the signed objects and the leaves that are not tokens (the constant) do not count. The hashes that tie the
leaves to the root do: some more with each doubling.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks._serving import ask, engine
from benchmarks.measure import Figure, main
from engine.engine import Engine
from verifiable.session.evidence import Kind
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt

SHORT, LONG = 64, 512
"""Tokens of the two answers."""


def sizes(provider: Engine, tokens: int, kind: Kind) -> tuple[int, int]:
    """Tokens and evidence bytes of an answer of that length."""
    answers, _ = ask(provider, 1, tokens, {"temperature": 0.8, "seed": 1})
    provider.store.flush()
    receipt = Receipt.parse(answers[0].receipt or b"")
    session = provider.store.sessions(1)[0][1]
    evidence = provider.evidence.evidence(session, kind).encode()
    if Head.peek(receipt.head).session != session.session:
        raise RuntimeError("another session was newer")
    return len(answers[0].tokens), len(evidence)


def measure() -> Sequence[Figure]:
    figures = []
    for model, vocabulary in (("smollm2", "49,152"), ("gemma3", "262,144")):
        with engine(1, model=model) as provider:
            short, long = sizes(provider, SHORT, Kind.TOKENS), sizes(provider, LONG, Kind.TOKENS)
            slope = (long[1] - short[1]) / (long[0] - short[0])
            name = f"vocabulary of {vocabulary}"
            figures.append(Figure(f"evidence, {name}", slope, "bytes/token", at_most=4))
            figures.append(Figure(f"constant, {name}", short[1] - slope * short[0], "bytes"))
            if model == "smollm2":
                full = [sizes(provider, SHORT, Kind.FULL), sizes(provider, LONG, Kind.FULL)]
                each = (full[1][1] - full[0][1]) / (full[1][0] - full[0][0])
                figures.append(Figure("full records", each, "bytes/token"))
    return figures


if __name__ == "__main__":
    sys.exit(main(measure, "evidence", __doc__))
