"""What a step computes: which rows of which sequences go into the batch.

Decode rows come first (one for each answer, plus its draft); what is left of the batch is shared among the prompts that
are being read, in chunks, so that a long prompt never holds up running answers for more than one chunk.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.drafting.policy import Policy
from engine.scheduling.sequence import NO_DRAFT, Draft, Sequence
from engine.scheduling.slot import Slot


class Part(NamedTuple):
    """One sequence's rows in a step: `tokens` from position `start`, of which `draft` are the last. An answer wants the
    logits of all of them, a prompt those of its last token (`wanted` 1), or none while more of it is to come.
    """

    slot: Slot
    sequence: Sequence
    start: int
    tokens: list[int]
    wanted: int
    draft: Draft


class Planner:
    """`capacity` is the rows of a batch, `prefill_chunk` the prompt rows of a step while answers are running, and
    `draft_limit` the drafted tokens of one answer.
    """

    def __init__(self, policy: Policy, capacity: int, prefill_chunk: int, draft_limit: int) -> None:
        self._policy = policy
        self._capacity = capacity
        self._prefill_chunk = prefill_chunk
        self._draft_limit = draft_limit

    def schedule(self, running: list[tuple[Slot, Sequence]]) -> list[Part]:
        reading = [(slot, sequence) for slot, sequence in running if sequence.prefilling]
        answering = [(slot, sequence) for slot, sequence in running if not sequence.prefilling] if reading else running
        limit = 0 if reading else self._drafts([sequence for _, sequence in answering])
        parts, room = [], self._capacity
        for slot, sequence in answering:
            at, draft = sequence.evaluated, sequence.draft(limit)
            tokens = [sequence.ids[at], *draft.ids[: draft.verified]]
            parts.append(Part(slot, sequence, at, tokens, len(tokens), draft))
            room -= len(tokens)
        if answering:
            room = min(room, self._prefill_chunk)
        for index, (slot, sequence) in enumerate(reading):
            share = max(room // (len(reading) - index), 1) if room else 0
            at = sequence.evaluated
            tokens = sequence.ids[at : at + share]
            room -= len(tokens)
            if tokens:
                last = at + len(tokens) == len(sequence.ids)
                parts.append(Part(slot, sequence, at, tokens, 1 if last else 0, NO_DRAFT))
        parts.sort(key=lambda part: part.slot.seq)
        return parts

    def measured(self, parts: list[Part], planning: float, decoding: float) -> None:
        """A step took so many seconds. What its rows cost is learnt from steps in which no prompt was read."""
        if all(part.wanted == len(part.tokens) for part in parts):
            drafting = planning if any(part.wanted > 1 for part in parts) else 0.0
            self._policy.measured(sum(len(part.tokens) for part in parts), decoding + drafting)

    def _drafts(self, answering: list[Sequence]) -> int:
        """How many tokens each may draft in this step."""
        odds = [sequence.odds for sequence in answering if sequence.drafter is not None]
        most = min(self._draft_limit, self._capacity // max(len(answering), 1) - 1)
        return self._policy.limit(odds, most) if odds else 0
