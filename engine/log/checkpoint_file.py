"""A signed checkpoint in a file of its own, replaced only by whoever knows what it replaces.

It is kept apart from what it speaks of: a database that comes back from an old backup then meets a checkpoint that
says more than it holds. The log's published checkpoint is kept so, and a witness's memory of each log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from verifiable import files, limits
from verifiable.errors import StoreError


class CheckpointFile:
    """The file at `path`; its folder is made when missing. A second file, `<path>.lock`, serialises replacements."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> bytes | None:
        """What the file holds, or None where there is none. Raises StoreError where it can't be read."""
        try:
            with self.path.open("rb") as file:
                return file.read(
                    limits.NOTE_BYTES + 1
                )  # one too many: whoever opens the note then says that it is damaged
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"the checkpoint {self.path} can't be read", found=str(error)) from error

    def replace(self, old: bytes | None, new: bytes) -> None:
        """Put `new` in place of `old`, durably, or change nothing.

        Raises StoreError where the file holds something else than `old`, or the disk refuses. After an error from
        the disk the file holds either; a caller who means to go on reads it again.
        """
        with self._locked():
            if self.read() != old:
                raise StoreError(
                    f"the checkpoint {self.path} was changed by somebody else",
                    hint="Only one process may publish a log. Stop the other one, then start again.",
                )
            try:
                files.replace(self.path, new, 0o644)
            except OSError as error:
                raise StoreError(f"the checkpoint {self.path} can't be written", found=str(error)) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"the checkpoint {self.path} can't be locked", found=str(error)) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
