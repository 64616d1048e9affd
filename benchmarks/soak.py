"""Soak: 64 clients on 8 slots, a third of them leaving, stalling or sending rubbish; nothing is lost or mixed up.

Well-behaved clients ask for a text that a grammar forces, a different one each, so that a token of another's stream
would show; others send broken requests, leave after a few tokens, or stop reading. Afterwards every session must be
closed and signed and is audited exactly, every slot is free, and memory has not grown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import uvicorn

from benchmarks._loopback import listen
from benchmarks.measure import Figure, main
from engine.api.app import make_app
from engine.engine import Engine, EngineSettings
from engine.scheduling.scheduler import SchedulerSettings
from fixtures import models
from verifiable.checking.checks import check_evidence
from verifiable.checking.verdict import Status
from verifiable.llama.probe.cache import default_folder
from verifiable.llama.settings import RuntimeSettings
from verifiable.request.request import CHAT
from verifiable.session.evidence import Kind
from verifier.auditing.session import audit
from verifier.model.worker import Worker

RUBBISH: tuple[bytes, ...] = (
    b"",
    b"{",
    b"\xff\xfe\x00",
    b'{"messages": 5}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    b'{"messages": [{"role": "user", "content": "x"}], "grammar": "root ::= ("}',
    json.dumps({"messages": [{"role": "user", "content": "word " * 4000}]}).encode(),
)


@dataclass(slots=True)
class Tally:
    """What the clients saw. `mixed` counts streams with anything but their own text."""

    outcomes: Counter[str] = field(default_factory=Counter)
    mixed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, outcome: str) -> None:
        with self.lock:
            self.outcomes[outcome] += 1


def soak(
    folder: Path, model: Path, seconds: float, clients: int = 64, slots: int = 8, audited: int | None = None
) -> list[Figure]:
    """Run the soak and return its figures. `audited` bounds the sessions that are audited in the end."""
    settings = EngineSettings(
        RuntimeSettings(n_ctx=256, n_seq_max=slots), SchedulerSettings(slots=slots), drafter="auto"
    )
    tally = Tally()
    with Engine(model, folder, settings) as engine:
        listener, port = listen()
        server = uvicorn.Server(uvicorn.Config(make_app(engine), log_level="error", timeout_graceful_shutdown=5))
        serving = threading.Thread(target=lambda: server.run(sockets=[listener]))
        serving.start()
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=_client, args=(url, number, until, tally)) for number in range(clients)]
        for thread in threads:
            thread.start()
        time.sleep(seconds * 0.4)
        early = _resident()
        for thread in threads:
            thread.join()
        deadline = time.monotonic() + 30
        while engine.scheduler.load() != (0, 0) and time.monotonic() < deadline:
            time.sleep(0.05)
        late = _resident()
        lost = sum(engine.scheduler.load())
        server.should_exit = True
        serving.join()
        sessions, unclosed, failed, checked, tokens = _check(engine, model, audited)
    served = tally.outcomes["served"]
    for line in (*tally.mixed[:3], *tally.wrong[:3]):
        print(line, file=sys.stderr)
    return [
        Figure("answers served whole", served, "", at_least=1),
        Figure("clients that left, stalled or sent rubbish", sum(tally.outcomes.values()) - served, "", at_least=1),
        Figure("slots or requests lost", lost, "", at_most=0),
        Figure("streams mixed with another", len(tally.mixed), "", at_most=0),
        Figure("wrong answers to broken requests", len(tally.wrong), "", at_most=0),
        Figure("sessions", sessions, ""),
        Figure("sessions not ended and signed", unclosed, "", at_most=0),
        Figure("audits that were not exact", failed, f"of {checked}", at_most=0),
        Figure("tokens audited", tokens, ""),
        Figure("memory, end ÷ 40% of the time", late / early, "×", at_most=1.10),
    ]


def _client(url: str, number: int, until: float, tally: Tally) -> None:
    rng = random.Random(number)
    with httpx.Client(base_url=url, timeout=120) as http:
        while time.monotonic() < until:
            kind = ("leave", "stall", "rubbish")[number % 9 // 3] if number % 3 == 0 else "served"
            try:
                if kind == "rubbish":
                    answer = http.post(CHAT, content=rng.choice(RUBBISH))
                    if answer.status_code not in (400, 503) or "error" not in answer.json():
                        tally.wrong.append(f"rubbish was answered with {answer.status_code}: {answer.text[:200]}")
                    time.sleep(0.2)
                else:
                    kind = _ask(http, number, kind, rng, tally)
            except (httpx.HTTPError, ValueError) as error:
                tally.wrong.append(f"{kind}: {error!r}")
            tally.count(kind)


def _ask(http: httpx.Client, number: int, kind: str, rng: random.Random, tally: Tally) -> str:
    word = f"client {number} says {rng.randrange(10**6)}"
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"Say: {word}"}],
        "max_tokens": 48,
        "grammar": f'root ::= "{word}"',
        "stream": True,
        "temperature": rng.choice([0, 0.8]),
        "verifiable": {"commitments": rng.choice(["receipt", "stream"])},
    }
    text, finished = "", False
    with http.stream("POST", CHAT, json=body) as response:
        if response.status_code != 200:
            response.read()
            if response.status_code != 503 or "retry-after" not in response.headers:
                tally.wrong.append(f"status {response.status_code}: {response.text[:200]}")
            time.sleep(rng.uniform(0.2, 1.0))
            return "refused"
        for line in response.iter_lines():
            if line == "data: [DONE]":
                finished = True
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                tally.wrong.append(f"{word}: {event['error']}")
                return "failed"
            text += event["choices"][0]["delta"].get("content") or ""
            if not word.startswith(text):
                tally.mixed.append(f"expected {word!r}, got {text!r}")
                return "mixed"
            if kind == "leave" and len(text) > 5:
                return "left"
            if kind == "stall":
                time.sleep(rng.uniform(0.0, 0.5))
    if not finished or text != word:
        tally.wrong.append(f"{word!r} ended as {text!r}")
    return "served" if kind != "stall" else "stalled"


def _check(engine: Engine, model: Path, audited: int | None) -> tuple[int, int, int, int, int]:
    """Sessions in the store, how many of them are not closed under a signed head; failed audits, audits, and tokens.

    All sessions are audited, or `audited` of them.
    """
    engine.store.flush()
    rows = []
    before: int | None = None
    while page := engine.store.sessions(500, before):
        rows += [row for _, row in page]
        before = page[-1][0]
    trust, unclosed = [engine.keys.provider.public], 0
    for row in rows:
        unclosed += not check_evidence(engine.evidence.evidence(row, Kind.TOKENS), trust).session.closed
    failed = tokens = 0
    chosen = rows if audited is None else random.Random(0).sample(rows, min(audited, len(rows)))
    with Worker(model, cache=default_folder()) as worker:
        for row in chosen:
            verdict = audit(engine.evidence.evidence(row, Kind.TOKENS), worker, trust)
            failed += verdict.status is not Status.EXACT and verdict.code != "nothing-checked"
            tokens += verdict.tokens_checked
    return len(rows), unclosed, failed, len(chosen), tokens


def _resident() -> float:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(seconds: float) -> Sequence[Figure]:
    with TemporaryDirectory() as folder:
        return soak(Path(folder), models.ensure("smollm2"), seconds)


if __name__ == "__main__":
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--seconds", type=float, default=600.0, help="how long the clients ask (default 600)")
    sys.exit(main(measure, "soak", __doc__, options=options))
