"""Exchange and revocation of keys, as changes of their folder that a crash leaves done or not begun.

An exchange is decided when the file of the new key is there. `settle` then does, step by step, what is not done yet;
whoever reads the folder settles it first. A running provider looks at the folder every second.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from engine.keys import folder as keys, request
from verifiable import files
from verifiable.errors import PolicyError, StoreError, VerifiableError
from verifiable.manifest.manifest import Manifest
from verifiable.manifest.statements import KeysFile, Revocation, Role, Succession
from verifiable.tlog.entry import REVOCATION, SUCCESSION, kind_of
from verifiable.wire.keys import PrivateKey, PublicKey

Statement = TypeVar("Statement")


def milliseconds() -> int:
    """The clock: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def rotate(folder: Path, role: Role, now: int) -> PublicKey:
    """Bring in a new key of a role; returns it. Where the provider's key is elsewhere, a manifest has to name it first.

    Raises PolicyError where that key is elsewhere and is to be exchanged, StoreError where the disk refuses.
    """
    with keys.locked(folder):
        settle(folder, now)
        offline = not (folder / keys.file(Role.PROVIDER)).exists()
        if offline and role is Role.PROVIDER:
            raise PolicyError(
                f"the provider's private key is not in {folder}",
                hint="Exchange it where it is: verifiable keys succeed OLD.key NEW.key --out FILE, "
                "then here: verifiable keys install FILE",
            )
        new = folder / keys.file(role, new=True)
        with _disk(folder):
            if not new.exists():
                key = PrivateKey.generate(keys.private(folder / keys.file(role)).public.name, os.urandom(32))
                files.replace(new, f"{key.skey()}\n".encode(), 0o600)
            made = keys.private(new).public
            if offline:
                request.ask_again(folder)
        settle(folder, now)
        return made


def settle(folder: Path, now: int) -> None:
    """Carry out the exchanges that are decided. Whoever calls it holds the folder's lock. Raises StoreError."""
    online = (folder / keys.file(Role.PROVIDER)).exists()
    with _disk(folder):
        for role in Role:
            new = folder / keys.file(role, new=True)
            if new.exists() and (online or role is Role.PROVIDER or _named(folder, keys.private(new).public)):
                _take(folder, role, keys.private(new), now)


def revoke(folder: Path, key: PublicKey, role: Role, reason: str, now: int) -> None:
    """Say, signed, that what a key signs from now on counts no more, and drop its private half.

    Raises PolicyError where the key is in use, where it is revoked already, or where the provider's is elsewhere.
    """
    with keys.locked(folder), _disk(folder):
        settle(folder, now)
        signer = folder / keys.file(Role.PROVIDER)
        if not signer.exists():
            raise PolicyError(
                f"the provider's private key is not in {folder}",
                hint="Revoke where it is: verifiable keys revoke KEY --reason … --key provider.key --out FILE, "
                "then here: verifiable keys install FILE",
            )
        _check_revocable(folder, key, role)
        # Dated before the exchange, whatever the clock says, it would take the exchange away too.
        time = max(now, _taken(folder, key) + 1)
        add(folder, Revocation(role, key, time, reason).sign(keys.private(signer)))
        _forget(folder, key, role)


def end(folder: Path, key: PublicKey, role: Role) -> None:
    """Let no turn begin under a key that is to be revoked. Raises as `revoke`."""
    with keys.locked(folder), _disk(folder):
        _check_revocable(folder, key, role)
        files.replace(folder / f"{keys.identifier(key)}.ending", f"{key.vkey()}\n".encode(), 0o644)


def add(folder: Path, statement: bytes) -> bool:
    """Add a statement on keys to those of the folder; whether it is new. Raises PolicyError where they are too many."""
    held = keys.statements(folder)
    if statement in held:
        return False
    files.replace(folder / keys.STATEMENTS, KeysFile((*held, statement)).encode(), 0o644)
    return True


def install(folder: Path, statement: bytes, now: int) -> str:
    """Take in a succession of the provider's key, or a revocation, that was signed elsewhere; says which.

    Raises PolicyError where it is not about these keys, or its signer is not entitled to it.
    """
    with keys.locked(folder), _disk(folder):
        settle(folder, now)
        known = keys.known(folder)
        if kind_of(statement) == SUCCESSION:
            said = _read(lambda: Succession.open(statement))
            if statement in known.statements:
                return f"{said.old.label} is followed by {said.new.label} already"
            if said.role is not Role.PROVIDER or said.old.kid != known.providers[-1].kid:
                raise PolicyError(
                    "a succession of another key",
                    expected=f"of {known.providers[-1].label}, the provider's",
                    found=f"of {said.old.label}, a {said.role.words}",
                )
            if (folder / keys.file(Role.PROVIDER)).exists():
                hint = "Use: verifiable keys rotate provider"
                raise PolicyError("the provider's private key is here: it is exchanged here", hint=hint)
            add(folder, statement)
            _publish(folder, said.old, said.new)
            return f"{said.old.label} is followed by {said.new.label}"
        revocation, signer = _read(lambda: Revocation.open(statement, known.providers))
        if statement not in known.statements:
            _check_revocable(folder, revocation.key, revocation.role)
            if signer.kid == revocation.key.kid and _taken(folder, signer):
                hint = "Sign it with the key that succeeds it: verifiable keys revoke … --key"
                raise PolicyError("a key that revokes itself names no successor: it would end the chain", hint=hint)
            if revocation.time <= _taken(folder, revocation.key):
                raise PolicyError("a revocation from before the key was exchanged: it would end the chain")
            add(folder, statement)
        _forget(folder, revocation.key, revocation.role)
        return f"{revocation.role.words} {revocation.key.label} is revoked: {revocation.reason}"


