"""How much a session may still hold: whatever is given out of it stays within what everybody reads."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from verifiable import limits
from verifiable.session.log import SessionLog

_HASH = 34
"""Bytes of a hash in an opening."""
_PLACE = 16
"""Bytes that an opened leaf takes besides its own, at most."""
_TURN = 64
"""Bytes that a turn takes in evidence besides its request and tokens, at most."""


class Full(NamedTuple):
    """What a session would have too much of with one more turn: `found` of it, where there may be `most`."""

    what: str
    most: int
    found: int


def lacking(log: SessionLog, request: int, tokens: int, k: int) -> Full | None:
    """What the session lacks room for; None where one more turn fits.

    Args:
        request: bytes of the turn's canonical request.
        tokens: the most that its answer may have.
        k: entries of a record.
    """
    records = log.size - len(log.landmarks) + tokens
    content = log.requests + request + _TURN * (log.turns + 1) + records * (limits.RECORD_BYTES + 8 * k)
    counted = (
        ("turns", limits.SESSION_TURNS, log.turns + 1),
        ("leaves", limits.SESSION_LEAVES, log.size + tokens + 3),
        ("bytes in a receipt", limits.SESSION_SHOWN_BYTES, shown(log) + _hashes(tokens) + 3 * limits.LEAF_BYTES),
        ("bytes of requests and records", limits.SESSION_CONTENT_BYTES, content),
    )
    return next((Full(*each) for each in counted if each[2] > each[1]), None)


def shown(log: SessionLog) -> int:
    """Bytes that every receipt of a log has for its leaves and the hashes between them, at most."""
    leaves = sum(len(leaf) + _PLACE for leaf in log.landmarks.values())
    return leaves + sum(_hashes(after - before - 1) for before, after in pairwise(log.landmarks))


def _hashes(hidden: int) -> int:
    """Bytes of the hashes that stand for so many leaves in a row, at most: two of each size but the largest."""
    return min(hidden, max(1, 2 * hidden.bit_length() - 2)) * _HASH
