"""`verifiable log reports`: who audited a provider, when, how much, and with what result."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from verifiable.checking.verdict import INCONCLUSIVE_CODES, Status
from verifiable.cli import complain_of, printable
from verifiable.errors import VerificationError
from verifiable.files import read
from verifiable.manifest.chain import Chain
from verifiable.wire.keys import PublicKey
from verifier.commands import files
from verifier.commands.options import Json, Needed, Witness
from verifier.provider.client import Client
from verifier.provider.reports import Found, LogReports, log_of, read_reports
from verifier.report import show
from verifier.report.signed import MAX_BYTES, verify_report
from verifier.report.statement import check_statement

_MANY = 1_000_000


def reports(
    urls: Annotated[list[str], typer.Argument(metavar="URL…", help="Providers and registries whose logs are read.")],
    about: Annotated[list[str], typer.Option(help="The provider's public key, or a file with it; may be repeated.")],
    auditor: Annotated[
        list[str] | None, typer.Option(help="The key of an auditor whom you know; may be repeated.")
    ] = None,
    log: Annotated[list[str] | None, typer.Option(help="The key of a registry's log; may be repeated.")] = None,
    scan: Annotated[bool, typer.Option("--scan", help="Read every entry: an index can leave verdicts out.")] = False,
    report: Annotated[
        list[Path] | None, typer.Option(help="A signed report at hand, held against its verdict; may be repeated.")
    ] = None,
    witness: Witness = None,
    quorum: Needed = None,
    as_json: Json = False,
) -> int:
    """Find all verdicts of auditors on a provider, in its own log and in registries."""
    known, logs = _keys(auditor), _keys(log)
    keys = _chain(urls, _keys(about))
    named = files.read_quorum(witness, quorum)
    read_logs: list[LogReports] = []
    errors: list[tuple[str, VerificationError]] = []
    own: list[PublicKey] = []
    for url in urls:
        with Client(url) as client:
            try:
                key, of_provider = log_of(client, keys, logs)
                own += of_provider
                read_logs.append(read_reports(client, key, keys, own, named, scan))
            except VerificationError as error:
                errors.append((url, error))
    found = _once(read_logs, [*keys, *own])
    errors += [(each.origin, _leaves_out(each)) for each in read_logs if each.left_out]
    strangers: list[tuple[str, VerificationError]] = []
    for path in report or ():
        for wrong, counts in _held_against(path, found, known):
            (errors if counts else strangers).append((str(path), wrong))
    if as_json:
        print(json.dumps(_facts(read_logs, found, [*errors, *strangers], known), indent=2))
    else:
        show.say(_lines(read_logs, found, known, keys, bool(named.witnesses)))
    for where, wrong in [*errors, *strangers]:
        wrong.what = f"{where}: {wrong.what}"
        complain_of(wrong)
    if any(wrong.code not in INCONCLUSIVE_CODES for _, wrong in errors):
        return Status.FAILED.exit_code
    return Status.INCONCLUSIVE.exit_code if errors else 0


def _chain(urls: Sequence[str], about: Sequence[PublicKey]) -> Chain:
    """The provider's keys that follow from those that the reader trusts, by what any of the URLs serves of them."""
    statements: list[bytes] = []
    for url in urls:
        with Client(url) as client, contextlib.suppress(VerificationError):
            statements += client.keys().statements
    return Chain.follow(about, statements)


def _keys(values: Sequence[str] | None) -> list[PublicKey]:
    return files.read_trust(values) if values else []


def _once(logs: Sequence[LogReports], own: Sequence[PublicKey]) -> list[tuple[Found, list[str]]]:
    """Each verdict once, newest first, with the places where it stands. What one log shows of the provider's keys
    counts for all of them.
    """
    places: dict[Any, list[str]] = {}
    first: dict[Any, Found] = {}
    mine = {key.raw for key in own}
    for each in (found for log in logs for found in log.found):
        key = each.said
        places.setdefault(key, []).append(f"{each.origin} {each.index}")
        first.setdefault(key, each)
    found = [Found(said, each.origin, each.index, each.own or said.issuer.raw in mine) for said, each in first.items()]
    return [(each, places[each.said]) for each in sorted(found, key=lambda each: -each.said.statement.time)]


def _leaves_out(log: LogReports) -> VerificationError:
    return VerificationError(
        f"its index leaves out {log.left_out} of its own verdicts",
        code="list-differs",
        expected="every verdict that it holds",
        hint="They were read from the entries. Count it against whoever runs the log.",
    )


