"""Cheating is told from honest rounding within a stated number of tokens, and honest providers are not accused.

The tolerant tier at work on a real model: a calibration from one half of the conversations, tested on the other half,
and the other way round. For each deviation: how far apart it is from honest rounding (area under the ROC curve, one
conversation of 32 tokens), and the tokens that reach a power of 0.999 at alpha 1e-6. For each honest class, also
classes that the calibration does not know, and other temperatures: the highest e-value, which must stay below 100 (an
accusation takes 1e6). Records that are steered within a budget of 0.25 logits rms must be told within 500 tokens.

    python -m benchmarks.detection                       # a small budget
    python -m benchmarks.detection --conversations 120 --tokens 64 --keep DIR    # full size: an hour or two
    python -m benchmarks.detection --honest --conversations 180    # no deviations: false accusations alone
    python -m benchmarks.detection --from FILE FILE      # the figures of runs that were kept, without a model
    python -m benchmarks.detection --other-build DIR     # a second llama-cpp-python, unpacked in DIR: a real class

The temperature is not told by logits but by replay, exactly: how many tokens until the first that 0.7 does not give.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Figure, main
from fixtures import models
from fixtures.quantise import FILE_TYPES, variant
from verifiable.errors import EngineError, PolicyError
from verifiable.manifest.manifest import Runtime
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingParams, acceptable, choose, sampling_key
from verifiable.session.records import NonceSource
from verifier.commands.calibrate import read_settings
from verifier.model.texts import Conversation
from verifier.model.worker import Worker
from verifier.tolerant.calibrate import (
    Class,
    Scored,
    claims_of,
    converse,
    grounds_of,
    honest_classes,
    known_deviations,
    replays,
    sample,
)
from verifier.tolerant.calibration import Calibration, Origin, Sample, settings_of
from verifier.tolerant.eprocess import ALPHA, needed, power, run
from verifier.tolerant.statistics import Score

WANTED = 0.999
LENGTH = 32
"""Tokens of a conversation that are compared, where the conversations are that long."""
K = 40
GOAL, WITHIN = "steered-0.25", 500
"""The deviation, and the tokens within which it has to be told with probability 0.95."""
PLAIN = "plain-"
"""Before the name of an honest class in a file that was kept: as an audit would see it."""
ELSEWHERE = (0.0, 0.3, 1.5)
"""Temperatures at which honest tokens are drawn as well, though calibrations draw at another."""
HELD = ("kv-f16-small", "tiled", "other-build")
"""Honest classes that calibrations are made without: the test is whether they are accused all the same."""


@dataclass(frozen=True, slots=True)
class Options:
    """The benchmark's size, and where more is to be had. `honest` leaves the deviations out."""

    model: str
    conversations: int
    tokens: int
    seed: str
    keep: Path | None
    other_build: Path | None
    honest: bool


