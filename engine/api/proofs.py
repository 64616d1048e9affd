"""The routes that prove: manifests and session heads for everyone, receipts and evidence for their readers.

A session is read with its reader's capability (header `X-Verifiable-Capability`, in the receipt), its owner's, or an
auditor key as bearer token; it is erased with its owner's. An unknown session and a forbidden one answer alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from engine.keys.auditors import Auditors
from engine.sessions.sessions import readers
from engine.store import SessionRow
from engine.web import content, errors
from engine.web.access import parse_bearer, parse_capability
from engine.web.limits import TOO_MANY, limit_private, limit_public
from engine.web.provider import Provider, Served
from verifiable import limits
from verifiable.errors import PolicyError
from verifiable.manifest import manifest as manifests, statements
from verifiable.session import head as heads, records
from verifiable.session.evidence import Kind
from verifiable.session.receipt import Receipt
from verifiable.wire.text import from_hex, write_base64url

RECEIPT_TYPE = "application/vnd.verifiable.receipt+cbor"
EVIDENCE_TYPE = "application/vnd.verifiable.evidence+cbor"

_ID = Annotated[str, Path(description="The session's id, 32 hexadecimal digits.", examples=["7c40" * 8])]
_Size = Annotated[
    int | None, Query(ge=1, le=limits.U63, description="Size of one of its signed heads; the newest if left out.")
]
_Capability = Annotated[
    str | None,
    Header(
        alias="X-Verifiable-Capability",
        description="Hexadecimal: the reader's, of the session's receipt, or the owner's.",
    ),
]
_Bearer = Annotated[str | None, Header(alias="Authorization", description="`Bearer` and an auditor key.")]

_MALFORMED: dict[int | str, dict[str, Any]] = {400: {"description": "A parameter is malformed or out of range."}}
_READ: dict[int | str, dict[str, Any]] = {
    **_MALFORMED,
    404: {"description": "There is no such session, or not for this caller."},
    410: {"description": "Its content was erased, or is no longer kept."},
}


def _binary(media_type: str, what: str) -> dict[int | str, dict[str, Any]]:
    schema = {"type": "string", "format": "binary"}
    return {200: {"description": what, "content": {media_type: {"schema": schema}}}}


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller that wants to read a session, with what it sent to show that it may."""

    provider: Provider
    auditors: Auditors
    capability: bytes | None
    auditor_key: str | None

    def read(self, session: str) -> SessionRow:
        """Raises UnknownSessionError: there is no such session, or not for this caller."""
        auditor = self.auditor_key is not None and self.auditors.allows(self.auditor_key)
        return self.provider.sessions.read(session, self.capability, auditor)

    def receipt(self, session: str, size: int | None) -> Receipt:
        """A receipt with the capability to read, where the caller has shown one; who comes with a key gets none, so
        that it reads no longer than its key is good for.
        """
        row = self.read(session)
        return self.provider.evidence.receipt(row, size, readers(row, self.capability))


async def caller_of(
    http: Request, provider: Served, capability: _Capability = None, authorization: _Bearer = None
) -> Caller:
    """A FastAPI dependency: the caller, whose rights are not looked at yet."""
    return Caller(provider, http.app.state.auditors, parse_capability(capability), parse_bearer(authorization))


_Caller = Annotated[Caller, Depends(caller_of)]

public = APIRouter(prefix="/v1", tags=["proofs"], responses=TOO_MANY, dependencies=[Depends(limit_public)])
private = APIRouter(
    prefix="/v1/sessions/{session}",
    tags=["proofs"],
    responses={**TOO_MANY, **_READ},
    dependencies=[Depends(limit_private)],
)


@public.get("/manifest", response_class=Response, responses=_binary(manifests.TYPE, "The signed manifest in force."))
def manifest(http: Request, provider: Served) -> Response:
    """What is served, with what settings, under which keys, and until when."""
    return content.answer(http, provider.manifests.in_force().envelope, manifests.TYPE, content.REVALIDATE)


@public.get("/keys", response_class=Response, responses=_binary(statements.MEDIA_TYPE, "The keys file."))
def keys(http: Request, provider: Served) -> Response:
    """What the provider says of its keys: which follows which, and which count no more (spec/keys.md)."""
    data = statements.KeysFile(provider.keys.statements).encode()
    return content.answer(http, data, statements.MEDIA_TYPE, content.REVALIDATE)


