"""The challenge: which sessions and turns an auditor checks, drawn by lottery from a seed.

The seed must come after the provider published what may be drawn: the auditor's own randomness, or a public beacon.
Anyone with the seed and the published list can repeat the draw. A lot is SHA-256(tag ‖ seed ‖ what is drawn), and the
lowest lots win: so a draw of more items contains a draw of fewer, and items that are added later change no lot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

SEED_BYTES = 32
_SESSION_TAG = b"verifiable-inference/v1/challenge/session\n"
_TURN_TAG = b"verifiable-inference/v1/challenge/turn\n"


def draw_sessions(seed: bytes, sessions: Collection[bytes], count: int) -> list[bytes]:
    """The `count` session ids with the lowest lots, lowest first; all of them where there are no more."""

    def lot(session: bytes) -> bytes:
        return hashlib.sha256(_SESSION_TAG + seed + session).digest()

    return sorted(set(sessions), key=lot)[: max(count, 0)]


def draw_turns(seed: bytes, session: bytes, turns: int, count: int) -> list[int]:
    """`count` of a session's turns 0 … `turns` - 1, in ascending order."""

    def lot(turn: int) -> bytes:
        return hashlib.sha256(_TURN_TAG + seed + session + turn.to_bytes(4, "big")).digest()

    return sorted(sorted(range(turns), key=lot)[: max(count, 0)])


def chance(drawn: int, share: float) -> float:
    """The probability that at least one of `drawn` sessions is one of those in which a provider cheats.

    `share` is the share of sessions with cheating. A draw without replacement from a short list meets one sooner, so
    this does not overstate.
    """
    return float(1.0 - (1.0 - share) ** drawn)
