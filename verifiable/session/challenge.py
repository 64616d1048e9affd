"""The challenge: which sessions, turns and parts of an answer an auditor checks, drawn by lottery from a seed.

The seed must come after the provider published what may be drawn: the auditor's own randomness, or a public beacon.
Anyone with the seed and the published list can repeat the draw. A lot comes from SHA-256(tag ‖ seed ‖ what is drawn),
and the lowest lots win: so a draw of more items contains a draw of fewer, and items that are added later change no lot.
A session's lot is divided by its weight, so that many short sessions do not hide a long one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

SEED_BYTES = 32
_SESSION_TAG = b"verifiable-inference/v2/challenge/session\n"
_TURN_TAG = b"verifiable-inference/v2/challenge/turn\n"
_WINDOW_TAG = b"verifiable-inference/v2/challenge/window\n"
LOT_BITS = 64


def weight_of(size: int) -> int:
    """The weight of a session with a log of `size` leaves: the most tokens that a log of that size holds, at least 1.

    `open`, `turn` and `end` are no tokens. The size is signed, how many of the leaves are tokens is not yet known.
    """
    return max(size - 3, 1)


def session_lot(seed: bytes, session: bytes, weight: int) -> int:
    """A session's lot: an exponential variable of rate `weight`, in whole numbers, so that everybody gets the same.

    As likely to be the lowest as if each unit of weight had drawn a lot of its own (Efraimidis and Spirakis, 2006).
    """
    digest = hashlib.sha256(_SESSION_TAG + seed + session).digest()
    drawn = int.from_bytes(digest[:16], "big") | 1
    whole = drawn.bit_length() - 1
    rest, fraction = drawn << (127 - whole), 0
    for _ in range(LOT_BITS):  # the binary logarithm, digit by digit
        rest = rest * rest >> 127
        over = rest >> 128
        rest >>= over
        fraction = 2 * fraction + over
    return (((128 - whole) << LOT_BITS) - fraction << LOT_BITS) // weight


def draw_sessions(seed: bytes, weights: Mapping[bytes, int], count: int) -> list[bytes]:
    """The `count` session ids with the lowest lots, lowest first; all of them where there are no more.

    `weights` are whole numbers from 1, by session id.
    """
    ordered = sorted(weights, key=lambda session: (session_lot(seed, session, weights[session]), session))
    return ordered[: max(count, 0)]


def draw_turns(seed: bytes, session: bytes, turns: int, count: int) -> list[int]:
    """`count` of a session's turns 0 … `turns` - 1, in ascending order."""

    def lot(turn: int) -> bytes:
        return hashlib.sha256(_TURN_TAG + seed + session + turn.to_bytes(4, "big")).digest()

    return sorted(sorted(range(turns), key=lot)[: max(count, 0)])


def window_lot(seed: bytes, session: bytes) -> int:
    """The lot of a session that decides where windows of its tokens begin: 64 bits."""
    return int.from_bytes(hashlib.sha256(_WINDOW_TAG + seed + session).digest()[: LOT_BITS // 8], "big")


def place_window(lot: int, tokens: int, length: int) -> int:
    """Where a window of `length` of `tokens` tokens begins; 0 where there are no more than that.

    Every place is as likely as another. Under one lot a shorter window lies within a longer one, so that it need not
    be known beforehand how long the window will be.
    """
    return lot * (max(tokens - length, 0) + 1) >> LOT_BITS
