"""The command `verifiable verify`. See `verifiable.cli` for the shell around it.

Exit status: 0 verified; 1 failed, with a reason code; 2 the call or a file is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from verifiable import limits
from verifiable.checking.fraud import Fraud
from verifiable.checking.offline import receipt_of
from verifiable.checking.verdict import Verdict
from verifiable.errors import PolicyError, VerificationError
from verifiable.files import read
from verifiable.request.exchange import Exchange
from verifiable.session.evidence import Evidence
from verifiable.wire.keys import PublicKey
from verifier.campaign.plan import parse_time
from verifier.commands import files
from verifier.commands.options import Json, Keys, MergeDelay, Needed, Nonce, RequestFile, Text, Trust, Witness
from verifier.monitor import fork as forks
from verifier.offline import frauds
from verifier.offline.fault import Fault
from verifier.offline.offline import verify_with_evidence, with_stream
from verifier.offline.streamed import read_stream
from verifier.report import show, signed as signed_reports


def verify(
    trust: Trust,
    receipt: Annotated[
        Path | None, typer.Argument(help="The receipt that came with an answer, or your client's exchange.")
    ] = None,
    keys: Keys = None,
    evidence: Annotated[Path | None, typer.Option(help="Evidence of the same session.")] = None,
    text: Text = None,
    request: RequestFile = None,
    nonce: Nonce = None,
    stream: Annotated[
        Path | None, typer.Option(help="The answer's event stream as it came, where commitments were streamed.")
    ] = None,
    witness: Witness = None,
    quorum: Needed = None,
    fraud: Annotated[Path | None, typer.Option(help="Instead of a receipt: a file that claims to prove fraud.")] = None,
    merge_delay: MergeDelay = "48h",
    fork: Annotated[
        Path | None, typer.Option(help="Instead of a receipt: a monitor's file on a fork; --trust is the log's key.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Instead of a receipt: an audit's signed report; --trust is the auditor's key.")
    ] = None,
    without_capability: Annotated[
        Path | None,
        typer.Option(
            help="Also write the receipt, or the exchange, to this new file for handing on: it opens nothing."
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Check a receipt offline: who said what, and that nothing was changed since."""
    chain, witnesses = files.read_chain(trust, keys), files.read_quorum(witness, quorum)
    instead = {"--report": report, "--fork": fork, "--fraud": fraud}
    alone = [option for option, path in instead.items() if path is not None]
    beside = (receipt, evidence, text, request, nonce, stream, without_capability, witness or None)
    if alone and len(alone) + sum(path is not None for path in beside) > 1:
        expected = "a receipt, or one of --fraud, --fork and --report"
        raise PolicyError(f"{alone[0]} stands alone", expected=expected, found="more")
    if report is not None:
        return _verify_report(report, chain, as_json)
    if fork is not None:
        return _say_failure(forks.verify(read(fork, forks.MAX_FORK), chain), as_json)
    if fraud is not None:
        delay = round(1000 * parse_time(merge_delay, "--merge-delay"))
        return _say_failure(frauds.verify(Fraud.load(fraud), chain, delay), as_json)
    if receipt is None:
        raise PolicyError("nothing to verify", expected="a receipt, or --fraud FILE", found="neither")
    parsed = files.read_receipt(receipt)
    held = receipt_of(parsed) if isinstance(parsed, Exchange) else parsed
    if without_capability is not None:
        files.write_for_handing_on(parsed, without_capability)
    copies = files.read_copies(text, request, nonce, parsed)
    shown = None if evidence is None else Evidence.load(evidence)
    came = None if stream is None else read_stream(read(stream, limits.EVIDENCE_BYTES))
    verdict = verify_with_evidence(held, shown, chain, copies.asked, witnesses)
    if came is not None:
        verdict = with_stream(verdict, held, chain, came)
    _say(as_json, verdict.to_json(), show.verification(verdict))
    return verdict.exit_code


def _verify_report(path: Path, trust: Sequence[PublicKey], as_json: bool) -> int:
    """What `--report` does. The exit status is the audit's own, where the report holds."""
    try:
        checked = signed_reports.verify_report(read(path, signed_reports.MAX_BYTES), trust)
    except VerificationError as error:
        return _say_failure(Fault.of(error).verdict(), as_json)
    signer = {"key": checked.signer.vkey(), "time": checked.time}
    _say(as_json, {"signed_by": signer, "report": checked.report}, show.signed_report(checked))
    return checked.status.exit_code


def _say_failure(verdict: Verdict, as_json: bool) -> int:
    _say(as_json, verdict.to_json(), show.failure(verdict))
    return verdict.exit_code


def _say(as_json: bool, facts: object, lines: Iterable[str]) -> None:
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        show.say(lines)
