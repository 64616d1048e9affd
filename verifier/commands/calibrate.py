"""The command `verifiable calibrate`."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from verifiable import limits
from verifiable.commands.groups import group, grouped
from verifiable.commands.model_options import DeviceOptions, Lora, RopeOptions
from verifiable.errors import MalformedError, PolicyError
from verifiable.files import read
from verifiable.llama.gguf.lora import parse_adapters
from verifiable.llama.library import BuildInfo
from verifiable.llama.probe.result import ProbeResult, describe
from verifiable.llama.settings import INVARIANT, RuntimeSettings
from verifiable.manifest.manifest import Runtime, verify_manifest
from verifier.commands import files
from verifier.report.calibration import facts, lines
from verifier.tolerant.calibrate import calibrate as measure


@group("Comparison")
class ComparisonOptions:
    """What honest rounding is told apart from, and how many conversations that takes."""

    against: Annotated[
        list[str] | None,
        typer.Option(help="A class of honest variation; may be given several times. All that differ, by default."),
    ] = None
    deviation: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE: another GGUF file that the provider might serve instead.")
    ] = None
    conversations: Annotated[int, typer.Option(min=12, max=10_000, help="Conversations of each class.")] = 60
    tokens: Annotated[int, typer.Option(min=8, max=4096, help="Most tokens of each.")] = 64
    seed: Annotated[str, typer.Option(help="Text from which the conversations follow.")] = "calibration"


@grouped
def calibrate(
    *,
    model: Annotated[Path, typer.Option(help="Your own copy of the model: a GGUF file.")],
    out: Annotated[Path, typer.Option(help="The calibration file to write.")] = Path("calibration.json"),
    manifest: Annotated[
        Path | None, typer.Option(help="The provider's manifest, for its settings; batch-invariant ones without.")
    ] = None,
    lora: Lora = None,
    trust: Annotated[list[str] | None, typer.Option(help="The provider's public key, with --manifest.")] = None,
    threads: Annotated[int, typer.Option(min=1, max=512, help="Threads for the model.")] = 1,
    by: Annotated[str, typer.Option(help="Who makes it: written into the file, and shown with what rests on it.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was measured as JSON.")] = False,
    compared: ComparisonOptions,
    device: DeviceOptions,
    rope: RopeOptions,
) -> int:
    """Measure how honest rounding looks from this machine, for audits where the numerics fingerprints differ."""
    if not model.is_file():
        raise PolicyError("no such model file", found=model, hint="Name the GGUF file that the provider promises.")
    settings = RuntimeSettings(n_gpu_layers=device.gpu_layers, device=device.device, rope=rope.settings())
    runtime, k = read_settings(manifest, trust or [], settings)

    def say(stage: str, done: int, total: int) -> None:
        print(f"[{done + 1} of {total}] {stage}", file=sys.stderr, flush=True)

    made = measure(
        model,
        runtime,
        k=k,
        conversations=compared.conversations,
        tokens=compared.tokens,
        seed=hashlib.sha256(compared.seed.encode()).digest(),
        against=compared.against or [],
        deviations=dict(map(parse_deviation, compared.deviation or [])),
        threads=threads,
        say=say,
        adapters=parse_adapters(lora),
        by=by,
    )
    made.save(out)
    if as_json:
        print(json.dumps(facts(made, out), indent=2))
    else:
        print("\n".join(lines(made, out)))
    return 0


def parse_deviation(text: str) -> tuple[str, Path]:
    """NAME=FILE. Raises MalformedError or PolicyError."""
    name, equals, path = text.partition("=")
    if not name or not equals or not path:
        raise MalformedError("--deviation", expected="NAME=FILE", found=text)
    if not Path(path).is_file():
        raise PolicyError("no such model file", found=path)
    return name, Path(path)


def read_settings(
    manifest: Path | None, trust: list[str], settings: RuntimeSettings = INVARIANT
) -> tuple[Runtime, int]:
    """The settings and k of a signed manifest, or *settings* and the default k. Raises PolicyError where both say."""
    if manifest is not None:
        if settings != INVARIANT:
            raise PolicyError("settings come from the manifest", expected="--manifest or settings", found="both")
        if not trust:
            raise PolicyError("no key to trust the manifest with", expected="--trust KEY", found="none")
        stated = verify_manifest(read(manifest, limits.SIGNED_BYTES), files.read_trust(trust))
        return stated.runtime, stated.k
    nothing_measured = ProbeResult(True, bytes(32), (), BuildInfo("", "", ""), 0.0)
    return describe(settings, nothing_measured), 40
