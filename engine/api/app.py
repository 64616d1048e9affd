"""The HTTP application: generation and proofs in one FastAPI app, errors in OpenAI's form on every path."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from engine.api import completions, errors, proofs
from engine.api import log as log_routes
from engine.api.limits import ProofRates, RateLimit
from engine.api.provider import Provider
from engine.engine import Engine
from verifiable import __version__
from verifiable.errors import EngineError, PolicyError, VerifiableError

log = logging.getLogger(__name__)


def make_app(engine: Engine, api_keys: Sequence[str] = ()) -> FastAPI:
    """The application for an engine. With `api_keys`, generating needs one of them as bearer token."""
    app = proof_app(engine)
    app.include_router(completions.router(engine), dependencies=[Depends(_authorise(api_keys))])

    @app.get("/health")
    def health() -> JSONResponse:
        failure = engine.store.failure()
        running, waiting = engine.scheduler.load()
        state = "ok" if failure is None else "store failed"
        if failure is None and engine.ledger.log is not None and engine.ledger.log.failure() is not None:
            state = "log failing"  # answers go on, with receipts that come into the log when it is well again
        return JSONResponse(
            {"status": state, "running": running, "waiting": waiting, "model": engine.model_name},
            200 if failure is None else 503,
        )

    return app


def proof_app(provider: Provider, rates: ProofRates | None = None) -> FastAPI:
    """Everything that needs no model: proofs, the log, and the page for people; and errors in one form."""
    app = FastAPI(title="Verifiable Inference", version=__version__, docs_url=None, redoc_url=None)
    rates = rates or ProofRates()
    public, private = RateLimit(rates.public), RateLimit(rates.private)
    app.include_router(proofs.router(provider, public, private))
    app.include_router(log_routes.router(provider, public))

    @app.exception_handler(VerifiableError)
    async def ours(request: Request, error: VerifiableError) -> Response:
        return errors.response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first: Any = error.errors()[0]
        name = str(first["loc"][-1])
        return errors.response(PolicyError(f"parameter {name}", found=first["msg"], parameter=name))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        kind = "invalid_request_error"
        content = {"error": {"message": str(error.detail), "type": kind, "param": None, "code": "not_found"}}
        if error.status_code != 404:
            content["error"]["code"] = "method_not_allowed" if error.status_code == 405 else "http_error"
        return JSONResponse(content, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        log.exception("unexpected error", exc_info=error)
        return errors.response(EngineError("the provider failed", hint="The provider's log says more."))

    return app


def _authorise(api_keys: Sequence[str]) -> Callable[[Request], None]:
    """What an API key protects: generating. Proof routes have capabilities of their own, public ones need none."""
    accepted = [key.encode() for key in api_keys]

    def check(request: Request) -> None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ").encode("utf-8", "replace")
        # Every key is compared, so that the time taken tells nothing about which one came close.
        matches = [hmac.compare_digest(sent, key) for key in accepted]
        if accepted and not any(matches):
            raise errors.UnauthorisedError("no such API key", hint="Send it as bearer token.")

    return check
