"""Errors as OpenAI's clients know them: a status and {"error": {message, type, param, code}}."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

from engine.scheduling.scheduler import QueueFullError, StoppingError
from engine.sessions.sessions import BusySessionError, UnknownSessionError
from engine.store import ErasedError
from engine.web.access import UnauthorisedError
from engine.web.limits import TooManyRequestsError
from engine.web.serving import NotAcceptableError
from verifiable.errors import MalformedError, PolicyError, VerifiableError

RETRY_AFTER = "1"
"""Seconds after which a refused request may be sent again."""


class NotFoundError(PolicyError):
    """A route, a model or an object that does not exist (or not for this caller)."""


_STATUS: tuple[tuple[type[VerifiableError], int, str], ...] = (
    (UnauthorisedError, 401, "invalid_api_key"),
    (UnknownSessionError, 404, "not_found"),
    (NotFoundError, 404, "not_found"),
    (BusySessionError, 409, "session_unavailable"),
    (QueueFullError, 503, "overloaded"),
    (StoppingError, 503, "shutting_down"),
    (TooManyRequestsError, 429, "rate_limited"),
    (NotAcceptableError, 406, "not_acceptable"),
    (ErasedError, 410, "erased"),
    (PolicyError, 400, "invalid_value"),
    (MalformedError, 400, "malformed"),
)


def body(error: VerifiableError) -> tuple[int, dict[str, Any]]:
    """The status and the JSON body for an error."""
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
