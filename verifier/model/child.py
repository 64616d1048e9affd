"""A process for C code over files and numbers that a stranger chose: started, asked, given up and ended here.

A crash or a hang of it is a VerificationError with code `auditor-crashed`; the next command starts a new process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from verifiable.errors import EngineError, VerificationError
from verifiable.wire.encoding import Value
from verifier.model.pipe import ClosedError, Reader, StalledError, error_of, write

_ROOT = Path(__file__).resolve().parents[2]
_WORDS = 2000
"""Bytes at the end of its standard error in which the last words of a process are looked for."""


@dataclass(frozen=True, slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    commands: IO[bytes]
    answers: Reader
    errors: IO[bytes]


class Child:
    """Runs a module (as `python -m` does) that answers commands (see `pipe`); starts it when a command is there for it.

    `patience` is how many seconds without any sign it takes for the process to be given up.
    """

    def __init__(self, module: str, patience: float) -> None:
        self._module = module
        self._patience = patience
        self._running: _Running | None = None

    @property
    def pid(self) -> int | None:
        """The process's id; None where none runs."""
        return None if self._running is None else self._running.process.pid

    def call(self, command: list[Value], hear: Callable[[list[Value]], None]) -> Value:
        """Send a command and return its result; `hear` gets what the process says before.

        Whatever goes wrong on the way ends the process. Raises VerificationError (`auditor-crashed`), or the error that
        the command ended with there: that one leaves the process as it is.
        """
        running = self._start()
        try:
            message = self._ask(running, command)
            while message[0] not in ("done", "error"):
                hear(message)
                message = self._ask(running)
        except BaseException:
            self.close()
            raise
        if message[0] == "error":
            raise error_of(message)
        return message[1]

    def _ask(self, running: _Running, command: list[Value] | None = None) -> list[Value]:
        """The next message, to a command if one is given."""
        try:
            if command is not None:
                write(running.commands, command)
            message = running.answers.read()
        except StalledError:
            raise self.crash("the worker process hangs", f"a sign of life within {self._patience:g} s") from None
        except (ClosedError, OSError):
            raise self.crash("the worker process ended", "an answer") from None
        if len(message) < 2:
            raise self.crash("the worker process", "a well-formed answer")
        return message

    def crash(self, what: str, expected: str) -> VerificationError:
        """End a process that is of no more use; the error for it has the last words of its standard error."""
        words, status = "", None
        if self._running is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._running.process.wait(0.5)
            errors = self._running.errors
            errors.seek(max(errors.seek(0, os.SEEK_END) - _WORDS, 0))
            lines = errors.read().decode("utf-8", "replace").splitlines()
            words = next((line.strip() for line in reversed(lines) if line.strip()), "")
        self.close()
        ending = "no exit" if status is None else f"signal {-status}" if status < 0 else f"exit status {status}"
        return VerificationError(
            f"the auditor could not run the model: {what}",
            code="auditor-crashed",
            expected=expected,
            found=f"{ending}; {words[:300]}" if words else ending,
            hint="This says nothing about the provider. Check the model file and this machine's memory.",
        )

    def close(self) -> None:
        """End the process, if one runs."""
        running, self._running = self._running, None
        if running is None:
            return
        running.process.kill()
        running.process.wait()
        for file in (running.commands, running.errors, running.answers):
            with contextlib.suppress(OSError):
                file.close()

    def _start(self) -> _Running:
        if self._running is not None:
            return self._running
        errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for the parent, who ends the process
        )
        if process.stdin is None or process.stdout is None:
            raise EngineError("the worker process has no pipes")
        reader = Reader(os.dup(process.stdout.fileno()), self._patience)
        process.stdout.close()
        self._running = _Running(process, process.stdin, reader, errors)
        return self._running
