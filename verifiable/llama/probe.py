"""The numerics probe: do this file, build and machine give the same bits however the work is cut?

Whether an exact audit is possible is measured, not believed. A fixed sequence of tokens is computed in one way (the
reference, whole chunks, as an auditor would), then again in the other ways that occur in service: single rows, small
groups as in speculation, chunks on both sides of every size at which llama.cpp changes kernels, several sequences in
one batch, copied sequences, another number of threads, and contexts past 512. Every float32 logit of the whole
vocabulary is compared, bit for bit, at positions around those borders.

The fingerprint is the SHA-256 of the reference's logits. Two machines with equal fingerprints compute alike, so the
one can audit the other exactly, provided that both probes found all schedules equal.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Final

import numpy as np
from numpy.typing import NDArray

from verifiable.errors import EngineError
from verifiable.llama import library, probe_cache
from verifiable.llama.context import Batch, Context
from verifiable.llama.identity import identify
from verifiable.llama.model import Model
from verifiable.llama.probe_result import ProbeResult, ScheduleResult
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest import ModelIdentity

__all__ = ["ProbeResult", "ScheduleResult", "probe"]

Progress = Callable[[int, int], None]
"""Called with rows computed and rows in total."""

SEED: Final = b"verifiable numerics probe 1"
LENGTH: Final = 600
"""Tokens of the probe: past 512, where padded KV lengths, window sizes and split-KV kernels change."""
HEAD: Final = 472
"""Where the sequence is copied, and the schedules part."""
BORDERS: Final = (4, 8, 32, 64, 128, 256, HEAD, 512, 536, 568, LENGTH)
"""Rows or positions at which some kernel of llama.cpp 0.5 changes; logits are compared on both sides of each."""
SMALL: Final = (1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33)
"""Group sizes of the second way through the head: below every border that prefill is above."""
_THREADED_ROWS: Final = 12
_SEQUENCES: Final = 7
_MAIN, _CHUNKED, _PLAIN, _DRAFTED, _LATE, _FRESH, _THREADED = range(_SEQUENCES)

Step = list[tuple[int, int, int]]
"""One batch: (sequence, first position, position after the last) of each of its runs of rows."""


@dataclass(frozen=True, slots=True)
class _Schedule:
    name: str
    steps: tuple[Step, ...]

    @property
    def rows(self) -> int:
        return sum(end - start for step in self.steps for _, start, end in step)


def probe(
    path: str | PathLike[str],
    settings: RuntimeSettings,
    progress: Progress | None = None,
    cache: str | PathLike[str] | None = None,
    *,
    model: Model | None = None,
    identity: ModelIdentity | None = None,
) -> ProbeResult:
    """Measure whether *settings* are batch-invariant for this file on this machine.

    The result does not depend on n_ctx and n_seq_max. It takes about three prefills of 600 tokens.

    Args:
        path: the GGUF file (the first of its parts).
        settings: what is to be served. Its n_threads do the work; one other number of threads is compared with it.
        progress: called with rows computed and rows in total.
        cache: folder in which results are kept, by file hashes, build, machine and settings. A damaged entry, or a
            folder that cannot be written, is as good as none.
        model: the loaded model, when there is one already.
        identity: what `identify` said about the file, when that is known already.

    Raises:
        MalformedError: the file is not a well-formed model.
        EngineError: it cannot be run, or its logits are not numbers.
    """
    library.load_library(settings.tiled, passive=settings.n_threads == 1)
    key = None
    if cache is not None:
        key = probe_cache.key(identity or identify(path), settings, SEED)
        known = probe_cache.load(cache, key)
        if known is not None:
            return known
    if model is not None:
        result = _measure(model, settings, progress)
    else:
        with Model.load(path, settings.repack, settings.n_gpu_layers) as loaded:
            result = _measure(loaded, settings, progress)
    if cache is not None and key is not None:
        probe_cache.save(cache, key, result)
    return result


def _measure(model: Model, settings: RuntimeSettings, progress: Progress | None) -> ProbeResult:
    started = time.monotonic()
    tokens = probe_tokens(model)
    positions = probe_positions(len(tokens))
    reference_plan = _Schedule("whole chunks", tuple(_alone(_MAIN, 0, [512] * (len(tokens) // 512 + 1), len(tokens))))
    plans = schedules(len(tokens), settings.n_threads)
    total = reference_plan.rows + sum(plan.rows for plan in plans)
    done = 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(done, total)

    reference: dict[int, NDArray[np.float32]] = {}
    # A context of its own: the fingerprint must not depend on how many neighbours there could be.
    with Context(model, _room(settings, len(tokens), 1)) as context:
        for position, logits in _run(context, reference_plan.steps, tokens, positions, count):
            if not np.isfinite(logits).all():
                raise EngineError(
                    "the model's logits are not all numbers",
                    expected="finite logits",
                    found=f"{np.count_nonzero(~np.isfinite(logits)):,} others at position {position}",
                    hint="The file is damaged, or this build cannot run it",
                )
            reference[position] = logits.copy()
    fingerprint = hashlib.sha256()
    for position in sorted(reference):
        fingerprint.update(reference[position].astype("<f4", copy=False).tobytes())
    results = []
    with Context(model, _room(settings, len(tokens), _SEQUENCES)) as context:
        for plan in plans:
            context.set_threads(_other_threads(settings.n_threads) if plan is plans[-1] else settings.n_threads)
            results.append(_compare(plan.name, _run(context, plan.steps, tokens, positions, count), reference))
            if plan is plans[0]:
                for sequence in range(1, _SEQUENCES):
                    if sequence != _FRESH:
                        context.copy(_MAIN, sequence)
    return ProbeResult(
        invariant=all(result.equal for result in results),
        fingerprint=fingerprint.digest(),
        schedules=tuple(results),
        build=library.build_info(),
        seconds=time.monotonic() - started,
    )


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
            return tokens
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


def schedules(length: int, n_threads: int) -> tuple[_Schedule, ...]:
    """The ways of computing *length* tokens that are compared with whole chunks. The first leads up to the head,
    after which the others start from copies; the last is run with another number of threads."""
    head = min(HEAD, length * HEAD // LENGTH)
    middle = min(head + 28, length)
    alone = _alone(_MAIN, head, [28] + [1] * 24 + [4] * 6 + [8] * 4, length)
    threaded = _alone(_THREADED, head, [1] * _THREADED_ROWS + [64], length)
    return (
        _Schedule("groups of 1 to 33 rows", tuple(_alone(_MAIN, 0, _cycle(SMALL), head))),
        _Schedule("single rows, then fours and eights", tuple(alone)),
        _Schedule("chunks of 64", tuple(_alone(_CHUNKED, head, [64, 64], length))),
        _Schedule("mixed batches of four sequences", tuple(_mixed(head, middle, length))),
        _Schedule(f"{_other_threads(n_threads)} threads against {n_threads}", tuple(threaded)),
    )


def _other_threads(n_threads: int) -> int:
    return 2 if n_threads == 1 else 1


def _cycle(sizes: Sequence[int]) -> Iterator[int]:
    while True:
        yield from sizes


def _alone(sequence: int, start: int, sizes: Iterable[int], stop: int) -> Iterator[Step]:
    """Batches of one sequence, of these sizes one after the other, up to *stop*."""
    for size in sizes:
        if start >= stop:
            return
        end = min(start + size, stop)
        yield [(sequence, start, end)]
        start = end


def _mixed(head: int, middle: int, length: int) -> Iterator[Step]:
    """Continuous batching in small: decodes, draft-sized groups, a late prefill and one from nothing, interleaved."""
    runs = {
        _PLAIN: _alone(_PLAIN, head, [1] * 16, length),
        _DRAFTED: _alone(_DRAFTED, head, [1, 3, 5, 8, 1, 4, 2, 8, 9, 1, 5, 8], length),
        _LATE: _alone(_LATE, head, [middle - head, 1, 41, 1, 1, 5, 8, 3, 1], length),
        _FRESH: _alone(_FRESH, 0, [37, 64, 1, 20, 8, 1, 3, 1], length),
    }
    joins = {_PLAIN: 0, _DRAFTED: 1, _LATE: 3, _FRESH: 5}
    for number in range(16):
        step = [run for seq, part in runs.items() if number >= joins[seq] for run in next(part, [])]
        if step:
            yield step


def _room(settings: RuntimeSettings, length: int, sequences: int) -> RuntimeSettings:
    return replace(settings, n_ctx=length, n_seq_max=sequences, n_batch=max(settings.n_batch, sequences))


def _run(
    context: Context,
    steps: Iterable[Step],
    tokens: Sequence[int],
    positions: frozenset[int],
    count: Callable[[int], None],
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Compute the steps and yield (position, logits) where logits are compared; valid until the next is asked for."""
    batch = Batch(context.n_batch)
    for step in steps:
        rows = [(seq, position) for seq, start, end in step for position in range(start, end)]
        for at in range(0, len(rows), context.n_batch):
            part = rows[at : at + context.n_batch]
            batch.clear()
            for seq, position in part:
                batch.add(seq, position, tokens[position], position in positions)
            logits = context.decode(batch)
            count(len(part))
            for row, (_, position) in enumerate(part):
                if position in positions:
                    yield position, logits[row]


def _compare(
    name: str, found: Iterable[tuple[int, NDArray[np.float32]]], reference: dict[int, NDArray[np.float32]]
) -> ScheduleResult:
    compared = 0
    first: int | None = None
    worst = 0.0
    for position, logits in found:
        compared += 1
        expected = reference[position]
        if np.array_equal(logits.view(np.uint32), expected.view(np.uint32)):
            continue
        first = position if first is None else min(first, position)
        difference = np.abs(logits - expected)
        worst = max(worst, float(difference.max()) if np.isfinite(difference).all() else float("inf"))
    return ScheduleResult(name, first is None and compared > 0, first, worst, compared)
