"""The provider-wide log over HTTP: static files for who follows it (/log), proofs for who asks (/v1/log); public."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from engine.log.log import ProviderLog
from engine.store import FSCK, HeadRow
from engine.web import content
from engine.web.errors import NotFoundError
from engine.web.limits import TOO_MANY, limit_private, limit_public
from engine.web.provider import Kept, LogKeeper
from verifiable import limits
from verifiable.errors import MalformedError, PolicyError, StoreError
from verifiable.session import records
from verifiable.tlog.cose_receipt import Proof, mint_proof
from verifiable.tlog.entry import HEAD
from verifiable.tlog.merkle import HASH_SIZE, leaf_hash
from verifiable.tlog.proof import TlogProof
from verifiable.tlog.tiles import ENTRIES, HEIGHT, WIDTH, Tile, encode_bundle
from verifiable.wire.text import from_hex, write_base64url

NOTE_TYPE = "text/plain; charset=utf-8"
TILE_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
PROOF_TYPE = "text/x.tlog.proof"
COSE_TYPE = "application/cose"
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"description": "There is no such thing (yet)."}}
_FORMS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The proof, in the form that `Accept` asks for.",
        "content": {
            JSON_TYPE: {"example": {"origin": "provider/log", "index": 1270, "size": 1284, "root": "…", "path": ["…"]}},
            PROOF_TYPE: {"schema": {"type": "string"}},
            COSE_TYPE: {"schema": {"type": "string", "format": "binary"}},
        },
    },
    400: {"description": "A parameter is missing, malformed or out of range."},
    404: {"description": "No such entry is published."},
    406: {"description": "None of the forms is acceptable."},
}
_Index = Annotated[int | None, Query(ge=0, le=limits.U63, description="Index of the entry in the log.")]
_Size = Annotated[
    int | None, Query(ge=0, le=limits.U63, description="Size of a published checkpoint; the newest if left out.")
]


routes = APIRouter(dependencies=[Depends(limit_public)], tags=["log"], responses=TOO_MANY)


async def log_of(http: Request) -> ProviderLog:
    """A FastAPI dependency: the log, where this machine serves it. Raises NotFoundError."""
    provider: LogKeeper = http.app.state.provider
    if provider.ledger.log is None:
        raise NotFoundError("this machine does not serve the log", hint="Another one of the provider's does.")
    return provider.ledger.log


Log = Annotated[ProviderLog, Depends(log_of)]


@routes.get("/log/checkpoint", responses=_NOT_FOUND, response_class=Response)
def checkpoint(http: Request, log: Log) -> Response:
    """The newest published checkpoint: a C2SP signed note with the log's signature and its witnesses'."""
    return content.answer(http, log.published.note, NOTE_TYPE, content.REVALIDATE)


@routes.get("/log/tile/{path:path}", responses=_NOT_FOUND, response_class=Response)
def tile(http: Request, provider: Kept, log: Log, path: str) -> Response:
    """Hash tiles (`0/x001/234`, `0/000.p/17`) and entry bundles (`entries/000`) of C2SP tlog-tiles."""
    try:
        wanted = Tile.parse(f"tile/{path}")
    except MalformedError as error:
        raise NotFoundError("no such tile") from error
    return content.answer(http, _tile(provider, wanted, log.published.size), TILE_TYPE, content.FOREVER)


@routes.get("/v1/log", responses=_NOT_FOUND)
def status(log: Log) -> dict[str, Any]:
    """What the log is, how far it goes, and who watches it."""
    published, failure = log.published, log.failure()
    return {
        "origin": log.origin,
        "key": log.key.public.vkey(),
        "keys": [key.vkey() for key in log.signers],
        "size": published.size,
        "root": published.root.hex(),
        "checkpoint": published.note.decode(),
        "integrated": log.size(),
        "quorum": log.witnesses.quorum,
        "witnesses": [
            {"key": witness.key.vkey(), "size": log.witnesses.states[witness.key.name].size}
            for witness in log.witnesses.witnesses
        ],
        "failing": failure is not None,
    }


@routes.get("/v1/log/proof", responses=_FORMS, response_class=Response)
async def proof(
    http: Request,
    index: _Index = None,
    session: Annotated[str | None, Query(max_length=32, description="With `head`: whose head it is.")] = None,
    head: Annotated[int | None, Query(ge=1, le=limits.U63, description="Size of the session's signed head.")] = None,
    size: _Size = None,
) -> Response:
    """That an entry is in the log: as JSON, as a `.tlog-proof` file, or as a COSE receipt (RFC 9942)."""
    form = content.choose(http, (JSON_TYPE, PROOF_TYPE, COSE_TYPE))
    log = await log_of(http)  # a call, not a dependency: this route is asked the most
    at = index
    if session is not None or head is not None or index is None:
        at = await run_in_threadpool(_index, http.app.state.provider, index, session, head)
    at_size, root, note = log.signed(None) if size is None else await run_in_threadpool(log.signed, size)
    if at is None or at >= at_size:
        raise NotFoundError("no such entry in the log", expected=f"an index below {at_size}")
    # Mostly in memory; what is not may wait for the disk, and nobody else shall wait for that.
    path = log.tree.quick_inclusion_proof(at, at_size)
    if path is None:
        path = await run_in_threadpool(log.tree.inclusion_proof, at, at_size)
    if form == PROOF_TYPE:
        data = TlogProof(at, tuple(path), note).format()
    elif form == COSE_TYPE:
        data = mint_proof(Proof(at_size, at, tuple(path)), root, log.key)
    else:
        return JSONResponse(
            {
                "origin": log.origin,
                "index": at,
                "size": at_size,
                "root": root.hex(),
                "leaf_hash": (await run_in_threadpool(log.tree.node, 0, at)).hex(),
                "path": [value.hex() for value in path],
                "checkpoint": note.decode(),
            },
            headers={"Vary": "Accept"},
        )
    response = content.answer(http, data, form, content.REVALIDATE)
    response.headers["Vary"] = "Accept"
    return response


@routes.get("/v1/log/entries", responses={**_NOT_FOUND, 400: _FORMS[400]}, dependencies=[Depends(limit_private)])
def entries(
    provider: Kept,
    log: Log,
    indices: Annotated[str, Query(description="Indices, ascending, with commas between.", examples=["0,17,4711"])],
    size: _Size = None,
) -> dict[str, Any]:
    """Some entries, and the hashes that tie all of them to the root of a published checkpoint: one multiproof."""
    at_size, root, note = log.signed(size)
    wanted = content.numbers(indices, "indices")
    if any(one >= other for one, other in pairwise(wanted)):
        raise PolicyError("parameter indices", expected="ascending numbers", found=indices[:80], parameter="indices")
    if wanted[-1] >= at_size:
        raise NotFoundError("no such entry in the log", expected=f"an index below {at_size}")
    found = [entry for index in wanted for entry in provider.store.entries(index, 1)]
    if len(found) < len(wanted):
        raise StoreError("an entry of the log is missing from the store", hint=FSCK)
    return {
        "origin": log.origin,
        "size": at_size,
        "root": root.hex(),
        "entries": [write_base64url(entry) for entry in found],
        "path": [value.hex() for value in log.tree.multiproof(wanted, at_size)],
        "checkpoint": note.decode(),
    }


@routes.get("/v1/log/entries/{index}", responses={**_NOT_FOUND, 400: _FORMS[400]})
def entry(provider: Kept, log: Log, index: int) -> dict[str, Any]:
    """One entry, as it was stored when its leaf hash was taken: a session's signed head, or another statement."""
    row = provider.store.entry(index) if 0 <= index < log.published.size else None
    if row is None:
        raise NotFoundError("no such entry in the log")
    said = {"index": index, "leaf_hash": leaf_hash(row.signed).hex(), "entry": write_base64url(row.signed)}
    if isinstance(row, HeadRow):
        return {"kind": HEAD, "session": row.session.hex(), "head": row.size, **said}
    return {"kind": row.kind, **said}


