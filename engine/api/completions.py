"""The routes that generate: /v1/chat/completions, /v1/completions, /v1/models."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from engine.api.described import ANSWERS, CHAT_BODY, COMPLETION_BODY, REFUSALS
from engine.api.openai import Shape
from engine.api.sink import AsyncSink, Mailbox
from engine.engine import Engine
from engine.generation import Delta, Done, Failed, Generation, TokenInfo
from engine.web import errors
from engine.web.access import Access, Caller, parse_capability
from engine.web.request_log import AnswerLine
from verifiable import limits
from verifiable.errors import PolicyError
from verifiable.request.request import CHAT, COMPLETION, parse_body
from verifiable.wire.bodies import join_parts

_POLL = 0.1
"""Seconds between looks whether the client of a plain (not streaming) request is still there."""


routes = APIRouter()


async def engine_of(http: Request) -> Engine:
    """A FastAPI dependency: the engine that this application serves."""
    engine: Engine = http.app.state.engine
    return engine


ServedEngine = Annotated[Engine, Depends(engine_of)]


@routes.post(CHAT, response_class=Response, responses=ANSWERS, openapi_extra=CHAT_BODY)
async def chat(http: Request, caller: Caller, engine: ServedEngine) -> Response:
    """Answer a conversation."""
    return await _answer(http, caller, engine, CHAT)


@routes.post(COMPLETION, response_class=Response, responses=ANSWERS, openapi_extra=COMPLETION_BODY)
async def completion(http: Request, caller: Caller, engine: ServedEngine) -> Response:
    """Go on with a text."""
    return await _answer(http, caller, engine, COMPLETION)


@routes.get("/v1/models", responses={401: REFUSALS[401]})
async def models(caller: Caller, engine: ServedEngine) -> dict[str, Any]:
    """The model that is served."""
    return {"object": "list", "data": [_model(engine)]}


@routes.get("/v1/models/{name}", responses={401: REFUSALS[401], 404: REFUSALS[404]})
async def model(name: str, caller: Caller, engine: ServedEngine) -> dict[str, Any]:
    """One model, by its name."""
    if name != engine.model_name:
        raise _no_model(engine, name)
    return _model(engine)


def _model(engine: Engine) -> dict[str, Any]:
    """OpenAI's object, with the digest of the manifest in force: what a request pins."""
    manifest = engine.manifest
    stated = {"object": "model", "created": manifest.valid_from // 1000, "owned_by": manifest.provider}
    return {"id": engine.model_name, **stated, "verifiable": {"manifest": manifest.digest().hex()}}


def _no_model(engine: Engine, name: str) -> errors.NotFoundError:
    return errors.NotFoundError("no such model", expected=engine.model_name, found=name, parameter="model")


async def _answer(http: Request, caller: str | None, engine: Engine, path: str) -> Response:
    request = parse_body(path, await _body(http))
    if request.model not in (None, engine.model_name):
        raise _no_model(engine, request.model or "")
    access: Access = http.app.state.access
    access.take(caller)
    sink = AsyncSink(_mailbox(http), lambda: access.free(caller))
    capability = parse_capability(http.headers.get("x-verifiable-capability"))
    try:
        # Tokenising a long prompt takes a while: not in the event loop.
        generation = await asyncio.to_thread(engine.submit, request, sink, capability, caller)
    except BaseException:
        access.free(caller)
        raise
    line = AnswerLine(http.scope.get("state", {}).get("request_id", ""), generation)
    shape = Shape(
        generation,
        ("chatcmpl-" if path == CHAT else "cmpl-") + secrets.token_hex(12),
        int(time.time()),
        engine.model_name,
        engine.manifest.runtime.fingerprint.hex()[:16],
    )
    if request.stream:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return _Stream(generation, _stream(sink, generation, shape, line), headers)
    return await _whole(http, sink, generation, shape, line)


def _mailbox(http: Request) -> Mailbox:
    """The mailbox of the running event loop, made when it is missing."""
    state = http.app.state
    if state.mailbox is None or state.mailbox.loop is not asyncio.get_running_loop():
        state.mailbox = Mailbox()
    mailbox: Mailbox = state.mailbox
    return mailbox


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


async def _whole(http: Request, sink: AsyncSink, generation: Generation, shape: Shape, line: AnswerLine) -> Response:
    gone = asyncio.create_task(_watch(http, generation))
    try:
        text: list[str] = []
        tokens: list[TokenInfo] = []
        while True:
            event = await sink.get()
            line.take(event)
            if isinstance(event, Delta):
                text.append(event.text)
                tokens += event.tokens
            elif isinstance(event, Failed):
                return errors.response(event.error)
            else:
                return JSONResponse(shape.whole("".join(text), tokens, event), headers={"Cache-Control": "no-store"})
    finally:
        gone.cancel()
        generation.cancel()


async def _watch(http: Request, generation: Generation) -> None:
    while not await http.is_disconnected():
        await asyncio.sleep(_POLL)
    generation.cancel()


async def _stream(sink: AsyncSink, generation: Generation, shape: Shape, line: AnswerLine) -> AsyncIterator[bytes]:
    try:
        opening = shape.first()
        if opening is not None:
            yield _event(opening)
        sent = 0
        call: list[str] = []
        while True:
            event = await sink.get()
            line.take(event)
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
    data = await join_parts(http.stream(), limits.REQUEST_BYTES)
    if data is None:
        raise PolicyError("the request body is too long", expected=f"at most {limits.REQUEST_BYTES} bytes")
    return data
