"""`verifiable keys`: the life of the provider's keys. A running provider sees a change within seconds."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from engine.keys import folder as names, life, request
from verifiable import files, limits
from verifiable.errors import MalformedError, PolicyError, StoreError
from verifiable.manifest.manifest import Manifest
from verifiable.manifest.statements import Revocation, Role, Succession
from verifiable.wire import key_file
from verifiable.wire.keys import PrivateKey, PublicKey

_Data = Annotated[Path, typer.Option(help="The provider's data folder.")]
_Key = Annotated[Path, typer.Option(help="The provider's private key.")]


def new(
    name: Annotated[str, typer.Argument(help="The provider's name.")],
    out: Annotated[Path, typer.Option(help="Folder for provider.key and provider.pub; made when missing.")],
) -> None:
    """Make a provider's key, on any machine: one without a network is best."""
    key = PrivateKey.generate(name, os.urandom(32))
    try:
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
        key_file.write_line(out / "provider.key", key.skey())
        key_file.write_line(out / "provider.pub", key.public.vkey(), 0o644)
        files.sync_folder(out)
    except FileExistsError as error:
        raise PolicyError(f"{out} has a key already", found=str(error.filename), hint="Give another folder.") from error
    except OSError as error:
        raise StoreError(f"a key can't be made in {out}", found=str(error)) from error
    print(key.public.vkey())


def sign(
    asked: Annotated[Path, typer.Argument(metavar="REQUEST", help="The manifest.request of the machine that serves.")],
    key: _Key,
    out: Annotated[Path, typer.Option(help="File to write; with --count N, N files with -1, -2, … before the ending.")],
    days: Annotated[float, typer.Option(min=0.01, max=3660, help="Days that each manifest is valid for.")] = 90,
    count: Annotated[int, typer.Option(min=1, max=100, help="Manifests to sign, one after the other.")] = 1,
) -> None:
    """Show what a machine asks the provider's key to sign, and sign it."""
    wanted, private = request.read(asked), key_file.read_key(key)
    _show(wanted, private.public)
    for number, (manifest, envelope) in enumerate(request.sign(wanted, private, life.milliseconds(), days, count), 1):
        path = out if count == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
        _write(path, envelope)
        print(f"{path}: valid {_date(manifest.valid_from)} to {_date(manifest.valid_to)}")


def install(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Signed manifests, and statements on keys.")],
    data: _Data,
) -> None:
    """Hand what was signed elsewhere to a provider, running or not."""
    folder = _folder(data)
    for path in paths:
        try:
            signed = files.read(path, limits.ENTRY_BYTES)
        except OSError as error:
            raise PolicyError(f"{path} can't be read", found=str(error)) from error
        now = life.milliseconds()
        if life.is_statement(signed):
            print(f"{path}: {life.install(folder, signed, now)}")
            continue
        with names.locked(folder):
            manifest = request.install(folder, signed, now)
            life.settle(folder, now)
        print(f"{path}: a manifest, valid {_date(manifest.valid_from)} to {_date(manifest.valid_to)}")


def rotate(role: Annotated[str, typer.Argument(help="provider, session or log.")], data: _Data) -> None:
    """Exchange a key for a new one. What was begun under the old one ends under it."""
    folder, which = _folder(data), _role(role)
    made = life.rotate(folder, which, life.milliseconds())
    print(f"new {which.words}: {made.vkey()}")
    if not (folder / names.file(Role.PROVIDER)).exists():
        typer.echo(
            f"It comes into use with the next manifest: sign {folder / names.REQUEST}, and install that.", err=True
        )


def succeed(
    old: Annotated[Path, typer.Argument(help="The provider's private key.")],
    to: Annotated[Path, typer.Argument(metavar="NEW", help="The private key that takes its place.")],
    out: Annotated[Path, typer.Option(help="File to write, for `verifiable keys install`.")],
) -> None:
    """Sign that one provider key takes the place of another, where both are on this machine."""
    before, after = key_file.read_key(old), key_file.read_key(to)
    _write(out, Succession.sign(before, after, Role.PROVIDER, life.milliseconds()))
    print(f"{out}: {before.public.label} is followed by {after.public.label}")


