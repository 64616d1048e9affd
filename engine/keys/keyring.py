"""The provider's keys and tokens on disk, readable by the owner alone: made once, then exchanged by `life`."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.keys import folder as keys, life
from engine.keys.auditors import Auditors
from verifiable import files
from verifiable.errors import PolicyError, StoreError
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import Role
from verifiable.wire import key_file
from verifiable.wire.keys import PrivateKey, PublicKey

_HINT = "Restore them from your backup. A provider with new keys is a new provider."


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A key whose private half is on another machine."""

    public: PublicKey


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys as their folder has them now; an exchange makes another keyring.

    `provider` signs manifests, `session` heads of new sessions, `log` the checkpoints of the log; `auditor_key` is a
    bearer token that opens all evidence until the operator revokes it (see `engine.keys.auditors`).

    Attributes:
        sessions: every key that may sign heads, `session` first; no revoked one.
        before: the log's key before the last exchange, which signs checkpoints too while its file is there.
        providers, logs: the public keys that were ever in use, oldest first.
        coming: the public keys of sessions and log that the next manifest is to name.
        chain: what the `statements` on keys say, from the first provider key on.
        ending: thumbprints of keys under which no turn begins any more.
        installed: manifests that were signed elsewhere.
    """

    provider: PrivateKey | Elsewhere
    session: PrivateKey
    log: PrivateKey
    auditor_key: str
    folder: Path
    created: bool
    sessions: tuple[PrivateKey, ...]
    before: PrivateKey | None
    providers: tuple[PublicKey, ...]
    logs: tuple[PublicKey, ...]
    coming: tuple[PublicKey, PublicKey]
    chain: Chain
    statements: tuple[bytes, ...]
    ending: frozenset[bytes]
    installed: tuple[bytes, ...]

    @property
    def signer(self) -> PrivateKey:
        """The provider's private key. Raises PolicyError where it is elsewhere."""
        if isinstance(self.provider, Elsewhere):
            raise PolicyError("the provider's private key is on another machine")
        return self.provider

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

    def of(self, named: Sequence[PublicKey]) -> PrivateKey | None:
        """The private key of one of the session keys that a manifest names, None where none is here any more."""
        return next((key for key in self.sessions if key.public in named), None)

    def counts(self, provider: PublicKey) -> bool:
        """Whether a turn may begin under a manifest by this provider key."""
        known = any(key.kid == provider.kid for key in self.providers)
        return known and provider.kid not in self.ending and self.chain.revoked(provider) is None


def load(
    folder: Path, name: str, provider: PublicKey | None = None, clock: Callable[[], int] = life.milliseconds
) -> Keyring:
    """Read the keys in `folder`, making them on the first start: all of them, or, after a crash, none.

    `provider` is the key of a provider whose private half is on another machine. An exchange of keys that a crash
    broke off is carried through. Raises StoreError where a key is missing (losing one must be noticed, not repaired
    with a new one), damaged, or readable by others, and PolicyError where `provider` is another one's.
    """
    created = not folder.exists() or not any(folder.iterdir())
    if created:
        _make(folder, name, provider)
    with keys.locked(folder):
        if (folder / keys.file(Role.PROVIDER)).exists() and provider is not None:
            raise PolicyError(
                f"the provider's private key is in {folder}, and --provider-key says that it is elsewhere",
                hint=f"Move {keys.file(Role.PROVIDER)} to the machine that signs, or leave --provider-key out.",
            )
        wanted = [keys.file(role) for role in Role if role is not Role.PROVIDER or provider is None] + ["auditor.key"]
        missing = [file for file in wanted if not (folder / file).exists()]
        if missing:
            elsewhere = "\nWhere it is kept on another machine, say so: --provider-key provider.pub"
            raise StoreError(
                f"keys are missing in {folder}",
                expected=", ".join(wanted),
                found=f"no {', '.join(missing)}",
                hint=_HINT + (elsewhere if missing == [keys.file(Role.PROVIDER)] else ""),
            )
        life.settle(folder, clock())
        return _read(folder, created, provider)


def _read(folder: Path, created: bool, given: PublicKey | None) -> Keyring:
    provider: PrivateKey | Elsewhere
    if given is None:
        provider = keys.private(folder / keys.file(Role.PROVIDER))
    else:
        provider = Elsewhere(keys.public(folder / "provider.pub"))
    session, log = (keys.private(folder / keys.file(role)) for role in (Role.SESSION, Role.LOG))
    public = keys.known(folder, provider.public, log.public)
    if given is not None and given.kid not in {key.kid for key in public.providers}:
        raise PolicyError(
            f"{folder} has the keys of another provider",
            expected=public.providers[-1].label,
            found=given.label,
            hint="Give the key that it was made with, or another data folder.",
        )
    older = [keys.private(path) for path in sorted(folder.glob("session-*.key"))]
    ending = frozenset(keys.public(path).kid for path in folder.glob("*.ending"))
    held = [key for key in (session, *older) if public.chain.revoked(key.public, Role.SESSION) is None]
    before = public.logs[-2] if len(public.logs) > 1 else None
    cosigns = None if before is None else folder / keys.file(Role.LOG, before)
    if before is None or cosigns is None or public.chain.revoked(before, Role.LOG) is not None or not cosigns.exists():
        cosigns = None
    return Keyring(
        provider=provider,
        session=session,
        log=log,
        auditor_key=key_file.read_secret(folder / "auditor.key"),
        folder=folder,
        created=created,
        sessions=tuple({key.public.kid: key for key in held if key.public.kid not in ending}.values()),
        before=None if cosigns is None else keys.private(cosigns),
        providers=public.providers,
        logs=public.logs,
        coming=(keys.coming(folder, Role.SESSION).public, keys.coming(folder, Role.LOG).public),
        chain=public.chain,
        statements=public.statements,
        ending=ending,
        installed=tuple(data for _, data in keys.installed(folder)),
    )


def _make(folder: Path, name: str, provider: PublicKey | None) -> None:
    """Write everything into a folder beside it, and give that its name when it is complete and on the disk."""
    making = folder.with_name(folder.name + ".new")
    try:
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True, mode=0o700)
        token = secrets.token_urlsafe(32)
        key_file.write_line(making / "auditor.key", token)
        for role in Role:
            if role is Role.PROVIDER and provider is not None:
                key_file.write_line(making / "provider.pub", provider.vkey(), 0o644)
                continue
            word = role.name.lower()
            key = PrivateKey.generate(name if role is Role.PROVIDER else f"{name}/{word}", os.urandom(32))
            key_file.write_line(making / keys.file(role), key.skey())
            if role is not Role.SESSION:
                key_file.write_line(making / f"{word}.pub", key.public.vkey(), 0o644)
        key_file.write_line(making / "log.unused", "The log of these keys has no checkpoint yet.")
        Auditors(making / "auditors").register("first", token, 0)
        files.sync_folder(making)
        if folder.exists():
            folder.rmdir()
        files.rename(making, folder)
    except OSError as error:
        raise StoreError(f"keys can't be made in {folder}", found=str(error)) from error
