"""What an audit covered and what it did not: facts for reports, and the sentences that keep a verdict honest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verifiable.checking.checks import OpenedSession, OpenedTurn
from verifiable.session.receipt import Receipt
from verifiable.session.records import Finish, NonceSource
from verifier.auditing.turn import TurnResult

NO_LOG_PROOF = "That the session stands in the provider's public log: the receipt carries no proof of it"


def not_shown(
    session: OpenedSession, turns: Sequence[OpenedTurn], results: Sequence[TurnResult], receipt: Receipt | None
) -> tuple[str, ...]:
    """What a reader might take for shown and is not, one sentence each."""
    notes = []
    opened = {turn.span.turn.turn for turn in turns}
    closed = [span.turn.turn for span in session.spans if span.turn.turn not in opened]
    if closed:
        notes.append(f"{_turns(closed)} of this session: the evidence does not open {_them(closed)}")
    reached = {result.turn for result in results if result.checked or result.fault is not None}
    rest = [turn for turn in turns if turn.span.turn.turn in opened - reached]
    empty = [turn.span.turn.turn for turn in rest if not turn.span.end.completion_count]
    open_only = [turn.span.turn.turn for turn in rest if turn.span.end.completion_count]
    if empty:
        notes.append(f"{_turns(empty)}: no token was generated, so there was nothing to recompute")
    if open_only:
        notes.append(f"{_turns(open_only)}: opened, but not recomputed")
    shopped = [turn.span.turn.turn for turn in turns if turn.span.turn.nonce_source is NonceSource.PROVIDER]
    if shopped:
        notes.append(f"{_turns(shopped)}: the client sent no nonce, so the draws could have been shopped for")
    cut = [turn.span.turn.turn for turn in turns if turn.span.end.finish in (Finish.CANCELLED, Finish.ERROR)]
    if cut:
        notes.append(f"{_turns(cut)}: ended as cancelled or by an error; why is the provider's word")
    if not session.closed:
        notes.append("Turns that may follow: the session is still open")
    if receipt is None:
        notes.append("That a client was given this same log: no receipt was compared")
    elif receipt.log is None:
        notes.append(NO_LOG_PROOF)
    return tuple(notes)


def describe(
    session: OpenedSession | None, turns: Sequence[OpenedTurn], results: Sequence[TurnResult]
) -> dict[str, Any]:
    """Facts about the session and its turns as JSON values; none of them is there before it was verified."""
    if session is None:
        return {}
    manifest = session.manifest
    found = {result.turn: result for result in results}
    return {
        "provider": manifest.provider,
        "manifest": manifest.digest().hex(),
        "manifest_valid": [manifest.valid_from, manifest.valid_to],
        "model": {
            "file": manifest.model.files[0].name,
            "sha256": manifest.model.files[0].sha256.hex(),
            "adapters": [[file.name, file.sha256.hex(), file.scale] for file in manifest.model.adapters],
            "architecture": manifest.model.architecture,
            "parameters": manifest.model.parameters,
        },
        "runtime": {
            "build": manifest.runtime.build,
            "kv": f"{manifest.runtime.type_k}/{manifest.runtime.type_v}",
            "gpu_layers": manifest.runtime.n_gpu_layers,
            "device": manifest.runtime.device,
            "rope": manifest.runtime.rope.stated(),
            "fingerprint": manifest.runtime.fingerprint.hex(),
        },
        "head": {"size": session.head.size, "root": session.head.root.hex(), "time": session.head.time},
        "opened": session.opened.time,
        "session_turns": len(session.spans),
        "turns": [_turn(turn, found.get(turn.span.turn.turn)) for turn in turns],
    }


def _turn(turn: OpenedTurn, result: TurnResult | None) -> dict[str, Any]:
    leaf, end = turn.span.turn, turn.span.end
    facts: dict[str, Any] = {
        "turn": leaf.turn,
        "prompt_tokens": leaf.prompt_count,
        "tokens": end.completion_count,
        "checked": 0 if result is None else result.checked,
        "finish": end.finish.name.lower(),
        "nonce": leaf.nonce_source.name.lower(),
        "temperature": leaf.params.temperature,
        "drafted": end.drafted,
        "accepted": end.accepted,
        "strip": "" if result is None else result.strip,
    }
    if result is not None and result.differences:
        facts["differences"] = [round(value, 6) for value in result.differences]
    return facts


def _turns(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"Turn{'s' if len(numbers) > 1 else ''} {shown}"


def _them(numbers: Sequence[int]) -> str:
    return "them" if len(numbers) > 1 else "it"
