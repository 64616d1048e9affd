"""The audit of one session's evidence: the checks of spec/protocol.md §10, cheapest first, to one verdict.

`audit` is a function of its arguments: evidence, model and keys in, verdict out. What the evidence says never raises:
whatever is wrong with it, or with running the model over it, is in the verdict. Its stages are functions of values,
which end the audit by raising `CheckFailed`; their docstrings name the steps that they make.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from os import PathLike

from verifiable.checking.asked import check_asked, turn_meant
from verifiable.checking.checks import (
    OpenedEvidence,
    OpenedReceipt,
    OpenedSession,
    OpenedTurn,
    check_evidence,
    check_evidence_under,
    check_head,
    check_receipt,
    check_text,
    require_trust,
)
from verifiable.checking.revoked import with_keys
from verifiable.checking.verdict import Status, Step, Verdict
from verifiable.errors import MalformedError, PolicyError, VerifiableError, VerificationError
from verifiable.llama.gguf.lora import Adapter
from verifiable.manifest.manifest import Manifest
from verifiable.request.exchange import NOTHING, Asked
from verifiable.session.challenge import SEED_BYTES
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.wire.cose import select
from verifiable.wire.keys import PublicKey
from verifier.auditing import rounding, scope
from verifier.auditing.diagnose import Show
from verifier.auditing.journal import CheckFailed, Journal
from verifier.auditing.machine import compare_models, compare_numerics
from verifier.auditing.scope import AuditDetails
from verifier.auditing.turn import TurnResult, check_words, recompute
from verifier.model.reexecute import Progress, Reexecutor
from verifier.model.worker import Worker
from verifier.offline.fault import Fault
from verifier.offline.question import Question, check_answers, check_whole
from verifier.offline.rebuild import Bound, check_same_history
from verifier.offline.replay import replay_records, replayable
from verifier.tolerant.calibration import Calibration

FetchFull = Callable[[int], OpenedEvidence | bytes]
"""Gets the evidence of kind `full` of a turn from the provider; raises a VerifiableError where it can't."""


def audit(
    evidence: OpenedEvidence | Evidence | bytes,
    model: str | PathLike[str] | Reexecutor,
    trust: Sequence[PublicKey],
    *,
    receipt: OpenedReceipt | Receipt | None = None,
    text: str | None = None,
    asked: Asked = NOTHING,
    fetch_full: FetchFull | None = None,
    calibration: Calibration | None = None,
    seed: bytes | None = None,
    progress: Progress | None = None,
    threads: int = 1,
    adapters: Sequence[Adapter] = (),
) -> Verdict:
    """Re-execute a session's opened turns and compare every bit with what the provider committed to.

    Args:
        evidence: what the provider, or the holder of a receipt, handed over; or what `check_evidence` made of it.
        model: the GGUF file, or a `Worker` that has it (to audit many sessions with one load), or another Reexecutor.
        trust: the provider keys that may have signed the manifest, never taken from the evidence; or a `Chain` of them,
            where there is a keys file.
        receipt: the client's receipt, or what `check_receipt` made of it: the evidence must open its turn, and its head
            tell the same history.
        text: the answer as the client has it, where `asked` does not say.
        asked: the client's own copy of the receipt's turn or, without a receipt, of the last turn opened that it fits.
        fetch_full: asks for all records after a difference was found, so that the verdict can name the first.
        calibration: for the tolerant comparison, where the bits of this machine are not the provider's.
        seed: of the challenge, from which that comparison draws which tokens it compares; drawn here where None.
        progress, threads, adapters: for the worker, when `model` is a path.

    Raises:
        PolicyError: no key to trust.
        ModuleNotFoundError: the extra `llama` is not installed.
    """
    require_trust(trust)
    seed = os.urandom(SEED_BYTES) if seed is None else seed
    asked = asked.with_text(text)
    client = receipt.receipt if isinstance(receipt, OpenedReceipt) else receipt
    journal = Journal()
    with ExitStack() as stack:
        if isinstance(model, (str, PathLike)):
            model = stack.enter_context(Worker(model, threads=threads, progress=progress, adapters=adapters))
        try:
            opened = _open(journal, evidence, client, trust)
        except CheckFailed as failed:
            return failed.fault.verdict(checks=tuple(journal.checks), details=AuditDetails(fault=failed.fault))
        try:
            bounds = _bind(journal, opened, receipt, trust)
            _compare_copies(journal, opened, client, asked)
            _replay_shown(journal, opened.turns)
            _compare_model(journal, opened.session, model)
            prompts = _check_words(journal, opened, model)
            show = None if fetch_full is None else _show(fetch_full, opened.session, bounds[0], trust)
            fault = _compare_numerics(journal, opened.session.manifest, model, calibration is not None)
            if fault is not None and calibration is not None:
                with journal.step(Step.ROUNDING):
                    check_whole(opened)
                found = rounding.compare(journal, opened, prompts, model, calibration, fault, show, seed, client, asked)
                return with_keys(found, opened.session.signed)
            results = _recompute(journal, opened, prompts, bounds, model, show)
        except CheckFailed as failed:
            return failed.fault.verdict(
                next((result.turn for result in failed.results if result.fault is not None), None),
                checks=tuple(journal.checks),
                tokens_checked=_checked(failed.results),
                **scope.covered(opened, failed.results, client, asked, failed.fault),
            )
    checked = _checked(results)
    exact = Verdict(
        Status.EXACT,
        f"{checked} of {opened.count} tokens recomputed: every committed logit has the same bits here, and every "
        "token is the one that its record and the nonce give",
        checks=tuple(journal.checks),
        tokens_checked=checked,
        **scope.covered(opened, results, client, asked),
    )
    return with_keys(exact, opened.session.signed)


