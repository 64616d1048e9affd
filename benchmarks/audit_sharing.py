"""What turns begin with alike is computed once: audits of a long conversation, and of many under one system prompt.

Two campaigns over recorded sessions of an honest provider: one conversation of six turns, and eight conversations of
one turn under one long system prompt. Each is audited by a process that shares and by one that does not, in turn,
with the model loaded before and the sessions in the order in which a campaign takes them. Medians of the time, and the
tokens that were computed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, main
from fixtures import models
from tests.real_model import HonestProvider, provider
from tests.sessions import TRUST, Recording, ask
from verifiable.checking.verdict import Status
from verifier.auditing.scope import audited
from verifier.campaign.crew import Member, audit_all
from verifier.campaign.fetched import Auditor, Fetched, Received
from verifier.model.worker import Worker
from verifier.provider.client import Client

ROUNDS = 3
TURNS, CONVERSATIONS, ANSWER = 6, 8, 16
SYSTEM = "You answer for a public library. Be brief, be kind, and name the shelf on which a book is to be found. " * 8


def converse(made: Recording, honest: HonestProvider, number: int, turns: int, system: str) -> None:
    """A conversation of some turns, each asked with all that was said before."""
    messages = [{"role": "system", "content": system}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"What do you have about subject {number * turns + turn}?"})
        body: dict[str, Any] = {"max_tokens": ANSWER, "temperature": 0.8, "messages": messages}
        honest.answer(ask(**body, verifiable={"nonce": f"{number:010x}{turn:010x}"}), made)
        messages.append({"role": "assistant", "content": made.texts[-1]})


def record(honest: HonestProvider, count: int, turns: int, system: str) -> list[Fetched]:
    sessions = []
    for number in range(count):
        made = Recording(manifest=honest.manifest, session=number.to_bytes(16, "big"))
        converse(made, honest, number, turns, system)
        received = Received(made.evidence().encode())
        received.open(*received.parse(TRUST))
        sessions.append(Fetched(made.session, evidence=received))
    return sessions


def compare(name: str, sessions: Sequence[Fetched], sharing: Worker, alone: Worker) -> list[Figure]:
    taken: dict[bool, list[float]] = {True: [], False: []}
    prompts = reused = 0
    for number in range(ROUNDS + 1):  # the first loads the model
        for worker in (sharing, alone):
            if number:
                worker.score([1], [1], 1)  # nothing is left of the round before
            before = worker.reused
            with Client("http://127.0.0.1:9") as unused:
                start = time.perf_counter()
                auditor = Auditor(worker, TRUST, Path("unused"))
                verdicts = audit_all(auditor, [Member(worker, unused)], sessions)
                seconds = time.perf_counter() - start
            if any(verdict.status is not Status.EXACT for verdict in verdicts):
                raise RuntimeError("an honest session was not verified")
            if number:
                taken[worker is sharing].append(seconds)
            if number and worker is sharing:
                reused = worker.reused - before
                prompts = sum(turn.prompt_tokens for verdict in verdicts for turn in audited(verdict).turns)
    tokens = sum(verdict.tokens_checked for verdict in verdicts)
    shared, whole = statistics.median(taken[True]), statistics.median(taken[False])
    return [
        Figure(f"{name}: prompt tokens", prompts, "tokens", note=f"and {tokens} tokens of answers"),
        Figure(f"{name}: of them not computed again", reused, "tokens"),
        Figure(f"{name}: audit without sharing", whole, "s"),
        Figure(f"{name}: audit with sharing", shared, "s"),
        Figure(f"{name}: without ÷ with", whole / shared, "×", at_least=1.5),
    ]


def measure() -> Sequence[Figure]:
    path = models.ensure("smollm2")
    with provider(path) as honest:
        long = record(honest, 1, TURNS, "You are a librarian.")
        many = record(honest, CONVERSATIONS, 1, SYSTEM)
    with Worker(path) as sharing, Worker(path, share=False) as alone:
        return [
            *compare(f"{TURNS} turns of one conversation", long, sharing, alone),
            *compare(f"{CONVERSATIONS} conversations, one system prompt", many, sharing, alone),
        ]


if __name__ == "__main__":
    sys.exit(main(measure, "audit_sharing", __doc__))
