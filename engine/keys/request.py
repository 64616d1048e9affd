"""Manifests that are signed on another machine: what is asked for, signed there, and installed here.

A request is a manifest's payload whose dates are those of one that is signed at time 0. The machine that signs needs no
model and no store: it shows what it is asked, sets the dates, and signs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from engine.keys import folder as keys
from verifiable import files, limits
from verifiable.errors import MalformedError, PolicyError, StoreError, VerifiableError
from verifiable.manifest.manifest import Manifest, verify_manifest
from verifiable.manifest.statements import Role
from verifiable.wire.keys import PrivateKey, PublicKey

DAY = 86_400_000
"""Milliseconds."""


def overlap(validity: int) -> int:
    """Milliseconds before the end of a manifest at which the next one begins: twice what a turn must have left."""
    return 2 * margin(validity)


def margin(validity: int) -> int:
    """Milliseconds that a manifest must still be valid for when a turn begins under it."""
    return min(DAY, validity // 4)


def ask(folder: Path, manifest: Manifest) -> Path:
    """Write what the next manifest is to say; the file. Raises StoreError."""
    path = folder / keys.REQUEST
    try:
        if not path.exists() or files.read(path, limits.ENTRY_BYTES) != manifest.payload():
            files.replace(path, manifest.payload(), 0o644)
    except (OSError, MalformedError) as error:
        raise StoreError(f"the request {path} can't be written", found=str(error)) from error
    return path


def ask_again(folder: Path) -> None:
    """Name the coming keys of sessions and log in the request, where there is one."""
    path = folder / keys.REQUEST
    if path.exists():
        session, log = (keys.coming(folder, role).public for role in (Role.SESSION, Role.LOG))
        ask(folder, replace(read(path), session_keys=(session,), log=log))


def read(path: Path) -> Manifest:
    """The manifest that a request asks for. Raises PolicyError: it can't be read, or is no request."""
    try:
        return Manifest.parse(files.read(path, limits.ENTRY_BYTES))
    except OSError as error:
        raise PolicyError(f"the request {path} can't be read", found=str(error)) from error
    except VerifiableError as error:
        raise PolicyError(f"{path} is no request for a manifest: {error.statement}") from error


def sign(asked: Manifest, key: PrivateKey, start: int, days: float, count: int) -> list[tuple[Manifest, bytes]]:
    """So many manifests of so many days, one after another from `start` (ms) on, each signed."""
    validity = round(days * DAY)
    made = []
    for index in range(count):
        first = start + index * (validity - overlap(validity))
        manifest = replace(asked, valid_from=first - limits.CLOCK_SKEW, valid_to=first + validity)
        made.append((manifest, manifest.sign(key)))
    return made


def differences(wanted: Manifest, found: Manifest) -> list[str]:
    """What two manifests say differently besides their dates, in words."""
    names = [field.name for field in fields(Manifest) if field.name not in ("valid_from", "valid_to")]
    return [name.replace("_", " ") for name in names if getattr(wanted, name) != getattr(found, name)]


def install(folder: Path, envelope: bytes, now: int) -> Manifest:
    """Put a signed manifest where the provider takes it from. Whoever calls it holds the folder's lock.

    Raises PolicyError where it would never be taken: another key signed it, it is over, or it says something else than
    what was asked for.
    """
    provider = keys.public(folder / "provider.pub")
    try:
        found = verify_manifest(envelope, [provider])
    except VerifiableError as error:
        raise PolicyError(
            f"no manifest by the provider's key {provider.label}: {error.what}",
            expected=error.expected,
            found=error.found,
            hint=f"Sign {keys.REQUEST} with the private key of {provider.label}.",
        ) from error
    if found.valid_to < now:
        raise PolicyError("the manifest is over", expected=f"a time after {now} (ms)", found=found.valid_to)
    asked = Path(folder / keys.REQUEST)
    _check_keys(folder, found)
    if asked.exists():
        wanted = read(asked)
        different = [name for name in differences(wanted, found) if name not in ("session keys", "log")]
        if different:
            raise PolicyError(
                "the manifest says something else than what this machine serves",
                expected=f"what {keys.REQUEST} says",
                found=f"another {', another '.join(different)}",
                hint="Sign the request that is there now.",
            )
    try:
        place = folder / keys.MANIFESTS
        place.mkdir(exist_ok=True)
        files.replace(place / f"{found.digest().hex()[:32]}.manifest", envelope, 0o644)
        files.sync_folder(folder)
    except OSError as error:
        raise StoreError(f"the manifest can't be put into {folder}", found=str(error)) from error
    return found


def _check_keys(folder: Path, found: Manifest) -> None:
    """That a manifest names the keys of this machine, those in use or those that are to come."""
    for role, named in ((Role.SESSION, found.session_keys), (Role.LOG, (found.log,))):
        mine = [keys.private(folder / keys.file(role)).public, keys.coming(folder, role).public]
        if not any(key in named for key in mine):
            raise PolicyError(
                f"the manifest is not for this machine's {role.words}",
                expected=" or ".join(dict.fromkeys(key.label for key in mine)),
                found=", ".join("none" if key is None else key.label for key in named),
                hint=f"Sign this machine's own {keys.REQUEST}.",
            )


def why_none(wanted: Manifest, installed: Sequence[bytes], provider: PublicKey, now: int) -> str:
    """Why none of the installed manifests is in force, in words."""
    if not installed:
        return "none is installed"
    why = []
    for envelope in installed:
        found = Manifest.peek(envelope)
        try:
            verify_manifest(envelope, [provider])
        except VerifiableError:
            why.append("by another key")
            continue
        different = differences(wanted, found)
        if different:
            why.append(f"another {', another '.join(different)}")
        else:
            why.append("not valid yet" if found.valid_from > now else "over, or nearly so")
    return f"{len(installed)} installed: {'; '.join(dict.fromkeys(why))}"