def _open(
    journal: Journal, evidence: OpenedEvidence | Evidence | bytes, receipt: Receipt | None, trust: Sequence[PublicKey]
) -> OpenedEvidence:
    """Steps 1 to 17. Of another session than the receipt's, nothing but the head is looked at."""
    if isinstance(evidence, bytes):
        with journal.step(Step.FILE):
            evidence = Evidence.parse(evidence)
    with journal.step(Step.SIGNATURES) as passed:
        opened = evidence if isinstance(evidence, OpenedEvidence) else _check(evidence, receipt, trust)
        select(opened.session.signed.key.kid, trust)
        passed(
            f"signed by {opened.session.signed.by}; {opened.session.head.size} leaves give the signed root; "
            "parameters and nonces follow from the requests committed to"
        )
    return opened


def _check(evidence: Evidence, receipt: Receipt | None, trust: Sequence[PublicKey]) -> OpenedEvidence:
    signed = check_head(evidence.manifest, evidence.head, trust)
    if receipt is not None:
        with suppress(MalformedError):  # a receipt that has no head is refused with all of its checks
            held = Head.peek(receipt.head)
            Question(held.session).check_head(signed.head)
    return check_evidence_under(signed, evidence)


def _bind(
    journal: Journal, opened: OpenedEvidence, receipt: OpenedReceipt | Receipt | None, trust: Sequence[PublicKey]
) -> tuple[Bound, ...]:
    """Step 18. The roots that leaves are held against: the evidence's own, and the receipt's."""
    mine = Bound.of(opened.evidence.opening, opened.session.head)
    if receipt is None:
        return (mine,)
    with journal.step(Step.RECEIPT) as passed:
        held = check_receipt(receipt, trust) if isinstance(receipt, Receipt) else receipt
        select(held.session.signed.key.kid, trust)
        check_answers(opened, held)
        theirs = Bound.of(held.receipt.opening, held.session.head)
        check_same_history(mine, theirs)
        passed(f"the client's receipt ({theirs.size} leaves) tells the same history")
    return mine, theirs


def _compare_copies(journal: Journal, opened: OpenedEvidence, receipt: Receipt | None, asked: Asked) -> None:
    """Step 10, for evidence: what the client has of the receipt's turn, or of the turn opened that it fits."""
    number = turn_meant(opened.turns, asked) if receipt is None else receipt.turn
    if asked.texts:
        with journal.step(Step.TEXT_RECEIVED) as passed:
            check_text(opened.session, number, *asked.texts)
            passed(f"the text you have is the text that was committed in turn {number}")
    if replace(asked, texts=()) != NOTHING:
        with journal.step(Step.REQUEST) as passed:
            turn = opened.turn(number)
            signed = None if receipt is None else Head.peek(receipt.head).time
            compared = check_asked(opened.session, number, asked, None if turn is None else turn.request, signed)
            passed(compared or f"your times say nothing of turn {number}")


def _replay_shown(journal: Journal, turns: Sequence[OpenedTurn]) -> None:
    """Step 19: the draws of the records that the evidence shows."""
    shown = sum(map(replayable, turns))
    if not shown:
        return
    with journal.step(Step.REPLAY_SHOWN) as passed:
        for turn in turns:
            fault = replay_records(turn)
            if fault is not None:
                raise CheckFailed(fault, TurnResult.unreached(turn, fault))
        passed(f"{shown} tokens follow from their records and the turn's key")


