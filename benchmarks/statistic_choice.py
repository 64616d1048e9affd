"""The statistic of the tolerant tier separates better than the others that were tried.

For each statistic of a conversation: how many honest standard deviations lie between an honest provider of another
rounding and one that serves Q8_0 or Q6_K made from the true file, or a KV cache in 8 bits. Raw statistics use the
claim and one replay; ratios divide by the same statistic between replays of the auditor's own.

    python -m benchmarks.statistic_choice --conversations 60 --tokens 48
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from benchmarks.measure import Figure, main
from fixtures import models
from fixtures.quantise import variant
from verifiable import limits
from verifiable.sampling.logits import Entries
from verifier.commands.calibrate import read_settings
from verifier.model.worker import Worker
from verifier.tolerant.calibrate import Class, Scored, claims_of, converse, replays
from verifier.tolerant.statistics import Reals

LENGTH = 32
Statistic = Callable[[Reals, Reals], float]
"""Of the shared ids' logits in two records."""


def rms(a: Reals, b: Reals) -> float:
    return float(np.sqrt(np.mean((a - b - np.mean(a - b)) ** 2)))


def rms_uncentred(a: Reals, b: Reals) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2)))


def mean_absolute(a: Reals, b: Reals) -> float:
    return float(np.mean(np.abs(a - b - np.mean(a - b))))


def largest(a: Reals, b: Reals) -> float:
    return float(np.abs(a - b - np.mean(a - b)).max())


def divergence(a: Reals, b: Reals) -> float:
    """Square root of the Kullback-Leibler divergence over the shared ids."""
    p, q = (values - values.max() for values in (a, b))
    p, q = p - np.log(np.exp(p).sum()), q - np.log(np.exp(q).sum())
    return float(np.sqrt(max(float(np.sum(np.exp(p) * (p - q))), 0.0)))


def of_best(a: Reals, b: Reals) -> float:
    """Difference of the first id's log-probability over the shared ids."""
    p, q = (values - values.max() for values in (a, b))
    return float(abs(p[0] - np.log(np.exp(p).sum()) - q[0] + np.log(np.exp(q).sum())))


STATISTICS: dict[str, Statistic] = {
    "rms of centred differences": rms,
    "rms, not centred": rms_uncentred,
    "mean absolute difference": mean_absolute,
    "largest difference": largest,
    "root of KL divergence": divergence,
    "log-probability of the first id": of_best,
}


def table(claim: Scored, own: Sequence[Scored], statistic: Statistic, k: int) -> tuple[Reals, Reals]:
    """Each conversation's logarithms of the raw statistic and of the ratio, at `k` entries."""
    raw, ratio = [], []
    for at, conversation in enumerate(claim):
        if len(conversation) < LENGTH:
            continue
        rows = []
        for position in range(LENGTH):
            others = [scored[at][position] for scored in own]
            mine = [on_shared(conversation[position], other, statistic, k) for other in others]
            pairs = [on_shared(one, other, statistic, k) for one, other in combinations(others, 2)]
            rows.append((mine[0], float(np.mean(np.square(mine))), float(np.mean(np.square(pairs)))))
        columns = np.array(rows)
        raw.append(np.log(np.sqrt(np.mean(columns[:, 0] ** 2))))
        ratio.append(0.5 * np.log(columns[:, 1].mean() / columns[:, 2].mean()))
    return np.array(raw), np.array(ratio)


def on_shared(one: Entries, other: Entries, statistic: Statistic, k: int) -> float:
    ids, left, right = np.intersect1d(one.ids[:k], other.ids, assume_unique=True, return_indices=True)
    if len(ids) < 2:
        return 20.0
    order = np.argsort(left)
    return statistic(one.logits[left[order]].astype(np.float64), other.logits[right[order]].astype(np.float64))


def apart(honest: Reals, cheating: Reals) -> float:
    return float((cheating.mean() - honest.mean()) / honest.std(ddof=1))


def figures(honest: Scored, cheats: dict[str, Scored], own: Sequence[Scored]) -> list[Figure]:
    rows = []
    for name, statistic in STATISTICS.items():
        base = table(honest, own, statistic, 40)
        for cheat, claims in cheats.items():
            values = table(claims, own, statistic, 40)
            for kind, a, b in zip(("raw", "ratio"), base, values, strict=True):
                rows.append(Figure(f"{name}, {kind}: {cheat}", apart(a, b), "spreads"))
    for k in (4, 8, 16, 64):
        near = table(honest, own, rms, k)[1]
        for cheat, claims in cheats.items():
            rows.append(Figure(f"rms, ratio, k = {k}: {cheat}", apart(near, table(claims, own, rms, k)[1]), "spreads"))
    return rows


def measure(conversations: int, tokens: int) -> list[Figure]:
    path = models.ensure("smollm2")
    runtime = replace(read_settings(None, [])[0], n_ctx=1024)
    f16 = replace(runtime, type_k="f16", type_v="f16")
    q8 = replace(runtime, type_k="q8_0", type_v="q8_0")
    with Worker(path) as worker:
        answered = converse(worker, runtime, conversations, tokens, b"statistic")
        own = replays(worker, runtime, answered)
        honest = claims_of(worker, Class("kv-f16", "", f16), answered, limits.ENTRIES)
        cheats = {"KV q8_0": claims_of(worker, Class("kv-q8_0", "", q8), answered, limits.ENTRIES)}
        for name in ("Q8_0", "Q6_K"):
            cheats[name] = claims_of(worker, Class(name, "", runtime, model=variant(name)), answered, limits.ENTRIES)
    return figures(honest, cheats, own)


if __name__ == "__main__":
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--conversations", type=int, default=20)
    options.add_argument("--tokens", type=int, default=LENGTH, help=f"of an answer, at most (default {LENGTH})")
    sys.exit(main(measure, "statistic_choice", __doc__, options=options))