@contextmanager
def other_build(folder: Path) -> Iterator[None]:
    """Worker processes that are started meanwhile load llama-cpp-python from this folder."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), before]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@dataclass(frozen=True, slots=True)
class Samples:
    """What everything is made of. `known` are the honest classes as a calibration has them, with margins drawn from
    noisier claims; `honest` the same as an audit sees them; `held` classes that no calibration has; and deviations.
    """

    known: list[Sample]
    honest: list[Sample]
    held: list[Sample]
    cheats: list[Sample]


def collect(options: Options) -> tuple[Samples, Scored, Runtime]:
    """The samples, and the claims of the plain settings."""
    path = models.ensure(options.model)
    runtime = replace(read_settings(None, [])[0], n_ctx=1024)
    files = {name: variant(name, options.model) for name in FILE_TYPES} if options.model == "smollm2" else {}
    made = Samples([], [], [], [])
    with Worker(path) as worker:
        conversations = converse(worker, runtime, options.conversations, options.tokens, options.seed.encode())
        own = replays(worker, runtime, conversations)
        plain = [[cut(entry) for entry in conversation] for conversation in own[0]]
        grounds = grounds_of(own, K, options.seed.encode())
        stranger = plain
        for item in honest_classes(runtime):
            claims = attempt(worker, item, conversations, own)
            say(item.name)
            if claims is None:
                continue
            if item.name in HELD:
                made.held.append(sample(item, claims, grounds))
                continue
            made.honest.append(sample(item, claims, grounds))
            made.known.append(sample(item, claims, grounds, noisier=True))
            stranger = claims
        for temperature in ELSEWHERE:
            item = Class(f"{made.honest[-1].name} at temperature {temperature:g}", "", runtime)
            drawn = grounds_of(own, K, options.seed.encode(), temperature=temperature)
            made.held.append(sample(item, stranger, drawn))
        if options.other_build is not None:
            with other_build(options.other_build), Worker(path) as elsewhere:
                item = Class("other-build", "another build of llama.cpp", runtime)
                claims = attempt(elsewhere, item, conversations, own)
                made.held.extend([] if claims is None else [sample(item, claims, grounds)])
        for item in known_deviations(runtime, {} if options.honest else files):
            if options.honest and not item.steered:
                continue
            # A provider that steers has a rounding of its own: that of the last honest class.
            claims = stranger if item.steered else attempt(worker, item, conversations, own)
            made.cheats.extend([] if claims is None else [sample(item, claims, grounds)])
            say(item.name)
    return made, plain, runtime


def attempt(worker: Worker, item: Class, conversations: Sequence[Conversation], own: Sequence[Scored]) -> Scored | None:
    """The claims of a class; None where the settings can't be had here, or give the bits of a replay."""
    try:
        claims = claims_of(worker, item, conversations, K)
    except (EngineError, PolicyError):
        return None
    replayed = any(
        all(a.logit_bytes() == b.logit_bytes()[: 4 * K] for a, b in zip(one, other, strict=True))
        for scored in own
        for one, other in list(zip(claims, scored, strict=True))[:3]
    )
    return None if replayed else claims


def cut(entries: Entries) -> Entries:
    return Entries(entries.ids[:K], entries.logits[:K])


def measure(kept: Sequence[Path] | None, **chosen: Any) -> list[Figure]:
    if kept is not None:
        return again(kept)
    options = Options(**chosen)
    made, plain, runtime = collect(options)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        others = [replace(item, name=PLAIN + item.name) for item in (*made.honest, *made.held)]
        origin = Origin(0, "benchmark", "", {}, "")
        everything = Calibration(
            ("benchmark",), settings_of(runtime), (), K, "", origin, tuple(made.known), (*others, *made.cheats), {}
        )
        everything.save(options.keep / f"detection-{options.model}-{options.seed}.json")
    return [*figures(made), *temperature(plain)]


