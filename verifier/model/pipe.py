"""Messages between the auditor and the process of its model: a length, then deterministic CBOR.

Not pickle: the worker runs C code over files and numbers that a stranger chose, so what comes back from it is parsed
as strictly as anything else.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import IO

from verifiable.errors import EngineError, MalformedError, PolicyError, VerifiableError, VerificationError
from verifiable.wire import encoding
from verifiable.wire.encoding import Bounds, Value

MAX_MESSAGE = 1 << 28
"""Bytes. The largest message carries a chunk of records: 512 rows of 128 entries take half a megabyte."""
_BOUNDS = Bounds(size=MAX_MESSAGE, items=1 << 22)
_CHUNK = 1 << 20
_KINDS = (MalformedError, PolicyError, EngineError)
"""The kinds of errors that keep their kind on the way; what is none of them arrives as the last."""


class ClosedError(Exception):
    """The other end has gone."""


class StalledError(Exception):
    """Nothing came for too long."""


def write(file: IO[bytes], message: list[Value]) -> None:
    """Send one message; raises OSError when the other end has gone."""
    data = encoding.encode(message)
    file.write(len(data).to_bytes(4, "big") + data)
    file.flush()


class Reader:
    """Reads messages from a file descriptor. Waits `patience` seconds for the next bytes, for ever where it is None."""

    def __init__(self, descriptor: int, patience: float | None = None) -> None:
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
            ready, _, _ = select.select([self._descriptor], [], [], self._patience)
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


def message_of(error: VerifiableError) -> list[Value]:
    """The message that a command ended with this error."""
    kind = next((kind for kind in _KINDS if isinstance(error, kind)), EngineError)
    texts = [error.what, error.expected, error.found, error.hint]
    return ["error", kind.__name__, *[None if text is None else _clean(str(text)) for text in texts]]


def error_of(message: list[Value]) -> VerifiableError:
    """The inverse of `message_of`, in the words of whoever gave the command. Raises MalformedError."""
    _, name, *texts = encoding.array(message, 6, "error of the worker")
    kind = next((kind for kind in _KINDS if kind.__name__ == name), EngineError)
    what, expected, found, hint = (None if text is None else str(text) for text in texts)
    if kind is MalformedError:  # what the worker parses itself is the auditor's own model file
        what = f"the auditor's model file is not usable: {what}"
        return VerificationError(what, code="auditor-crashed", expected=expected, found=found, hint=hint)
    return kind(str(what), expected=expected, found=found, hint=hint)


def _clean(text: str) -> str:
    return text[:2000].encode("utf-8", "replace").decode("utf-8")