def _held_against(
    path: Path, found: Sequence[tuple[Found, list[str]]], known: Sequence[PublicKey]
) -> list[tuple[VerificationError, bool]]:
    """What is wrong between a report at hand and the verdicts on it, each with whether it counts: what strangers say,
    of whom anybody can make many, does not.
    """
    data = read(path, MAX_BYTES)
    try:
        checked = verify_report(data, [*known, *(each.said.issuer for each, _ in found)])
    except VerificationError as error:
        return [(error, True)]
    stated = [each.said for each, _ in found if each.said.statement.report == checked.digest]
    wrong = []
    for said in stated:
        try:
            check_statement(said, checked)
        except VerificationError as error:
            wrong.append((error, said.issuer.raw in {checked.signer.raw, *(key.raw for key in known)}))
    if not any(said.issuer.raw == checked.signer.raw for said in stated):
        missing = VerificationError("no log that was read has its verdict", code="no-evidence", expected=checked.digest)
        wrong.append((missing, True))
    return wrong


def _standing(found: Found, known: Sequence[PublicKey]) -> str:
    if found.own:
        return "the provider itself: counts for nothing"
    if any(key.raw == found.said.issuer.raw for key in known):
        return "an auditor whom you named"
    return "an auditor whom you did not name"


def _lines(
    logs: Sequence[LogReports],
    found: Sequence[tuple[Found, list[str]]],
    known: Sequence[PublicKey],
    about: Chain,
    witnessed: bool,
) -> list[str]:
    lines = []
    for each, places in found:
        said = each.said.statement
        subject = next((key for key in about if key.raw == each.said.subject.raw), each.said.subject)
        whom = f"about {about.name_of(subject)}, by {each.said.issuer.label}"
        what = f"{said.status.value}  {whom} ({_standing(each, known)})"
        tokens = f"{said.checked:,} of {said.total:,} tokens of {show.plural(said.sessions, 'session')}"
        draw = said.draw
        drawn = "that the auditor chose" if draw is None else f"; {draw.drawn:,} drawn of {draw.population:,}"
        if draw is not None and draw.share:
            caught = f"{draw.chance / 10_000:.2f}% to catch cheating in {draw.share / 10_000:g}%"
            drawn += f" ({caught})"
        lines += [f"{show.moment(said.time)}  {what}", f"    {tokens} {drawn}".replace(" ;", ";")]
        lines += [f"    found: {', '.join(said.codes)}"] if said.codes else []
        lines += [f"    report: {said.where}"] if said.where else []
        lines.append(f"    in {', '.join(places)}; SHA-256 of the signed report {said.report.hex()}")
    count = sum(not each.own for each, _ in found)
    trusted = sum(_standing(each, known) == "an auditor whom you named" for each, _ in found)
    read_in = ", ".join(f"{log.origin} ({log.size:,} entries)" for log in logs) or "no log"
    lines.append(f"{show.plural(count, 'verdict')} by others, {trusted} by auditors whom you named, in {read_in}.")
    lines += [f"{log.origin}: {log.unsound} entries are no sound verdicts" for log in logs if log.unsound]
    if any(log.left_out is None for log in logs):
        lines.append("Not shown by this: that these are all. An index may leave some out; --scan reads every entry.")
    if not witnessed:
        lines.append("Not shown by this: that others see the same logs; no witness was named.")
    return [printable(line) for line in lines]


def _facts(
    logs: Sequence[LogReports],
    found: Sequence[tuple[Found, list[str]]],
    errors: Sequence[tuple[str, VerificationError]],
    known: Sequence[PublicKey],
) -> dict[str, Any]:
    named = {key.raw for key in known}
    return {
        "reports": [
            {
                "auditor": each.said.issuer.vkey(),
                "about": each.said.subject.vkey(),
                "known": each.said.issuer.raw in named,
                "own": each.own,
                "time": each.said.statement.time,
                "status": each.said.statement.status.value,
                "sessions": each.said.statement.sessions,
                "counts": list(each.said.statement.counts),
                "tokens_checked": each.said.statement.checked,
                "tokens_total": each.said.statement.total,
                "draw": None
                if (draw := each.said.statement.draw) is None
                else {
                    "population": draw.population,
                    "drawn": draw.drawn,
                    "receipts": draw.receipts,
                    "seed_given": draw.given,
                    "share": draw.share / _MANY,
                    "chance": draw.chance / _MANY,
                },
                "codes": list(each.said.statement.codes),
                "models": [value.hex() for value in each.said.statement.models],
                "manifests": [value.hex() for value in each.said.statement.manifests],
                "report": each.said.statement.report.hex(),
                "where": each.said.statement.where,
                "entries": places,
            }
            for each, places in found
        ],
        "logs": [
            {
                "origin": log.origin,
                "size": log.size,
                "witnesses": list(log.witnesses),
                "left_out": log.left_out,
                "unsound": log.unsound,
            }
            for log in logs
        ],
        "errors": [{"where": where, "code": error.code, "what": error.what} for where, error in errors],
    }
