"""`verifiable probe`: can this file, on this machine, with these settings, be audited bit for bit?"""

from __future__ import annotations

import dataclasses
import json
import math
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from verifiable.commands.groups import grouped
from verifiable.commands.model_options import DeviceOptions, Lora, RopeOptions
from verifiable.commands.progress import Bars
from verifiable.errors import PolicyError
from verifiable.llama.gguf.identity import identify
from verifiable.llama.gguf.lora import parse_adapters
from verifiable.llama.library import load_library
from verifiable.llama.probe.cache import default_folder
from verifiable.llama.probe.compare import Comparison, OtherProbe, compare, model_json
from verifiable.llama.probe.probe import ProbeResult, ScheduleResult, probe_and_pair
from verifiable.llama.settings import KV_TYPES, RuntimeSettings, as_dict
from verifiable.manifest.manifest import ModelIdentity

EXIT_NOT_INVARIANT: Final = 3
_NAME_WIDTH: Final = 34
_INVARIANT: Final = """\
INVARIANT: batching, threads and neighbours change no bit. Exact audits are possible wherever
the fingerprint is the same."""
_NOT_INVARIANT: Final = """\
NOT INVARIANT: the same tokens can give other logits when the work is cut differently. A server
with these settings can only be audited tolerantly."""


@grouped
def probe(
    *,
    model: Annotated[Path, typer.Option(help="The GGUF file, or the first of its parts.", show_default=False)],
    kv_type: Annotated[str, typer.Option(help=f"Type of the KV cache: {', '.join(KV_TYPES)}.")] = "bf16",
    repack: Annotated[bool, typer.Option("--repack", help="Let llama.cpp rearrange the weights at load.")] = False,
    tiled: Annotated[bool, typer.Option("--tiled", help="Allow the tiled K-quant product.")] = False,
    threads: Annotated[int, typer.Option(min=1, max=512, help="Threads that do the work.")] = 1,
    lora: Lora = None,
    device: DeviceOptions,
    rope: RopeOptions,
    other: Annotated[
        Path | None,
        typer.Option("--compare", metavar="FILE", help="What `probe --json` said elsewhere: say where the two part."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure, whatever was measured before, and keep nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Measure whether a model's logits depend on batching, threads and neighbours here.

    Exit status: 0 they do not, so exact audits are possible; 3 they do, or the other machine that was compared has
    other bits; 2 the file or an option is wrong; 4 the environment does not allow it.
    """
    if kv_type not in KV_TYPES:
        raise PolicyError("--kv-type", expected=", ".join(KV_TYPES), found=kv_type)
    settings = RuntimeSettings(
        type_k=kv_type,
        type_v=kv_type,
        repack=repack,
        tiled=tiled,
        n_threads=threads,
        n_gpu_layers=device.gpu_layers,
        device=device.device,
        rope=rope.settings(),
    )
    there = None if other is None else OtherProbe.load(other)
    # The comparison needs two threads, and must end on a busy machine, too.
    load_library(tiled, passive=True)
    with Bars() as bars:
        adapters = parse_adapters(lora)
        identity = identify(model, partial(bars, f"Hashing {model.name}"), adapters)
        cache = None if fresh else default_folder()
        report = partial(bars, "Numerics probe")
        settings, result = probe_and_pair(model, settings, report, cache, identity=identity, adapters=adapters)
    found = None if there is None else compare(identity, settings, result, there)
    if as_json:
        print(_as_json(result, identity, settings, found))
    else:
        print(_as_text(result, identity, settings))
        if found is not None and there is not None:
            print(f"\n{_compared(found, there)}")
    return 0 if result.invariant and (found is None or found.same) else EXIT_NOT_INVARIANT


def _as_json(result: ProbeResult, identity: ModelIdentity, settings: RuntimeSettings, found: Comparison | None) -> str:
    schedules = [dataclasses.asdict(each) for each in result.schedules]
    for each in schedules:
        if not math.isfinite(each["worst"]):
            each["worst"] = None  # JSON has no infinity
    facts = {
        "invariant": result.invariant,
        "fingerprint": result.fingerprint.hex(),
        **dict(zip(("files", "adapters"), model_json(identity), strict=True)),
        "architecture": identity.architecture,
        "settings": as_dict(settings),
        "build": {
            **result.build._asdict(),
            "libraries": {each.name: each.sha256.hex() for each in result.build.libraries},
        },
        "schedules": schedules,
        "seconds": round(result.seconds, 3),
        "pieces": dataclasses.asdict(result.pieces),
    }
    if found is not None:
        facts["comparison"] = {"same": found.same, **dataclasses.asdict(found)}
    return json.dumps(facts, indent=2, allow_nan=False)


def _advice(settings: RuntimeSettings) -> str:
    if settings.type_k == settings.type_v in ("f16", "f32") or settings.repack or settings.tiled:
        return "Try KV bf16, no repack, not tiled."
    return (
        "Rows in pairs did not help.\n"
        "A recurrent model with weights in F16, BF16 or F32 (routers are) needs a llama.cpp built with\n"
        "GGML_LLAMAFILE=OFF."
    )


def _verdict(result: ScheduleResult) -> str:
    if result.equal:
        return "yes"
    differs = []
    if result.first_difference is not None:
        differs.append(f"logits from position {result.first_difference}, by up to {result.worst:.3g}")
    if result.operation is not None:
        differs.append(f"first within: {result.operation}")
    return "no: " + ("; ".join(differs) or "nothing could be compared")


def _compared(found: Comparison, there: OtherProbe) -> str:
    """What came of the comparison with another machine, for people."""
    (apart, positions), operations = found.positions, f"{found.operations:,} operations"
    lines = [f"Against      {there.fingerprint.hex()}"]
    if found.same:
        lines.append(f"SAME BITS at {positions} positions, and in {operations}.")
    else:
        lines.append(f"OTHER BITS at {apart} of {positions} positions, and in {found.differing:,} of {operations}.")
    if found.operation is not None:
        lines.append(f"First        {found.operation} (number {found.place} in the order of computation)")
    if found.position is not None:
        lines.append(f"Logits       from position {found.position}")
    for name, (theirs, here) in found.stated.items():
        lines.append(f"There        {name}: {theirs or 'nothing'}; here {here or 'nothing'}")
    return "\n".join("".join(filter(str.isprintable, line)) for line in lines)


def _as_text(result: ProbeResult, identity: ModelIdentity, settings: RuntimeSettings) -> str:
    on = [name for name in ("repack", "tiled", "kv_unified") if getattr(settings, name)]
    rows = ", rows in pairs" if settings.pairs else ""
    lines = [
        f"Model        {identity.files[0].name}  (sha256 {identity.files[0].sha256.hex()[:16]}…)",
        *[f"Adapter      {f.name} × {f.scale:g}  (sha256 {f.sha256.hex()[:16]}…)" for f in identity.adapters],
        f"Settings     KV {settings.type_k}, {'with ' + ', '.join(on) if on else 'no repack, not tiled'}{rows}",
        *([f"Device       {settings.device or 'all'}"] if settings.device or settings.n_gpu_layers else []),
        *([f"RoPE         {settings.rope}"] if settings.rope.stated() else []),
        f"Build        {result.build.build}; {result.build.bindings}",
        *([f"Compiler     {result.build.compiler}"] if result.build.compiler else []),
        f"Fingerprint  {result.fingerprint.hex()}",
        "",
        f"{'Against whole chunks':<{_NAME_WIDTH}}  same bits?",
        *[f"{each.name:<{_NAME_WIDTH}}  {_verdict(each)}" for each in result.schedules],
        "",
        _INVARIANT if result.invariant else f"{_NOT_INVARIANT} {_advice(settings)}",
    ]
    return "\n".join(lines)
