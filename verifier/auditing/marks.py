"""The marks of a turn's strip: one character a token that says what an audit found about it."""

from __future__ import annotations

SAME = "="
"""Every committed bit was recomputed; whether the draw follows is the verdict's to say, unless `NOT_SAMPLED` does."""
DIFFERS = "!"
"""The committed record is another than the recomputed one."""
SUSPECT = "?"
"""The token lies among records of which some differ; which ones is not known."""
NOT_SAMPLED = "s"
"""The record is right, but the token is not the one that it and the key give."""
COMPARED = "~"
"""The committed record was compared within rounding, since this machine has other bits than the provider's."""
UNCHECKED = "."
"""The audit did not get there."""


def compared(strip: str) -> int:
    """How many tokens of a strip were recomputed and compared."""
    return len(strip) - strip.count(UNCHECKED)
