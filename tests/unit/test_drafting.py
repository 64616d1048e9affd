"""Drafters and the policy that decides when they draft."""

from __future__ import annotations

import random

import pytest

from engine.drafting.choice import Drafting
from engine.drafting.map import MAX_MAPS, MapDrafter, Maps
from engine.drafting.ngram import NgramDrafter
from engine.drafting.policy import Measured, Odds
from engine.scheduling.prefix import Kept, choose, common
from verifiable.errors import PolicyError


def draw(row: object, position: int) -> int:
    return 0


def test_maps_are_never_shared_between_namespaces() -> None:
    maps = Maps()
    mine, other, nobody = MapDrafter(maps), MapDrafter(maps), MapDrafter(maps)
    mine.begin([1, 2, 3, 4, 5, 6], "alice", draw)
    for drafter, namespace in ((other, "bob"), (nobody, None)):
        drafter.begin([1, 2, 3], namespace, draw)
        assert drafter.draft(3) == []
    again = MapDrafter(maps)
    again.begin([1, 2, 3], "alice", draw)
    assert again.draft(2) == [4, 5]
    for number in range(MAX_MAPS):
        again.begin([1], f"other {number}", draw)
    again.begin([1, 2, 3], "alice", draw)
    assert again.draft(2) == []  # the oldest is forgotten


def test_the_ngram_drafter_follows_the_longest_match() -> None:
    drafter = NgramDrafter()
    drafter.begin([1, 2, 3, 9, 1, 2], None, draw)
    assert drafter.draft(2) == [3, 9]
    assert drafter.draft(0) == []
    drafter.extend([3])
    assert drafter.draft(1) == [9]


@pytest.mark.parametrize(("name", "model"), [("fancy", None), ("model", None), ("ngram", "m.gguf")])
def test_choices_that_make_no_sense_are_refused(name: str, model: str | None) -> None:
    from pathlib import Path

    with pytest.raises(PolicyError):
        Drafting(name, None if model is None else Path(model))


def run(row_cost: float, base: float, share: float, width: int = 1, steps: int = 4000) -> float:
    """Throughput under the policy ÷ plain throughput, on a machine where a step takes base + rows × row_cost."""
    rng = random.Random(1)
    policy, odds = Measured(), [Odds() for _ in range(width)]
    tokens, seconds = 0, 0.0
    for _ in range(steps):
        count = policy.limit(odds, 3)
        rows = width * (1 + count)
        for each in odds:
            right = 0
            while right < max(count, 1) and rng.random() < share:
                right += 1
            each.score(max(count, 1), right)
            tokens += 1 + (right if count else 0)
        taken = (base + rows * row_cost) * rng.uniform(0.95, 1.05)
        seconds += taken
        policy.measured(rows, taken)
    return (tokens / seconds) / (width / (base + width * row_cost))


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.95])
def test_drafting_never_costs_more_than_a_few_percent(width: int, share: float) -> None:
    for base, row_cost in ((0.0, 1.0), (0.2, 0.8), (0.8, 0.2), (1.0, 0.0)):
        assert run(row_cost, base, share, width) > 0.96, (base, row_cost)


def test_drafting_is_used_where_it_pays() -> None:
    assert run(row_cost=0.02, base=1.0, share=0.9) > 2.0
    assert run(row_cost=0.02, base=1.0, share=0.9, width=4) > 1.8


def test_the_true_common_prefix_and_never_the_whole_prompt() -> None:
    assert common([1, 2, 3, 4], [1, 2, 9]) == 2
    assert common([1, 2, 3], [1, 2, 3]) == 2
    assert common([1, 2, 3], [1, 2, 3, 4]) == 3
    assert common([], [1]) == 0
    assert common([5], [1, 2]) == 0


def test_a_slot_is_matched_within_a_namespace_only() -> None:
    slots = [(0, Kept("alice", (1, 2, 3, 4), 5)), (1, None), (2, Kept("bob", (1, 2), 1))]
    assert choose(slots, "alice", [1, 2, 3, 4, 5]) == (0, 4)
    assert choose(slots, "bob", [1, 2, 3, 4, 5]) == (2, 2)
    assert choose(slots, "carol", [1, 2, 3, 4, 5]) == (1, 0)
    assert choose(slots, None, [1, 2, 3]) == (1, 0)
    taken = [slot for slot in slots if slot[1] is not None]
    assert choose(taken, "carol", [1, 2]) == (2, 0)  # the one used longest ago
