"""What the numerics probe computes: which tokens, cut into which batches, compared at which positions.

A plan is data. All of it is a function of the vocabulary and the number of threads, so that equal machines compute
equal things.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from verifiable.errors import EngineError
from verifiable.llama.model import Model

SEED: Final = b"verifiable numerics probe 1"
LENGTH: Final = 600
"""Tokens of the probe: past 512, where padded KV lengths, window sizes and split-KV kernels change."""
HEAD: Final = 472
"""Where the sequence is copied, and the schedules part."""
CHUNK: Final = 512
"""Rows of a whole chunk: llama.cpp's own micro-batch."""
FIRST: Final = 144
"""Tokens at the start whose intermediate values are learnt, from a whole chunk."""
BORDERS: Final = (4, 8, 32, 64, 128, 256, HEAD, 512, 536, 568, LENGTH)
"""Rows or positions at which some kernel of llama.cpp 0.5 changes; logits are compared on both sides of each."""
SMALL: Final = (1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33)
"""Group sizes of the way through the head: on both sides of every border that lies below a chunk of prefill."""
NOTED: Final = (200, 1, 8)
"""Rows of the batches whose every result is noted for another machine: a chunk of prefill, a lone row, a draft."""
SEQUENCES: Final = 7
MAIN, CHUNKED, PLAIN, DRAFTED, LATE, FRESH, THREADED = range(SEQUENCES)

Run = tuple[int, int, int]
"""Rows of one sequence in a batch: (sequence, first position, position after the last)."""


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """One batch. The intermediate values of its first rows are learnt (`learn` of them), or all are looked up."""

    runs: tuple[Run, ...]
    learn: int = 0
    check: bool = False

    @property
    def rows(self) -> int:
        return sum(end - start for _, start, end in self.runs)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way of cutting the work. `n_threads` is None for the settings' own number. When `copies`, sequence `MAIN`
    takes the place of whatever the others hold afterwards, except that `FRESH` stays empty."""

    name: str
    steps: tuple[ProbeStep, ...]
    n_threads: int | None = None
    copies: bool = False

    @property
    def rows(self) -> int:
        return sum(step.rows for step in self.steps)


def probe_tokens(model: Model) -> list[int]:
    """The probe's token ids: the start token where the model wants one, then ids drawn from SHAKE-256 of `SEED`.

    Each is a little-endian uint32 of the stream modulo n_vocab; control tokens and those that end a generation are
    passed over. So they are the same for equal vocabularies everywhere, and mean nothing.
    """
    length = LENGTH
    if not model.has_rope and not model.is_recurrent:
        length = min(length, model.n_ctx_train)  # positions beyond a table's end would end the process
    barred = model.control_attributes
    if len(barred) >= model.n_vocab:
        raise EngineError("the model has no ordinary tokens to probe with", found=f"{model.n_vocab} tokens")
    tokens = [model.bos] if model.adds_bos and model.bos is not None else []
    for token in _drawn(model.n_vocab):
        if len(tokens) >= length:
            break
        if token not in barred:
            tokens.append(token)
    return tokens


def _drawn(n_vocab: int) -> Iterator[int]:
    # Each block is a function of its number, so the stream has no end.
    block = 0
    while True:
        data = hashlib.shake_256(SEED + block.to_bytes(4, "little")).digest(4096)
        yield from (int.from_bytes(data[at : at + 4], "little") % n_vocab for at in range(0, len(data), 4))
        block += 1


def probe_positions(length: int) -> frozenset[int]:
    """Positions whose logits are compared: around each of `BORDERS`, and every fifth of the last ones."""
    near = {border + offset for border in BORDERS for offset in (-2, -1, 0, 1)}
    return frozenset(p for p in near | set(range(HEAD, LENGTH, 5)) | {0, length - 1} if 0 <= p < length)


def reference(length: int) -> Schedule:
    """The way that all others are compared with, as an auditor goes: the largest chunks, alone."""
    return Schedule("whole chunks", tuple(_alone(MAIN, 0, [CHUNK] * (length // CHUNK + 1), length)))


def schedules(length: int, n_threads: int) -> tuple[Schedule, ...]:
    """The other ways, in the order in which they have to be run in one context of `SEQUENCES` sequences."""
    head = length * HEAD // LENGTH
    first = min(FIRST, head)
    others = 2 if n_threads == 1 else 1
    groups = tuple(
        ProbeStep(step.runs, check=step.runs[0][2] <= first) for step in _alone(MAIN, 0, _cycle(SMALL), head)
    )
    singles = _alone(MAIN, head, [28] + [1] * 24 + [4] * 6 + [8] * 4, length, check=True)
    behind = ProbeStep(((CHUNKED, head, length),), learn=length - head)
    threaded = _alone(THREADED, head, [1] * 12 + [64], length, check=True)
    return (
        Schedule("a whole chunk beside others", (ProbeStep(((CHUNKED, 0, min(CHUNK, length)),), learn=first),)),
        # That chunk is only now taken away: where sequences share a buffer, the places that get free lie before the
        # ones in use, and what comes next is summed up in another order.
        Schedule("groups of 1 to 33 rows", groups, copies=True),
        Schedule(f"a chunk of {length - head} rows behind them", (behind,)),
        Schedule("single rows, then fours and eights", tuple(singles)),
        Schedule("mixed batches of four sequences", tuple(_mixed(head, first, length))),
        Schedule(f"{others} thread{'s' * (others > 1)} against {n_threads}", tuple(threaded), n_threads=others),
    )


def _cycle(sizes: Sequence[int]) -> Iterator[int]:
    while True:
        yield from sizes


def _alone(sequence: int, start: int, sizes: Iterable[int], stop: int, *, check: bool = False) -> Iterator[ProbeStep]:
    """Batches of one sequence, of these sizes one after the other, up to *stop*."""
    for size in sizes:
        if start >= stop:
            return
        end = min(start + size, stop)
        yield ProbeStep(((sequence, start, end),), check=check)
        start = end


def _mixed(head: int, first: int, length: int) -> Iterator[ProbeStep]:
    """Continuous batching in small: decodes, draft-sized groups, a late prefill and one from nothing, interleaved."""
    parts = {
        PLAIN: _alone(PLAIN, head, [1] * 16, length),
        DRAFTED: _alone(DRAFTED, head, [1, 3, 5, 8, 1, 4, 2, 8, 9, 1, 5, 8], length),
        LATE: _alone(LATE, head, [28, 1, 41, 1, 1, 5, 8, 3, 1], length),
        FRESH: _alone(FRESH, 0, [37, 64, 1, 20, 8, 1, 3, 1], first),
    }
    joins = {PLAIN: 0, DRAFTED: 1, LATE: 3, FRESH: 5}
    for number in range(16):
        together = [next(part, None) for sequence, part in parts.items() if number >= joins[sequence]]
        runs = tuple(step.runs[0] for step in together if step is not None)
        if runs:
            yield ProbeStep(runs, check=True)
