"""The folder of the provider's keys: what its files are called, and how they are read.

provider.key, session.key, log.key   the private keys in use; of a provider and a log also the public ones, .pub
session-ID.key                       session keys that were exchanged, for the sessions that go on under them
log-ID.key                           the log's key before the last exchange, which signs beside the new one
ROLE.new.key                         a key that an exchange brings in
ID.ending                            no turn begins under this key any more: it is about to be revoked
statements.keys                      the keys file: successions and revocations
manifests/                           manifests that were signed elsewhere
manifest.request                     what the next one is to say
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from verifiable import files, limits
from verifiable.errors import MalformedError, StoreError, VerifiableError
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import KeysFile, Role, Succession
from verifiable.wire import key_file
from verifiable.wire.keys import PrivateKey, PublicKey

STATEMENTS = "statements.keys"
MANIFESTS = "manifests"
REQUEST = "manifest.request"
MOST = 1000
"""Installed manifests that are read."""


@dataclass(frozen=True, slots=True)
class Known:
    """The public side: keys that were ever in use, oldest first, and what is said of them."""

    providers: tuple[PublicKey, ...]
    logs: tuple[PublicKey, ...]
    chain: Chain
    statements: tuple[bytes, ...]


def identifier(key: PublicKey) -> str:
    """The part of a key's line that tells it from another of the same name."""
    return key.label.rsplit("+", 1)[1]


def file(role: Role, old: PublicKey | None = None, *, new: bool = False) -> str:
    """The name of the file with the private key in use, an older one, or the one that an exchange brings in."""
    word = role.name.lower()
    return f"{word}-{identifier(old)}.key" if old else f"{word}.new.key" if new else f"{word}.key"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from reading or changing the keys. Raises StoreError where that can't be had."""
    try:
        handle = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
    except OSError as error:
        raise StoreError(f"the keys in {folder} can't be used", found=str(error)) from error


def private(path: Path) -> PrivateKey:
    """The private key in a file. Raises StoreError."""
    try:
        return key_file.read_key(path)
    except MalformedError as error:
        raise StoreError(str(error)) from error


def public(path: Path) -> PublicKey:
    """The public key in a file. Raises StoreError."""
    try:
        return PublicKey.parse(files.read(path, key_file.MAX_BYTES).decode("utf-8").strip())
    except (OSError, UnicodeError, VerifiableError) as error:
        raise StoreError(f"the public key {path} can't be read", found=str(error)) from error


def coming(folder: Path, role: Role) -> PrivateKey:
    """The key that an exchange brings in, or the one in use where there is no exchange under way."""
    new = folder / file(role, new=True)
    return private(new if new.exists() else folder / file(role))


def statements(folder: Path) -> tuple[bytes, ...]:
    """What was said of the keys. Raises StoreError where the file is damaged."""
    path = folder / STATEMENTS
    try:
        return KeysFile.load(path).statements if path.exists() else ()
    except (OSError, VerifiableError) as error:
        raise StoreError(f"{path} can't be read", found=str(error), hint="Restore it from your backup.") from error


def known(folder: Path, provider: PublicKey | None = None, log: PublicKey | None = None) -> Known:
    """What is said of the keys, and which were in use before those of provider and log, by default the .pub files'.

    Raises StoreError where the statements do not lead to these keys.
    """
    provider, log = provider or public(folder / "provider.pub"), log or public(folder / "log.pub")
    said = statements(folder)
    chain = Chain.follow([_first(provider, said, Role.PROVIDER)], said)
    providers, logs = chain.keys, chain.logs(_first(log, said, Role.LOG))
    for key, line in ((provider, providers), (log, logs)):
        if line[-1].kid != key.kid:
            raise StoreError(
                f"{folder / STATEMENTS} does not lead to the key in use",
                expected=key.label,
                found=line[-1].label,
                hint="Restore the whole folder from one backup.",
            )
    return Known(providers, logs, chain, said)


def installed(folder: Path) -> list[tuple[Path, bytes]]:
    """The manifests that were signed elsewhere, with their files; what can't be read is left out. Raises StoreError."""
    try:
        paths = sorted((folder / MANIFESTS).glob("*.manifest"))[:MOST]
        return [(path, files.read(path, limits.ENTRY_BYTES)) for path in paths]
    except (OSError, MalformedError) as error:
        raise StoreError(f"the manifests in {folder / MANIFESTS} can't be read", found=str(error)) from error


def _first(key: PublicKey, said: Sequence[bytes], role: Role) -> PublicKey:
    """The key with which the line begins that leads to this one."""
    olds: dict[bytes, PublicKey] = {}
    for data in said:
        with contextlib.suppress(VerifiableError):
            succession = Succession.open(data)
            if succession.role is role:
                olds[succession.new.kid] = succession.old
    seen = {key.kid}
    while key.kid in olds and olds[key.kid].kid not in seen:
        key = olds[key.kid]
        seen.add(key.kid)
    return key
