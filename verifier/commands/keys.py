"""`verifiable keys show`: what became of a provider's keys, from its keys file. Needs the base install alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from verifiable.checking.verdict import INCONCLUSIVE_CODES, Status
from verifiable.cli import complain_of
from verifiable.errors import VerificationError
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import KeysFile
from verifier.commands import files
from verifier.commands.options import Json, Trust
from verifier.provider.client import Client
from verifier.report import keys, show


def show_keys(
    source: Annotated[str, typer.Argument(help="A keys file, or the URL of a provider that serves its own.")],
    trust: Trust,
    as_json: Json = False,
) -> int:
    """Show which keys follow from a provider's key that you trust, and which were revoked."""
    trusted = files.read_trust(trust)
    try:
        file = _read(source)
    except VerificationError as error:
        if error.code not in INCONCLUSIVE_CODES:
            raise
        complain_of(error)
        return Status.INCONCLUSIVE.exit_code
    chain = Chain.follow(trusted, file.statements)
    if as_json:
        print(json.dumps(keys.facts(chain), indent=2))
    else:
        show.say(keys.lines(chain))
    return 0


def _read(source: str) -> KeysFile:
    if not source.startswith(("http://", "https://")):
        return KeysFile.load(Path(source))
    with Client(source) as client:
        return client.keys()
