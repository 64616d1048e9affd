"""Prompt lookup: what followed the last time the same few tokens stood in this very sequence.

After Saxena, "Prompt Lookup Decoding" (2023). The index is kept per sequence, so nothing leaks between requests; each
token costs a dictionary update, and a draft costs a look-up.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.drafting import Sample


class NgramDrafter:
    """Looks up the longest n-gram of `longest` to `shortest` tokens that ends the sequence, most recent place first."""

    name = "prompt-lookup-ngram"
    free = True

    def __init__(self, longest: int = 3, shortest: int = 2) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._ids: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}

    def begin(self, ids: Sequence[int], namespace: str | None, sample: Sample) -> None:
        self._ids = []
        self._places = {}
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        # The n-gram that ends at the newest token is entered only once another token follows it: a look-up of the
        # sequence's own end must not find itself.
        for token in ids:
            end = len(self._ids)
            for size in self._sizes:
                if end >= size:
                    self._places[tuple(self._ids[end - size : end])] = end
            self._ids.append(token)

    def draft(self, limit: int) -> list[int]:
        if limit < 1:
            return []
        for size in self._sizes:
            place = self._places.get(tuple(self._ids[-size:])) if len(self._ids) >= size else None
            if place is not None:
                return self._ids[place : place + limit]
        return []

    def close(self) -> None:
        """Nothing is held outside Python."""
