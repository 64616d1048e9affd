"""Sampler replay: does each token follow from its own record, the committed parameters and the turn's key?

Needs no model. It is what catches a token changed after sampling, another temperature than was committed to, and text
that was forged by a cheap model and then scored by the real one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from verifiable import limits
from verifiable.checking.checks import OpenedTurn
from verifiable.sampling.logits import Entries, Ranked
from verifiable.sampling.processors import needs_vocabulary, visible
from verifiable.sampling.sampler import SLACK, SamplingParams, acceptable, gumbel, survivors
from verifiable.sampling.seen import ranked
from verifiable.session.records import Turn
from verifier.offline.fault import Fault


@dataclass(frozen=True, slots=True)
class Departure:
    """Token `index` of the turn is `found`, where the record gives one of `expected`."""

    index: int
    position: int
    expected: tuple[int, ...]
    found: int


@dataclass(frozen=True, slots=True)
class Temperatures:
    """Every token of the turn follows at each temperature between `low` and `high`; `shown` was replayed to confirm."""

    low: float
    high: float
    shown: float

    def __str__(self) -> str:
        return f"{self.low:.6g} to {self.high:.6g}" if self.low < self.high else f"{self.shown:.6g}"


def departures(
    entries: Sequence[Ranked], tokens: Sequence[int], params: SamplingParams, key: bytes, first: int
) -> list[Departure]:
    """The tokens that do not follow. `entries[i]` is the record of `tokens[i]`, at position `first + i`."""
    departing = []
    for index, (row, token) in enumerate(zip(entries, tokens, strict=True)):
        allowed = acceptable(row, params, key, first + index) if len(row.ids) else frozenset[int]()
        if token not in allowed:
            departing.append(Departure(index, first + index, tuple(sorted(allowed)), token))
    return departing


def explain_temperature(
    entries: Sequence[Ranked], tokens: Sequence[int], params: SamplingParams, key: bytes, first: int
) -> Temperatures | None:
    """The temperatures under which every token follows, or None. The other parameters are taken as committed.

    Token x wins the draw at temperature T exactly when (l_x - l_i) / T ≥ G_i - G_x for every candidate i, which bounds
    1/T from below where l_x > l_i and from above where l_x < l_i. Candidates do not depend on T. The interval found
    is confirmed by replaying the whole turn at a temperature inside it. Where there is none, 0 may still explain it.
    """
    for found in (_between(entries, tokens, params, key, first), Temperatures(0.0, 0.0, 0.0)):
        if found and not departures(entries, tokens, replace(params, temperature=found.shown), key, first):
            return found
    return None


def _between(
    entries: Sequence[Ranked], tokens: Sequence[int], params: SamplingParams, key: bytes, first: int
) -> Temperatures | None:
    """The temperatures over 0 that the bounds of all tokens leave, not yet confirmed."""
    least, most = limits.TEMPERATURE
    low, high = 1.0 / most, 1.0 / least
    for index, (row, token) in enumerate(zip(entries, tokens, strict=True)):
        bounds = _inverse_bounds(row, params, key, first + index, token)
        if bounds is None:
            return None
        low, high = max(low, bounds[0]), min(high, bounds[1])
        if low > high:
            return None
    coldest, hottest = max(1.0 / high, least), min(1.0 / low, most)
    return Temperatures(coldest, hottest, _round_within(coldest, hottest))


def _inverse_bounds(
    entries: Ranked, params: SamplingParams, key: bytes, position: int, token: int
) -> tuple[float, float] | None:
    """The interval of 1/T in which `token` is drawn; None where no temperature draws it."""
    if not len(entries.ids):
        return None
    kept = survivors(entries, params)
    ids = entries.ids[:kept]
    at = np.flatnonzero(ids == token)
    if not len(at):
        return None
    logits = entries.logits[:kept].astype(np.float64)
    noise = gumbel(key, position, ids)
    lead = logits[at[0]] - logits
    lag = noise - noise[at[0]] - SLACK
    if (lag[lead == 0.0] > 0.0).any():
        return None
    above, below = lead > 0.0, lead < 0.0
    low = float((lag[above] / lead[above]).max(initial=-math.inf))
    high = float((lag[below] / lead[below]).min(initial=math.inf))
    return (low, high) if low <= high else None


def _round_within(low: float, high: float) -> float:
    """The number with the fewest decimals between `low` and `high`; their middle where they almost meet."""
    middle = (low + min(high, low + 2.0)) / 2.0
    for digits in range(9):
        rounded = round(middle, digits)
        if low < rounded < high:
            return rounded
    return middle


@dataclass(frozen=True, slots=True)
class Departed:
    """The tokens of a turn that do not follow from their records, in order and at least one, `of` how many; the
    temperature that was committed to, and those at which every token would follow, where there are any.
    """

    tokens: tuple[Departure, ...]
    of: int
    asked: float
    others: Temperatures | None

    @property
    def indices(self) -> list[int]:
        return [item.index for item in self.tokens]

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"departing": self.indices, "of": self.of}
        return facts if self.others is None else {**facts, "temperature": [self.others.low, self.others.high]}

    def fault(self) -> Fault:
        """Codes: `token-not-sampled`, `temperature-differs`, `text-not-sampled`."""
        first, others, wrong = self.tokens[0], self.others, len(self.tokens)
        expected, found = "id " + " or ".join(map(str, first.expected)), f"id {first.found}"
        hint = guess = None
        if wrong == 1:
            code, what = "token-not-sampled", "one token is not the one that its record and the nonce give"
            if others is not None:
                hint = f"A temperature of {others} would give every token of this turn as well."
        elif others is not None:
            code = "temperature-differs"
            what = f"{wrong} of {self.of} tokens were drawn at another temperature than the request has"
            expected, found = f"temperature {self.asked:g}: {expected}", f"temperature {others}: {found}"
            hint = "Proven, not guessed: at that temperature every token of the turn follows from its record."
        else:
            code = "text-not-sampled"
            what = f"{wrong} of {self.of} tokens are not the ones that their records and the nonce give"
            hint = "The text was not drawn from these logits: no temperature explains it either."
            guess = "Text of another model, scored by this one; or another sampler."
        return Fault(code, what, first.index, first.position, expected, found, hint, guess, self)


def replay(
    turn: Turn,
    records: Sequence[Entries],
    tokens: Sequence[int],
    masks: Sequence[bytes] = (),
    suppressed: Sequence[int] = (),
) -> Departed | None:
    """Replay a whole turn: steps 19 and 25. Returns what does not follow, None where everything does.

    `suppressed` are the ids that the manifest bars from every answer. `masks` are what the model's vocabulary says of
    the records' ids (`score_turn`, or `Reexecutor.masks`). Raises VerificationError (`not-replayed`) where a turn's
    processors need the vocabulary (grammar, ignore_eos), and there are none.
    """
    key, params, first = turn.key(), turn.params, turn.prompt_count
    entries = ranked(records, tokens, params, masks, suppressed)
    wrong = tuple(departures(entries, tokens, params, key, first))
    if not wrong:
        return None
    return Departed(wrong, len(tokens), params.temperature, explain_temperature(entries, tokens, params, key, first))


def replayable(turn: OpenedTurn) -> int:
    """How many of the records that a turn shows `replay_records` replays.

    None of them where processors were active and it lacks what they depend on: the tokens before, or the vocabulary.
    """
    params = turn.leaf.params
    whole = len(turn.shown) == turn.count
    return 0 if params.processed and (not whole or needs_vocabulary(params)) else len(turn.shown)


def replay_records(turn: OpenedTurn) -> Fault | None:
    """Step 19: replay what an opened turn shows of its records, all of them or single ones; `replayable` says which."""
    shown, leaf = turn.records, turn.leaf
    if not replayable(turn):
        return None
    if len(shown) == turn.count:
        entries = [token.entries for token in shown]
        departed = replay(leaf, entries, [token.token for token in shown], suppressed=turn.suppressed)
        return None if departed is None else departed.fault()
    key = leaf.key()
    for token in shown:
        seen = visible(token.entries, turn.suppressed)
        for wrong in departures([seen], [token.token], leaf.params, key, token.position):
            return Fault(
                "token-not-sampled",
                "a token is not the one that its record and the nonce give",
                token.position - leaf.prompt_count,
                token.position,
                expected="id " + " or ".join(map(str, wrong.expected)),
                found=f"id {wrong.found}",
                hint="Evidence of kind full shows whether it is the only one.",
            )
    return None
