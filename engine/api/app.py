"""The HTTP application: generation and proofs in one FastAPI app, errors in OpenAI's form on every path."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from engine import metrics
from engine.api import completions, proofs
from engine.api import log as log_routes
from engine.engine import Engine
from engine.page import page
from engine.web import errors
from engine.web.access import Access
from engine.web.limits import ProofRates, RateLimit
from engine.web.provider import Provider
from engine.web.requestlog import RequestLog
from verifiable import __version__
from verifiable.errors import EngineError, PolicyError, VerifiableError

log = logging.getLogger(__name__)


def make_app(
    engine: Engine, api_keys: Sequence[str] = (), *, per_key: int | None = None, origins: Sequence[str] = ()
) -> FastAPI:
    """The application for an engine.

    Args:
        api_keys: generating needs one of them as bearer token; none: it is open to all.
        per_key: requests that one key may have running or waiting at once.
        origins: web origins whose pages may call (CORS); none by default.
    """
    app = proof_app(engine)
    app.include_router(completions.router(engine, Access(api_keys, per_key)))
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Verifiable-Capability", "X-Request-Id"],
            expose_headers=["X-Request-Id"],
        )
    app.add_middleware(RequestLog)
    metrics_of = metrics.registry(engine)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE_LATEST: {}}}})
    def prometheus() -> Response:
        return Response(generate_latest(metrics_of), media_type=CONTENT_TYPE_LATEST)

    @app.get("/ready", responses={503: {"description": "It can't take requests now."}})
    def ready() -> JSONResponse:
        """Whether requests are taken: for load balancers. /health says whether the process is well."""
        well = engine.scheduler.ready and engine.store.failure() is None
        return JSONResponse({"ready": well}, 200 if well else 503)

    @app.get("/health", responses={503: {"description": "Nothing can be stored any more."}})
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
    app.include_router(page.router(provider, public))

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
