"""Files on disk: read up to a bound, made new, and replaced whole and durably.

A reader of a file that is replaced here sees the old bytes or the new ones, never a part, also after a power cut.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from os import PathLike
from pathlib import Path

from verifiable.errors import MalformedError


def read(path: str | PathLike[str], most: int) -> bytes:
    """A file's bytes, of which no more than `most` + 1 are read.

    Raises OSError: there is no such file, or it can't be read; MalformedError: it holds more than `most` bytes.
    """
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise MalformedError(str(path), expected=f"at most {most:,} bytes", found="more")
    return data


def write_new(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file that is not there yet, and sync it, not its folder. Raises OSError.

    `mode` is what the process's umask then takes from.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make what a folder lists durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename(old: Path, new: Path) -> None:
    """Give a file or folder, whose content is synced, another name durably. Raises OSError."""
    os.replace(old, new)
    sync_folder(new.parent)


def replace(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Put bytes into a file, in place of those that it may hold, all or none of them, and durably.

    Raises OSError; after an error the file holds either. The folder must be there.
    """
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(6)}.new")
    try:
        write_new(scratch, data, mode)
        rename(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
