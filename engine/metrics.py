"""What Prometheus reads: the engine's counters, made into metric families when they are asked for.

No label holds anything of a request: neither prompts nor keys nor sessions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from engine.counters import STEP_BOUNDS
from engine.engine import Engine

_PREFIX = "verifiable_"


class EngineCollector:
    """A `prometheus_client` collector over one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        engine, counters = self._engine, self._engine.scheduler.counters
        running, waiting = engine.scheduler.load()
        manifest = engine.manifest
        yield InfoMetricFamily(
            _PREFIX + "provider",
            "What is served.",
            {
                "model": engine.model_name,
                "manifest": manifest.digest().hex(),
                "fingerprint": manifest.runtime.fingerprint.hex(),
                "invariant": str(manifest.runtime.invariant).lower(),
            },
        )
        for name, what, now in (
            ("requests_running", "Answers being generated.", running),
            ("requests_waiting", "Requests waiting for a slot.", waiting),
            ("ready", "Whether requests are taken.", engine.scheduler.ready),
            ("store_failed", "Whether the store has failed.", engine.store.failure() is not None),
        ):
            yield GaugeMetricFamily(_PREFIX + name, what, now)
        finished = CounterMetricFamily(_PREFIX + "answers", "Finished answers by reason.", labels=["finish"])
        for finish, count in list(counters.finished.items()):
            finished.add_metric([finish.name.lower()], count)
        yield finished
        for name, what, value in (
            ("requests_refused", "Requests refused because the queue was full.", counters.refused),
            ("requests_abandoned", "Requests whose client left while they waited.", counters.abandoned),
            ("slow_readers", "Answers ended because their reader fell too far behind.", counters.slow_readers),
            ("prompt_tokens", "Prompt tokens.", counters.prompt_tokens),
            ("cached_tokens", "Prompt tokens that were reused from a slot's memory.", counters.cached_tokens),
            ("completion_tokens", "Generated tokens.", counters.tokens),
            ("drafted_tokens", "Drafted tokens that were verified.", counters.drafted),
            ("accepted_tokens", "Drafted tokens that were accepted.", counters.accepted),
            ("steps", "Decode steps.", counters.steps),
            ("rows", "Rows of decode steps.", counters.rows),
            ("isolated_batches", "Batches that failed and were tried sequence by sequence.", counters.isolated),
            ("moved_sequences", "Running sequences moved next to others.", counters.moved),
            ("decode_seconds", "Seconds in llama.cpp.", counters.decode_seconds),
            ("python_seconds", "Seconds of steps outside llama.cpp.", counters.python_seconds),
            ("python_cpu_seconds", "Processor seconds of the scheduler outside llama.cpp.", counters.python_cpu),
            ("self_audit_turns", "Own turns that were computed again.", engine.self_audit.checked_turns),
            ("self_audit_tokens", "Tokens of those turns.", engine.self_audit.checked_tokens),
            ("self_audit_differences", "Records that came out differently. An alarm.", engine.self_audit.differences),
        ):
            yield CounterMetricFamily(_PREFIX + name, what, value)
        yield _histogram(
            "accepted_draft_length",
            "Tokens of a draft that were accepted, for each draft.",
            [str(length) for length in range(len(counters.accepted_lengths) - 1)],
            counters.accepted_lengths,
            counters.accepted,
        )
        yield _histogram(
            "step_seconds",
            "Duration of a decode step.",
            [str(bound) for bound in STEP_BOUNDS],
            counters.step_counts,
            counters.decode_seconds + counters.python_seconds,
        )


def registry(engine: Engine) -> CollectorRegistry:
    """A registry that holds this engine's metrics."""
    collectors = CollectorRegistry()
    collectors.register(EngineCollector(engine))
    return collectors


def _histogram(name: str, what: str, bounds: Sequence[str], counts: Sequence[int], total: float) -> Metric:
    """`counts` has one place more than `bounds`: for what is above the last."""
    buckets, so_far = [], 0
    for bound, count in zip([*bounds, "+Inf"], list(counts), strict=True):
        so_far += count
        buckets.append((bound, float(so_far)))
    return HistogramMetricFamily(_PREFIX + name, what, buckets=buckets, sum_value=total)