def _compare_model(journal: Journal, session: OpenedSession, worker: Reexecutor) -> None:
    """Step 20."""
    with journal.step(Step.MODEL) as passed:
        try:
            mine = worker.identity()
        except MalformedError as error:  # the auditor's own file, which says nothing about anybody else
            raise PolicyError("your model file is unusable", expected=error.expected, found=error.what) from error
        fault = compare_models(session.manifest.model, mine)
        if fault is not None:
            raise CheckFailed(fault)
        added = "".join(f", with {file.name} × {file.scale:g}" for file in mine.adapters)
        passed(f"{mine.files[0].name}{added} has the committed hash, tokenizer and template")


def _check_words(journal: Journal, opened: OpenedEvidence, worker: Reexecutor) -> dict[int, list[int]]:
    """Steps 21 and 22: they need the tokenizer alone, so they fail also where numerics differ.

    Returns the ids of each opened turn's prompt.
    """
    prompts = {}
    with journal.step(Step.PROMPT) as passed:
        ends = worker.ends()
        for turn in opened.turns:
            prompts[turn.number], fault = check_words(turn, worker, ends, opened.session.opened.time)
            if fault is not None:
                raise CheckFailed(fault, TurnResult.unreached(turn, fault))
        if opened.turns:
            passed("the model was given the committed requests, and the text is that of the tokens")
    return prompts


def _compare_numerics(journal: Journal, manifest: Manifest, worker: Reexecutor, tolerant: bool) -> Fault | None:
    """Step 23. With `tolerant`, a difference that a calibration can bridge is returned and does not end the audit."""
    with journal.step(Step.NUMERICS) as passed:
        fault = compare_numerics(manifest, worker)
        if fault is None:
            fingerprint = manifest.runtime.fingerprint.hex()
            passed(f"this machine's fingerprint {fingerprint[:16]}… is the provider's: exact audit")
        elif not tolerant or fault.code not in rounding.TOLERABLE:
            raise CheckFailed(fault)
        else:
            journal.note(Step.NUMERICS, fault)
    return fault


def _show(fetch_full: FetchFull, session: OpenedSession, bound: Bound, trust: Sequence[PublicKey]) -> Show:
    """Gets a turn with all its records, held against what is audited."""

    def show(number: int) -> OpenedTurn:
        handed = fetch_full(number)
        full = handed if isinstance(handed, OpenedEvidence) else check_evidence(Evidence.parse(handed), trust)
        select(full.session.signed.key.kid, trust)
        turn = full.turn(number)
        if full.evidence.kind is not Kind.FULL or turn is None or full.session.head.session != session.head.session:
            raise VerificationError("the provider sent other evidence than was asked for", code="no-evidence")
        check_same_history(bound, Bound.of(full.evidence.opening, full.session.head))
        return turn

    return show


def _recompute(
    journal: Journal,
    opened: OpenedEvidence,
    prompts: Mapping[int, Sequence[int]],
    bounds: Sequence[Bound],
    worker: Reexecutor,
    show: Show | None,
) -> tuple[TurnResult, ...]:
    """Steps 24 to 26."""
    results: list[TurnResult] = []
    with journal.step(Step.RECOMPUTED) as passed:
        try:
            worker.load(opened.session.manifest.runtime)
            for turn in opened.turns:
                if turn.whole:
                    results.append(recompute(opened.session, turn, prompts[turn.number], bounds, worker, show))
                    if results[-1].fault is not None:
                        raise CheckFailed(results[-1].fault, *results)
            check_whole(opened)
        except VerifiableError as error:
            raise CheckFailed(Fault.of(error), *results) from error
        tokens = _checked(results)
        if not opened.count and len(opened.turns) == len(opened.session.spans):
            none = Fault(
                "no-tokens",
                "the session has no token, so there is nothing to check",
                expected="a turn with at least one token",
                found="turns without any" if opened.turns else "no turn",
                hint="A client that leaves at once makes such sessions, and so does one that only opened it.",
            )
            raise CheckFailed(none, *results)
        if not tokens:
            nothing = Fault(
                "nothing-checked",
                "no token was recomputed",
                expected="a turn with at least one token",
                found="no tokens",
                hint="Ask for evidence of turns that have tokens.",
            )
            raise CheckFailed(nothing, *results)
        turns = sum(result.checked > 0 for result in results)
        passed(
            f"{tokens} tokens of {turns} turn{'s' if turns != 1 else ''}: every committed logit has the same bits here"
        )
    with journal.step(Step.REPLAY) as passed:
        passed(f"{tokens} tokens follow from their records and the nonce")
    return tuple(results)


def _checked(results: Sequence[TurnResult]) -> int:
    return sum(result.checked for result in results)
