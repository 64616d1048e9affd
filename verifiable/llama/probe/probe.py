"""The numerics probe: do this file, build and machine give the same bits however the work is cut?

Whether an exact audit is possible is measured, not believed. A fixed sequence of tokens is computed in one way (the
reference, whole chunks, as an auditor would), then again in the other ways that occur in service: single rows, small
groups as in speculation, chunks on both sides of every size at which llama.cpp changes kernels, several sequences in
one batch, copied sequences, another number of threads, and contexts past 512. Logits of the whole vocabulary are
compared bit for bit at positions around those borders, and so is every intermediate value of most rows, because a
difference within the network need not reach the logits of the few tokens that a probe has (`verifiable.llama.trace`).

The fingerprint is the SHA-256 of the reference's logits. Two machines with equal fingerprints compute alike, so the
one can audit the other exactly, provided that both probes found all schedules equal.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from verifiable.errors import EngineError, PolicyError
from verifiable.llama import library
from verifiable.llama.context import Batch, Context
from verifiable.llama.gguf.identity import identify
from verifiable.llama.gguf.lora import Adapter
from verifiable.llama.model import Model
from verifiable.llama.probe import cache as probe_cache, plan as probe_plan
from verifiable.llama.probe.plan import ProbeStep, Schedule, probe_tokens
from verifiable.llama.probe.result import PIECE, Pieces, ProbeResult, ScheduleResult
from verifiable.llama.settings import RuntimeSettings
from verifiable.llama.trace import Trace
from verifiable.manifest.manifest import ModelIdentity

__all__ = ["ProbeResult", "ScheduleResult", "probe", "probe_and_pair", "probe_tokens"]

Progress = Callable[[int, int], None]
"""Called with rows computed and rows in total."""
_UNMEASURED = "long contexts with swa_full off: not measured"
_Rows = Iterator[tuple[int, NDArray[np.float32]]]


def probe(
    path: str | PathLike[str],
    settings: RuntimeSettings,
    progress: Progress | None = None,
    cache: str | PathLike[str] | None = None,
    *,
    model: Model | None = None,
    identity: ModelIdentity | None = None,
    adapters: Sequence[Adapter] = (),
) -> ProbeResult:
    """Measure whether *settings* are batch-invariant for this file on this machine.

    The result does not depend on n_ctx and n_seq_max. It takes about as long as three prefills of 600 tokens.

    Args:
        settings: what is to be served. Its n_threads do the work; one other number of threads is compared with it.
        cache: folder in which results are kept, by file hashes, build, machine and settings. A damaged entry, or a
            folder that cannot be written, is as good as none.
        model: the loaded model with its adapters, when there is one already.
        identity: what `identify` said about the files, when that is known already.

    Raises:
        MalformedError: the file is not a well-formed model.
        EngineError: it cannot be run, or its logits are not numbers.
    """
    library.load_library(settings.tiled, passive=settings.n_threads == 1)
    key = None
    if cache is not None:
        key = probe_cache.key(identity or identify(path, adapters=adapters), settings, probe_plan.SEED)
        known = probe_cache.load(cache, key)
        if known is not None:
            return known
    if model is not None:
        result = _measure(model, settings, progress)
    else:
        with Model.load(path, settings.repack, settings.n_gpu_layers, None, adapters, settings.device) as loaded:
            result = _measure(loaded, settings, progress)
    if cache is not None and key is not None:
        probe_cache.save(cache, key, result)
    return result


def probe_and_pair(
    path: str | PathLike[str],
    settings: RuntimeSettings,
    progress: Progress | None = None,
    cache: str | PathLike[str] | None = None,
    *,
    identity: ModelIdentity | None = None,
    adapters: Sequence[Adapter] = (),
) -> tuple[RuntimeSettings, ProbeResult]:
    """Probe *settings*; where they are not invariant, see whether rows in pairs make them so.

    Returns the settings to serve with, and what the probe said of them. Pairs cost time, so they are taken only where
    they are needed and help. Parameters and errors as for `probe`.
    """
    result = probe(path, settings, progress, cache, identity=identity, adapters=adapters)
    if result.invariant or settings.pairs:
        return settings, result
    try:
        paired = replace(settings, pairs=True)
        other = probe(path, paired, progress, cache, identity=identity, adapters=adapters)
    except PolicyError:  # batches that llama.cpp cuts, or a memory that cannot be cut back
        return settings, result
    return (paired, other) if other.invariant else (settings, result)


def _measure(model: Model, settings: RuntimeSettings, progress: Progress | None) -> ProbeResult:
    started = time.monotonic()
    tokens = probe_tokens(model)
    positions = probe_plan.probe_positions(len(tokens))
    whole = probe_plan.reference(len(tokens))
    plans = probe_plan.schedules(len(tokens), settings.n_threads)
    total = whole.rows + sum(plan.rows for plan in plans)
    done = 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(done, total)

    # A context of its own, and nobody looking in: the fingerprint is that of the computation as it is in service.
    with Context(model, _room(settings, len(tokens), 1)) as context:
        reference = _reference(_run(context, None, whole.steps, tokens, positions, count))
    fingerprint = hashlib.sha256()
    logits = []
    for position in sorted(reference):
        data = reference[position].astype("<f4", copy=False).tobytes()
        fingerprint.update(data)
        logits.append((position, hashlib.sha256(data).hexdigest()[:PIECE]))
    pieces = Pieces(tuple(logits), tuple(_operations(model, settings, tokens)))
    trace = Trace()
    results = []
    with Context(model, _room(settings, len(tokens), probe_plan.SEQUENCES), trace=trace) as context:
        # What a throw-away row computes has been learnt only if it has the token that follows in truth.
        context.filler = lambda _seq, position, last: tokens[position] if position < len(tokens) else last
        for plan in plans:
            context.set_threads(plan.n_threads or settings.n_threads)
            trace.reset()
            rows = _run(context, trace, plan.steps, tokens, positions, count)
            results.append(_compare(plan, rows, reference, trace, model.n_layer))
            if plan.copies:
                context.remove(probe_plan.CHUNKED, 0)
                for sequence in set(range(probe_plan.SEQUENCES)) - {probe_plan.MAIN, probe_plan.FRESH}:
                    context.copy(probe_plan.MAIN, sequence)
    if model.n_swa > 0 and not settings.swa_full:
        # A window's ring buffer only wraps behind n_swa + n_ubatch tokens, and then sums in another order: longer
        # than any probe that is quick. What was not measured is not claimed.
        results.append(ScheduleResult(_UNMEASURED, False, None, 0.0))
    return ProbeResult(
        invariant=all(result.equal for result in results),
        fingerprint=fingerprint.digest(),
        schedules=tuple(results),
        build=library.build_info(),
        seconds=time.monotonic() - started,
        pieces=pieces,
    )


def _operations(model: Model, settings: RuntimeSettings, tokens: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Every result on the way through batches of `probe_plan.NOTED` rows of one sequence, by name and hash."""
    trace, start = Trace(), 0
    with Context(model, _room(settings, len(tokens), 1), trace=trace) as context:
        batch = Batch(context.n_batch)
        for rows in probe_plan.NOTED:
            end = min(start + min(rows, context.n_batch, settings.n_ubatch), len(tokens))
            if end == start:
                return  # a table of few positions
            batch.clear()
            for position in range(start, end):
                batch.add(0, position, tokens[position], position == end - 1)
            trace.note()
            context.decode(batch)
            trace.stop()
            yield from ((f"{end - start} rows: {name}", value.hex()[:PIECE]) for name, value in trace.noted)
            start = end


