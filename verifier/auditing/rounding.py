"""Where this machine's bits are not the provider's: comparison within rounding, in place of steps 24 to 26.

A session is compared, and has a verdict, by itself (`compare`). Over all the sessions of a provider the decision is
made again (`decide_sessions`), since it is about the provider. See docs/tolerant.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from verifiable.checking.caveats import About
from verifiable.checking.checks import OpenedEvidence, OpenedTurn
from verifiable.checking.revoked import with_keys
from verifiable.checking.verdict import Step, Verdict
from verifiable.request.exchange import Asked
from verifiable.sampling.processors import needs_vocabulary
from verifiable.session.challenge import window_lot
from verifiable.session.receipt import Receipt
from verifier.auditing import scope
from verifier.auditing.diagnose import Show
from verifier.auditing.journal import CheckFailed, Journal
from verifier.auditing.marks import COMPARED, UNCHECKED
from verifier.auditing.scope import audited
from verifier.auditing.turn import TurnResult
from verifier.model.reexecute import Reexecutor
from verifier.offline.fault import Fault
from verifier.offline.replay import replay
from verifier.tolerant.calibration import Calibration
from verifier.tolerant.eprocess import ALPHA
from verifier.tolerant.statistics import Distances
from verifier.tolerant.tolerant import Comparison, Decision, Ruling, decide, measure_turns

TOLERABLE = frozenset({"fingerprint-differs", "fingerprint-unexplained", "not-invariant"})
"""Reason codes of the numerics after which a calibration leads on."""
RULED = frozenset({None, "key-revoked", "too-little-evidence", "distribution-differs", "draws-differ"})
"""Reason codes that a decision gives. A verdict with another one was proven otherwise, and is not decided again."""


def compare(
    journal: Journal,
    opened: OpenedEvidence,
    prompts: Mapping[int, Sequence[int]],
    worker: Reexecutor,
    calibration: Calibration,
    fault: Fault,
    show: Show | None,
    seed: bytes,
    receipt: Receipt | None,
    asked: Asked,
) -> Verdict:
    """The verdict on a session by itself: how far its records are from what is computed here.

    Args:
        fault: why the bits can't be compared.
        show: gets the records of turns whose tokens alone were given.
        seed: draws which tokens are compared.
    """
    session = opened.session
    with journal.step(Step.ROUNDING) as passed:
        calibration.check_fits(worker.identity(), session.manifest, worker.probe(session.manifest.runtime).build)
        turns = [_shown(turn, show) for turn in opened.turns if turn.count]
        if not turns or any(len(turn.shown) < turn.count for turn in turns):
            raise CheckFailed(replace(fault, hint="A comparison within rounding needs evidence of kind full."))
        masks = {turn.number: _masks(turn, worker) for turn in turns}
        for turn in turns:
            _replay(turn, masks[turn.number])
        lot = window_lot(seed, session.head.session)
        most = calibration.lengths()[-1]
        distances, parts = measure_turns(turns, prompts, masks, worker, session.manifest, most, lot)
        passed(f"{len(distances)} tokens from token {distances.start} on, compared with this machine's own rounding")
    results = _results(turns, parts, distances)
    decision = decide(calibration, [distances])
    ruling = decision.ruling(0, opened.count)
    covered = scope.covered(opened, results, receipt, asked, fault, Comparison(distances, seed, decision))
    return Verdict(
        ruling.status,
        ruling.summary,
        code=ruling.code,
        expected=ruling.expected,
        found=ruling.found,
        checks=tuple(journal.checks),
        tokens_checked=ruling.tokens_checked,
        **{**covered, "notes": (*covered["notes"], *ruling.notes)},
    )


def _shown(turn: OpenedTurn, show: Show | None) -> OpenedTurn:
    """The turn with all its records, if they can be had."""
    return turn if show is None or len(turn.shown) == turn.count else show(turn.number)


def _masks(turn: OpenedTurn, worker: Reexecutor) -> list[bytes]:
    """What the model's vocabulary says of the records' ids, where the turn's draws depend on it."""
    params = turn.leaf.params
    if not needs_vocabulary(params):
        return []
    ids = [record.entries.ids for record in turn.records]
    return worker.masks([record.token for record in turn.records], ids, params, turn.request.constraint)


def _replay(turn: OpenedTurn, masks: Sequence[bytes]) -> None:
    """Step 25 from the committed records: every draw of the turn, whatever was replayed before."""
    records = turn.records
    tokens = [record.token for record in records]
    departed = replay(turn.leaf, [record.entries for record in records], tokens, masks, turn.suppressed)
    if departed is not None:
        raise CheckFailed(departed.fault(), TurnResult.unreached(turn, departed.fault()))


def _results(turns: Sequence[OpenedTurn], parts: Sequence[range], distances: Distances) -> list[TurnResult]:
    """What came of each turn, of whose tokens a part was compared."""
    claims = iter(map(float, distances.claim))
    results = []
    for turn, part in zip(turns, parts, strict=True):
        apart = (*[0.0] * part.start, *itertools.islice(claims, len(part)))
        strip = (UNCHECKED * part.start + COMPARED * len(part)).ljust(turn.count, UNCHECKED)
        results.append(TurnResult(turn.number, strip=strip, differences=apart))
    return results


def decide_sessions(
    calibration: Calibration, verdicts: Sequence[Verdict], alpha: float = ALPHA
) -> tuple[list[Verdict], Decision | None]:
    """Decide over all the sessions of an audit that were compared, and put the decision into their verdicts.

    A session is one conversation, however many verdicts there are on it: its first one counts. None where no session
    was compared.
    """
    decided = list(verdicts)
    compared = [(at, each.comparison) for at, each in enumerate(map(audited, verdicts)) if each.comparison is not None]
    if not compared:
        return decided, None
    counted: dict[str | int, tuple[int, Comparison]] = {}
    for at, comparison in compared:
        counted.setdefault(_conversation(verdicts[at], at), (len(counted), comparison))
    decision = decide(calibration, [comparison.distances for _, comparison in counted.values()], alpha)
    for at, comparison in compared:
        if decided[at].code in RULED:
            number, _ = counted[_conversation(verdicts[at], at)]
            ruling = decision.ruling(number, decided[at].tokens_total)
            decided[at] = _ruled(decided[at], ruling, replace(comparison, decision=decision))
    return decided, decision


def _conversation(verdict: Verdict, at: int) -> str | int:
    """What tells the session of the verdict at that place from others."""
    return at if verdict.session is None else verdict.session


def _ruled(verdict: Verdict, ruling: Ruling, comparison: Comparison) -> Verdict:
    """A compared session's verdict under a decision over all of them."""
    ruled = replace(
        verdict,
        status=ruling.status,
        code=ruling.code,
        summary=ruling.summary,
        expected=ruling.expected,
        found=ruling.found,
        notes=(*(note for note in verdict.notes if note.about is not About.ROUNDING), *ruling.notes),
        tokens_checked=ruling.tokens_checked,
        details=replace(audited(verdict), comparison=comparison),
    )
    session = audited(verdict).session
    return ruled if session is None else with_keys(ruled, session.signed)
