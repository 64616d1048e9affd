"""After a difference was found: what differs first, by how much, and whether a known deviation explains it exactly.

A deviation counts as proven only when re-execution under it gives the committed records bit for bit. Everything else
that is said about causes is marked as a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from verifiable.checking.checks import OpenedSession, OpenedTurn
from verifiable.errors import VerifiableError, VerificationError
from verifiable.manifest.manifest import Runtime
from verifiable.sampling.logits import Entries
from verifiable.tlog.merkle import Tree
from verifier.model.reexecute import Reexecutor, score_turn
from verifier.offline.fault import Fault
from verifier.offline.rebuild import Bound, Claim, leaf_hashes

Show = Callable[[int], OpenedTurn]
"""Gets all records of a turn from the provider, checked and bound to the head that is audited; raises a
VerifiableError where that can't be had."""

KV_TYPES = ("q8_0", "q4_0", "f16", "bf16")
"""Types of KV cache that are tried, where the manifest names another."""
_SCHEDULED = ("f16",)
"""Types whose logits depend on how the batch was cut: only the schedule of plain generation can be tried."""
MOST = 1000.0
"""What a difference is called when two records share no id, or more."""
NEAR = 1.0
"""Mean difference below which a guess says "nearly the same model" (KV q8_0 for bf16: 0.4; Q8_0 for Q4_1: 0.6)."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A turn whose recomputed leaves contradict the signed root somewhere in the leaves [where[0], where[1])."""

    session: OpenedSession
    turn: OpenedTurn
    claim: Claim
    prompt: tuple[int, ...]
    entries: tuple[Entries, ...]
    bound: Bound
    where: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DifferingLeaves:
    """The leaves [low, high) among which one differs."""

    low: int
    high: int

    def to_json(self) -> dict[str, Any]:
        return {"leaves": [self.low, self.high]}


@dataclass(frozen=True, slots=True)
class DifferingEntry:
    """The first entry that differs: its rank, what was committed and what was recomputed there, each (id, logit); and
    how many of a turn's records differ.
    """

    rank: int
    differing: int
    of: int
    committed: tuple[int, float]
    recomputed: tuple[int, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "differing": self.differing,
            "of": self.of,
            "committed": dict(zip(("id", "logit"), self.committed, strict=True)),
            "recomputed": dict(zip(("id", "logit"), self.recomputed, strict=True)),
        }


def diagnose(mismatch: Mismatch, worker: Reexecutor, show: Show | None) -> tuple[Fault, tuple[float, ...]]:
    """The fault, as precise as can be had, and the difference of each record where the records are known."""
    shown, note = mismatch.turn, None
    if not shown.shown and show is not None:
        try:
            shown = show(mismatch.turn.number)
        except VerifiableError as error:
            if isinstance(error, VerificationError) and Fault.of(error).proven:
                return Fault.of(error), ()
            note = f"The provider did not show the records: {error}"
    if shown.shown:
        committed = [token.entries for token in shown.records]
        fault, differences = _logits_differ(mismatch, shown, committed)
    else:
        committed, differences = [], ()
        fault = _records_differ(mismatch, note)
    kv_type = find_kv_type(mismatch, committed, worker)
    return fault if kv_type is None else _kv_differs(mismatch, fault, kv_type), differences


def _records_differ(mismatch: Mismatch, note: str | None) -> Fault:
    first = mismatch.turn.first
    low, high = mismatch.where[0] - first, mismatch.where[1] - first
    start = mismatch.turn.leaf.prompt_count
    several = f"tokens {low} to {high - 1} (positions {start + low} to {start + high - 1})"
    return Fault(
        "records-differ",
        f"the committed records of {several if high - low > 1 else f'token {low}'} are not what the model computes",
        low,
        start + low,
        expected=f"the hash of leaves {mismatch.where[0]} to {mismatch.where[1] - 1} as recomputed here",
        found="another hash under the signed root",
        hint=note or "Evidence of kind full shows the first record that differs.",
        details=DifferingLeaves(*mismatch.where),
    )


