"""What `verifiable verify` does: check a receipt, evidence for it if there is some, and the text; without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from verifiable.checking.checks import check_evidence, check_receipt
from verifiable.checking.offline import verify
from verifiable.checking.verdict import Check, Status, Verdict
from verifiable.errors import VerifiableError, VerificationError
from verifiable.session.evidence import Evidence
from verifiable.session.receipt import Receipt
from verifiable.tlog.merkle import leaf_hash
from verifiable.wire.keys import PublicKey
from verifier.offline.fault import Fault
from verifier.offline.rebuild import Bound, check_same_history
from verifier.offline.replay import replay_records, replayable


def verify_with_evidence(
    receipt: Receipt, evidence: Evidence | None, trust: Sequence[PublicKey], text: str | None = None
) -> Verdict:
    """Check a receipt as `verifiable.verify` does, and that `evidence` tells the same history.

    Records that the evidence shows are replayed: that their tokens follow needs no model.
    """
    verdict = verify(receipt, trust=trust, text=text)
    if evidence is None or verdict.status is not Status.RECEIPT:
        return verdict
    checks = list(verdict.checks)
    try:
        held = check_receipt(receipt, trust)
        session, turns = check_evidence(evidence, trust)
        if session.head.session != held.head.session:
            raise VerificationError(
                "the evidence is of another session than the receipt",
                code="session-differs",
                expected=held.head.session.hex(),
                found=session.head.session.hex(),
            )
        mine = Bound.of(receipt.opening, held.head.size, held.head.root)
        theirs = Bound.of(evidence.opening, session.head.size, session.head.root)
        check_same_history(mine, theirs)
        checks.append(Check("Evidence", True, "it is of this session and tells the same history as the receipt"))
        shown = 0
        for turn in turns:
            hashes = [leaf_hash(evidence.opening.leaves[seq]) for seq in sorted(turn.shown)]
            if turn.shown and turn.whole and turn.span.end.seq < held.head.size:
                where = mine.first_difference(turn.span.first, hashes)
                if where is not None:
                    raise VerificationError(
                        "the evidence shows other records than the receipt's head was made over",
                        code="two-histories",
                        expected=f"leaves {where[0]} to {where[1] - 1} as in the receipt",
                        found="others",
                    )
            fault = replay_records(turn)
            if fault is not None:
                checks.append(Check("Sampler replay", False, fault.what))
                number = turn.span.turn.turn
                return fault.verdict(number, session=verdict.session, checks=tuple(checks), details=verdict.details)
            shown += replayable(turn)
    except VerifiableError as error:
        checks.append(Check("Evidence", False, error.what))
        return Fault.of(error).verdict(session=verdict.session, checks=tuple(checks), details=verdict.details)
    if shown:
        checks.append(Check("Sampler replay", True, f"{shown} tokens follow from their records and the turn's key"))
    notes = verdict.not_shown if shown else (*verdict.not_shown, "That the tokens follow from the model: an audit does")
    return replace(verdict, checks=tuple(checks), not_shown=notes)


def as_committed(receipt: Receipt, trust: Sequence[PublicKey], text: str) -> str:
    """`text` from a file, without a final newline where only that keeps it from being the committed text.

    Editors and shells end files with a newline that the answer may not have had.
    """
    if text.endswith("\n") and verify(receipt, trust=trust, text=text).code == "text-differs":
        shorter = text[:-1]
        return shorter if verify(receipt, trust=trust, text=shorter).code is None else text
    return text
