"""`verifiable registry publish`: an audit's verdict into a log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from verifiable.checking.registry import check_url, verify_verdict
from verifiable.checking.verdict import Status
from verifiable.cli import complain, complain_of
from verifiable.errors import PolicyError, VerificationError
from verifiable.files import read
from verifiable.net.client import ExchangeError, HttpClient
from verifiable.wire.key_file import read_key
from verifiable.wire.keys import PublicKey
from verifier.commands import files
from verifier.provider.client import Client
from verifier.provider.reports import log_of, read_reports
from verifier.report.signed import MAX_BYTES, verify_report
from verifier.report.statement import statement_of

_MAX_ANSWER = 1 << 16
_TAKEN = 202


def publish(
    report: Annotated[Path, typer.Argument(help="The signed report that `verifiable audit --sign` wrote.")],
    to: Annotated[str, typer.Option(help="URL of the provider, or of a registry, whose log is to take it in.")],
    key: Annotated[Path, typer.Option(help="Your key, with which the report was signed.")],
    about: Annotated[str, typer.Option(help="The provider's public key, or a file with it; one that you audited.")],
    auditor_key: Annotated[
        str | None,
        typer.Option(
            envvar="VERIFIABLE_AUDITOR_KEY",
            show_envvar=True,
            help="The key that the log's operator issued, or its file.",
        ),
    ] = None,
    where: Annotated[str | None, typer.Option(help="URL at which you publish the report itself.")] = None,
    log: Annotated[list[str] | None, typer.Option(help="The log's key, if it is no provider's.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until the log shows it.")] = 10,
) -> int:
    """Publish an audit's verdict in a log: who audited whom, when, how much, and with what result."""
    signing = read_key(key)
    checked = verify_report(read(report, MAX_BYTES), [signing.public])
    subject = _subject(about)
    made = statement_of(checked, subject, None if where is None else check_url(where)).sign(signing, subject)
    client = Client(to)
    try:
        refused = _post(client.base, made, files.read_secret(auditor_key))
        if refused is not None:
            hint = "A log of your own takes it: verifiable registry serve. Its readers see who would not."
            complain(f"the log at {client.base} does not take the verdict in: {refused}", hint)
            return Status.INCONCLUSIVE.exit_code
        keys = [each for text in log or () for each in files.read_trust([text])]
        ends = time.monotonic() + wait
        said = verify_verdict(made)
        while True:
            try:
                named, own = log_of(client, [subject], keys)
                shown = read_reports(client, named, [subject], own)
            except VerificationError as error:
                complain_of(error)
                return Status.INCONCLUSIVE.exit_code
            places = [each.index for each in shown.found if each.said == said]
            if places:
                print(f"entry {places[0]:,} of {shown.origin}, under a checkpoint of {shown.size:,} entries")
                return 0
            if time.monotonic() > ends:
                complain(f"{shown.origin} took it in, and does not show it yet", "Ask again: verifiable log reports.")
                return Status.INCONCLUSIVE.exit_code
            time.sleep(0.25)
    finally:
        client.close()


def _subject(text: str) -> PublicKey:
    keys = files.read_trust([text])
    if len(keys) > 1:
        raise PolicyError("--about", expected="one key", found=f"{len(keys)} keys in {text}")
    return keys[0]


def _post(base: str, statement: bytes, token: str | None) -> str | None:
    """Hand a statement over; why it is refused, or None. Raises PolicyError: the token is wrong."""
    http = HttpClient(base, "the log", "verifiable-registry")
    headers = {"Content-Type": "application/cose"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    try:
        answer = http.ask("v1/log/reports", _MAX_ANSWER, post=statement, headers=headers, read=range(600))
    except ExchangeError as error:
        return str(error)
    finally:
        http.close()
    if answer.status == 401:
        raise PolicyError("the log knows no such auditor's key", hint="Its operator issues one: --auditor-key.")
    if answer.status == _TAKEN:
        return None
    try:
        return str(json.loads(answer.body)["error"]["message"])[:500]
    except (ValueError, LookupError, TypeError, RecursionError):
        return f"status {answer.status}"
