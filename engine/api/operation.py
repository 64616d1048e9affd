"""The routes for whoever operates the provider: metrics, and whether it is well."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from engine.api.completions import ServedEngine

routes = APIRouter()


@routes.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE_LATEST: {}}}})
def prometheus(http: Request) -> Response:
    """Counters and times, as Prometheus reads them."""
    return Response(generate_latest(http.app.state.metrics), media_type=CONTENT_TYPE_LATEST)


@routes.get("/ready", responses={503: {"description": "It can't take requests now."}})
def ready(engine: ServedEngine) -> JSONResponse:
    """Whether requests are taken: for load balancers. /health says whether the process is well."""
    well = engine.scheduler.ready and engine.store.failure() is None and engine.sessions.dates.fault() is None
    return JSONResponse({"ready": well}, 200 if well else 503)


@routes.get("/health", responses={503: {"description": "Nothing can be stored any more."}})
def health(engine: ServedEngine) -> JSONResponse:
    """Whether the process is well, and how much it has to do."""
    failure = engine.store.failure()
    running, waiting = engine.scheduler.load()
    state = "ok" if failure is None else "store failed"
    if failure is None and engine.ledger.log is not None and engine.ledger.log.failure() is not None:
        state = "log failing"  # answers go on, with receipts that come into the log when it is well again
    return JSONResponse(
        {"status": state, "running": running, "waiting": waiting, "model": engine.model_name},
        200 if failure is None else 503,
    )
