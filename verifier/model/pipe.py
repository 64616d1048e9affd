"""Messages between the auditor and its worker process: a length, then deterministic CBOR.

Not pickle: the worker runs C code over files and numbers that a stranger chose, so what comes back from it is parsed
as strictly as anything else.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import IO

from verifiable.errors import MalformedError
from verifiable.wire import encoding
from verifiable.wire.encoding import Bounds, Value

MAX_MESSAGE = 1 << 28
"""Bytes. The largest message carries a chunk of records: 512 rows of 128 entries take half a megabyte."""
_BOUNDS = Bounds(size=MAX_MESSAGE, items=1 << 22)
_CHUNK = 1 << 20


class ClosedError(Exception):
    """The other end has gone."""


class StalledError(Exception):
    """Nothing came for too long."""


def write(file: IO[bytes], message: list[Value]) -> None:
    """Send one message; raises OSError when the other end has gone."""
    data = encoding.encode(message)
    file.write(len(data).to_bytes(4, "big") + data)
    file.flush()


def read(file: IO[bytes]) -> list[Value] | None:
    """Wait for one message; None when the other end has closed the pipe."""
    length = file.read(4)
    if len(length) < 4:
        return None
    data = file.read(int.from_bytes(length, "big"))
    return encoding.array(encoding.decode(data, _BOUNDS), None, "message")


class Reader:
    """Reads messages from a file descriptor, never waiting longer than `patience` seconds for the next bytes."""

    def __init__(self, descriptor: int, patience: float) -> None:
        self._descriptor = descriptor
        self._patience = patience
        self._buffer = bytearray()

    def read(self) -> list[Value]:
        """The next message. Raises ClosedError, StalledError or MalformedError."""
        length = int.from_bytes(self._take(4), "big")
        if length > MAX_MESSAGE:
            raise MalformedError("message of the worker", expected=f"at most {MAX_MESSAGE} bytes", found=length)
        return encoding.array(encoding.decode(self._take(length), _BOUNDS), None, "message of the worker", maximum=8)

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            deadline = time.monotonic() + self._patience
            ready, _, _ = select.select([self._descriptor], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise StalledError
            data = os.read(self._descriptor, _CHUNK)
            if not data:
                raise ClosedError
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
