"""A running provider's eye on its key folder: what changes there is in use a second later."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from engine.keys import folder as names
from engine.keys.keyring import Keyring
from verifiable.errors import VerifiableError

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks."""
_Seen = frozenset[tuple[str, int, int, int]]


class KeyWatch:
    """Hands the keyring that `load` reads to `use` whenever the folder has changed. What fails is tried again."""

    def __init__(self, folder: Path, load: Callable[[], Keyring], use: Callable[[Keyring], None]) -> None:
        self._folder = folder
        self._load = load
        self._use = use
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = ""
        self._seen = self._look()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="key-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Take over what has changed since the last time."""
        seen = self._look()
        if seen == self._seen:
            return
        try:
            self._use(self._load())
            self._seen, self._trouble = seen, ""
        except VerifiableError as error:
            if str(error) != self._trouble:
                log.error("the keys in %s can't be taken over: %s", self._folder, error)
            self._trouble = str(error)

    def _run(self) -> None:
        while not self._stopping.wait(EVERY):
            try:
                self.look()
            except Exception:  # a fault of ours must not end in silence, nor the watch
                log.exception("the keys can't be taken over")

    def _look(self) -> _Seen:
        seen = set()
        for path in (*self._folder.glob("*"), *(self._folder / names.MANIFESTS).glob("*")):
            if path.name in ("auditors", names.REQUEST) or path.name.startswith("."):
                continue
            try:
                status = path.stat()
            except OSError:  # gone meanwhile
                continue
            seen.add((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
        return frozenset(seen)
