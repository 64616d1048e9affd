"""Where running answers lie. llama.cpp computes sequences in one piece only where their numbers follow each other; each
gap among them costs another pass over the model's weights, in every step.
"""

from __future__ import annotations

from collections.abc import Collection


def gaps(busy: Collection[int]) -> bool:
    """Whether some number between the least and the greatest of `busy` is missing."""
    return bool(busy) and max(busy) - min(busy) >= len(busy)


def moves(busy: Collection[int], places: int) -> list[tuple[int, int]]:
    """The fewest moves (from, to) that leave no gap among `busy`, numbers below `places`."""
    starts = range(places - len(busy) + 1)
    start = max(starts, key=lambda first: sum(first <= place < first + len(busy) for place in busy))
    window = range(start, start + len(busy))
    return list(
        zip(
            sorted(place for place in busy if place not in window),
            (place for place in window if place not in busy),
            strict=True,
        )
    )
