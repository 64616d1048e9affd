"""The routes that prove: manifests and session heads for everyone, receipts and evidence for their readers."""

from __future__ import annotations

import base64
import hmac
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from engine.api import errors
from engine.api.completions import capability_of
from engine.engine import Engine
from engine.store import SessionRow
from verifiable import head as heads
from verifiable import manifest as manifests
from verifiable.cose import peek1
from verifiable.errors import PolicyError
from verifiable.evidence import Evidence, Kind

RECEIPT_TYPE = "application/vnd.verifiable.receipt+cbor"
EVIDENCE_TYPE = "application/vnd.verifiable.evidence+cbor"
MAX_LISTED = 1000
MAX_POSITIONS = 4096


def router(engine: Engine) -> APIRouter:
    routes = APIRouter(prefix="/v1")
    auditor_key = engine.keys.auditor_key.encode()

    def readable(http: Request, session: str) -> SessionRow:
        token = http.headers.get("authorization", "").removeprefix("Bearer ")
        auditor = hmac.compare_digest(token.encode("utf-8", "replace"), auditor_key)
        return engine.sessions.read(session, capability_of(http), auditor)

    @routes.get("/manifest")
    def manifest() -> Response:
        return Response(engine.signed_manifest, media_type=manifests.TYPE)

    @routes.get("/sessions")
    def sessions(
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 100,
        before: Annotated[int | None, Query(ge=1)] = None,
    ) -> dict[str, Any]:
        """The newest sessions with their signed heads. Holds no content; needs no key."""
        rows = engine.store.sessions(limit, before)
        listed = [entry for _, row in rows if (entry := _listed(engine, row)) is not None]
        return {"sessions": listed, "next": str(rows[-1][0]) if len(rows) == limit else None}

    @routes.get("/sessions/{session}/manifest")
    def session_manifest(http: Request, session: str) -> Response:
        row = readable(http, session)
        signed = engine.store.manifest(row.manifest_digest)
        if signed is None:
            raise errors.NotFoundError("the session's manifest is missing")
        return Response(signed, media_type=manifests.TYPE)

    @routes.get("/sessions/{session}/receipt")
    def receipt(http: Request, session: str, size: Annotated[int | None, Query(ge=1)] = None) -> Response:
        row = readable(http, session)
        return _private(engine.evidence.receipt(row, size).encode(), RECEIPT_TYPE)

    @routes.get("/sessions/{session}/evidence")
    def evidence(
        http: Request,
        session: str,
        kind: str = "tokens",
        turns: str | None = None,
        size: Annotated[int | None, Query(ge=1)] = None,
    ) -> Response:
        row = readable(http, session)
        kinds = {"tokens": Kind.TOKENS, "full": Kind.FULL}
        if kind not in kinds:
            raise PolicyError("parameter kind", expected="tokens or full", found=kind[:32], parameter="kind")
        chosen = None if turns is None else _numbers(turns, "turns")
        return _evidence(engine.evidence.evidence(row, kinds[kind], chosen, size=size))

    @routes.get("/sessions/{session}/proofs")
    def proofs(
        http: Request,
        session: str,
        positions: str,
        turn: Annotated[int | None, Query(ge=0)] = None,
        size: Annotated[int | None, Query(ge=1)] = None,
    ) -> Response:
        """The records of some positions, each with its path to the signed root."""
        row = readable(http, session)
        chosen = None if turn is None else [turn]
        wanted = _numbers(positions, "positions")
        return _evidence(engine.evidence.evidence(row, Kind.RECORDS, chosen, wanted, size=size))

    return routes


def _listed(engine: Engine, row: SessionRow) -> dict[str, Any] | None:
    newest = engine.store.head(row.session)
    if newest is None:
        return None
    head = heads.Head.parse(peek1(newest[1]).payload)
    return {
        "id": row.session.hex(),
        "size": head.size,
        "opened": row.opened,
        "head": base64.urlsafe_b64encode(newest[1]).rstrip(b"=").decode(),
    }


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


def _evidence(evidence: Evidence) -> Response:
    return _private(evidence.encode(), EVIDENCE_TYPE)


def _private(data: bytes, media_type: str) -> Response:
    return Response(data, media_type=media_type, headers={"Cache-Control": "no-store"})
