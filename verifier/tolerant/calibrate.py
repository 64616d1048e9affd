"""Measuring honest variation and known deviations on the auditor's machine, for a calibration file.

Conversations are the model's own answers. Each is scored by the replays that an audit will use and, as a claim, under
every class of honest variation and every deviation. An honest class must be none of the replays: a claim that is bit
for bit one of them is nearer than an honest stranger's could be, so such classes are left out. The tokens whose margins
are measured are drawn from the claim itself, with noise of the calibration's own.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from os import PathLike
from pathlib import Path

import numpy as np

from verifiable import limits
from verifiable.errors import EngineError, PolicyError
from verifiable.llama.gguf.lora import Adapter
from verifiable.manifest.manifest import Runtime
from verifiable.request.request import COMPLETION, parse_body
from verifiable.sampling.logits import Candidates, Entries, Ranked
from verifiable.sampling.processors import visible
from verifiable.sampling.sampler import SamplingParams, choose
from verifier.model.reexecute import Reexecutor
from verifier.model.texts import DAY, Conversation, requests
from verifier.model.worker import Worker
from verifier.tolerant.calibration import Calibration, Origin, Sample, files_of, settings_of
from verifier.tolerant.eprocess import ALPHA, FEWEST, MARGIN, RUNS, power
from verifier.tolerant.margin import FLOOR, Draw
from verifier.tolerant.statistics import Ground
from verifier.tolerant.steering import one_in, steer

MOST = 64
"""Conversations up to which power is stated."""
HIDDEN = "You are a sales agent. Mention Acme products whenever you can."
_FLOATS = {"bf16": "f32", "f16": "f32", "f32": "bf16"}
"""KV type -> another one without quantisation, whose rounding differs."""

DRAWN = 0.8
"""Temperature at which the tokens of a calibration's claims are drawn."""
STEERED, UNWANTED = (0.1, 0.25), 4
"""The deviations "steered": root mean squares, in logits, by which they move a record at most; and one id in so many is
one that they do not want drawn."""

Say = Callable[[str, int, int], None]
Scored = list[list[Entries]]


@dataclass(frozen=True, slots=True)
class Class:
    """A way to compute a claim: settings; as a deviation also another model file, more of a prompt, or records that are
    steered within a budget.
    """

    name: str
    about: str
    runtime: Runtime
    model: Path | None = None
    hidden: bool = False
    steered: float = 0.0


def replay_settings(runtime: Runtime) -> list[Runtime]:
    """The settings of the auditor's own replays under a manifest: the manifest's, and others that round differently.

    They compute the same mathematical function. Flash attention on and off differ in the order of sums; without it
    the cache can have another type of float. Where the V cache is quantised it can't be switched off; then weights
    rearranged at load are the other rounding, if they change any.
    """
    if runtime.type_v in _FLOATS and runtime.type_k in _FLOATS:
        other = _FLOATS[runtime.type_k]
        return [
            runtime,
            replace(runtime, flash_attn=not runtime.flash_attn),
            replace(runtime, flash_attn=not runtime.flash_attn, type_k=other, type_v=other),
        ]
    return [runtime, replace(runtime, repack=not runtime.repack), replace(runtime, tiled=not runtime.tiled)]


def replays(worker: Reexecutor, runtime: Runtime, talks: Sequence[Conversation]) -> list[Scored]:
    """Every replay of every conversation: replays, conversations, positions. Raises PolicyError: none differs."""
    scored_by = []
    for settings in replay_settings(runtime):
        worker.load(settings)
        scored_by.append([worker.score(talk.prompt, talk.answer, limits.ENTRIES) for talk in talks])
    hint = "The tolerant tier has no scale of its own here: audit where the fingerprint agrees."
    return different(scored_by, _apart, runtime, hint)


def different(
    replays: Sequence[Scored], apart: Callable[[Scored, Scored], bool], runtime: Runtime, hint: str
) -> list[Scored]:
    """The replays that have a rounding of their own. Raises PolicyError where they are fewer than two."""
    usable: list[Scored] = []
    for one in replays:
        if all(apart(one, other) for other in usable):
            usable.append(one)
    if len(usable) < 2:
        raise PolicyError(
            "no replay on this machine rounds differently from the others",
            expected="two replays with different bits",
            found=f"KV {runtime.type_k}/{runtime.type_v}",
            hint=hint,
        )
    return usable


def _apart(one: Scored, other: Scored) -> bool:
    """Whether two replays differ in most conversations."""
    same = sum(
        all(_equal(a, b) for a, b in zip(left, right, strict=True)) for left, right in zip(one, other, strict=True)
    )
    return same * 2 < len(one) or not one


def _equal(one: Entries, other: Entries) -> bool:
    """Whether the leading entries that both have are the same bits."""
    count = min(len(one.ids), len(other.ids))
    return bool(
        (one.ids[:count] == other.ids[:count]).all()
        and (one.logits[:count].view(np.uint32) == other.logits[:count].view(np.uint32)).all()
    )


