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
        number = sent if _ID.fullmatch(sent) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = number
        began, status, size = time.monotonic(), 0, 0

        async def answer(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = number
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            write(
                "request",
                request=number,
                method=scope["method"],
                path=_shown(scope["path"]),
                status=status,
                bytes=size,
                seconds=round(time.monotonic() - began, 4),
            )


def write(event: str, **facts: Any) -> None:
    """One line of JSON. Facts are numbers and ids, never content."""
    log.info("%s", json.dumps({"event": event, **facts}, separators=(",", ":")))


def _shown(path: str) -> str:
    return path if len(path) <= 128 and path.isascii() and path.isprintable() else "…"
