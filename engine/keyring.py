"""The provider's keys and tokens on disk: made once, readable by the owner alone."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from verifiable.errors import MalformedError, StoreError
from verifiable.keys import PrivateKey


@dataclass(frozen=True, slots=True)
class Keyring:
    """`provider` signs manifests, `session` signs heads; `auditor_key` is the bearer token that opens all evidence."""

    provider: PrivateKey
    session: PrivateKey
    auditor_key: str
    folder: Path
    created: bool

    @property
    def public_file(self) -> Path:
        """The file to give to auditors and clients."""
        return self.folder / "provider.pub"


def load(folder: Path, name: str) -> Keyring:
    """Read the keys in `folder`, making what is missing on the first start.

    Raises StoreError where some exist and others don't (losing a key must be noticed, not repaired with a new one),
    where a file is damaged, or where it is readable by others.
    """
    secret_files = [folder / "provider.key", folder / "session.key", folder / "auditor.key"]
    present = [path.exists() for path in secret_files]
    created = not any(present)
    if created:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(secret_files[2], secrets.token_urlsafe(32))
        _write(secret_files[1], PrivateKey.generate(f"{name}/session", os.urandom(32)).skey())
        provider = PrivateKey.generate(name, os.urandom(32))
        _write(folder / "provider.pub", provider.public.vkey(), 0o644)
        _write(secret_files[0], provider.skey())
    elif not all(present):
        missing = [path.name for path, there in zip(secret_files, present, strict=True) if not there]
        raise StoreError(
            f"keys are missing in {folder}",
            expected="provider.key, session.key and auditor.key, or none of them",
            found=f"no {', '.join(missing)}",
            hint="Restore them from your backup. A provider with new keys is a new provider.",
        )
    provider, session = _key(secret_files[0]), _key(secret_files[1])
    return Keyring(provider, session, _read(secret_files[2]), folder, created)


def _key(path: Path) -> PrivateKey:
    try:
        return PrivateKey.parse(_read(path))
    except MalformedError as error:
        raise StoreError(f"{path} is damaged: {error.what}", hint="Restore it from your backup.") from error


def _read(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise StoreError(f"{path} can be read by others", expected="mode 0600", hint=f"chmod 600 {path}")
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise StoreError(f"{path} can't be read", found=str(error)) from error


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{path} can't be written", found=str(error)) from error
