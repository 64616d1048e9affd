"""The checks of one opened turn that need the model, in the order of spec/protocol.md."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from verifiable.checking.checks import OpenedSession, OpenedTurn
from verifiable.errors import PolicyError
from verifiable.session import records
from verifiable.session.delivery import deliver
from verifiable.session.records import Finish
from verifier.auditing.diagnose import Mismatch, Show, diagnose
from verifier.auditing.marks import DIFFERS, NOT_SAMPLED, SAME, SUSPECT, UNCHECKED
from verifier.model.reexecute import Reexecutor, score_turn
from verifier.offline.fault import Fault
from verifier.offline.rebuild import Bound, Claim, leaf_hashes
from verifier.offline.replay import replay


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What came out of one turn. `strip` has a mark a token (see `marks`), `differences` a number a token where the
    records are known.
    """

    turn: int
    checked: int = 0
    strip: str = ""
    fault: Fault | None = None
    differences: tuple[float, ...] = ()

    @classmethod
    def unreached(cls, turn: OpenedTurn, fault: Fault) -> TurnResult:
        """The result of a turn in which a fault was found before anything was recomputed."""
        return cls(turn.number, 0, UNCHECKED * turn.count, fault)


def check_words(
    turn: OpenedTurn, worker: Reexecutor, ends: frozenset[int], opened: int
) -> tuple[list[int], Fault | None]:
    """Steps 21 and 22: the prompt, and where all tokens are known, text and ending. They need the tokenizer alone.

    `ends` are the model's end-of-generation ids, `opened` the session's time. Returns the prompt's ids, and what does
    not hold.
    """
    prompt, fault = _check_prompt(turn, worker, opened)
    if fault is None and turn.whole:
        claim = Claim.of(turn)
        fault = _check_text(turn, claim, worker.pieces(claim.ids), ends)
    return prompt, fault


def recompute(
    session: OpenedSession,
    turn: OpenedTurn,
    prompt: Sequence[int],
    bounds: Sequence[Bound],
    worker: Reexecutor,
    show: Show | None,
) -> TurnResult:
    """Steps 24 and 25 of a turn whose tokens are all known: recompute its records, compare them, replay its draws.

    Args:
        bounds: the signed roots that the recomputed leaves are held against: the evidence's own, then others of the
            same session, such as a receipt's.
        worker: has the model loaded under the manifest's settings.
        show: asks the provider for all records, once, after a difference was found.
    """
    leaf, count = turn.leaf, turn.count
    if not count:
        return TurnResult(turn.number)
    claim = Claim.of(turn)
    k = min(session.manifest.k, session.manifest.model.vocabulary)
    entries, masks = score_turn(worker, turn, prompt, claim.ids, k)
    hashes = leaf_hashes(turn, claim, entries)
    where = bounds[0].first_difference(turn.first, hashes)
    if where is not None:
        mismatch = Mismatch(session, turn, claim, tuple(prompt), tuple(entries), bounds[0], where)
        fault, differences = diagnose(mismatch, worker, show)
        return TurnResult(turn.number, 0, _strip(mismatch, differences), fault, differences)
    for bound in bounds[1:]:
        if bound.size < turn.first + count:
            continue  # it was signed before this turn
        where = bound.first_difference(turn.first, hashes)
        if where is not None:
            fault = Fault(
                "two-histories",
                "the provider signed two histories of one session: this turn's records differ between them",
                where[0] - turn.first,
                leaf.prompt_count + where[0] - turn.first,
                expected=f"one history in the heads of sizes {bound.size} and {bounds[0].size}",
                found=f"other records at leaves {where[0]} to {where[1] - 1}",
                hint="Keep both files: together they prove it to anyone who has the model.",
            )
            return TurnResult(turn.number, 0, SAME * count, fault)
    departed = replay(leaf, entries, claim.ids, masks, turn.suppressed)
    if departed is not None:
        departing = frozenset(departed.indices)
        marks = "".join(NOT_SAMPLED if index in departing else SAME for index in range(count))
        return TurnResult(turn.number, 0, marks, departed.fault())
    return TurnResult(turn.number, count, SAME * count)


def _check_prompt(turn: OpenedTurn, worker: Reexecutor, opened: int) -> tuple[list[int], Fault | None]:
    """Step 21."""
    leaf = turn.leaf
    try:
        prompt = worker.prompt_ids(turn.request, opened)
    except PolicyError as error:
        return [], Fault(
            "prompt-differs",
            f"the model refuses this request, so no honest provider answered it: {error.what}",
            expected="a refusal",
            found=f"an answer to {leaf.prompt_count} prompt tokens",
        )
    digest = records.ids_digest(prompt)
    if (len(prompt), digest) == (leaf.prompt_count, leaf.prompt_digest):
        return prompt, None
    return prompt, Fault(
        "prompt-differs",
        "the model was not given the prompt that the request means",
        position=0,
        expected=f"{len(prompt)} tokens, sha256 {digest.hex()}",
        found=f"{leaf.prompt_count} tokens, sha256 {leaf.prompt_digest.hex()}",
        hint="The request's messages, put through the model's own chat template, give other token ids.",
        guess="A system prompt was added or replaced, or the conversation was cut.",
    )


def _check_text(turn: OpenedTurn, claim: Claim, pieces: Sequence[bytes], ends: frozenset[int]) -> Fault | None:
    """Step 22: the delivered text and the finish reason must follow from the token ids."""
    end, first = turn.end, turn.leaf.prompt_count
    last = len(claim.ids) - 1
    text, stopped_at = deliver(pieces, turn.request.stops)
    early = next((index for index, token in enumerate(claim.ids[:-1]) if token in ends), None)
    if early is None and stopped_at is not None and stopped_at < last:
        early = stopped_at
    if early is not None:
        return Fault(
            "finish-differs",
            "the answer goes on after its end",
            early,
            first + early,
            expected=f"nothing after token {early}",
            found=f"{last - early} more tokens",
        )
    digest = hashlib.sha256(text.encode()).digest()
    if digest != end.text_digest:
        return Fault(
            "text-differs",
            "the text that was committed is not the text of the tokens",
            expected=f"sha256 {digest.hex()} ({len(text)} characters)",
            found=f"sha256 {end.text_digest.hex()}",
            hint="The text was changed after the tokens were made.",
        )
    natural = last >= 0 and (claim.ids[last] in ends or stopped_at == last)
    if natural != (end.finish is Finish.STOP):
        return Fault(
            "finish-differs",
            "the finish reason does not follow from the tokens",
            max(last, 0),
            first + max(last, 0),
            expected="stop" if natural else "another reason than stop",
            found=end.finish.name.lower(),
        )
    return None


def _strip(mismatch: Mismatch, differences: Sequence[float]) -> str:
    if differences:
        return "".join(DIFFERS if value > 0.0 else SAME for value in differences)
    low, high = (leaf - mismatch.turn.first for leaf in mismatch.where)
    return SAME * low + SUSPECT * (high - low) + UNCHECKED * (mismatch.turn.count - high)
