"""The HTTP application: generation and proofs in one FastAPI app, errors in OpenAI's form on every path."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from engine import metrics
from engine.api import completions, log, operation, proofs, reports
from engine.engine import Engine
from engine.keys.auditors import Auditors
from engine.page import page
from engine.web import errors
from engine.web.access import Access
from engine.web.limits import ProofRates, RateLimit
from engine.web.provider import LogKeeper, Provider
from engine.web.request_log import RequestLog
from verifiable import __version__


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
    app.state.engine = engine
    app.state.access = Access(api_keys, per_key)
    app.state.mailbox = None
    app.state.metrics = metrics.registry(engine)
    app.include_router(completions.routes)
    app.include_router(operation.routes)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Verifiable-Capability", "X-Request-Id"],
            expose_headers=["X-Request-Id"],
        )
    app.add_middleware(RequestLog)
    return app


def proof_app(provider: Provider, rates: ProofRates | None = None) -> FastAPI:
    """Everything that needs no model: proofs, the log, and the page for people; and errors in one form."""
    app = log_app(provider, rates)
    app.state.own_reports_only = True
    for routes in (proofs.public, proofs.private, page.routes):
        app.include_router(routes)
    return app


def log_app(keeper: LogKeeper, rates: ProofRates | None = None) -> FastAPI:
    """A log, and the verdicts in it."""
    app = FastAPI(
        title="Verifiable Inference",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        exception_handlers=errors.HANDLERS,
    )
    rates = rates or ProofRates()
    app.state.provider = keeper
    app.state.own_reports_only = False
    app.state.auditors = Auditors(keeper.keys.auditors_file)
    app.state.public_limit, app.state.private_limit = RateLimit(rates.public), RateLimit(rates.private)
    app.state.report_limit = RateLimit(rates.reports)
    for routes in (log.routes, reports.routes):
        app.include_router(routes)
    return app
