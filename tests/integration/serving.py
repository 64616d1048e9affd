"""An engine over real HTTP on a free port of this machine, for tests."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from engine.api.app import make_app
from engine.engine import Engine
from verifiable.checking.checks import OpenedSession, check_evidence
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.receipt import Receipt
from verifiable.session.records import Token, parse


@contextmanager
def http(engine: Engine, keys: list[str], **options: Any) -> Iterator[str]:
    """Serve an engine; gives the base URL."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # at once: who asks before the server runs waits, and is not refused
    server = uvicorn.Server(uvicorn.Config(make_app(engine, keys, **options), log_level="warning"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def served(app: object) -> Iterator[str]:
    """An application on a free port of the loopback."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def chunks(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON of each event of a stream."""
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


def receipt_of(extra: dict[str, Any]) -> Receipt:
    text = extra["receipt"]
    return Receipt.parse(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def idle(engine: Engine, seconds: float = 20.0) -> float:
    """Wait until no request runs or waits; returns how long that took."""
    began = time.monotonic()
    while engine.scheduler.load() != (0, 0):
        assert time.monotonic() < began + seconds, "a slot was not freed"
        time.sleep(0.005)
    return time.monotonic() - began


def tokens_of(engine: Engine, session: str | None) -> list[Token]:
    """The stored records of a session."""
    engine.store.flush()
    leaves = engine.store.leaves(bytes.fromhex(session or ""))
    return [leaf for leaf in map(parse, leaves) if isinstance(leaf, Token)]


def evidence_of(engine: Engine, session: str | None, kind: Kind = Kind.TOKENS) -> Evidence:
    engine.store.flush()
    row = engine.store.session(bytes.fromhex(session or ""))
    assert row is not None
    return engine.evidence.evidence(row, kind)


def opened(engine: Engine, session: str | None) -> OpenedSession:
    """A session, checked as an auditor checks it before the model comes in."""
    return check_evidence(evidence_of(engine, session), [engine.keys.provider.public]).session