@public.get("/sessions", responses=_MALFORMED)
def sessions(
    provider: Served,
    limit: Annotated[int, Query(ge=1, le=limits.LISTED)] = 100,
    before: Annotated[int | None, Query(ge=1, le=limits.U63, description="`next` of the page before.")] = None,
) -> dict[str, Any]:
    """The newest sessions with their signed heads. Holds no content; needs no key."""
    rows = provider.store.sessions(limit, before)
    listed = [entry for _, row in rows if (entry := _listed(provider, row)) is not None]
    return {"sessions": listed, "next": str(rows[-1][0]) if len(rows) == limit else None}


@private.get(
    "/manifest",
    response_class=Response,
    responses=_binary(manifests.TYPE, "The signed manifest that the session was opened under."),
)
def session_manifest(http: Request, caller: _Caller, session: _ID) -> Response:
    """The manifest of a session, which may be older than the one in force."""
    row = caller.read(session)
    signed = caller.provider.store.manifest(row.manifest_digest)
    if signed is None:
        raise errors.NotFoundError("the session's manifest is missing")
    return content.answer(http, signed, manifests.TYPE, content.PRIVATE)


@private.get("/receipt", response_class=Response, responses=_binary(RECEIPT_TYPE, "The receipt."))
def receipt(http: Request, caller: _Caller, session: _ID, size: _Size = None) -> Response:
    """The receipt of the newest turn, or under an earlier head; with its log proof once that is published.

    It holds the reader's capability where one was sent, and none for an auditor key.
    """
    return content.answer(http, caller.receipt(session, size).encode(), RECEIPT_TYPE, content.PRIVATE)


@private.get("/evidence", response_class=Response, responses=_binary(EVIDENCE_TYPE, "The evidence."))
def evidence(
    http: Request,
    caller: _Caller,
    session: _ID,
    kind: Annotated[str, Query(description="`tokens` (enough for an exact audit) or `full`.")] = "tokens",
    turns: Annotated[str | None, Query(description="Turn numbers with commas between; all if left out.")] = None,
    size: _Size = None,
) -> Response:
    """What an auditor needs to decide about turns of the session."""
    row = caller.read(session)
    kinds = {"tokens": Kind.TOKENS, "full": Kind.FULL}
    if kind not in kinds:
        raise PolicyError("parameter kind", expected="tokens or full", found=kind[:32], parameter="kind")
    chosen = None if turns is None else content.numbers(turns, "turns")
    data = caller.provider.evidence.evidence(row, kinds[kind], chosen, size=size).encode()
    return content.answer(http, data, EVIDENCE_TYPE, content.PRIVATE)


@private.get("/proofs", response_class=Response, responses=_binary(EVIDENCE_TYPE, "Evidence of kind `records`."))
def proofs(
    http: Request,
    caller: _Caller,
    session: _ID,
    positions: Annotated[str, Query(description="Token positions with commas between.", examples=["46,47"])],
    turn: Annotated[int | None, Query(ge=0, le=limits.U32)] = None,
    size: _Size = None,
) -> Response:
    """The records of some positions, each with its path to the signed root."""
    row = caller.read(session)
    chosen = None if turn is None else [turn]
    wanted = content.numbers(positions, "positions")
    data = caller.provider.evidence.evidence(row, Kind.RECORDS, chosen, wanted, size=size).encode()
    return content.answer(http, data, EVIDENCE_TYPE, content.PRIVATE)


@private.get("/consistency")
def consistency(
    provider: Served,
    session: _ID,
    old: Annotated[int, Query(ge=1, le=limits.U63, description="Size of the earlier signed head.")],
    new: Annotated[int, Query(ge=1, le=limits.U63, description="Size of the later one.")],
) -> dict[str, Any]:
    """Two signed heads of the session, and the proof that the later one only adds to the earlier one.

    For everyone, also of erased sessions: the leaves are salted, so that their hashes say nothing.
    """
    identifier = from_hex(session, records.SESSION_ID_BYTES)
    if identifier is None or provider.store.head(identifier) is None:
        raise errors.NotFoundError("no such session")
    earlier, later, path = provider.evidence.consistency(identifier, old, new)
    return {"old": write_base64url(earlier), "new": write_base64url(later), "path": [value.hex() for value in path]}


@private.delete("", status_code=204, responses={409: {"description": "A turn of it is being generated."}})
def erase(provider: Served, session: _ID, capability: _Capability = None) -> Response:
    """Erase the session's content for good; needs its owner's capability. Its hashes and heads stay in the log."""
    provider.sessions.erase(session, parse_capability(capability))
    return Response(None, 204)


def _listed(provider: Provider, row: SessionRow) -> dict[str, Any] | None:
    newest = provider.store.head(row.session)
    if newest is None:
        return None
    head = heads.Head.peek(newest[1])
    return {"id": row.session.hex(), "size": head.size, "opened": row.opened, "head": write_base64url(newest[1])}
