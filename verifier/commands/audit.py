"""The command `verifiable audit`. See `verifiable.cli` for the shell around it.

Exit status: 0 verified; 1 failed, with a reason code; 2 the call or a file is wrong; 3 inconclusive; 4 this machine
cannot do it. Standard output carries the result, standard error the progress.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from verifiable.commands.groups import grouped
from verifiable.errors import PolicyError
from verifiable.llama.gguf.lora import inspect_adapters, parse_adapters
from verifiable.llama.gguf.parts import inspect_parts
from verifiable.wire.keys import PrivateKey
from verifier.campaign.plan import parse_time
from verifier.commands import files, options
from verifier.commands.run import Plan, carry_out
from verifier.report import report, show
from verifier.report.signed import sign_report, signing_key
from verifier.tolerant.calibration import Calibration

SAVED = Path("verifiable-evidence")
"""Folder under the current one for the evidence of sessions that failed, where --save names no other."""


@grouped
def audit(
    *,
    target: Annotated[
        str, typer.Argument(help="The provider's URL, or a file: your client's exchange, a receipt, evidence.")
    ],
    model: Annotated[Path, typer.Option(help="Your own copy of the model: a GGUF file.")],
    trust: options.Trust,
    lora: Annotated[
        list[str] | None,
        typer.Option(help="FILE[:SCALE]: your copy of a LoRA adapter that the manifest names; may be repeated."),
    ] = None,
    copy: options.CopyOptions,
    provider: options.ProviderOptions,
    draw: options.DrawOptions,
    machine: options.MachineOptions,
    fleet: options.FleetOptions,
    result: options.ResultOptions,
) -> int:
    """Re-execute what a provider committed to, and compare every bit."""
    adapters = parse_adapters(lora)
    if not model.is_file():
        raise PolicyError("no such model file", found=model, hint="Name the GGUF file that the provider promises.")
    parts = inspect_parts(model)
    inspect_adapters(adapters, [info for _, info in parts])
    chain = files.read_chain(trust, provider.keys)
    if fleet.fleet is not None:
        from verifier.commands.fleet import audit_folder  # Ray and Parquet are an extra of their own

        return audit_folder(fleet.fleet, Path(target), model, chain, adapters, fleet, machine.threads, result.as_json)
    plan = Plan(
        target=target,
        model=model,
        trust=chain,
        trust_names=trust,
        adapters=adapters,
        copy=copy,
        provider=provider,
        auditor_key=files.read_secret(provider.auditor_key),
        merge_delay=parse_time(provider.merge_delay, "--merge-delay"),
        quorum=files.read_quorum(provider.witness, provider.quorum),
        draw=draw,
        budget=None if draw.budget is None else parse_time(draw.budget),
        seed=None if draw.seed is None else options.parse_seed(draw.seed),
        beacon=draw.read_beacon(),
        machine=machine,
        calibration=None if machine.calibration is None else Calibration.load(machine.calibration),
        folder=result.save or SAVED,
        keep_all=result.save is not None,
    )
    signer = None if result.sign is None else _signer(result.sign)
    outcome = carry_out(plan)
    if signer is not None:
        result.signed_report.write_bytes(sign_report(outcome.to_json(), signer, time.time_ns() // 1_000_000))
    if result.html is not None:
        result.html.write_text(report.render(outcome), encoding="utf-8")
    if result.as_json:
        print(json.dumps(outcome.to_json(), indent=2))
    else:
        show.say(show.audit(outcome))
    return outcome.status.exit_code


def _signer(path: Path) -> PrivateKey:
    """The auditor's signing key; says so on standard error where it was made."""
    key, made = signing_key(path)
    if made:
        print(f"Signing key made: {path}. Give {path}.pub to those who read your reports.", file=sys.stderr)
    return key