def is_statement(data: bytes) -> bool:
    """Whether bytes say of themselves that they are a statement on keys."""
    return kind_of(data) in (SUCCESSION, REVOCATION)


def role_of(folder: Path, key: PublicKey) -> Role | None:
    """What a key is for in this folder; None where it knows no such key."""
    known = keys.known(folder)
    if any(key.kid == each.kid for each in known.providers):
        return Role.PROVIDER
    if any(key.kid == each.kid for each in known.logs):
        return Role.LOG
    held = [keys.public(path) for path in folder.glob("session-*.pub")]
    held += [keys.private(path).public for path in folder.glob("session*.key")]
    return Role.SESSION if any(key.kid == each.kid for each in held) else None


def _take(folder: Path, role: Role, new: PrivateKey, now: int) -> None:
    """Put the new key in the place of the one in use. Each step may have been done before a crash."""
    current = keys.private(folder / keys.file(role))
    word = role.name.lower()
    if current.public.kid != new.public.kid:
        if role is not Role.SESSION and not _followed(folder, role, current.public, new.public):
            add(folder, Succession.sign(current, new, role, now))
        kept = folder / keys.file(role, current.public)
        if role is Role.LOG:  # checkpoints bear two signatures, not three
            for path in folder.glob("log-*.key"):
                if path != kept:
                    path.unlink()
        if role is not Role.PROVIDER and not kept.exists():
            files.replace(kept, f"{current.skey()}\n".encode(), 0o600)
        files.replace(kept.with_suffix(".pub"), f"{current.public.vkey()}\n".encode(), 0o644)
        files.replace(folder / keys.file(role), f"{new.skey()}\n".encode(), 0o600)
    if role is not Role.SESSION:
        files.replace(folder / f"{word}.pub", f"{new.public.vkey()}\n".encode(), 0o644)
    (folder / keys.file(role, new=True)).unlink()
    files.sync_folder(folder)


def _taken(folder: Path, old: PublicKey) -> int:
    """When a key was exchanged (ms), 0 where no statement says so."""
    times = [0]
    for statement in keys.statements(folder):
        with contextlib.suppress(VerifiableError):
            said = Succession.open(statement)
            if said.old.kid == old.kid:
                times.append(said.time)
    return max(times)


def _followed(folder: Path, role: Role, old: PublicKey, new: PublicKey) -> bool:
    for statement in keys.statements(folder):
        with contextlib.suppress(VerifiableError):
            said = Succession.open(statement)
            if (said.role, said.old.kid, said.new.kid) == (role, old.kid, new.kid):
                return True
    return False


def _publish(folder: Path, old: PublicKey, new: PublicKey) -> None:
    """The public half of a provider's key whose private half is elsewhere."""
    files.replace(folder / f"provider-{keys.identifier(old)}.pub", f"{old.vkey()}\n".encode(), 0o644)
    files.replace(folder / "provider.pub", f"{new.vkey()}\n".encode(), 0o644)


def _check_revocable(folder: Path, key: PublicKey, role: Role) -> None:
    known = keys.known(folder)
    if known.chain.revoked(key, role) is not None:
        raise PolicyError("the key is revoked already", found=key.label)
    public = folder / f"{role.name.lower()}.pub"
    used = keys.public(public) if role is Role.PROVIDER else keys.private(folder / keys.file(role)).public
    if key.kid == used.kid:
        raise PolicyError(
            f"{key.label} is the {role.words} in use",
            hint=f"Exchange it first: verifiable keys rotate {role.name.lower()} --data …",
        )


def _forget(folder: Path, key: PublicKey, role: Role) -> None:
    """The private half of a revoked key, and the note that it was about to be revoked."""
    (folder / keys.file(role, key)).unlink(missing_ok=True)
    (folder / f"{keys.identifier(key)}.ending").unlink(missing_ok=True)
    files.sync_folder(folder)


def _named(folder: Path, key: PublicKey) -> bool:
    """Whether a manifest that was signed elsewhere names a key."""
    for _, envelope in keys.installed(folder):
        with contextlib.suppress(VerifiableError):
            manifest = Manifest.peek(envelope)
            if any(key.kid == each.kid for each in (*manifest.session_keys, *filter(None, [manifest.log]))):
                return True
    return False


def _read(opened: Callable[[], Statement]) -> Statement:
    try:
        return opened()
    except VerifiableError as error:
        raise PolicyError(f"no statement on these keys: {error.statement}") from error


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"the keys in {folder} can't be changed", found=str(error)) from error
