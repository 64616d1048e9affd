"""Drafters guess the next tokens cheaply; the scheduler verifies the guess in one batch and keeps what was right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """One drafter per sequence. Drafting never changes an answer: a draft is kept only where it equals the draw."""

    name: str

    def begin(self, ids: Sequence[int]) -> None:
        """A new sequence starts with these ids (the prompt)."""
        ...

    def extend(self, ids: Sequence[int]) -> None:
        """These ids were emitted."""
        ...

    def draft(self, limit: int) -> list[int]:
        """At most `limit` ids that may follow; empty when there is no good guess."""
        ...
