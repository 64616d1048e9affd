"""What `verifiable verify` does: check a receipt, evidence for it if there is some, and the text; without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from verifiable.checking.checks import OpenedReceipt, check_evidence, check_receipt, require_trust
from verifiable.checking.offline import accepted, refused
from verifiable.checking.verdict import Caveat, Check, Step, Verdict, from_error
from verifiable.errors import VerifiableError, VerificationError
from verifiable.session.evidence import Evidence
from verifiable.session.receipt import Receipt
from verifiable.tlog.merkle import leaf_hash
from verifiable.wire.keys import PublicKey
from verifier.offline.rebuild import Bound, check_same_history
from verifier.offline.replay import replay_records, replayable


def verify_with_evidence(
    receipt: Receipt, evidence: Evidence | None, trust: Sequence[PublicKey], *texts: str
) -> Verdict:
    """Check a receipt as `verifiable.verify` does, and that `evidence` tells the same history.

    Records that the evidence shows are replayed: that their tokens follow needs no model. `texts` are readings of the
    answer (see `readings`), one of which must be the committed one.
    """
    require_trust(trust)
    try:
        held = check_receipt(receipt, trust, *texts)
    except VerifiableError as error:
        return refused(error)
    verdict = accepted(held)
    return verdict if evidence is None else _with_evidence(verdict, held, evidence, trust)


def _with_evidence(verdict: Verdict, held: OpenedReceipt, evidence: Evidence, trust: Sequence[PublicKey]) -> Verdict:
    checks = list(verdict.checks)
    try:
        opened = check_evidence(evidence, trust)
        if opened.session.head.session != held.session.head.session:
            raise VerificationError(
                "the evidence is of another session than the receipt",
                code="session-differs",
                expected=held.session.head.session.hex(),
                found=opened.session.head.session.hex(),
            )
        mine = Bound.of(held.receipt.opening, held.session.head)
        check_same_history(mine, Bound.of(evidence.opening, opened.session.head))
        checks.append(Check(Step.EVIDENCE, True, "it is of this session and tells the same history as the receipt"))
        replayed = 0
        for turn in opened.turns:
            hashes = [leaf_hash(evidence.opening.leaves[seq]) for seq in sorted(turn.shown)]
            if turn.shown and turn.whole and turn.end.seq < held.session.head.size:
                where = mine.first_difference(turn.first, hashes)
                if where is not None:
                    raise VerificationError(
                        "the evidence shows other records than the receipt's head was made over",
                        code="two-histories",
                        expected=f"leaves {where[0]} to {where[1] - 1} as in the receipt",
                        found="others",
                    )
            fault = replay_records(turn)
            if fault is not None:
                checks.append(Check(Step.REPLAY, False, fault.what))
                return fault.verdict(
                    turn.number, session=verdict.session, checks=tuple(checks), details=verdict.details
                )
            replayed += replayable(turn)
    except VerifiableError as error:
        checks.append(Check(Step.EVIDENCE, False, error.what))
        return from_error(error, session=verdict.session, checks=tuple(checks), details=verdict.details)
    if replayed:
        checks.append(Check(Step.REPLAY, True, f"{replayed} tokens follow from their records and the turn's key"))
        return replace(verdict, checks=tuple(checks))
    note = Caveat("That the tokens follow from the model: an audit does")
    return replace(verdict, checks=tuple(checks), notes=(*verdict.notes, note))


def readings(text: str) -> tuple[str, ...]:
    """How an answer in a file may be meant: as it is, or without a final newline that the answer did not have.

    Editors and shells end files with one.
    """
    return (text, text[:-1]) if text.endswith("\n") else (text,)
