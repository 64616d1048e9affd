"""Small helpers for tests that compute: feed tokens, keep logits, compare bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from verifiable.llama.context import Batch, Context
from verifiable.llama.gguf.lora import Adapter
from verifiable.llama.model import Model
from verifiable.llama.settings import RuntimeSettings

SETTINGS = RuntimeSettings(n_ctx=256, n_seq_max=4, n_batch=128)
TOKENS = [3 + (7 * n) % 300 for n in range(256)]
"""Ordinary tokens of the tiny models."""


def rows(*added: tuple[int, int, int], capacity: int = 200) -> Batch:
    """A batch of (sequence, position, token), all with logits."""
    batch = Batch(capacity)
    for seq, pos, token in added:
        batch.add(seq, pos, token, True)
    return batch


def feed(context: Context, seq: int, tokens: Sequence[int], start: int = 0) -> NDArray[np.float32]:
    """Decode *tokens* at *start* in one sequence; copies of all their logits, shape (len(tokens), n_vocab)."""
    batch = Batch(context.n_batch)
    found = []
    for at in range(0, len(tokens), context.n_batch):
        batch.clear()
        for number, token in enumerate(tokens[at : at + context.n_batch]):
            batch.add(seq, start + at + number, token, True)
        logits = context.decode(batch)
        found += [logits[row].copy() for row in range(len(batch))]
    return np.array(found)


def fill(context: Context, tokens: Sequence[int]) -> None:
    """Decode *tokens* in sequence 0 without asking for logits."""
    batch = Batch(context.n_batch)
    for start in range(0, len(tokens), context.n_batch):
        batch.clear()
        for position in range(start, min(start + context.n_batch, len(tokens))):
            batch.add(0, position, tokens[position], False)
        context.decode(batch)


def same(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Whether all bits are equal; 0.0 and -0.0 are not."""
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def computed(base: Path, *adapters: Adapter) -> NDArray[np.float32]:
    """The logits of four tokens of a tiny model with these adapters on top of it, shape (4, n_vocab)."""
    with Model.load(base, adapters=adapters) as model:
        first, again = (_four(model) for _ in range(2))
    assert same(first, again)  # every context has the adapters
    return first


def _four(model: Model) -> NDArray[np.float32]:
    with Context(model, RuntimeSettings(n_ctx=64, n_seq_max=1)) as context:
        return feed(context, 0, (5, 80, 3, 200))