@routes.get("/v1/log/consistency", responses={**_NOT_FOUND, 400: _FORMS[400]})
def consistency(
    log: Log,
    old: Annotated[int, Query(ge=0, le=limits.U63, description="A size that you have seen.")],
    new: _Size = None,
) -> dict[str, Any]:
    """That the log of size `new` extends the log of size `old`."""
    size, root, note = log.signed(new)
    if old > size:
        raise PolicyError("parameter old", expected=f"at most {size}", found=old, parameter="old")
    path = [value.hex() for value in log.tree.consistency_proof(old, size)]
    return {
        "origin": log.origin,
        "old": old,
        "new": size,
        "root": root.hex(),
        "path": path,
        "checkpoint": note.decode(),
    }


def _tile(provider: LogKeeper, wanted: Tile, size: int) -> bytes:
    """The bytes of a tile of the published tree. Raises NotFoundError past its edge."""
    there = (size >> (HEIGHT * max(wanted.level, 0))) - wanted.index * WIDTH
    if there < wanted.width:
        raise NotFoundError("no such tile", hint="The checkpoint says how far the log goes.")
    if wanted.level == ENTRIES:
        entries = provider.store.entries(wanted.index * WIDTH, wanted.width)
        return encode_bundle(entries) if len(entries) == wanted.width else b""
    data = provider.store.tile(wanted.level, wanted.index) or b""
    return data[: wanted.width * HASH_SIZE]


def _index(provider: LogKeeper, index: int | None, session: str | None, head: int | None) -> int | None:
    if index is not None or session is None or head is None:
        raise PolicyError("which entry", expected="index, or session and head", parameter="index")
    identifier = from_hex(session, records.SESSION_ID_BYTES)
    return None if identifier is None else provider.store.index_of(identifier, head)
