"""The routes that prove: manifests and session heads for everyone, receipts and evidence for their readers.

A session is read with its capability (header `X-Verifiable-Capability`, in the receipt) or with an auditor key as
bearer token. An unknown session and a forbidden one answer alike.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from engine.api.completions import capability_of
from engine.keys.auditors import Auditors
from engine.store import SessionRow
from engine.web import errors, serving
from engine.web.limits import RateLimit
from engine.web.provider import Provider
from verifiable.errors import PolicyError
from verifiable.manifest import manifest as manifests
from verifiable.session import head as heads
from verifiable.session.evidence import Kind
from verifiable.wire.spelling import write_base64url

RECEIPT_TYPE = "application/vnd.verifiable.receipt+cbor"
EVIDENCE_TYPE = "application/vnd.verifiable.evidence+cbor"
MAX_LISTED = 1000
MAX_POSITIONS = 4096
_MAX = 2**63 - 1

_ID = Annotated[str, Path(description="The session's id, 32 hexadecimal digits.", examples=["7c40" * 8])]
_Size = Annotated[
    int | None, Query(ge=1, le=_MAX, description="Size of one of its signed heads; the newest if left out.")
]
_Capability = Annotated[
    str | None, Header(alias="X-Verifiable-Capability", description="Hexadecimal, from the session's receipt.")
]
_Bearer = Annotated[str | None, Header(alias="Authorization", description="`Bearer` and an auditor key.")]

_PUBLIC: dict[int | str, dict[str, Any]] = {
    400: {"description": "A parameter is malformed or out of range."},
    429: {"description": "Too many requests from this address."},
}
_READ: dict[int | str, dict[str, Any]] = {
    **_PUBLIC,
    404: {"description": "There is no such session, or not for this caller."},
    410: {"description": "Its content was erased, or is no longer kept."},
}


def _binary(media_type: str, what: str) -> dict[int | str, dict[str, Any]]:
    schema = {"type": "string", "format": "binary"}
    return {200: {"description": what, "content": {media_type: {"schema": schema}}}}


def router(provider: Provider, public: RateLimit, private: RateLimit) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["proofs"])
    auditors = Auditors(provider.keys.auditors_file)

    def readable(http: Request, session: str) -> SessionRow:
        token = http.headers.get("authorization", "")
        auditor = token.startswith("Bearer ") and auditors.allows(token.removeprefix("Bearer "))
        return provider.sessions.read(session, capability_of(http), auditor)

    @routes.get(
        "/manifest",
        dependencies=[Depends(public)],
        response_class=Response,
        responses={**_binary(manifests.TYPE, "The signed manifest in force."), 429: _PUBLIC[429]},
    )
    def manifest(http: Request) -> Response:
        """What is served, with what settings, under which keys, and until when."""
        return serving.answer(http, provider.signed_manifest, manifests.TYPE, serving.REVALIDATE)

    @routes.get("/sessions", dependencies=[Depends(public)], responses=_PUBLIC)
    def sessions(
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 100,
        before: Annotated[int | None, Query(ge=1, le=_MAX, description="`next` of the page before.")] = None,
    ) -> dict[str, Any]:
        """The newest sessions with their signed heads. Holds no content; needs no key."""
        rows = provider.store.sessions(limit, before)
        listed = [entry for _, row in rows if (entry := _listed(provider, row)) is not None]
        return {"sessions": listed, "next": str(rows[-1][0]) if len(rows) == limit else None}

    @routes.get(
        "/sessions/{session}/manifest",
        dependencies=[Depends(private)],
        response_class=Response,
        responses={**_READ, **_binary(manifests.TYPE, "The signed manifest that the session was opened under.")},
    )
    def session_manifest(
        http: Request, session: _ID, capability: _Capability = None, authorization: _Bearer = None
    ) -> Response:
        """The manifest of a session, which may be older than the one in force."""
        row = readable(http, session)
        signed = provider.store.manifest(row.manifest_digest)
        if signed is None:
            raise errors.NotFoundError("the session's manifest is missing")
        return serving.answer(http, signed, manifests.TYPE, serving.PRIVATE)

    @routes.get(
        "/sessions/{session}/receipt",
        dependencies=[Depends(private)],
        response_class=Response,
        responses={**_READ, **_binary(RECEIPT_TYPE, "The receipt.")},
    )
    def receipt(
        http: Request,
        session: _ID,
        size: _Size = None,
        capability: _Capability = None,
        authorization: _Bearer = None,
    ) -> Response:
        """The receipt of the newest turn, or under an earlier head; with its log proof once that is published."""
        row = readable(http, session)
        return serving.answer(http, provider.evidence.receipt(row, size).encode(), RECEIPT_TYPE, serving.PRIVATE)

    @routes.get(
        "/sessions/{session}/evidence",
        dependencies=[Depends(private)],
        response_class=Response,
        responses={**_READ, **_binary(EVIDENCE_TYPE, "The evidence.")},
    )
    def evidence(
        http: Request,
        session: _ID,
        kind: Annotated[str, Query(description="`tokens` (enough for an exact audit) or `full`.")] = "tokens",
        turns: Annotated[str | None, Query(description="Turn numbers with commas between; all if left out.")] = None,
        size: _Size = None,
        capability: _Capability = None,
        authorization: _Bearer = None,
    ) -> Response:
        """What an auditor needs to decide about turns of the session."""
        row = readable(http, session)
        kinds = {"tokens": Kind.TOKENS, "full": Kind.FULL}
        if kind not in kinds:
            raise PolicyError("parameter kind", expected="tokens or full", found=kind[:32], parameter="kind")
        chosen = None if turns is None else _numbers(turns, "turns")
        data = provider.evidence.evidence(row, kinds[kind], chosen, size=size).encode()
        return serving.answer(http, data, EVIDENCE_TYPE, serving.PRIVATE)

    @routes.get(
        "/sessions/{session}/proofs",
        dependencies=[Depends(private)],
        response_class=Response,
        responses={**_READ, **_binary(EVIDENCE_TYPE, "Evidence of kind `records`.")},
    )
    def proofs(
        http: Request,
        session: _ID,
        positions: Annotated[str, Query(description="Token positions with commas between.", examples=["46,47"])],
        turn: Annotated[int | None, Query(ge=0, le=2**31)] = None,
        size: _Size = None,
        capability: _Capability = None,
        authorization: _Bearer = None,
    ) -> Response:
        """The records of some positions, each with its path to the signed root."""
        row = readable(http, session)
        chosen = None if turn is None else [turn]
        wanted = _numbers(positions, "positions")
        data = provider.evidence.evidence(row, Kind.RECORDS, chosen, wanted, size=size).encode()
        return serving.answer(http, data, EVIDENCE_TYPE, serving.PRIVATE)

    @routes.get("/sessions/{session}/consistency", dependencies=[Depends(private)], responses=_READ)
    def consistency(
        http: Request,
        session: _ID,
        old: Annotated[int, Query(ge=1, le=_MAX, description="Size of the earlier signed head.")],
        new: Annotated[int, Query(ge=1, le=_MAX, description="Size of the later one.")],
        capability: _Capability = None,
        authorization: _Bearer = None,
    ) -> dict[str, Any]:
        """Two signed heads of the session, and the proof that the later one only adds to the earlier one."""
        earlier, later, path = provider.evidence.consistency(readable(http, session), old, new)
        return {"old": write_base64url(earlier), "new": write_base64url(later), "path": [value.hex() for value in path]}

    @routes.delete(
        "/sessions/{session}",
        dependencies=[Depends(private)],
        status_code=204,
        responses={**_READ, 409: {"description": "A turn of it is being generated."}},
    )
    def erase(http: Request, session: _ID, capability: _Capability = None) -> Response:
        """Erase the session's content for good; needs its capability. Its hashes and heads stay in the log."""
        provider.sessions.erase(session, capability_of(http))
        return Response(None, 204)

    return routes


def _listed(provider: Provider, row: SessionRow) -> dict[str, Any] | None:
    newest = provider.store.head(row.session)
    if newest is None:
        return None
    head = heads.Head.peek(newest[1])
    return {"id": row.session.hex(), "size": head.size, "opened": row.opened, "head": write_base64url(newest[1])}


def _numbers(text: str, name: str) -> list[int]:
    parts = text.split(",")
    if len(parts) > MAX_POSITIONS or not all(part.isascii() and part.isdigit() and len(part) <= 10 for part in parts):
        raise PolicyError(
            f"parameter {name}",
            expected=f"at most {MAX_POSITIONS} whole numbers with commas between",
            found=text[:80],
            parameter=name,
        )
    return [int(part) for part in parts]
