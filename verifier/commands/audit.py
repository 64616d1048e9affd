"""The auditor's commands, `verifiable verify` and `verifiable audit`. See `verifiable.cli` for the shell around them.

Exit status: 0 verified; 1 failed, with a reason code; 2 the call or a file is wrong; 3 inconclusive; 4 this machine
cannot do it. Standard output carries the result, standard error the progress.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verifiable.errors import MalformedError, PolicyError

if TYPE_CHECKING:
    from verifiable.wire.keys import PrivateKey, PublicKey
    from verifier.campaign.beacon import FileBeacon

SAVED = "verifiable-evidence"
"""Folder under the current one for the evidence of sessions that failed, where --save names no other."""

Trust = Annotated[
    list[str],
    typer.Option(help="The provider's public key: a file, or the key itself. May be given several times."),
]
MergeDelay = Annotated[
    str, typer.Option(help="Time within which the provider promises to log a head: 90s, 10m, 24h.", show_default=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def verify(
    trust: Trust,
    receipt: Annotated[Path | None, typer.Argument(help="The receipt that came with an answer.")] = None,
    evidence: Annotated[Path | None, typer.Option(help="Evidence of the same session.")] = None,
    text: Annotated[Path | None, typer.Option(help="The answer exactly as it was received, in a file.")] = None,
    fraud: Annotated[Path | None, typer.Option(help="Instead of a receipt: a file that claims to prove fraud.")] = None,
    merge_delay: MergeDelay = "24h",
    report: Annotated[
        Path | None, typer.Option(help="Instead of a receipt: an audit's signed report; --trust is the auditor's key.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Check a receipt offline: who said what, and that nothing was changed since."""
    from verifiable.files import read
    from verifiable.session.evidence import Evidence
    from verifiable.wire.cose import peek1
    from verifier.commands import files
    from verifier.offline.offline import as_committed, verify_with_evidence
    from verifier.report import show

    keys = files.read_trust(trust)
    if report is not None:
        if any(other is not None for other in (receipt, evidence, text, fraud)):
            raise PolicyError("--report stands alone", expected="a report, a fraud file or a receipt", found="two")
        return verify_report(report, keys, as_json)
    if fraud is not None:
        if receipt is not None or evidence is not None or text is not None:
            raise PolicyError("--fraud stands alone", expected="a fraud file or a receipt", found="both")
        from verifiable.checking.fraud import MAX_BYTES
        from verifier.campaign.plan import parse_time
        from verifier.offline import frauds

        proven = frauds.verify(read(fraud, MAX_BYTES), keys, round(1000 * parse_time(merge_delay, "--merge-delay")))
        print(json.dumps(proven.to_json(), indent=2)) if as_json else show.say(show.failure(proven))
        return proven.exit_code
    if receipt is None:
        raise PolicyError("nothing to verify", expected="a receipt, or --fraud FILE", found="neither")
    parsed = files.read_receipt(receipt)
    shown = None if evidence is None else Evidence.load(evidence)
    answer = None if text is None else as_committed(parsed, keys, files.read_text(text))
    verdict = verify_with_evidence(parsed, shown, keys, answer)
    if as_json:
        print(json.dumps(verdict.to_json(), indent=2))
    else:
        show.say(show.verification(verdict, show.short(peek1(parsed.manifest).kid.hex())))
    return verdict.exit_code


