"""Drafters guess the next tokens cheaply; the scheduler verifies the guess in one batch and keeps what is accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from verifiable.sampling.logits import Floats

Sample = Callable[[Floats, int], int]
"""The token that a row of logits gives at a position: the target's own sampler, noise included ("coupled" drafting)."""


class Drafter(Protocol):
    """One drafter per slot. Drafting never changes an answer: a draft is kept only where it equals the draw."""

    name: str
    free: bool
    """Whether a draft costs next to nothing to make, so that guesses can be scored without being verified."""

    def begin(self, ids: Sequence[int], namespace: str | None, sample: Sample) -> None:
        """A new sequence starts with these ids (the prompt). What is learnt from it may be kept for the same
        namespace, and for no other; for None, nothing is kept.
        """
        ...

    def extend(self, ids: Sequence[int]) -> None:
        """These ids were emitted."""
        ...

    def draft(self, limit: int) -> list[int]:
        """At most `limit` ids that may follow; empty when there is no good guess."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...
