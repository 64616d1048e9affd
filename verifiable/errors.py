"""The errors of this project: a base class, and one subclass for each kind that callers treat differently.

Every error says what failed, what was expected, what was found and, where there is something to do, what to
do next. Nothing else may leave a public function: a parser given hostile bytes raises `MalformedError`, a
check that does not hold raises `VerificationError` with a stable reason code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

_SHOWN = 120
"""Longest rendering of an expected or found value, in characters: input may be megabytes, a message not."""


def _show(value: object) -> str:
    if isinstance(value, bytes):
        # Cut before converting: the bytes may be an attacker's, and long.
        return f"{value[:32].hex()}{'…' if len(value) > 32 else ''} ({len(value)} bytes)" if value else "no bytes"
    try:
        text = str(value)
    except ValueError:  # an integer of more digits than Python is willing to print
        text = f"{type(value).__name__} of thousands of digits"
    cut = text[:_SHOWN]
    # Escaped where not printable: what was found may be terminal control codes or a forged second line.
    shown = cut if cut.isprintable() else ascii(cut)[1:-1]
    return shown if len(text) <= _SHOWN else f"{shown}… ({len(text)} characters)"


class VerifiableError(Exception):
    """Base of all errors of this project.

    Args:
        what: what failed, as a short phrase.
        expected: the value or condition that would have been right, if there is one.
        found: the value that was there instead.
        hint: what a person can do next.
    """

    exit_code: ClassVar[int] = 4
    """Exit status of the command-line tool when this error ends it."""

    code = "environment"
    """Reason code of the verdict that it ends in."""

    def __init__(self, what: str, *, expected: object = None, found: object = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.expected = expected
        self.found = found
        self.hint = hint

    def __str__(self) -> str:
        return self.statement if self.hint is None else f"{self.statement}. {self.hint}"

    @property
    def statement(self) -> str:
        """The error in one line, without the hint."""
        details = []
        if self.expected is not None:
            details.append(f"expected {_show(self.expected)}")
        if self.found is not None:
            details.append(f"found {_show(self.found)}")
        return f"{self.what}: {', '.join(details)}" if details else self.what


class MalformedError(VerifiableError):
    """The input is not a well-formed object of the kind that was asked for. It says nothing about honesty."""

    exit_code = 2
    code = "malformed"


class VerificationError(VerifiableError):
    """A well-formed object fails a check. `code` is stable: one of those in spec/reason-codes.md."""

    exit_code = 1

    def __init__(
        self, what: str, *, code: str, expected: object = None, found: object = None, hint: str | None = None
    ) -> None:
        super().__init__(what, expected=expected, found=found, hint=hint)
        self.code = code


@contextmanager
def reading_signed() -> Iterator[None]:
    """Read what a checked signature or root binds: what is malformed there was signed so (`signed-malformed`).

    Anywhere else malformed bytes are nobody's word, for anybody may have changed them.
    """
    try:
        yield
    except MalformedError as error:
        raise VerificationError(
            f"what was signed is not well formed: {error.what}",
            code="signed-malformed",
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        ) from error


class NewerVersionError(VerificationError):
    """An object of a later version of the protocol: a later release of this program can read it."""

    exit_code = 3

    def __init__(self, what: str, *, expected: object, found: object) -> None:
        hint = "Read it with a newer release of this program."
        super().__init__(what, code="newer-version", expected=expected, found=found, hint=hint)


class PolicyError(VerifiableError):
    """The request is well formed but not allowed here: a limit, a setting or a declared rule forbids it.

    `parameter` is the request parameter at fault, where there is one (OpenAI's `param`).
    """

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
        parameter: str | None = None,
    ) -> None:
        super().__init__(what, expected=expected, found=found, hint=hint)
        self.parameter = parameter


class UnknownHostError(PolicyError):
    """The address names a host that nobody knows, and nothing was ever reached there: most likely it is misspelt."""


class EngineError(VerifiableError):
    """The inference runtime could not do what it was asked to do."""


class StoreError(VerifiableError):
    """Durable storage failed, or holds something else than it should."""
