"""A provider's ledger: its keys, its store and its log, opened together and in the order that keeps them honest."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.keys import keyring
from engine.keys.keyring import Keyring
from engine.log.checkpoint_file import CheckpointFile
from engine.log.log import LogSettings, ProviderLog, make_check
from engine.log.witnesses import WitnessEndpoint, Witnesses
from engine.sessions.retention import Retention, milliseconds
from engine.store import Store, sqlite
from verifiable import files
from verifiable.errors import PolicyError, StoreError
from verifiable.tlog.entry import kind_of
from verifiable.wire.keys import PublicKey


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """Where things are kept, and who follows the log.

    Args:
        store: URL of a PostgreSQL database; None keeps everything in one SQLite file in the data folder.
        checkpoint: folder of the published checkpoint, by default `checkpoint` in the data folder. Put it on another
            disk than the data, or at least in another backup: it is what tells an old store from the newest one.
        sequence: whether this process runs the log. Of several that share a store, exactly one does.
        witnesses: `VKEY URL` of each; `quorum` of them have to cosign a checkpoint before it is published.
        provider_key: the provider's key, where its private half is on another machine.
        keep_days: days after which a session's records are dropped, None for never; `keep` says what stays instead.
    """

    store: str | None = None
    checkpoint: Path | None = None
    sequence: bool = True
    witnesses: tuple[str, ...] = ()
    quorum: int = 0
    keep_days: float | None = None
    keep: str = "tokens"
    log: LogSettings = field(default_factory=LogSettings)
    provider_key: PublicKey | None = None


class Ledger:
    """Opens on construction and closes with `close`. `log` is None where another process runs it. `clock` tells the
    milliseconds since 1970.

    Raises InUseError, StoreError (damaged, keys missing), DamagedLogError (the log must not go on) or PolicyError.
    """

    def __init__(
        self,
        data: Path,
        name: str,
        settings: LedgerSettings | None = None,
        clock: Callable[[], int] = milliseconds,
    ) -> None:
        settings = settings or LedgerSettings()
        if settings.store is None and not settings.sequence:
            raise PolicyError("only processes that share a PostgreSQL store can leave the log to another one")
        witnesses = Witnesses([WitnessEndpoint.parse(text) for text in settings.witnesses], settings.quorum)
        self.store: Store = _open(data, settings)
        try:
            self._clock, self._name, self._provider_key = clock, name, settings.provider_key
            self._folder = data / "keys"
            self.keys: Keyring = _keys(data, self.store, self.read_keys)
            self._say_of_keys()
            self.log: ProviderLog | None = None
            self.retention: Retention | None = None
            if settings.keep_days is not None:
                self.retention = Retention(self.store, settings.keep_days, settings.keep, clock)
            if settings.sequence:
                self.log = ProviderLog(
                    self.store,
                    self.keys.log,
                    CheckpointFile(checkpoint_path(data, settings.checkpoint)),
                    make_check(lambda: self.keys.providers),
                    self.keys.log_unused,
                    witnesses,
                    settings.log,
                    self.keys.before,
                    self.keys.logs,
                )
        except BaseException:
            self.store.close()
            raise

    def proof(self, session: bytes, size: int) -> bytes | None:
        """The `.tlog-proof` of a head; None while it is not published, or where the log runs elsewhere."""
        return None if self.log is None else self.log.proof(session, size)

    def read_keys(self) -> Keyring:
        """The keys as their folder has them now. Raises StoreError, PolicyError."""
        return keyring.load(self._folder, self._name, self._provider_key, self._clock)

    def use(self, keys: Keyring) -> None:
        """Go on with other keys: what is said of them is logged, and the log signs with its new one."""
        self.keys = keys
        self._say_of_keys()
        if self.log is not None:
            self.log.use(keys.log, keys.before, keys.logs)

    def _say_of_keys(self) -> None:
        for statement in self.keys.statements:
            self.store.add_statement(kind_of(statement), statement)

    def start(self, vocabulary: int) -> None:
        """Start the log, and dropping what has expired. `vocabulary` is the model's: packed token ids depend on it."""
        if self.log is not None:
            self.log.start()
        if self.retention is not None:
            self.retention.start(vocabulary)

    def close(self) -> None:
        """Make everything queued durable, publish it, and close. Safe to call twice."""
        if self.retention is not None:
            self.retention.stop()
        if self.log is not None:
            if self.store.failure() is None:
                self.store.flush()
            self.log.stop()
            self.log = None
        self.store.close()


def checkpoint_path(data: Path, folder: Path | None) -> Path:
    """Where the published checkpoint is."""
    return (folder or data / "checkpoint") / "checkpoint"


def _open(data: Path, settings: LedgerSettings) -> Store:
    if settings.store is None:
        return sqlite.open_store(data)
    from engine.store import postgres  # its driver is an extra of its own

    return postgres.open_store(settings.store, _machine(data / "machine"))


def _machine(path: Path) -> bytes:
    """What this machine is called in a store that it shares: random, made once, and kept in its data folder."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            files.replace(path, f"{os.urandom(16).hex()}\n".encode())
        return bytes.fromhex(path.read_text("ascii").strip())
    except (OSError, ValueError) as error:
        raise StoreError(f"this machine's name {path} can't be read", found=str(error)) from error


def _keys(data: Path, store: Store, load: Callable[[], Keyring]) -> Keyring:
    folder = data / "keys"
    if not folder.exists() and (store.sessions(1) or store.checkpoint() is not None):
        raise StoreError(
            f"the keys in {folder} are gone, and the store has sessions that they signed",
            hint="Restore them from your backup. A provider with new keys is a new provider, with a store of its own.",
        )
    return load()
