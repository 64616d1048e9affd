"""Keys in files. Secrets are written once, durable before they are used, and for nobody but their owner to read."""

from __future__ import annotations

import os
from pathlib import Path

from verifiable import files
from verifiable.errors import MalformedError, PolicyError, StoreError
from verifiable.wire.keys import PrivateKey, PublicKey

MAX_BYTES = 1 << 16
"""Longest file of keys that is read."""


def read_secret(path: Path) -> str:
    """The text of a file that only its owner can read. Raises StoreError: others can, or it can't be read."""
    try:
        if path.stat().st_mode & 0o077:
            raise StoreError(f"{path} can be read by others", expected="mode 0600", hint=f"chmod 600 {path}")
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise StoreError(f"{path} can't be read", found=str(error)) from error


def write_line(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a line into a file that is not there yet, and sync the file, not its folder. Raises OSError."""
    files.write_new(path, f"{text}\n".encode(), mode)


def read_key(path: Path) -> PrivateKey:
    """The signing key in a file. Raises StoreError as `read_secret` does, and MalformedError: it is no key."""
    try:
        return PrivateKey.parse(read_secret(path))
    except MalformedError as error:
        raise MalformedError(f"{path} is no signing key: {error.what}", hint="Restore it from your backup.") from error


def read_or_make_key(path: Path, name: str) -> tuple[PrivateKey, bool]:
    """The signing key in a file, and whether it was made just now, in a folder that is there.

    Raises StoreError: others can read it, or it can't be read or written; MalformedError: it is no key.
    """
    try:
        if path.exists():
            return read_key(path), False
        key = PrivateKey.generate(name, os.urandom(32))
        write_line(path, key.skey())
        files.sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"the key {path} can't be made", found=str(error)) from error
    return key, True


def read_public(text: str) -> list[PublicKey]:
    """Verifier keys (C2SP): such a key itself, or the name of a file with keys, one a line, # before comments.

    Raises PolicyError: it is neither, or the file holds no key or can't be read; MalformedError: a key is damaged.
    """
    path = Path(text)
    if not path.is_file():
        if "+" not in text:
            raise PolicyError("no such key file", expected="a verifier key, or a file with it", found=text)
        return [PublicKey.parse(text)]
    try:
        lines = [line.strip() for line in files.read(path, MAX_BYTES).decode("utf-8", "replace").splitlines()]
    except OSError as error:
        raise PolicyError(f"{path} can't be read", found=str(error)) from error
    keys = [PublicKey.parse(line) for line in lines if line and not line.startswith("#")]
    if not keys:
        raise PolicyError(f"{path} holds no key", expected="a line name+hash+base64", found="none")
    return keys
