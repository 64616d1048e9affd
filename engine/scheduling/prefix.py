"""Prefix reuse: a turn that begins with what a slot still holds goes on from there, instead of reading it again.

A slot keeps its sequence after a turn, with the namespace of the request that made it: the caller's API key, or, on a
provider that asks for none, the session. Only a request of the same namespace is ever matched, so how fast an answer
comes tells nobody about another's prompts. A request without either keeps and matches nothing.

What can be cut back is decided by the memory itself (`Context.remove` refuses what it can't do exactly), and a refusal
means a full prefill. At least one token is always evaluated, since its logits are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verifiable.wire.ids import common_prefix


@dataclass(frozen=True, slots=True)
class Kept:
    """What a slot's memory holds: these ids, for this namespace; `used` is when (a running number)."""

    namespace: str
    ids: tuple[int, ...]
    used: int


def common(held: Sequence[int], prompt: Sequence[int]) -> int:
    """Length of the prefix of `prompt` that is held; never the whole of it."""
    return common_prefix(held, prompt[:-1])


def choose(slots: Iterable[tuple[int, Kept | None]], namespace: str | None, prompt: Sequence[int]) -> tuple[int, int]:
    """Which idle slot takes a request, and how many tokens of its prompt are held there.

    The longest prefix of the same namespace; else a slot that keeps nothing; else the one used longest ago.
    """
    best, length, rank = -1, 0, (2, 0)
    for number, kept in slots:
        held = 0
        if kept is not None and namespace is not None and kept.namespace == namespace:
            held = common(kept.ids, prompt)
        order = (0, 0) if kept is None else (1, kept.used)
        if best < 0 or held > length or (held == length and order < rank):
            best, length, rank = number, held, order
    return best, length
