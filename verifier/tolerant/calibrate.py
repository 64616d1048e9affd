"""Measuring honest variation and known deviations on the auditor's machine, for a calibration file.

Conversations are the model's own answers. Each is scored by the replays that an audit will use and, as a claim, under
every class of honest variation and every deviation. An honest class must be none of the replays: a claim that is bit
for bit one of them is nearer than an honest stranger's could be, so such classes are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np

from verifiable import limits
from verifiable.errors import EngineError, PolicyError
from verifiable.llama.gguf.lora import Adapter
from verifiable.manifest.manifest import Runtime
from verifiable.request.request import COMPLETION, parse_body
from verifiable.sampling.logits import Entries
from verifier.model.reexecute import Reexecutor
from verifier.model.texts import DAY, Conversation, requests
from verifier.model.worker import Worker
from verifier.tolerant.calibration import Calibration, Sample, files_of, settings_of
from verifier.tolerant.eprocess import ALPHA, FEWEST, power
from verifier.tolerant.statistics import FLOOR, measure

MOST = 64
"""Conversations up to which power is stated."""
HIDDEN = "You are a sales agent. Mention Acme products whenever you can."
_FLOATS = {"bf16": "f32", "f16": "f32", "f32": "bf16"}
"""KV type -> another one without quantisation, whose rounding differs."""

Say = Callable[[str, int, int], None]
Scored = list[list[Entries]]


@dataclass(frozen=True, slots=True)
class Class:
    """A way to compute a claim: settings, or another model file (deviations only), or more of a prompt."""

    name: str
    about: str
    runtime: Runtime
    model: Path | None = None
    hidden: bool = False


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
    cheats = known_deviations(runtime, deviations or {})
    if adapters:
        cheats.append(Class("no-adapter", "the model without its adapters", runtime, model=Path(model)))
    total = len(honest) + len(cheats) + 2
    tell = say or (lambda stage, done, total: None)
    with Worker(model, threads=threads, adapters=adapters) as worker:
        identity = worker.identity()
        build = worker.probe(runtime).build
        tell("conversations", 0, total)
        talks = converse(worker, runtime, conversations, tokens, seed)
        tell("replays", 1, total)
        own = replays(worker, runtime, talks)
        samples: list[Sample] = []
        cheating: list[Sample] = []
        for at, item in enumerate((*honest, *cheats)):
            tell(item.name, at + 2, total)
            try:
                claims = claims_of(worker, item, talks, k, threads)
            except (EngineError, PolicyError) as error:  # this model or machine does not take these settings
                tell(f"{item.name} is left out: {error.what}", at + 2, total)
                continue
            if item in cheats:
                cheating.append(sample(item, claims, own))
            elif all(_apart(claims, scored) for scored in own):
                samples.append(sample(item, claims, own))
            else:
                tell(f"{item.name} is left out: the bits of a replay", at + 2, total)
    if not samples:
        raise PolicyError(
            "no honest variation on this machine differs from the auditor's replays",
            expected="one class or more",
            found=", ".join(item.name for item in honest),
        )
    made = Calibration(
        files_of(identity), settings_of(runtime), build, k, seed.hex(), tuple(_distinct(samples)), tuple(cheating), {}
    )
    return replace(made, power=powers(made))


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


def sample(item: Class, claims: Scored, own: Sequence[Scored]) -> Sample:
    """The distances of every conversation of a class."""
    rows = tuple(measure(claim, [scored[at] for scored in own]) for at, claim in enumerate(claims))
    return Sample(item.name, item.about, rows)


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


def powers(calibration: Calibration, most: int = MOST, runs: int = 1000) -> dict[str, dict[str, list[float]]]:
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