def figures(made: Samples) -> list[Figure]:
    """Every figure that needs no model any more. Deviations are told with the calibration of the first half."""
    honest, held, cheats = made.honest, made.held, made.cheats
    length = max(at for at in (8, 16, 32) if sum(len(item) >= at for item in honest[0].conversations) >= 24)
    half = len(honest[0].conversations) // 2
    halves = ((0, half), (half, 2 * half))
    known, swapped = ({item.name: part(item, *each).scores(length) for item in made.known} for each in halves)
    tests, others = (
        {item.name: part(item, *each).scores(length) for item in (*honest, *held)} for each in halves[::-1]
    )
    names = ", ".join(known)
    note = f"calibrated on {half} conversations of {names}; tested on {half} others, both ways; {length} tokens each"
    rows = []
    for name in tests:
        paths = (run(known, tests[name]), run(swapped, others[name]))
        highest = max(path.highest for path in paths) / math.log(10.0)
        what = f"honest {name}: highest e-value, log10"
        rows.append(Figure(what, highest, "", at_most=2.0, note=note))
        tokens = length * (len(tests[name]) + len(others[name]))
        rows.append(Figure(f"honest {name}: tokens tested", float(tokens), "tokens"))
    if not cheats:
        return rows
    near = tests[honest[0].name]
    for item in cheats:
        scores = item.scores(length)
        rows.append(Figure(f"{item.name}: area under ROC, one conversation", auc(near, scores), ""))
        rows.append(tokens_to_detect(item.name, known, scores, length))
        if item.name == GOAL:
            curve = power(known, scores, most=WITHIN // length)
            goal = f"{item.name}: power at alpha {ALPHA:g} after {WITHIN // length * length} tokens"
            rows.append(Figure(goal, float(curve[-1]), "", at_least=0.95))
    strong = next((item for item in cheats if item.name == "Q4_0"), cheats[-1])
    rows.append(tokens_to_detect(f"{strong.name} in one of ten", known, strong.scores(length), length, 0.1, near))
    return rows


def again(kept: Sequence[Path]) -> list[Figure]:
    """The figures of runs whose samples were kept."""
    samples = [Calibration.load(path) for path in kept]
    known = joined([each.honest for each in samples])
    names = {item.name for item in known}
    rest = joined([each.deviations for each in samples])
    plain = [replace(item, name=item.name.removeprefix(PLAIN)) for item in rest if item.name.startswith(PLAIN)]
    return figures(
        Samples(
            known,
            [item for item in plain if item.name in names],
            [item for item in plain if item.name not in names],
            [item for item in rest if not item.name.startswith(PLAIN)],
        )
    )


def joined(runs: Sequence[Sequence[Sample]]) -> list[Sample]:
    """The samples that every run has, with the conversations of all of them."""
    tables = [{item.name: item for item in samples} for samples in runs]
    return [
        replace(item, conversations=tuple(talk for table in tables for talk in table[item.name].conversations))
        for item in runs[0]
        if all(item.name in table for table in tables)
    ]


def part(item: Sample, first: int, last: int | None) -> Sample:
    return replace(item, conversations=item.conversations[first:last])


def tokens_to_detect(
    name: str,
    known: Mapping[str, Sequence[Score]],
    scores: Sequence[Score],
    length: int,
    share: float = 1.0,
    honest: Sequence[Score] = (),
) -> Figure:
    most = 120 if share == 1.0 else 240
    curve = power(known, scores, share=share, honest=honest, most=most, runs=1000)
    count = needed(curve, WANTED)
    if count is None:
        what = f"{name}: power after {most * length:,} tokens; {WANTED} is not reached"
        return Figure(what, float(curve[-1]), "", note="the tolerant tier can't tell it: reports say so")
    return Figure(f"{name}: tokens to power {WANTED} at alpha {ALPHA:g}", float(count * length), "tokens")


def auc(honest: Sequence[Score], cheating: Sequence[Score]) -> float:
    """The probability that a cheating conversation's mean statistic is above an honest one's."""
    low = np.array([item.mean for item in honest])[:, None]
    high = np.array([item.mean for item in cheating])[None, :]
    return float(np.mean((high > low) + 0.5 * (high == low)))


def temperature(plain: Scored, asked: float = 0.7, used: float = 1.0) -> list[Figure]:
    """Tokens until replay finds the first one that was not drawn at the temperature asked for."""
    first = []
    for number, conversation in enumerate(plain):
        for nonce in range(20):
            key = sampling_key(NonceSource.CLIENT, nonce.to_bytes(8, "big"), number.to_bytes(32, "big"))
            params = SamplingParams(asked, K, 1.0, 0.0, len(conversation))
            hotter = replace(params, temperature=used)
            wrong = (
                at
                for at, entries in enumerate(conversation)
                if choose(entries, hotter, key, at) not in acceptable(entries, params, key, at)
            )
            first.append(next(wrong, len(conversation)) + 1)
    note = "by replay of the draw; the end of a conversation counts as not found, so these are upper bounds"
    name = f"temperature {used} for {asked}: tokens until the first is found"
    return [
        Figure(f"{name}, median", float(np.median(first)), "tokens", note=note),
        Figure(f"{name}, 95 of 100", float(np.quantile(first, 0.95)), "tokens", note=note),
    ]


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--conversations", type=int, default=28)
    options.add_argument("--tokens", type=int, default=32)
    options.add_argument("--seed", default="detection")
    options.add_argument("--keep", type=Path, metavar="DIR", help="folder for the samples")
    options.add_argument("--other-build", type=Path, metavar="DIR", help="a second llama-cpp-python: one more class")
    options.add_argument("--honest", action="store_true", help="no deviations: false accusations alone")
    options.add_argument(
        "--from", dest="kept", type=Path, nargs="+", metavar="FILE", help="samples of runs that were kept; no model"
    )
    sys.exit(main(measure, "detection", __doc__, options=options))
