"""The routes that generate: /v1/chat/completions, /v1/completions, /v1/models."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from engine.api.described import ANSWERS, CHAT_BODY, COMPLETION_BODY, REFUSALS
from engine.api.openai import Shape
from engine.api.sink import AsyncSink, Mailbox
from engine.engine import Engine
from engine.generation import Delta, Done, Event, Failed, Generation, TokenInfo
from engine.web import errors, requestlog
from engine.web.access import Access
from verifiable.errors import PolicyError
from verifiable.request.request import CHAT, COMPLETION, parse_body
from verifiable.wire.bodies import join_parts

MAX_BODY = 16 << 20
"""Bytes of a request body."""
_POLL = 0.1
"""Seconds between looks whether the client of a plain (not streaming) request is still there."""


def router(engine: Engine, access: Access) -> APIRouter:
    routes = APIRouter(dependencies=[Depends(access)])
    mailbox: Mailbox | None = None

    async def answer(http: Request, path: str) -> Response:
        nonlocal mailbox
        if mailbox is None or mailbox.loop is not asyncio.get_running_loop():
            mailbox = Mailbox()
        return await _answer(engine, access, mailbox, http, path)

    @routes.post(CHAT, response_class=Response, responses=ANSWERS, openapi_extra=CHAT_BODY)
    async def chat(request: Request) -> Response:
        return await answer(request, CHAT)

    @routes.post(COMPLETION, response_class=Response, responses=ANSWERS, openapi_extra=COMPLETION_BODY)
    async def completion(request: Request) -> Response:
        return await answer(request, COMPLETION)

    @routes.get("/v1/models", responses={401: REFUSALS[401]})
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(engine)]}

    @routes.get("/v1/models/{name}", responses={401: REFUSALS[401], 404: REFUSALS[404]})
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


async def _answer(engine: Engine, access: Access, mailbox: Mailbox, http: Request, path: str) -> Response:
    request = parse_body(path, await _body(http))
    if request.model not in (None, engine.model_name):
        raise _no_model(engine, request.model or "")
    principal: str | None = http.state.principal
    access.take(principal)
    sink = AsyncSink(mailbox, lambda: access.free(principal))
    capability = capability_of(http)
    try:
        # Tokenising a long prompt takes a while: not in the event loop.
        generation = await asyncio.to_thread(engine.submit, request, sink, capability, principal)
    except BaseException:
        access.free(principal)
        raise
    report = Report(http.scope.get("state", {}).get("request_id", ""), generation)
    shape = Shape(
        generation,
        ("chatcmpl-" if path == CHAT else "cmpl-") + secrets.token_hex(12),
        int(time.time()),
        engine.model_name,
        engine.manifest.runtime.fingerprint.hex()[:16],
    )
    if request.stream:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return _Stream(generation, _stream(sink, generation, shape, report), headers)
    return await _whole(http, sink, generation, shape, report)


class _Stream(StreamingResponse):
    """A stream that ends its answer when it ends, even where its first byte was never sent."""

    def __init__(self, generation: Generation, content: AsyncIterator[bytes], headers: dict[str, str]) -> None:
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.cancel()


class Report:
    """The log line of one answer: counts and times, no content."""

    def __init__(self, number: str, generation: Generation) -> None:
        self._number = number
        self._generation = generation
        self._began = time.monotonic()
        self._first: float | None = None

    def take(self, event: Event) -> None:
        """Note an event; the last one writes the line."""
        now = time.monotonic() - self._began
        if isinstance(event, Delta):
            self._first = now if self._first is None else self._first
            return
        facts: dict[str, Any] = {"request": self._number, "session": self._generation.session}
        facts |= {"seconds": round(now, 4), "first_token": None if self._first is None else round(self._first, 4)}
        if isinstance(event, Done):
            facts |= {"finish": event.finish.name.lower(), "prompt": event.prompt_count, "cached": event.cached}
            facts |= {"tokens": event.completion_count, "drafted": event.drafted, "accepted": event.accepted}
        else:
            facts |= {"finish": "error", "error": type(event.error).__name__}
        requestlog.write("answer", **facts)


async def _whole(http: Request, sink: AsyncSink, generation: Generation, shape: Shape, report: Report) -> Response:
    gone = asyncio.create_task(_watch(http, generation))
    try:
        text: list[str] = []
        tokens: list[TokenInfo] = []
        while True:
            event = await sink.get()
            report.take(event)
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


async def _stream(sink: AsyncSink, generation: Generation, shape: Shape, report: Report) -> AsyncIterator[bytes]:
    try:
        opening = shape.first()
        if opening is not None:
            yield _event(opening)
        sent = 0
        call: list[str] = []
        while True:
            event = await sink.get()
            report.take(event)
            if isinstance(event, Delta):
                yield _event(shape.delta(event, sent))
                sent += len(event.text)
                if generation.request.forced:
                    call.append(event.text)
            elif isinstance(event, Done):
                yield _event(shape.last(event, "".join(call)))
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
    data = await join_parts(http.stream(), MAX_BODY)
    if data is None:
        raise PolicyError("the request body is too long", expected=f"at most {MAX_BODY} bytes")
    return data


def capability_of(http: Request) -> bytes | None:
    """The capability that the caller sent, or None. A malformed one is as good as a wrong one."""
    try:
        return bytes.fromhex(http.headers.get("x-verifiable-capability", "")) or None
    except ValueError:
        return None
