"""The pages for people: what is served, a lookup, and the verifier that runs in the reader's own browser.

The first two are rendered here, without a script: they work with a keyboard, on a phone, and printed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse
from jinja2 import Environment, StrictUndefined

from engine.page.facts import log_facts, look_up, newest, served
from engine.web.limits import TOO_MANY, limit_public
from engine.web.provider import Provider, Served
from verifiable.errors import PolicyError
from verifiable.wire.bodies import join_parts
from verifiable.wire.text import write_base64

MAX_FORM = 2 << 20
_HERE = Path(__file__).parent
_STYLE = (_HERE / "style.css").read_text("utf-8")
_STYLE_HASH = write_base64(hashlib.sha256(_STYLE.encode()).digest())
_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_PLACES = (_HERE / "verify.html", _HERE.parents[1] / "docs" / "verify.html")
"""Where the browser verifier lies: in an installed wheel, and in a checkout."""
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-www-form-urlencoded": {
                "schema": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
            }
        },
    }
}


routes = APIRouter(dependencies=[Depends(limit_public)], tags=["page"], responses=TOO_MANY)
_TEMPLATE = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(
    (_HERE / "page.html").read_text("utf-8")
)


@routes.get("/", response_class=HTMLResponse)
def page(provider: Served) -> HTMLResponse:
    """What is served, how far the log goes, and the newest sessions, for people."""
    return _render(provider)


@routes.get("/verify", response_class=HTMLResponse)
def verify() -> HTMLResponse:
    """A second implementation of the checks: one page that runs in the reader's browser and sends nothing."""
    text = next(path for path in _PLACES if path.exists()).read_text("utf-8")
    # Its own policy, in the page, allows its one script and nothing to be loaded or sent.
    return HTMLResponse(text, headers={**_HEADERS, "Content-Security-Policy": "frame-ancestors 'none'"})


@routes.post(
    "/lookup",
    response_class=HTMLResponse,
    openapi_extra=_FORM,
    responses={400: {"description": "No such form, or too long."}},
)
async def lookup(http: Request, provider: Served) -> HTMLResponse:
    """Look a receipt or a session up; answers with the page."""
    body = await join_parts(http.stream(), MAX_FORM)
    if body is None:
        raise PolicyError("the form is too long", expected=f"at most {MAX_FORM} bytes")
    try:
        values = parse_qs(body.decode("utf-8"), strict_parsing=True, max_num_fields=4).get("what", [])
    except ValueError:
        values = []
    if len(values) != 1:
        raise PolicyError("the form", expected="one field, what", parameter="what")
    text = values[0]
    # A receipt is a key: it is not written back into the page.
    asked = text.strip() if len(text.strip()) == 32 else ""
    return await run_in_threadpool(lambda: _render(provider, asked, look_up(provider, text)))


def _render(provider: Provider, asked: str = "", answer: dict[str, Any] | None = None) -> HTMLResponse:
    known = {"problem": None, "receipt": False, "same": None, **answer} if answer is not None else None
    html = _TEMPLATE.render(
        served=served(provider),
        log=log_facts(provider),
        sessions=newest(provider),
        asked=asked,
        answer=known,
        style=_STYLE,
    )
    return HTMLResponse(html, headers=_HEADERS)
