"""The provider's keys and tokens on disk: made once, readable by the owner alone."""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from engine.keys.auditors import Auditors
from verifiable import files
from verifiable.errors import MalformedError, StoreError
from verifiable.wire import key_file
from verifiable.wire.keys import PrivateKey

_SECRET = ("provider.key", "session.key", "log.key", "auditor.key")


@dataclass(frozen=True, slots=True)
class Keyring:
    """One key for each role: `provider` signs manifests, `session` heads, `log` the checkpoints of the log.

    `auditor_key` is a bearer token that opens all evidence until the operator revokes it (see `engine.keys.auditors`).
    """

    provider: PrivateKey
    session: PrivateKey
    log: PrivateKey
    auditor_key: str
    folder: Path
    created: bool

    @property
    def public_file(self) -> Path:
        """The file to give to auditors and clients."""
        return self.folder / "provider.pub"

    @property
    def log_unused(self) -> Path:
        """Exists from the making of the keys until the log's first checkpoint is there."""
        return self.folder / "log.unused"

    @property
    def auditors_file(self) -> Path:
        """The register of auditor keys."""
        return self.folder / "auditors"


def load(folder: Path, name: str) -> Keyring:
    """Read the keys in `folder`, making them on the first start: all of them, or, after a crash, none.

    Raises StoreError where one is missing (losing a key must be noticed, not repaired with a new one), damaged, or
    readable by others.
    """
    created = not folder.exists() or not any(folder.iterdir())
    if created:
        _make(folder, name)
    missing = [file for file in _SECRET if not (folder / file).exists()]
    if missing:
        raise StoreError(
            f"keys are missing in {folder}",
            expected=", ".join(_SECRET),
            found=f"no {', '.join(missing)}",
            hint="Restore them from your backup. A provider with new keys is a new provider.",
        )
    provider, session, log = (_key(folder / file) for file in _SECRET[:3])
    return Keyring(provider, session, log, key_file.read_secret(folder / "auditor.key"), folder, created)


def _make(folder: Path, name: str) -> None:
    """Write everything into a folder beside it, and give that its name when it is complete and on the disk."""
    making = folder.with_name(folder.name + ".new")
    try:
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True, mode=0o700)
        token = secrets.token_urlsafe(32)
        key_file.write_line(making / "auditor.key", token)
        for role in ("provider", "session", "log"):
            key = PrivateKey.generate(name if role == "provider" else f"{name}/{role}", os.urandom(32))
            key_file.write_line(making / f"{role}.key", key.skey())
            if role != "session":
                key_file.write_line(making / f"{role}.pub", key.public.vkey(), 0o644)
        key_file.write_line(making / "log.unused", "The log of these keys has no checkpoint yet.")
        Auditors(making / "auditors").register("first", token, 0)
        files.sync_folder(making)
        if folder.exists():
            folder.rmdir()
        files.rename(making, folder)
    except OSError as error:
        raise StoreError(f"keys can't be made in {folder}", found=str(error)) from error


def _key(path: Path) -> PrivateKey:
    try:
        return key_file.read_key(path)
    except MalformedError as error:
        raise StoreError(str(error)) from error
