"""Bringing running sequences together."""

from __future__ import annotations

from itertools import combinations

import pytest

from engine.scheduling.places import gaps, moves


@pytest.mark.parametrize("places", [1, 2, 5, 8])
def test_the_fewest_moves_leave_no_gap(places: int) -> None:
    for count in range(places + 1):
        for busy in combinations(range(places), count):
            made = moves(busy, places)
            after = set(busy) - {source for source, _ in made} | {target for _, target in made}
            assert len(after) == count
            assert not gaps(after)
            assert {target for _, target in made}.isdisjoint(busy)
            assert bool(made) == gaps(busy)
            windows = (set(range(start, start + count)) for start in range(places - count + 1))
            assert len(made) == min(len(set(busy) - window) for window in windows)
