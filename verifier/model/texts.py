"""Conversations for a calibration: questions of every kind, in an order that a seed gives."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import product

from verifiable.request.request import CHAT, COMPLETION, Request, parse_body

DAY = 1_767_225_600_000
"""The day, 2026-01-01 in milliseconds since 1970, on which these conversations are held: some templates write one."""

_TASKS = (
    "Tell a story about {}.",
    "Explain {} to a child.",
    "List five facts about {}.",
    "Write a polite letter to a friend about {}.",
    "What would change in the world without {}?",
    "Compare {} with something that looks quite different.",
    "Write a poem about {}.",
    "Give step-by-step advice to someone who knows nothing about {}.",
    "Argue for and against {}.",
    "Write a Python function whose topic is {}.",
    "Erkläre kurz, was es mit {} auf sich hat.",
    "Answer as a sceptical scientist: what do we know about {}?",
)
_SUBJECTS = (
    "rivers", "bridges", "bread", "clocks", "winter", "maps", "glass", "sleep", "the moon", "taxes", "chess", "salt",
    "railways", "bees", "paper", "earthquakes", "coffee", "mirrors", "volcanoes", "vaccines", "pianos", "deserts",
    "cathedrals", "whales", "insurance", "wheels", "poetry", "algebra", "lightning", "bicycles",
)  # fmt: skip
_SYSTEMS = (None, "You are a helpful assistant.", "Answer briefly and to the point. You work for a public library.")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt and an answer as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def requests(count: int, seed: bytes, tokens: int, temperature: float = 0.8, chat: bool = True) -> list[Request]:
    """`count` different requests, in an order that the seed gives."""
    questions = list(product(_SYSTEMS, _TASKS, _SUBJECTS))
    order = sorted(range(len(questions)), key=lambda at: hashlib.sha256(seed + at.to_bytes(4, "big")).digest())
    asked = []
    for number in range(count):
        system, task, subject = questions[order[number % len(questions)]]
        question = task.format(subject) + ("" if number < len(questions) else f" ({number})")
        body: dict[str, object] = {
            "max_tokens": tokens,
            "temperature": temperature,
            "verifiable": {"nonce": hashlib.sha256(seed + b"nonce" + number.to_bytes(4, "big")).hexdigest()},
        }
        if chat:
            lead = [] if system is None else [{"role": "system", "content": system}]
            body["messages"] = [*lead, {"role": "user", "content": question}]
        else:
            body["prompt"] = question
        asked.append(parse_body(CHAT if chat else COMPLETION, json.dumps(body).encode()))
    return asked
