"""A quarter of a provider's year: the real engine on a calendar of its own, ended by a power cut in an answer.

    python -m tests.fault.year MODEL DATA RECEIPTS FIRST_DAY DAYS

An answer a day, each as a session of its own; one conversation goes on through all days for as long as the provider
lets it. In the middle of the quarter each key is exchanged for a new one, and the session's old one is revoked at the
end. Receipts are written, durably, as `RECEIPTS/DAY-SIZE.receipt` the moment they are there: what stands in the
folder was acknowledged. The process does not return: it exits with CUT in the middle of an answer.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from engine.engine import Engine, EngineSettings
from engine.generation import Answer, Delta, QueueSink
from engine.keys import life
from engine.ledger import LedgerSettings
from engine.log.log import LogSettings
from verifiable import files
from verifiable.errors import PolicyError
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.statements import Role
from verifiable.request.request import COMPLETION, parse_body
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt

START = 1_761_955_200_000
"""The first of November 2025, in milliseconds since 1970."""
DAY = 86_400_000
KEPT_DAYS = 120
ERASED = 7
"""Day of each thirty on which a client erases its session."""
CUT = 9


class Calendar(Engine):
    """An engine that believes what it is told about the time."""

    time = START

    def _now(self) -> int:
        return self.time


def open_engine(model: Path, data: Path, day: float) -> Calendar:
    """The provider as it starts on a day of the year, counted from 0."""
    engine = type("Today", (Calendar,), {"time": START + int(day * DAY)})
    return engine(model, data, settings(model.parent / "probes"))  # type: ignore[no-any-return]


def settings(probes: Path) -> EngineSettings:
    return EngineSettings(
        runtime=RuntimeSettings(n_ctx=1024, n_seq_max=2),
        k=4,
        name="acme",
        cache=probes,
        ledger=LedgerSettings(keep_days=KEPT_DAYS, keep="digests", log=LogSettings(0.01, 0.05)),
    )


def keep(folder: Path, day: int, answer: Answer) -> None:
    assert answer.receipt is not None
    size = Head.peek(Receipt.parse(answer.receipt).head).size
    files.replace(folder / f"{day:03}-{answer.session}-{size}.receipt", answer.receipt)


def live(engine: Calendar, receipts: Path, first: int, days: int) -> None:
    """A day after the other: an answer, a turn of the conversation, now and then an answer that its owner erases."""
    conversation: Answer | None = None
    engine.key_watch.stop()  # it looks each second of this machine's time: here it looks when a key was exchanged
    for day in range(first, first + days):
        engine.time = START + day * DAY
        if day == first + days // 2:
            exchange_keys(engine)
        keep(receipts, day, engine.complete(f"Day {day}", max_tokens=3))
        try:
            conversation = turn(engine, day, conversation)
        except PolicyError:  # its manifest is nearly over, or its key is no longer there: the client begins anew
            conversation = turn(engine, day, None)
        keep(receipts, day, conversation)
        if day % 30 == ERASED:
            private = turn(engine, day, None)
            keep(receipts, day, private)
            engine.sessions.erase(private.session or "", private.capability)


def exchange_keys(engine: Calendar) -> None:
    """New keys for every role, and an end to the session's old one."""
    folder, old = engine.keys.folder, engine.keys.session.public
    for role in Role:
        life.rotate(folder, role, engine.time)
        engine.key_watch.look()
    life.end(folder, old, Role.SESSION)
    engine.key_watch.look()
    life.revoke(folder, old, Role.SESSION, "exchanged each quarter", engine.time)
    engine.key_watch.look()


def turn(engine: Calendar, day: int, before: Answer | None) -> Answer:
    asked: dict[str, Any] = {"session": "new" if before is None else before.session}
    capability = {} if before is None else {"capability": before.capability}
    answer = engine.complete(f"And day {day}", max_tokens=2, verifiable=asked, **capability)
    return dataclasses.replace(answer, capability=answer.capability or (before.capability if before else None))


def main(model: str, data: str, receipts: str, first: str, days: str) -> None:
    engine = open_engine(Path(model), Path(data), int(first))
    if int(first) == 0:
        files.replace(Path(receipts).with_name("first.pub"), engine.keys.public_file.read_bytes())
    live(engine, Path(receipts), int(first), int(days))
    body = json.dumps({"prompt": "The last words", "max_tokens": 900, "ignore_eos": True}).encode()
    sink = QueueSink()
    engine.submit(parse_body(COMPLETION, body), sink)
    assert all(isinstance(event, Delta) for event in itertools.islice(sink, 8))
    engine.store.flush()
    os._exit(CUT)


if __name__ == "__main__":
    main(*sys.argv[1:])