def audit(
    target: Annotated[str, typer.Argument(help="The provider's URL, or a file: a receipt or evidence.")],
    model: Annotated[Path, typer.Option(help="Your own copy of the model: a GGUF file.")],
    trust: Trust,
    lora: Annotated[
        list[str] | None,
        typer.Option(help="FILE[:SCALE]: your copy of a LoRA adapter that the manifest names; may be repeated."),
    ] = None,
    provider: Annotated[str | None, typer.Option(help="The provider's URL, to audit a receipt.")] = None,
    auditor_key: Annotated[
        str | None,
        typer.Option(
            envvar="VERIFIABLE_AUDITOR_KEY", show_envvar=True, help="The key that the operator issued, or its file."
        ),
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, help="How many sessions of a URL to draw.")] = 20,
    turns: Annotated[int | None, typer.Option(min=1, help="Most turns of a session to draw; all by default.")] = None,
    seed: Annotated[str | None, typer.Option(help="Repeat the draw of an earlier audit (64 hex digits).")] = None,
    threads: Annotated[int, typer.Option(min=1, max=512, help="Threads for the model.")] = 1,
    processes: Annotated[
        int,
        typer.Option(min=1, max=512, help="Processes that audit a URL's sessions side by side."),
    ] = 1,
    text: Annotated[Path | None, typer.Option(help="The answer as received, to a receipt or evidence.")] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="What `verifiable calibrate` wrote, for machines whose numerics differ."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Draw this share of the sessions, instead of a number.")] = None,
    budget: Annotated[str | None, typer.Option(help="Begin no session after this time: 90s, 10m, 1.5h.")] = None,
    beacon: Annotated[
        Path | None, typer.Option(help="Seed from a drand round (its JSON in a file), instead of this machine's own.")
    ] = None,
    chain: Annotated[str, typer.Option(help="The beacon's network: quicknet or default.")] = "quicknet",
    state: Annotated[
        Path | None, typer.Option(help="Folder in which the auditor remembers what a provider has shown it.")
    ] = None,
    merge_delay: MergeDelay = "24h",
    fleet: Annotated[
        str | None, typer.Option(help="Audit a folder of evidence over Ray: local, or a cluster's ray://HOST:PORT.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=10_000, help="Auditors of a fleet at the same time.")] = 2,
    results: Annotated[Path, typer.Option(help="Folder for a fleet's results, in Parquet.")] = Path("fleet-results"),
    as_json: Json = False,
    html: Annotated[Path | None, typer.Option(help="Write a report for people, in one file.")] = None,
    sign: Annotated[
        Path | None, typer.Option(help="Sign the result with the key in this file, which is made when missing.")
    ] = None,
    signed_report: Annotated[Path, typer.Option(help="Where --sign writes.")] = Path("audit.report"),
    save: Annotated[Path | None, typer.Option(help="Keep all evidence in this folder.")] = None,
) -> int:
    """Re-execute what a provider committed to, and compare every bit."""
    from verifiable.llama.gguf.lora import parse_adapters
    from verifier.campaign.plan import parse_time
    from verifier.commands import files
    from verifier.commands.run import Plan, carry_out
    from verifier.report import report, show
    from verifier.report.signed import sign_report
    from verifier.tolerant.calibration import Calibration

    adapters = parse_adapters(lora)
    if not model.is_file():
        raise PolicyError("no such model file", found=model, hint="Name the GGUF file that the provider promises.")
    if fleet is not None:
        from verifier.commands.fleet import audit_folder

        keys = files.read_trust(trust)
        options = {"workers": workers, "threads": threads}
        return audit_folder(fleet, Path(target), model, keys, adapters, **options, out=results, as_json=as_json)
    plan = Plan(
        target=target,
        model=model,
        trust=files.read_trust(trust),
        trust_names=tuple(trust),
        provider=provider,
        auditor_key=files.read_secret(auditor_key),
        sessions=sessions,
        turns=turns,
        seed=None if seed is None else parse_seed(seed),
        threads=threads,
        text=None if text is None else files.read_text(text),
        folder=save or Path(SAVED),
        keep_all=save is not None,
        calibration=None if calibration is None else Calibration.load(calibration),
        calibration_name=str(calibration),
        state=state,
        rate=rate,
        budget=None if budget is None else parse_time(budget),
        beacon=None if beacon is None else read_beacon(beacon, chain, seed),
        merge_delay=parse_time(merge_delay, "--merge-delay"),
        adapters=adapters,
        processes=processes,
    )
    signer = None if sign is None else read_signer(sign)
    outcome = carry_out(plan)
    if signer is not None:
        signed_report.write_bytes(sign_report(outcome.to_json(), signer, time.time_ns() // 1_000_000))
    if html is not None:
        html.write_text(report.render(outcome), encoding="utf-8")
    if as_json:
        print(json.dumps(outcome.to_json(), indent=2))
    else:
        show.say(show.audit(outcome))
    return outcome.status.exit_code


def verify_report(path: Path, trust: list[PublicKey], as_json: bool) -> int:
    """What `verifiable verify --report` does. The exit status is the audit's own, where the signature holds."""
    from verifiable.errors import MalformedError, VerificationError
    from verifiable.files import read
    from verifier.offline.fault import Fault
    from verifier.report import show
    from verifier.report import signed as signed_report

    try:
        checked = signed_report.verify_report(read(path, signed_report.MAX_BYTES), trust)
    except (MalformedError, VerificationError) as error:
        verdict = Fault.of(error).verdict()
        print(json.dumps(verdict.to_json(), indent=2)) if as_json else show.say(show.failure(verdict))
        return verdict.exit_code
    if as_json:
        signer = {"key": checked.signer.vkey(), "time": checked.time}
        print(json.dumps({"signed_by": signer, "report": checked.report}, indent=2))
    else:
        show.say(show.signed_report(checked))
    return checked.status.exit_code


def read_signer(path: Path) -> PrivateKey:
    """The auditor's signing key; says so on standard error where it was made."""
    from verifier.report.signed import signing_key

    key, made = signing_key(path)
    if made:
        print(f"Signing key made: {path}. Give {path}.pub to those who read your reports.", file=sys.stderr)
    return key


def read_beacon(path: Path, chain: str, seed: str | None) -> FileBeacon:
    """The round that `--beacon` names. Raises PolicyError, MalformedError or OSError."""
    from verifier.campaign.beacon import CHAINS, FileBeacon

    if seed is not None:
        raise PolicyError("--seed and --beacon exclude each other", expected="one of them", found="both")
    if chain not in CHAINS:
        raise PolicyError("no such beacon network", expected=", ".join(CHAINS), found=chain)
    if find_spec("py_ecc") is None:
        return FileBeacon(path, CHAINS[chain])
    from verifier.campaign.bls import verify_round

    return FileBeacon(path, CHAINS[chain], verify_round)


def parse_seed(text: str) -> bytes:
    """A challenge seed as people write it. Raises MalformedError."""
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        seed = b""
    if len(seed) != 32 or seed.hex() != text.lower():
        raise MalformedError("the seed", expected="64 hexadecimal digits", found=text)
    return seed