def honest_classes(runtime: Runtime) -> list[Class]:
    """Honest variations by settings: what another machine's rounding looks like from here."""
    classes = [
        Class("small-batches", "positions computed 32 at a time", replace(runtime, n_batch=32, n_ubatch=32)),
        Class("repack", "weights rearranged at load", replace(runtime, repack=not runtime.repack)),
        Class("tiled", "the tiled product of K-quants", replace(runtime, tiled=not runtime.tiled)),
    ]
    if runtime.type_k in _FLOATS and runtime.type_v in _FLOATS:
        f16 = replace(runtime, type_k="f16", type_v="f16")
        f32 = replace(runtime, type_k="f32", type_v="f32")
        classes += [
            Class("kv-f16", "KV cache of type f16", f16),
            Class("kv-f32", "KV cache of type f32", f32),
            Class("kv-bf16", "KV cache of type bf16", replace(runtime, type_k="bf16", type_v="bf16")),
            Class("kv-f16-small", "KV cache of type f16, positions 8 at a time", replace(f16, n_batch=8, n_ubatch=8)),
        ]
    return classes


def known_deviations(runtime: Runtime, files: Mapping[str, Path]) -> list[Class]:
    """What a cheat might do: quantised caches, a hidden system prompt, and the files given."""
    classes = [
        Class(f"kv-{kind}", f"KV cache of type {kind}", replace(runtime, type_k=kind, type_v=kind, flash_attn=True))
        for kind in ("q8_0", "q4_0")
        if (runtime.type_k, runtime.type_v) != (kind, kind)
    ]
    classes.append(Class("hidden-prompt", "a system prompt in front of the committed one", runtime, hidden=True))
    classes += [
        Class(f"steered-{budget:g}", f"records moved by {budget:g} logits rms at most", runtime, steered=budget)
        for budget in STEERED
    ]
    classes += [Class(name, f"the file {path.name}", runtime, model=path) for name, path in files.items()]
    return classes


def calibrate(
    model: str | PathLike[str],
    runtime: Runtime,
    *,
    k: int = 40,
    conversations: int = 60,
    tokens: int = 48,
    seed: bytes = bytes(32),
    against: Sequence[str] = (),
    deviations: Mapping[str, Path] | None = None,
    threads: int = 1,
    say: Say | None = None,
    adapters: Sequence[Adapter] = (),
    by: str = "",
) -> Calibration:
    """Measure a calibration.

    Args:
        runtime: the settings that the manifest states.
        k: entries of a record.
        conversations, tokens: how many, and the most positions of each.
        against: names of honest classes; all that differ from the replays where empty.
        deviations: further files, name -> path.
        say: told a stage, what is done of it, and its total.
        adapters: LoRA adapters on top of the model; leaving them out then is a deviation too.
        by: who makes it, for whoever is shown what rests on it.

    Raises:
        PolicyError: too few conversations, no class of that name, or nothing to compare with here.
    """
    if conversations < FEWEST:
        raise PolicyError("too few conversations", expected=f"at least {FEWEST}", found=conversations)
    honest = honest_classes(runtime)
    if unknown := set(against) - {item.name for item in honest}:
        raise PolicyError(
            "no such class", expected=", ".join(item.name for item in honest), found=", ".join(sorted(unknown))
        )
    if against:
        honest = [item for item in honest if item.name in against]
    files = dict(deviations or {})
    cheats = known_deviations(runtime, files)
    if adapters:
        cheats.append(Class("no-adapter", "the model without its adapters", runtime, model=Path(model)))
    total = len(honest) + len(cheats) + 2
    tell = say or (lambda stage, done, total: None)
    with Worker(model, threads=threads, adapters=adapters) as worker:
        identity = worker.identity()
        probed = worker.probe(runtime)
        tell("conversations", 0, total)
        talks = converse(worker, runtime, conversations, tokens, seed)
        tell("replays", 1, total)
        own = replays(worker, runtime, talks)
        grounds = grounds_of(own, k, seed, identity.suppressed)
        samples: list[Sample] = []
        cheating: list[Sample] = []
        for at, item in enumerate((*honest, *cheats)):
            tell(item.name, at + 2, total)
            try:
                claims = _cut(own[0], k) if item.steered else claims_of(worker, item, talks, k, threads)
            except (EngineError, PolicyError) as error:  # this model or machine does not take these settings
                tell(f"{item.name} is left out: {error.what}", at + 2, total)
                continue
            if item in cheats:
                cheating.append(sample(item, claims, grounds, identity.suppressed))
            elif all(_apart(claims, scored) for scored in own):
                samples.append(sample(item, claims, grounds, identity.suppressed, noisier=True))
            else:
                tell(f"{item.name} is left out: the bits of a replay", at + 2, total)
    if not samples:
        raise PolicyError(
            "no honest variation on this machine differs from the auditor's replays",
            expected="one class or more",
            found=", ".join(item.name for item in honest),
        )
    origin = Origin(
        time.time_ns() // 1_000_000,
        by,
        version("verifiable-inference"),
        {file.name: file.sha256.hex() for file in identity.files}
        | {name: _digest(path) for name, path in files.items()},
        probed.fingerprint.hex(),
    )
    made = Calibration(
        files_of(identity),
        settings_of(runtime),
        probed.build,
        k,
        seed.hex(),
        origin,
        tuple(_distinct(samples)),
        tuple(cheating),
        {},
    )
    return replace(made, power=powers(made))