def _room(settings: RuntimeSettings, length: int, sequences: int) -> RuntimeSettings:
    rows = max(settings.n_batch, sequences)
    return replace(
        settings,
        n_ctx=length,
        n_seq_max=sequences,
        n_batch=rows,
        n_ubatch=max(settings.n_ubatch, rows) if settings.pairs else settings.n_ubatch,
    )


def _run(
    context: Context,
    trace: Trace | None,
    steps: Iterable[ProbeStep],
    tokens: Sequence[int],
    positions: frozenset[int],
    count: Callable[[int], None],
) -> _Rows:
    """Compute the steps and yield (position, logits) where logits are compared; valid until the next is asked for."""
    batch = Batch(context.n_batch)
    # What llama.cpp computes at once. Larger pieces would be learnt in parts of unknown size.
    most = min(context.n_batch, context.settings.n_ubatch)
    for step in steps:
        rows = [(seq, position) for seq, start, end in step.runs for position in range(start, end)]
        for at in range(0, len(rows), most):
            part = rows[at : at + most]
            learnt = min(max(step.learn - at, 0), len(part))
            batch.clear()
            for row, (seq, position) in enumerate(part):
                # All rows of a batch that is looked into, so that its last layer has as many rows as the others.
                wanted = position in positions or row < learnt or (trace is not None and step.check)
                batch.add(seq, position, tokens[position], wanted)
            if trace is not None and learnt:
                trace.learn(len(part), learnt, context.outputs(batch))
            elif trace is not None and step.check:
                trace.check(len(part))
            logits = context.decode(batch)
            if trace is not None:
                trace.stop()
            count(len(part))
            for row, (_, position) in enumerate(part):
                if position in positions:
                    yield position, logits[row]


def _reference(rows: _Rows) -> dict[int, NDArray[np.float32]]:
    reference = {}
    for position, logits in rows:
        if not np.isfinite(logits).all():
            raise EngineError(
                "the model's logits are not all numbers",
                expected="finite logits",
                found=f"{np.count_nonzero(~np.isfinite(logits)):,} others at position {position}",
                hint="The file is damaged, or this build cannot run it",
            )
        reference[position] = logits.copy()
    return reference


def _compare(
    plan: Schedule, rows: _Rows, reference: dict[int, NDArray[np.float32]], trace: Trace, n_layer: int
) -> ScheduleResult:
    compared = 0
    first: int | None = None
    worst = 0.0
    for position, logits in rows:
        compared += 1
        expected = reference[position]
        if np.array_equal(logits.view(np.uint32), expected.view(np.uint32)):
            continue
        first = position if first is None else min(first, position)
        difference = np.abs(logits - expected)
        worst = max(worst, float(difference.max()) if np.isfinite(difference).all() else float("inf"))
    # A schedule that should have looked into each layer and could not has shown nothing.
    looked = trace.compared >= n_layer * sum(step.rows for step in plan.steps if step.check)
    equal = first is None and trace.difference is None and compared > 0 and looked
    return ScheduleResult(plan.name, equal, first, worst, compared, trace.compared, trace.difference)