def _logits_differ(mismatch: Mismatch, shown: OpenedTurn, committed: list[Entries]) -> tuple[Fault, tuple[float, ...]]:
    start = shown.leaf.prompt_count
    differences = tuple(difference(a, b) for a, b in zip(committed, mismatch.entries, strict=True))
    wrong = [index for index, value in enumerate(differences) if value > 0.0]
    if not wrong:  # the leaves differ, so something must: say what is known rather than nothing
        return _records_differ(mismatch, None), differences
    index = wrong[0]
    rank = first_rank(committed[index], mismatch.entries[index])
    theirs, here = _at(committed[index], rank), _at(mismatch.entries[index], rank)
    later = len(differences) - index - 1
    others = len(wrong) - 1
    spread = "every later token" if others == later else f"{others} of the {later} later tokens"
    fault = Fault(
        "logits-differ",
        "a committed record is not what the model computes here" + (f"; {spread} differs too" if later else ""),
        index,
        start + index,
        expected="id {}, logit {:.9g}".format(*here),
        found="id {}, logit {:.9g}".format(*theirs),
        guess=_guess(index, float(np.mean([differences[at] for at in wrong]))),
        details=DifferingEntry(rank, len(wrong), len(differences), theirs, here),
    )
    return fault, differences


def difference(one: Entries, other: Entries) -> float:
    """How far two records are apart: the largest difference of a logit that both have; 0 only where all bits agree."""
    if one.id_bytes() == other.id_bytes() and one.logit_bytes() == other.logit_bytes():
        return 0.0
    shared, left, right = np.intersect1d(one.ids, other.ids, assume_unique=True, return_indices=True)
    if not len(shared):
        return MOST
    apart = np.abs(one.logits[left].astype(np.float64) - other.logits[right].astype(np.float64)).max()
    return min(max(float(apart), 1e-9), MOST)  # the same logits in other company still differ


def first_rank(one: Entries, other: Entries) -> int:
    """The first rank at which two records have another id or another logit, bit for bit."""
    same = (one.ids == other.ids) & (one.logits.view(np.uint32) == other.logits.view(np.uint32))
    return int(np.argmin(same))


def _at(entries: Entries, rank: int) -> tuple[int, float]:
    return int(entries.ids[rank]), float(entries.logits[rank])


def _guess(index: int, mean: float) -> str:
    if index > 0:
        return "The model, its context or its numbers were changed in the middle of the answer."
    if mean < NEAR:
        return f"Another quantisation of nearly the same model, or of its cache (mean difference {mean:.2g})."
    return f"Another quantisation or model, or a prompt that was not committed (mean difference {mean:.2g})."


def find_kv_type(mismatch: Mismatch, committed: list[Entries], worker: Reexecutor) -> str | None:
    """The type of KV cache with which the committed records come out bit for bit, if one of those tried does it."""
    runtime = mismatch.session.manifest.runtime
    for kv_type in KV_TYPES:
        if (runtime.type_k, runtime.type_v) == (kv_type, kv_type):
            continue
        try:
            if _reproduces(mismatch, committed, worker, runtime, kv_type):
                return kv_type
        except VerifiableError:
            continue  # the model does not take this type; the finding stands without it
    return None


def _reproduces(
    mismatch: Mismatch, committed: list[Entries], worker: Reexecutor, runtime: Runtime, kv_type: str
) -> bool:
    turn, claim, k = mismatch.turn, mismatch.claim, len(mismatch.entries[0].ids)
    worker.load(runtime, kv_type)

    def recompute(count: int) -> list[Entries]:
        scheduled = kv_type in _SCHEDULED
        entries, _ = score_turn(worker, turn, mismatch.prompt, claim.ids[:count], k, as_generated=scheduled)
        return entries

    first = turn.first
    if committed:  # the first record alone tells most guesses apart
        if difference(recompute(1)[0], committed[0]) > 0.0:
            return False
    else:
        low, high = mismatch.where
        hashes = leaf_hashes(turn, claim, recompute(high - first))
        value = next(value for a, b, value in mismatch.bound.subtrees if (a, b) == (low, high))
        if Tree.from_leaves(hashes[low - first : high - first]).root() != value:
            return False
    hashes = leaf_hashes(turn, claim, recompute(turn.count))
    return mismatch.bound.first_difference(first, hashes) is None


def _kv_differs(mismatch: Mismatch, fault: Fault, kv_type: str) -> Fault:
    runtime = mismatch.session.manifest.runtime
    return Fault(
        "kv-cache-differs",
        f"the model ran with a KV cache of type {kv_type}, not with the one that the manifest states",
        fault.token,
        fault.position,
        expected=f"KV cache {runtime.type_k}/{runtime.type_v}",
        found=f"KV cache {kv_type}: every committed record of the turn comes out bit for bit",
        hint="Proven, not guessed: with that cache the turn's records and the signed root follow exactly.",
        details=fault.details,
    )
