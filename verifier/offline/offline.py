"""What `verifiable verify` does: check a receipt, evidence for it if there is some, and the text; without a model."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from verifiable.checking.asked import of_others, of_turns
from verifiable.checking.caveats import About, Caveat
from verifiable.checking.checks import OpenedReceipt, check_evidence_under, check_head, check_receipt, require_trust
from verifiable.checking.membership import with_log
from verifiable.checking.offline import accepted, refused
from verifiable.checking.revoked import with_keys
from verifiable.checking.verdict import Check, Status, Step, Verdict, from_error
from verifiable.errors import MalformedError, VerifiableError
from verifiable.request.exchange import NOTHING, Asked
from verifiable.request.request import Request, parse_canonical
from verifiable.session.evidence import Evidence
from verifiable.session.receipt import Receipt
from verifiable.tlog.cosignature import NOBODY, Quorum
from verifiable.wire.keys import PublicKey
from verifier.offline.question import Question, check_answers, not_opened
from verifier.offline.rebuild import Bound, check_same_history
from verifier.offline.replay import replay_records, replayable
from verifier.offline.streamed import Stream, check_stream


def verify_with_evidence(
    receipt: Receipt,
    evidence: Evidence | None,
    trust: Sequence[PublicKey],
    asked: Asked = NOTHING,
    quorum: Quorum = NOBODY,
) -> Verdict:
    """Check a receipt as `verifiable.verify` does, and that `evidence` opens its turn and tells the same history.

    Records that the evidence shows are replayed: that their tokens follow needs no model.
    """
    require_trust(trust)
    try:
        held = check_receipt(receipt, trust, *asked.texts)
        verdict = accepted(held, asked, None if evidence is None else _request(evidence, held.receipt.turn))
        verdict = with_log(verdict, held.logged, quorum)
    except VerifiableError as error:
        return refused(error)
    if evidence is not None:
        verdict = _with_evidence(verdict, held, evidence, trust, asked)
    return with_keys(verdict, held.session.signed, held.logged, quorum)


def _request(evidence: Evidence, turn: int) -> Request | None:
    """The request that evidence shows of a turn, unchecked; None where it shows none."""
    with contextlib.suppress(MalformedError):
        return next((parse_canonical(each.request) for each in evidence.turns if each.turn == turn), None)
    return None


def _with_evidence(
    verdict: Verdict, held: OpenedReceipt, evidence: Evidence, trust: Sequence[PublicKey], asked: Asked
) -> Verdict:
    checks = list(verdict.checks)
    try:
        signed = check_head(evidence.manifest, evidence.head, trust)
        Question(held.session.head.session).check_head(signed.head)
        opened = check_evidence_under(signed, evidence)
        check_answers(opened, held)
        mine, theirs = Bound.of(held.receipt.opening, held.session.head), Bound.of(evidence.opening, signed.head)
        check_same_history(mine, theirs)
        checks.append(Check(Step.EVIDENCE, True, "it opens the receipt's turn and tells the same history"))
        replayed: dict[int, int] = {}
        for turn in opened.turns:
            fault = replay_records(turn)
            if fault is not None:
                checks.append(Check(Step.REPLAY, False, fault.what))
                return fault.verdict(
                    turn.number, session=verdict.session, checks=tuple(checks), details=verdict.details
                )
            replayed[turn.number] = replayable(turn)
    except VerifiableError as error:
        found = from_error(error, session=verdict.session, details=verdict.details)
        return replace(found, checks=(*checks, found.check(Step.EVIDENCE)))
    total = sum(replayed.values())
    if total:
        checks.append(Check(Step.REPLAY, True, f"{total} tokens follow from their records and the turn's key"))
    rest = tuple(turn.number for turn in opened.turns if replayed[turn.number] < turn.count)
    known = {turn.number: turn.request for turn in opened.turns}
    notes = [note for note in verdict.notes if note.about is not About.TURNS]
    notes += [*of_turns([turn.span for turn in opened.turns], known), *not_opened(opened)]
    notes += of_others(asked, held.receipt.turn, list(known))
    if rest:
        shown = any(turn.shown for turn in opened.turns)
        notes.append(Caveat("records-not-replayed", turns=rest) if shown else Caveat("records-not-shown"))
    return replace(verdict, checks=tuple(checks), notes=tuple(notes))


def with_stream(verdict: Verdict, receipt: Receipt, trust: Sequence[PublicKey], stream: Stream) -> Verdict:
    """A receipt's verdict with what its event stream adds; one on which a check did not hold stays as it is."""
    if verdict.status is not Status.RECEIPT and verdict.code not in ("too-few-witnesses", "key-revoked"):
        return verdict
    try:
        count = check_stream(check_receipt(receipt, trust), stream)
    except VerifiableError as error:
        found = from_error(error, session=verdict.session, details=verdict.details)
        return replace(found, checks=(*verdict.checks, found.check(Step.STREAM)))
    detail = f"{len(stream.chunks)} heads that came with {count} tokens tell the receipt's history"
    notes = verdict.notes
    if stream.text is not None:
        detail += "; the text that came is the one committed to"
        notes = tuple(note for note in notes if note.id != "text-not-given" or note.turns)
    return replace(verdict, checks=(*verdict.checks, Check(Step.STREAM, True, detail)), notes=notes)


def readings(text: str) -> tuple[str, ...]:
    """How an answer in a file may be meant: as it is, or without a final newline that the answer did not have.

    Editors and shells end files with one.
    """
    return (text, text[:-1]) if text.endswith("\n") else (text,)