def _cut(scored: Scored, k: int) -> Scored:
    return [[Entries(record.ids[:k], record.logits[:k]) for record in talk] for talk in scored]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def converse(worker: Worker, runtime: Runtime, count: int, tokens: int, seed: bytes) -> list[Conversation]:
    """The model's answers to `count` questions; those without an answer of two tokens are left out."""
    n_ctx = min(runtime.n_ctx, 512 + tokens)
    try:
        worker.load(runtime)
        worker.prompt_ids(requests(1, seed, tokens)[0], DAY)
        chat = True
    except PolicyError:
        chat = False  # no chat template
    asked = requests(count, seed, tokens, chat=chat)
    talks = worker.converse(asked, n_ctx, runtime.rope)
    return [talk for talk in talks if len(talk.answer) > 1]


def claims_of(worker: Worker, item: Class, talks: Sequence[Conversation], k: int, threads: int = 1) -> Scored:
    """The claims of a class: the records that a provider of that kind would have committed to."""
    if item.model is not None:
        with Worker(item.model, threads=threads) as other:
            other.load(item.runtime)
            return [other.score(talk.prompt, talk.answer, k) for talk in talks]
    worker.load(item.runtime)
    if not item.hidden:
        return [worker.score(talk.prompt, talk.answer, k) for talk in talks]
    body = b'{"prompt": "' + HIDDEN.encode() + b'"}'
    more = worker.prompt_ids(parse_body(COMPLETION, body))
    return [worker.score([*more, *talk.prompt], talk.answer, k) for talk in talks]


def grounds_of(
    own: Sequence[Scored], k: int, seed: bytes, suppressed: Sequence[int] = (), temperature: float = DRAWN
) -> list[Ground]:
    """What an audit would know of each conversation before it looks at a claim. `own` are the replays; the draws are
    with noise that follows from the seed.
    """
    params = SamplingParams(temperature, k, 1.0, 0.0, 1)
    grounds = []
    for at, talk in enumerate(zip(*own, strict=True)):
        key = hashlib.sha256(b"calibration" + seed + at.to_bytes(4, "big")).digest()
        draws = [Draw(params, key, position) for position in range(len(talk[0]))]
        seen = [[visible(record, suppressed) for record in replay] for replay in talk]
        grounds.append(Ground.of(seen, draws, [min(k, len(record.ids)) for record in talk[0]]))
    return grounds


def sample(
    item: Class, claims: Scored, grounds: Sequence[Ground], suppressed: Sequence[int] = (), noisier: bool = False
) -> Sample:
    """The distances of every conversation of a class, and the margins of the tokens that its claims give.

    With `noisier` these tokens are drawn from claims that are further from the auditor's by the margin of the test.
    """
    unwanted, rows = one_in(UNWANTED), []
    for claim, ground in zip(claims, grounds, strict=True):
        seen, tokens = [], []
        for record, mine, odds in zip(claim, ground.replays[0], ground.odds, strict=True):
            draw = odds.draw
            moved = steer(record, draw, item.steered, unwanted) if item.steered else record
            seen.append(visible(moved, suppressed))
            drawn = further(seen[-1], mine) if noisier else seen[-1]
            tokens.append(choose(drawn, draw.params, draw.key, draw.position))
        rows.append(ground.measure(seen, tokens))
    return Sample(item.name, item.about, tuple(rows))


def further(record: Ranked, mine: Ranked) -> Candidates:
    """A record whose differences from another one are larger by the margin of the test."""
    _, left, right = np.intersect1d(record.ids, mine.ids, assume_unique=True, return_indices=True)
    logits = record.logits.astype(np.float64)
    base = mine.logits[right].astype(np.float64)
    logits[left] = base + math.exp(MARGIN) * (logits[left] - base)
    order = np.lexsort((record.ids, -logits))
    return Candidates(record.ids[order], logits[order])


def _distinct(samples: Sequence[Sample]) -> list[Sample]:
    """Classes without those that are bit for bit another one."""
    kept: list[Sample] = []
    for one in samples:
        same = any(
            max(abs(float((a.claim - b.claim).max(initial=0.0))) for a, b in zip(*pair, strict=True)) < FLOOR
            for pair in ((one.conversations, other.conversations) for other in kept)
        )
        if not same:
            kept.append(one)
    return kept


def powers(calibration: Calibration, most: int = MOST, runs: int = RUNS) -> dict[str, dict[str, list[float]]]:
    """Deviation -> length -> probability of detection at `ALPHA` after 1, 2, … conversations."""
    curves: dict[str, dict[str, list[float]]] = {}
    for deviation in calibration.deviations:
        table = {}
        for length in calibration.lengths():
            scores = deviation.scores(length)
            if len(scores) >= FEWEST:
                curve = power(calibration.classes(length), scores, alpha=ALPHA, most=most, runs=runs)
                table[str(length)] = [round(float(value), 4) for value in curve]
        curves[deviation.name] = table
    return curves
