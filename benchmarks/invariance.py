"""What batch invariance costs: prefill and decode under invariant settings against llama.cpp's defaults.

Each setting runs in a process of its own (one of them is read when the library loads), in turn, with a fixed text.
Medians count. Models with float weights have to be served with rows in pairs: what that costs is measured against the
same settings without, which are not invariant for them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks.measure import Figure, in_turn, main
from fixtures import models
from fixtures.quantise import ALL_TYPES, variant

ROUNDS = 3
PREFILL, DECODE = 512, 48
SETTINGS = ("invariant", "stock")
FLOAT = "F16"


def run(model: str, kind: str, width: int = 1) -> tuple[float, float]:
    """Tokens a second of a prefill of 512 and of decoding `width` answers after it, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.invariance", "--one", model, kind, str(width)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    prefill, decode = json.loads(done.stdout)
    return prefill, decode


def one(model: str, kind: str, width: int) -> tuple[float, float]:
    from verifiable.llama import library
    from verifiable.llama.settings import INVARIANT, STOCK

    kinds = {"invariant": INVARIANT, "stock": STOCK, "pairs": replace(INVARIANT, pairs=True)}
    settings = replace(kinds[kind], n_ctx=1024, n_seq_max=width, n_batch=512)
    library.load_library(settings.tiled)
    from verifiable.llama.context import Batch, Context
    from verifiable.llama.model import Model
    from verifiable.llama.probe.probe import probe_tokens

    loaded = Model.load(variant(model) if model in ALL_TYPES else models.ensure(model), repack=settings.repack)
    context = Context(loaded, settings)
    tokens, batch = probe_tokens(loaded)[: PREFILL + DECODE], Batch(PREFILL)
    for at in range(8):  # warm: pages of the file, buffers
        batch.clear()
        batch.add(0, at, tokens[at], True)
        context.decode(batch)
    context.clear()
    batch.clear()
    for at in range(PREFILL):
        batch.add(0, at, tokens[at], at == PREFILL - 1)
    start = time.perf_counter()
    context.decode(batch)[PREFILL - 1]
    prefill = PREFILL / (time.perf_counter() - start)
    for other in range(1, width):
        context.copy(0, other)
    taken = []
    for at in range(PREFILL, PREFILL + DECODE):
        batch.clear()
        for seq in range(width):
            batch.add(seq, at, tokens[at], True)
        start = time.perf_counter()
        context.decode(batch)[0]
        taken.append(time.perf_counter() - start)
    return prefill, width / statistics.median(taken)


def measure() -> Sequence[Figure]:
    figures = []
    for model in ("smollm2", "gemma3"):
        rates = in_turn({kind: partial(run, model, kind) for kind in SETTINGS}, ROUNDS)
        for index, phase, goal in ((0, "prefill", 0.9), (1, "decode", 0.95)):
            median = {kind: statistics.median(rate[index] for rate in rates[kind]) for kind in SETTINGS}
            figures.append(Figure(f"{model} {phase}, invariant", median["invariant"], "tokens/s"))
            ratio = median["invariant"] / median["stock"]
            figures.append(Figure(f"{model} {phase}, invariant ÷ stock", ratio, "×", at_least=goal))
    return [*figures, *pairs()]


def pairs() -> list[Figure]:
    """What rows in pairs cost a model that needs them."""
    figures = []
    for width in (1, 4):
        rates = in_turn({kind: partial(run, FLOAT, kind, width) for kind in ("pairs", "invariant")}, ROUNDS)
        for index, phase in ((0, "prefill"), (1, "decode")):
            if width == 1 or phase == "decode":
                rounds = zip(rates["pairs"], rates["invariant"], strict=True)
                ratio = statistics.median(paired[index] / plain[index] for paired, plain in rounds)
                name = f"smollm2 in {FLOAT}, {phase} of {width}, rows in pairs ÷ not"
                figures.append(Figure(name, ratio, "×"))
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        sys.exit(0)
    sys.exit(main(measure, "invariance", __doc__))
