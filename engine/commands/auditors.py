"""`verifiable auditors`: issue and revoke auditor keys. A running provider sees the change at once."""

from __future__ import annotations

import datetime
import json
import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from engine.keys.auditors import Auditors
from verifiable.errors import PolicyError

_Data = Annotated[Path, typer.Option(help="The provider's data folder.")]
_Name = Annotated[str, typer.Argument(help="Whose key it is: letters, digits and . _ @ -")]


def add(name: _Name, data: _Data) -> None:
    """Issue an auditor key, which opens the evidence of every session. It is shown once."""
    token = secrets.token_urlsafe(32)
    _register(data).register(name, token, int(time.time()))
    print(token)
    typer.echo(f"This is the auditor key of {name}. It is not kept: give it to the auditor now.", err=True)


def list_(data: _Data, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the auditor keys that were issued, and which of them are in force."""
    keys = _register(data).issued()
    if as_json:
        print(json.dumps([{"name": key.name, "issued": key.issued, "revoked": key.revoked} for key in keys]))
        return
    for key in keys:
        state = "in force" if key.revoked is None else f"revoked {_date(key.revoked)}"
        print(f"{key.name}  issued {_date(key.issued)}  {state}")


def revoke(name: _Name, data: _Data) -> None:
    """Revoke an auditor key, for good."""
    _register(data).revoke(name, int(time.time()))
    print(f"{name}: revoked")


def _register(data: Path) -> Auditors:
    if not (data / "keys").is_dir():
        raise PolicyError(f"{data} is not a provider's data folder", expected="a folder with keys in it")
    return Auditors(data / "keys" / "auditors")


def _date(seconds: int) -> str:
    if seconds == 0:
        return "with the provider's keys"
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d")
