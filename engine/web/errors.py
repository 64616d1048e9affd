"""Errors as OpenAI's clients know them: a status and {"error": {message, type, param, code}}."""

from __future__ import annotations

import logging
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from engine.scheduling.admission import QueueFullError, StoppingError
from engine.sessions.dates import ClockError
from engine.sessions.manifests import NoManifestError, OtherManifestError
from engine.sessions.recorder import BusySessionError
from engine.sessions.sessions import UnknownSessionError
from engine.store import ErasedError
from engine.web.access import UnauthorisedError
from engine.web.content import NotAcceptableError
from engine.web.limits import TooManyRequestsError
from verifiable.errors import EngineError, MalformedError, PolicyError, StoreError, VerifiableError

log = logging.getLogger(__name__)

RETRY_AFTER = "1"
"""Seconds after which a refused request may be sent again."""


class NotFoundError(PolicyError):
    """A route, a model or an object that does not exist (or not for this caller)."""


_STATUS: tuple[tuple[type[VerifiableError], int, str], ...] = (
    (UnauthorisedError, 401, "invalid_api_key"),
    (UnknownSessionError, 404, "not_found"),
    (NotFoundError, 404, "not_found"),
    (BusySessionError, 409, "session_unavailable"),
    (OtherManifestError, 409, "manifest_differs"),
    (QueueFullError, 503, "overloaded"),
    (NoManifestError, 503, "no_manifest"),
    (ClockError, 503, "clock"),
    (StoppingError, 503, "shutting_down"),
    (TooManyRequestsError, 429, "rate_limited"),
    (NotAcceptableError, 406, "not_acceptable"),
    (ErasedError, 410, "erased"),
    (PolicyError, 400, "invalid_value"),
    (MalformedError, 400, "malformed"),
)


def body(error: VerifiableError) -> tuple[int, dict[str, Any]]:
    """The status and the JSON body for an error. What the store says of its files is for the operator's log alone."""
    if isinstance(error, StoreError) and not isinstance(error, ErasedError):
        log.error("%s", error)
        error = StoreError("the provider's store failed", hint="The provider's log says more.")
    if isinstance(error, ClockError):
        log.error("%s", error)
        error = ClockError("the provider's clock is not right", hint="Ask again later.")
    if isinstance(error, NoManifestError):
        log.error("%s", error)
        error = NoManifestError("the provider has no manifest in force", hint="Ask again later.")
    status, code = next(((status, code) for kind, status, code in _STATUS if isinstance(error, kind)), (500, "engine"))
    kind = "invalid_request_error" if status < 500 else "server_error"
    param = error.parameter if isinstance(error, PolicyError) else None
    return status, {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


def response(error: VerifiableError) -> JSONResponse:
    status, content = body(error)
    headers = {"Retry-After": RETRY_AFTER} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(content, status, headers)


async def _ours(http: Request, error: VerifiableError) -> Response:
    return response(error)


async def _invalid(http: Request, error: RequestValidationError) -> Response:
    first: Any = error.errors()[0]
    name = str(first["loc"][-1])
    return response(PolicyError(f"parameter {name}", found=first["msg"], parameter=name))


async def _http_error(http: Request, error: HTTPException) -> Response:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    content = {"message": str(error.detail), "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": content}, error.status_code, error.headers)


async def _unexpected(http: Request, error: Exception) -> Response:
    log.exception("unexpected error", exc_info=error)
    return response(EngineError("the provider failed", hint="The provider's log says more."))


HANDLERS: Final[dict[int | type[Exception], Any]] = {
    VerifiableError: _ours,
    RequestValidationError: _invalid,
    HTTPException: _http_error,
    Exception: _unexpected,
}
"""What FastAPI does with each kind of exception."""
