"""The conditions under which an answer must be the same, and what each of them commits to.

A cell of the matrix is a width (answers at once) and a drafter; in each cell every processor is asked for, greedy and
sampled. Whatever the cell, an answer's tokens and committed logits are those of one sequence without a drafter.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from engine.drafting.choice import DRAFTERS
from engine.engine import Engine
from engine.generation import QueueSink, collect
from verifiable.request.request import CHAT, COMPLETION, parse_body
from verifiable.session.records import Source, Token, parse

WIDTHS = (1, 2, 4, 8)
TEMPERATURES = (0.0, 1.3)
PROCESSORS: dict[str, dict[str, Any]] = {
    "none": {},
    "penalties": {"repeat_penalty": 1.2, "repeat_last_n": 16, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    "bias": {"logit_bias": {"28": 4, "198": -100, "30": 1.5}, "ignore_eos": True},
    "grammar": {"grammar": 'root ::= [a-z]+ (", " [a-z]+)*'},
}
CONDITIONS = tuple(itertools.product(PROCESSORS, TEMPERATURES))
CELLS = tuple(itertools.product(WIDTHS, DRAFTERS))

Committed = tuple[tuple[int, bytes, bytes], ...]
"""A turn's tokens with the bytes of their committed ids and logits."""


def request(number: int, answer: int, chat: bool) -> bytes:
    """The body of one condition's request. The question invites repetition, which drafters like."""
    processor, temperature = CONDITIONS[number]
    text = "Repeat: red, green, blue, red, green, blue, red, green,"
    body = {"max_tokens": answer, "temperature": temperature, "verifiable": {"nonce": f"{number:020x}"}}
    body |= PROCESSORS[processor] | ({"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text})
    return json.dumps(body).encode()


def commitments(provider: Engine, width: int, answer: int, chat: bool) -> tuple[list[Committed], int]:
    """Ask for every condition, `width` at once. Returns what each committed to, and how many drafts were accepted."""
    turns: list[Committed] = []
    accepted = 0
    for group in _groups(range(len(CONDITIONS)), width):
        started = []
        for number in group:
            sink = QueueSink()
            body = parse_body(CHAT if chat else COMPLETION, request(number, answer, chat))
            # One principal: a map of n-grams then lasts from one answer to the next.
            started.append((provider.submit(body, sink, principal="matrix"), sink))
        for generation, sink in started:
            collect(sink)
            leaves = map(parse, provider.store.leaves(bytes.fromhex(generation.session or "")))
            tokens = [leaf for leaf in leaves if isinstance(leaf, Token)]
            accepted += sum(token.source is Source.DRAFT_ACCEPTED for token in tokens)
            turns.append(tuple((each.token, each.entries.id_bytes(), each.entries.logit_bytes()) for each in tokens))
    return turns, accepted


def _groups(numbers: Sequence[int], size: int) -> list[Sequence[int]]:
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]
