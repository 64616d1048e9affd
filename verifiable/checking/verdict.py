"""The verdict: verified, failed with the proof, or inconclusive. Nothing checked is never a pass."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

from verifiable.errors import MalformedError, VerifiableError, VerificationError


class Status(enum.StrEnum):
    """What a verdict says. RECEIPT: signatures and log hold, the model was not run. EXACT: every bit was recomputed."""

    RECEIPT = "verified-receipt"
    EXACT = "verified-exact"
    STATISTICAL = "verified-statistical"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        return {"failed": 1, "inconclusive": 3}.get(self.value, 0)


INCONCLUSIVE_CODES = frozenset(
    {
        "incomplete",
        "untrusted-key",
        "fingerprint-differs",
        "not-invariant",
        "not-raw-logits",
        "model-differs",
        "no-evidence",
        "unreachable",
        "auditor-crashed",
        "nothing-checked",
        "too-little-evidence",
    }
)
"""Reason codes under which nothing is proven against the provider; every other code is a failed verification."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check that was made: its name, whether it passed (None: could not be made), and a sentence for people."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. `turn`, `token` (index in the answer) and `position` (in the whole sequence) say where it failed.

    `tokens_checked` counts tokens whose every committed logit was recomputed and whose draw was replayed.
    """

    status: Status
    summary: str
    code: str | None = None
    session: str | None = None
    turn: int | None = None
    token: int | None = None
    position: int | None = None
    expected: str | None = None
    found: str | None = None
    hint: str | None = None
    guess: str | None = None
    checks: tuple[Check, ...] = ()
    not_shown: tuple[str, ...] = ()
    tokens_checked: int = 0
    tokens_total: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return self.status.exit_code

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON values; empty fields are left out."""
        shown = {name: value for name, value in asdict(self).items() if value not in (None, (), {})}
        shown["status"] = self.status.value
        shown["exit_code"] = self.exit_code
        return shown


def from_error(error: VerifiableError, **context: Any) -> Verdict:
    """The verdict that an error of a check means."""
    code = (
        error.code
        if isinstance(error, VerificationError)
        else "malformed"
        if isinstance(error, MalformedError)
        else "environment"
    )
    status = Status.INCONCLUSIVE if code in INCONCLUSIVE_CODES or code == "environment" else Status.FAILED
    return Verdict(
        status,
        error.what,
        code=code,
        expected=_plain(error.expected),
        found=_plain(error.found),
        hint=error.hint,
        **context,
    )


def _plain(value: object) -> str | None:
    return value.hex() if isinstance(value, bytes) else None if value is None else str(value)
