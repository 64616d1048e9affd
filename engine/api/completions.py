"""The routes that generate: /v1/chat/completions, /v1/completions, /v1/models."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from engine.api import errors
from engine.api.openai import Shape
from engine.engine import Engine
from engine.generation import Delta, Done, Event, Failed, Generation, TokenInfo
from verifiable.errors import PolicyError
from verifiable.request import CHAT, COMPLETION, parse_body

MAX_BODY = 16 << 20
"""Bytes of a request body."""
_POLL = 0.1
"""Seconds between looks whether the client of a plain (not streaming) request is still there."""


class AsyncSink:
    """Carries events from the scheduler's thread into the event loop, and counts the bytes that were not read yet."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._put = self._taken = 0

    def put(self, event: Event) -> None:
        self._put += _size(event)
        # A loop that is closed has no readers left.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def backlog(self) -> int:
        return self._put - self._taken

    async def get(self) -> Event:
        event = await self._events.get()
        self._taken += _size(event)
        return event


def router(engine: Engine) -> APIRouter:
    routes = APIRouter()

    @routes.post(CHAT)
    async def chat(request: Request) -> Response:
        return await _answer(engine, request, CHAT)

    @routes.post(COMPLETION)
    async def completion(request: Request) -> Response:
        return await _answer(engine, request, COMPLETION)

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(engine)]}

    @routes.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        if name != engine.model_name:
            raise _no_model(engine, name)
        return _model(engine)

    return routes


def _model(engine: Engine) -> dict[str, Any]:
    created = engine.manifest.valid_from // 1000
    return {"id": engine.model_name, "object": "model", "created": created, "owned_by": engine.manifest.provider}


def _no_model(engine: Engine, name: str) -> errors.NotFoundError:
    return errors.NotFoundError("no such model", expected=engine.model_name, found=name, parameter="model")


async def _answer(engine: Engine, http: Request, path: str) -> Response:
    request = parse_body(path, await _body(http))
    if request.model not in (None, engine.model_name):
        raise _no_model(engine, request.model or "")
    sink = AsyncSink()
    capability = capability_of(http)
    # Tokenising a long prompt takes a while: not in the event loop.
    generation = await asyncio.to_thread(engine.submit, request, sink, capability)
    shape = Shape(
        generation,
        ("chatcmpl-" if path == CHAT else "cmpl-") + secrets.token_hex(12),
        int(time.time()),
        engine.model_name,
        engine.manifest.runtime.fingerprint.hex()[:16],
    )
    if request.stream:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_stream(sink, generation, shape), media_type="text/event-stream", headers=headers)
    return await _whole(http, sink, generation, shape)


async def _whole(http: Request, sink: AsyncSink, generation: Generation, shape: Shape) -> Response:
    gone = asyncio.create_task(_watch(http, generation))
    try:
        text: list[str] = []
        tokens: list[TokenInfo] = []
        while True:
            event = await sink.get()
            if isinstance(event, Delta):
                text.append(event.text)
                tokens += event.tokens
            elif isinstance(event, Failed):
                return errors.response(event.error)
            else:
                return JSONResponse(shape.whole("".join(text), tokens, event))
    finally:
        gone.cancel()
        generation.cancel()


async def _watch(http: Request, generation: Generation) -> None:
    while not await http.is_disconnected():
        await asyncio.sleep(_POLL)
    generation.cancel()


async def _stream(sink: AsyncSink, generation: Generation, shape: Shape) -> AsyncIterator[bytes]:
    try:
        opening = shape.first()
        if opening is not None:
            yield _event(opening)
        sent = 0
        while True:
            event = await sink.get()
            if isinstance(event, Delta):
                yield _event(shape.delta(event.text, event.tokens, sent))
                sent += len(event.text)
            elif isinstance(event, Done):
                yield _event(shape.last(event))
                if generation.request.include_usage:
                    yield _event(shape.usage_chunk(event))
                yield b"data: [DONE]\n\n"
                return
            else:
                yield _event(errors.body(event.error)[1])
                return
    finally:
        generation.cancel()  # the client has left, or all is said: then this changes nothing


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


async def _body(http: Request) -> bytes:
    data = bytearray()
    async for part in http.stream():
        data += part
        if len(data) > MAX_BODY:
            raise PolicyError("the request body is too long", expected=f"at most {MAX_BODY} bytes")
    return bytes(data)


def capability_of(http: Request) -> bytes | None:
    """The capability that the caller sent, or None. A malformed one is as good as a wrong one."""
    try:
        return bytes.fromhex(http.headers.get("x-verifiable-capability", "")) or None
    except ValueError:
        return None


def _size(event: Event) -> int:
    return len(event.text) * 4 + 256 * len(event.tokens) if isinstance(event, Delta) else 256
