"""Verdicts of auditors in the log: published with an auditor's key, found by everybody. See spec/registry.md."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.concurrency import run_in_threadpool

from engine.api.log import Log
from engine.store import StatementRow
from engine.web.access import UnauthorisedError, parse_bearer
from engine.web.limits import TOO_MANY, limit_public, limit_reports
from engine.web.provider import Kept, LogKeeper
from verifiable import limits
from verifiable.checking.registry import SignedVerdict, verify_verdict, vouches_for_itself
from verifiable.errors import PolicyError, VerificationError
from verifiable.tlog.entry import VERDICT
from verifiable.tlog.merkle import leaf_hash
from verifiable.wire.bodies import join_parts
from verifiable.wire.text import HASH_SIZE, from_hex, write_base64url

PAGE = 100
"""Verdicts in one answer."""

routes = APIRouter(prefix="/v1/log/reports", tags=["log"], responses=TOO_MANY)


@routes.get("", dependencies=[Depends(limit_public)], responses={400: {"description": "A parameter is malformed."}})
def find(
    keeper: Kept,
    log: Log,
    about: Annotated[str, Query(min_length=64, max_length=64, description="Thumbprint of the provider's key (hex).")],
    since: Annotated[int, Query(alias="from", ge=0, le=limits.U63, description="`next` of the page before.")] = 0,
) -> dict[str, Any]:
    """Verdicts about a provider, each with its proof under the checkpoint. Nobody signs that these are all: whoever
    wants to know reads the log's entries.
    """
    thumbprint = from_hex(about, HASH_SIZE)
    if thumbprint is None:
        raise PolicyError("parameter about", expected="64 hexadecimal digits", found=about, parameter="about")
    size, _, note = log.signed(None)
    rows = keeper.store.statements(VERDICT, thumbprint, since, size, PAGE + 1)
    found = [
        {
            "index": row.index,
            "entry": write_base64url(row.signed),
            "path": [value.hex() for value in log.tree.inclusion_proof(row.index, size)],
        }
        for row in rows[:PAGE]
        if row.index is not None
    ]
    following = rows[PAGE].index if len(rows) > PAGE else None
    return {"origin": log.origin, "size": size, "checkpoint": note.decode(), "reports": found, "next": following}


@routes.post(
    "",
    status_code=202,
    dependencies=[Depends(limit_reports)],
    responses={
        400: {"description": "No verdict that this log takes in; the message says why."},
        401: {"description": "No key of an auditor."},
    },
)
async def publish(
    http: Request,
    keeper: Kept,
    log: Log,
    authorization: Annotated[str | None, Header(description="`Bearer` and an auditor key.")] = None,
) -> dict[str, Any]:
    """Have the log take in a verdict: the bytes of a signed statement. The same bytes are taken in once."""
    token = parse_bearer(authorization)
    if token is None or not http.app.state.auditors.allows(token):
        raise UnauthorisedError("no such auditor key", hint="Send it as bearer token; the log's operator issues it.")
    body = await join_parts(http.stream(), limits.ENTRY_BYTES)
    if body is None:
        raise PolicyError("the statement", expected=f"at most {limits.ENTRY_BYTES:,} bytes", found="more")
    return await run_in_threadpool(_take, keeper, http.app.state.own_reports_only, body)


def _take(keeper: LogKeeper, own_only: bool, body: bytes) -> dict[str, Any]:
    try:
        said = verify_verdict(body)
    except VerificationError as error:
        raise PolicyError(error.what, expected=error.expected, found=error.found, hint=error.hint) from error
    _check_parties(keeper, own_only, said)
    keeper.store.add_statement(VERDICT, body)
    row: StatementRow | None = keeper.store.statement(leaf_hash(body))
    index = None if row is None else row.index
    return {"leaf_hash": leaf_hash(body).hex(), "index": index}


def _check_parties(keeper: LogKeeper, own_only: bool, said: SignedVerdict) -> None:
    """Refuse what is about another provider, where the log is a provider's, and what its own keys say of it."""
    if not own_only:
        return
    keys = keeper.keys
    own = [*keys.providers, *(key.public for key in (keys.session, *keys.sessions)), *keys.logs]
    if not vouches_for_itself(said.subject, keys.providers):
        raise PolicyError(
            "a verdict about another provider", expected=keys.provider.public.vkey(), found=said.subject.vkey()
        )
    if vouches_for_itself(said.issuer, own):
        raise PolicyError("a verdict by the provider that it is about", expected="an auditor's own key")
