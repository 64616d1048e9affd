"""What an audit of one turn can find: a reason code, the place, and what was expected and found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verifiable.checking.verdict import INCONCLUSIVE_CODES, Details, Status, Verdict, from_error
from verifiable.errors import VerifiableError


@dataclass(frozen=True, slots=True)
class Fault:
    """A check of a turn that does not hold. Fields as in `Verdict`; `guess` is a guess and is shown as one."""

    code: str
    what: str
    token: int | None = None
    position: int | None = None
    expected: str | None = None
    found: str | None = None
    hint: str | None = None
    guess: str | None = None
    details: Details | None = None

    @property
    def proven(self) -> bool:
        """Whether it is a failure of the provider's, not merely a check that could not be made here."""
        return self.code not in INCONCLUSIVE_CODES and self.code != "environment"

    @classmethod
    def of(cls, error: VerifiableError) -> Fault:
        """The fault that an error of a check means."""
        verdict = from_error(error)
        return cls(
            str(verdict.code), verdict.summary, expected=verdict.expected, found=verdict.found, hint=verdict.hint
        )

    def verdict(self, turn: int | None = None, **context: Any) -> Verdict:
        """The verdict that this fault leads to; `context` are further fields of `Verdict`."""
        return Verdict(
            Status.FAILED if self.proven else Status.INCONCLUSIVE,
            self.what,
            code=self.code,
            turn=turn,
            token=self.token,
            position=self.position,
            expected=self.expected,
            found=self.found,
            hint=self.hint,
            guess=self.guess,
            **context,
        )
