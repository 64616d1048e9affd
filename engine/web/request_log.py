"""Request ids, and one structured log line for each request and each answer. Never a prompt, a text or a key.

An ASGI middleware, not one of Starlette's: those put a queue between an answer and its reader, and a reader that has
left would be noticed late.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.generation import Delta, Done, Event, Generation

log = logging.getLogger("engine.requests")

HEADER = "x-request-id"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class RequestLog:
    """Gives each request an id (the caller's own, where it sent a plain one), returns it, and logs the outcome."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(HEADER, "")
        request_id = sent if _ID.fullmatch(sent) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        began, status, size = time.monotonic(), 0, 0

        async def answer(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            write(
                "request",
                request=request_id,
                method=scope["method"],
                path=_shown(scope["path"]),
                status=status,
                bytes=size,
                seconds=round(time.monotonic() - began, 4),
            )


class AnswerLine:
    """The log line of one answer: counts and times, no content."""

    def __init__(self, request_id: str, generation: Generation) -> None:
        self._request_id = request_id
        self._generation = generation
        self._began = time.monotonic()
        self._first: float | None = None

    def take(self, event: Event) -> None:
        """Note an event; the last one writes the line."""
        now = round(time.monotonic() - self._began, 4)
        if isinstance(event, Delta):
            self._first = now if self._first is None else self._first
            return
        facts: dict[str, Any] = {"request": self._request_id, "session": self._generation.session}
        facts |= {"seconds": now, "first_token": self._first}
        if isinstance(event, Done):
            facts |= {"finish": event.finish.name.lower(), "prompt": event.prompt_count, "cached": event.cached}
            facts |= {"tokens": event.completion_count, "drafted": event.drafted, "accepted": event.accepted}
        else:
            facts |= {"finish": "error", "error": type(event.error).__name__}
        write("answer", **facts)


def write(event: str, **facts: Any) -> None:
    """One line of JSON. Facts are numbers and ids, never content."""
    log.info("%s", json.dumps({"event": event, **facts}, separators=(",", ":")))


def _shown(path: str) -> str:
    return path if len(path) <= 128 and path.isascii() and path.isprintable() else "…"
