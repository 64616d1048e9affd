"""What an audit covered and what it did not: facts for reports, and the sentences that keep a verdict honest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verifiable.checking import membership
from verifiable.checking.asked import caveats, of_others, of_turns, turn_meant
from verifiable.checking.caveats import Caveat
from verifiable.checking.checks import OpenedEvidence, OpenedSession
from verifiable.checking.offline import session_json
from verifiable.checking.verdict import Verdict
from verifiable.manifest.manifest import Manifest
from verifiable.request.exchange import Asked
from verifiable.request.request import Request
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.session.structure import TurnSpan
from verifier.auditing.marks import COMPARED
from verifier.auditing.turn import TurnResult
from verifier.offline.fault import Fault
from verifier.offline.question import not_opened
from verifier.tolerant.tolerant import Comparison


@dataclass(frozen=True, slots=True)
class TurnDetails:
    """A turn that the evidence opens, and what came of it."""

    span: TurnSpan
    result: TurnResult
    request: Request

    @property
    def number(self) -> int:
        return self.span.number

    @property
    def prompt_tokens(self) -> int:
        return self.span.turn.prompt_count

    @property
    def strip(self) -> str:
        """A mark a token (see `marks`)."""
        return self.result.strip

    @property
    def differences(self) -> tuple[float, ...]:
        """A number a token, where records differ or were compared within rounding."""
        return self.result.differences

    def to_json(self) -> dict[str, Any]:
        leaf, end = self.span.turn, self.span.end
        facts: dict[str, Any] = {
            "turn": leaf.turn,
            "request": leaf.request_digest.hex(),
            "prompt_tokens": leaf.prompt_count,
            "tokens": end.completion_count,
            "checked": self.result.checked,
            "finish": end.finish.name.lower(),
            "nonce": leaf.nonce_source.name.lower(),
            "temperature": leaf.params.temperature,
            "drafted": end.drafted,
            "accepted": end.accepted,
            "strip": self.strip,
        }
        if self.differences:
            facts["differences"] = [round(value, 6) for value in self.differences]
        return facts


@dataclass(frozen=True, slots=True)
class AuditDetails:
    """What stands behind an audit's verdict: the session and the turns that the evidence opened, what was found or kept
    the bits from being compared, what a comparison within rounding measured, and the SHA-256 of the evidence's bytes.
    """

    session: OpenedSession | None = None
    turns: tuple[TurnDetails, ...] = ()
    fault: Fault | None = None
    comparison: Comparison | None = None
    evidence_digest: bytes | None = None

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        if self.session is not None:
            facts |= {**session_json(self.session), **_model_json(self.session.manifest)}
            facts["turns"] = [turn.to_json() for turn in self.turns]
        if self.fault is not None:
            facts["fault"] = {} if self.fault.details is None else self.fault.details.to_json()
        if self.comparison is not None:
            facts["tolerant"] = self.comparison.to_json()
        if self.evidence_digest is not None:
            facts["evidence_sha256"] = self.evidence_digest.hex()
        return facts


def audited(verdict: Verdict) -> AuditDetails:
    """What stands behind a verdict, as far as an audit got; nothing is there before it was verified."""
    return verdict.details if isinstance(verdict.details, AuditDetails) else AuditDetails()


def covered(
    opened: OpenedEvidence,
    results: Sequence[TurnResult],
    receipt: Receipt | None,
    asked: Asked,
    fault: Fault | None = None,
    comparison: Comparison | None = None,
) -> dict[str, Any]:
    """What was audited, as the fields of a `Verdict` that say it."""
    by_turn = {result.turn: result for result in results}
    turns = tuple(
        TurnDetails(turn.span, by_turn.get(turn.number, TurnResult(turn.number)), turn.request) for turn in opened.turns
    )
    return {
        "session": opened.session.head.session.hex(),
        "notes": notes(opened, results, receipt, asked),
        "tokens_total": opened.count,
        "details": AuditDetails(opened.session, turns, fault, comparison),
    }


def notes(
    opened: OpenedEvidence, results: Sequence[TurnResult], receipt: Receipt | None, asked: Asked
) -> tuple[Caveat, ...]:
    """What a reader might take for shown and is not."""
    session, turns = opened.session, opened.turns
    reached = {each.turn for each in results if each.checked or each.fault is not None or COMPARED in each.strip}
    rest = [turn for turn in turns if turn.number not in reached]
    unchecked = {
        "no-tokens": [turn for turn in rest if not turn.count],
        "turns-not-recomputed": [turn for turn in rest if turn.count],
    }
    mine = turn_meant(turns, asked) if receipt is None else receipt.turn
    signed = session.head.time if receipt is None else Head.peek(receipt.head).time
    made = [*caveats(asked, mine, signed), *not_opened(opened)]
    made += of_others(asked, mine, [turn.number for turn in turns])
    made += [Caveat(of, turns=tuple(turn.number for turn in some)) for of, some in unchecked.items() if some]
    made += of_turns([turn.span for turn in turns], {turn.number: turn.request for turn in turns})
    if not session.closed:
        made.append(Caveat("session-open"))
    if receipt is None:
        made += [Caveat("receipt-not-given"), membership.NO_RECEIPT]
    else:
        made.append(membership.caveat(receipt.log is not None))
    return tuple(made)


def _model_json(manifest: Manifest) -> dict[str, Any]:
    return {
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
    }