def revoke(
    which: Annotated[Path, typer.Argument(metavar="KEY", help="File of the key to revoke, .pub or .key.")],
    reason: Annotated[str, typer.Option(help="Why, in words that everybody may read.")],
    data: Annotated[Path | None, typer.Option(help="The provider's data folder.")] = None,
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds that answers under way get first; 0 if stolen.")] = 60,
    key: Annotated[Path | None, typer.Option(help="The provider's private key, where it is elsewhere.")] = None,
    role: Annotated[str | None, typer.Option(help="With --key: provider, session or log.")] = None,
    out: Annotated[Path | None, typer.Option(help="With --key: file to write, for `verifiable keys install`.")] = None,
) -> None:
    """Say that what a key signs from now on counts no more."""
    public = _public(which)
    if key is not None and out is not None and role is not None and data is None:
        said = Revocation(_role(role), public, life.milliseconds(), reason)
        _write(out, said.sign(key_file.read_key(key)))
        print(f"{out}: {said.role.words} {public.label} is revoked: {reason}")
        return
    if data is None or key is not None or out is not None:
        raise PolicyError("where the key is revoked", expected="--data, or --key with --role and --out")
    folder = _folder(data)
    found = life.role_of(folder, public) if role is None else _role(role)
    if found is None:
        raise PolicyError(f"{folder} knows no such key", found=public.label, hint="Say what it is for with --role.")
    Revocation(found, public, 0, reason)  # before anything is changed
    life.end(folder, public, found)
    if grace:
        typer.echo(f"No answer begins under {public.label} any more; those under way get {grace:g} s.", err=True)
        time.sleep(grace)
    life.revoke(folder, public, found, reason, life.milliseconds())
    print(f"{found.words} {public.label} is revoked: {reason}")


def _show(asked: Manifest, key: PublicKey) -> None:
    runtime = asked.runtime
    lines = [
        f"Signed by {key.label}:",
        f"  provider     {asked.provider}",
        *(f"  model        {file.name}  sha256 {file.sha256.hex()}" for file in asked.model.files),
        *(f"  adapter      {file.name} × {file.scale:g}  sha256 {file.sha256.hex()}" for file in asked.model.adapters),
        f"  fingerprint  {runtime.fingerprint.hex()}{'' if runtime.invariant else '  (NOT batch-invariant)'}",
        f"  build        {runtime.build}",
        f"  records      {asked.k} entries for each token",
        *(f"  session key  {each.vkey()}" for each in asked.session_keys),
        f"  log key      {'none' if asked.log is None else asked.log.vkey()}",
    ]
    typer.echo("\n".join(lines), err=True)


def _role(text: str) -> Role:
    try:
        return Role[text.upper()]
    except KeyError:
        raise PolicyError("role of a key", expected="provider, session or log", found=text) from None


def _folder(data: Path) -> Path:
    if not (data / "keys").is_dir():
        raise PolicyError(f"{data} is not a provider's data folder", expected="a folder with keys in it")
    return data / "keys"


def _public(path: Path) -> PublicKey:
    try:
        text = files.read(path, key_file.MAX_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        raise PolicyError(f"{path} can't be read", found=str(error)) from error
    try:
        return PrivateKey.parse(text).public if text.startswith("PRIVATE+KEY+") else PublicKey.parse(text)
    except MalformedError as error:
        raise MalformedError(f"{path} holds no key: {error.what}") from error


def _write(path: Path, data: bytes) -> None:
    try:
        files.replace(path, data, 0o644)
    except OSError as error:
        raise PolicyError(f"{path} can't be written", found=str(error)) from error


def _date(milliseconds: int) -> str:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
