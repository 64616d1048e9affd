"""What the page says, gathered from the provider. Nothing here is content: ids, sizes, times and digests."""

from __future__ import annotations

import datetime
from typing import Any

from engine.store import HeadRow
from engine.web.provider import Provider
from verifiable.checking.checks import check_receipt
from verifiable.errors import MalformedError, VerifiableError
from verifiable.manifest.manifest import RAW_LOGITS
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.session.records import SESSION_ID_BYTES
from verifiable.wire.text import from_hex, read_base64url

SHOWN = 20
"""Sessions listed."""
POINTS = 24
"""Places in the log at which its growth is looked at."""


def when(milliseconds: int) -> str:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def served(provider: Provider) -> dict[str, Any]:
    """The manifest in words."""
    manifest = provider.manifests.in_force().manifest
    runtime = manifest.runtime
    return {
        "provider": manifest.provider,
        "model": provider.model_name,
        "files": [(file.name, f"{file.size:,}", file.sha256.hex()) for file in manifest.model.files],
        "adapters": [(f"{file.name} × {file.scale:g}", file.sha256.hex()) for file in manifest.model.adapters],
        "architecture": manifest.model.architecture,
        "parameters": f"{manifest.model.parameters:,}",
        "context": f"{runtime.n_ctx:,}",
        "kv": runtime.type_k if runtime.type_k == runtime.type_v else f"{runtime.type_k} and {runtime.type_v}",
        "rope": str(runtime.rope),
        "device": runtime.device or ("chosen by llama.cpp" if runtime.n_gpu_layers else ""),
        "invariant": runtime.invariant,
        "fingerprint": runtime.fingerprint.hex(),
        "k": manifest.k,
        "raw": manifest.value_kind == RAW_LOGITS,
        "defaults": ", ".join(
            f"{name} {getattr(manifest.defaults, name):g}" for name in manifest.defaults.__slots__[:4]
        )
        + (f", repeat_penalty {manifest.defaults.repeat_penalty:g}" if manifest.defaults.repeat_last_n else ""),
        "suppressed": len(manifest.model.suppressed),
        "drafters": ", ".join(manifest.drafters) or "none",
        "until": when(manifest.valid_to),
        "key": provider.keys.provider.public.vkey(),
    }


def log_facts(provider: Provider) -> dict[str, Any] | None:
    """The log, its witnesses and its growth; None where another machine serves it."""
    log = provider.ledger.log
    if log is None:
        return None
    published, witnesses = log.published, log.witnesses
    return {
        "origin": log.origin,
        "key": log.key.public.vkey(),
        "size": published.size,
        "root": published.root.hex(),
        "failing": log.failure() is not None,
        "quorum": witnesses.quorum,
        "cosigned": len(published.signed.note.signatures) - len(log.signers),
        "witnesses": [
            (witness.key.name, witnesses.states[witness.key.name].size, witnesses.states[witness.key.name].trouble)
            for witness in witnesses.witnesses
        ],
        "growth": _growth(provider, published.size),
    }


def newest(provider: Provider) -> list[tuple[str, int, str, int | None]]:
    """The newest sessions that have a signed head: id, size and time of the head, and its index in the log."""
    lines = []
    for _, row in provider.store.sessions(SHOWN):
        stored = provider.store.head(row.session)
        if stored is not None:
            head = Head.peek(stored[1])
            index = provider.store.index_of(row.session, head.size)
            lines.append((row.session.hex(), head.size, when(head.time), index))
    return lines


def look_up(provider: Provider, text: str) -> dict[str, Any]:
    """What is known of a session id, or of a receipt in base64 as it came with an answer."""
    wanted = "".join(text.split())
    identifier = from_hex(wanted, SESSION_ID_BYTES)
    if identifier is not None:
        return _session(provider, identifier)
    try:
        data = read_base64url(wanted.replace("+", "-").replace("/", "_").rstrip("="), "receipt")
    except MalformedError:
        return {"problem": "This is neither a session's id (32 digits and letters a to f) nor a receipt in base64."}
    try:
        receipt = Receipt.parse(data)
        session = check_receipt(receipt, provider.keys.providers).session
    except VerifiableError as error:
        return {"problem": f"This receipt is not one of this provider's, or it was changed: {error}"}
    known = _session(provider, session.head.session, session.head.size)
    stored = provider.store.head(session.head.session, session.head.size)
    return {
        **known,
        "receipt": True,
        "turn": receipt.turn + 1,
        "same": stored is not None and stored[1] == receipt.head,
    }


def _session(provider: Provider, session: bytes, size: int | None = None) -> dict[str, Any]:
    heads = [head for head in provider.store.heads(session) if size is None or head.size == size]
    if not heads:
        return {"problem": "This provider has no signed head of such a session."}
    log = provider.ledger.log
    published = 0 if log is None else log.published.size
    rows = [
        (row.size, when(Head.peek(row.signed).time), row.index, row.index is not None and row.index < published)
        for row in heads
    ]
    return {"session": session.hex(), "heads": rows, "published": published}


def _growth(provider: Provider, size: int) -> list[tuple[str, float, float]]:
    """When the log had how many entries: a time, and the place in the drawing (0 to 100 across, 0 to 30 down)."""
    if size < 2:
        return []
    indices = sorted({round(at * (size - 1) / (POINTS - 1)) for at in range(POINTS)})
    entries = [(index, provider.store.entry(index)) for index in indices]
    seen = [(Head.peek(row.signed).time, index + 1) for index, row in entries if isinstance(row, HeadRow)]
    if not seen:
        return []
    first, last = seen[0][0], max(seen[-1][0], seen[0][0] + 1)
    return [(when(time), 100 * (time - first) / (last - first), 30 - 30 * at / size) for time, at in seen]
