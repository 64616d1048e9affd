"""The verdict: verified, failed with the proof, or inconclusive. Nothing checked is never a pass."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Protocol

from verifiable.checking.caveats import Caveat
from verifiable.errors import VerifiableError


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
        "interrupted",
        "no-tokens",
        "erased",
        "list-differs",
        "untrusted-key",
        "key-revoked",
        "newer-version",
        "fingerprint-differs",
        "fingerprint-unexplained",
        "not-invariant",
        "not-raw-logits",
        "model-differs",
        "no-evidence",
        "other-turn",
        "stream-differs",
        "unreachable",
        "auditor-crashed",
        "nothing-checked",
        "too-little-evidence",
        "too-few-witnesses",
        "not-replayed",
        "malformed",
        "bad-signature",
        "unsupported-algorithm",
        "unsupported-structure",
        "wrong-type",
        "other-manifest",
        "other-signer",
        "root-differs",
        "salt-differs",
        "evidence-differs",
        "wrong-origin",
        "bad-inclusion-proof",
        "bad-consistency-proof",
    }
)
"""Reason codes under which nothing is proven against the provider; every other code is a failed verification.

Nobody signs how a file is put together, nor the body of an answer: whoever carries one can change it. So whatever a
carrier can bring about with what was honestly signed is among these.
"""

APART = {"no-tokens": "nothing_to_check", "interrupted": "interrupted"}
"""Reason codes of sessions that have nothing to recompute, also at an honest provider, and what they are counted as: a
client that left before the first token, a crash. They decide nothing about the sessions beside them.
"""


class Step(enum.StrEnum):
    """A check as it is called in a verdict. Which steps of spec/protocol.md §10 it stands for is said behind it."""

    RECEIPT = "Receipt"  # 1 to 11, and 18 in an audit
    REQUEST = "Your request"  # 10
    MANIFEST = "Manifest"  # 2 and 8
    HEAD = "Head"  # 3 to 5
    STRUCTURE = "Structure"  # 6 to 9
    TEXT = "Text"  # 10
    LOG = "Provider's log"  # 11
    FILE = "Evidence file"  # 1
    SIGNATURES = "Signatures, log and structure"  # 2 to 17
    EVIDENCE = "Evidence"  # 1 to 18
    TEXT_RECEIVED = "Text as received"  # 10, of evidence
    REPLAY_SHOWN = "Sampler replay of the records shown"  # 19
    MODEL = "Model file"  # 20
    PROMPT = "Prompt and text"  # 21 and 22
    NUMERICS = "Numerics"  # 23
    RECOMPUTED = "Re-execution"  # 24 and 26
    REPLAY = "Sampler replay"  # 25; 19 where there is no audit
    ROUNDING = "Comparison within rounding"  # fraud.md §3
    STREAM = "Streamed commitments"  # streamed-commitments.md
    KEYS = "Keys"  # keys.md
    FRAUD = "Fraud file"  # §10.6
    FORK = "Fork file"  # log.md


@dataclass(frozen=True, slots=True)
class Check:
    """One check that was made: its name, whether it passed (None: could not be made), and a sentence for people."""

    name: Step
    passed: bool | None
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name.value, "passed": self.passed, "detail": self.detail}


class Details(Protocol):
    """What stands behind a verdict, as values. It becomes JSON where the verdict is written, and nowhere before."""

    def to_json(self) -> dict[str, Any]: ...


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
    notes: tuple[Caveat, ...] = ()
    tokens_checked: int = 0
    tokens_total: int = 0
    details: Details | None = None

    @property
    def exit_code(self) -> int:
        return self.status.exit_code

    def check(self, name: Step) -> Check:
        """The check that ended in this verdict: it does not hold, or could not be made."""
        return Check(name, False if self.status is Status.FAILED else None, self.summary)

    @property
    def not_shown(self) -> tuple[str, ...]:
        """What a reader might take for shown and is not, a sentence each."""
        return tuple(map(str, self.notes))

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON values; empty fields are left out."""
        written = {
            **{name: getattr(self, name) for name in _PLAIN},
            "status": self.status.value,
            "checks": [check.to_json() for check in self.checks],
            "not_shown": [note.to_json() for note in self.notes],
            "tokens_checked": self.tokens_checked,
            "tokens_total": self.tokens_total,
            "details": {} if self.details is None else self.details.to_json(),
        }
        shown = {name: value for name, value in written.items() if value not in (None, [], {})}
        return {**shown, "exit_code": self.exit_code}


_PLAIN = (
    *("status", "summary", "code", "session", "turn", "token", "position"),
    *("expected", "found", "hint", "guess"),
)
"""The fields of a verdict that stand in its JSON as they are, first and in this order."""


def from_error(error: VerifiableError, **context: Any) -> Verdict:
    """The verdict that an error of a check means."""
    open_still = error.code == "environment" or error.code in INCONCLUSIVE_CODES
    return Verdict(
        Status.INCONCLUSIVE if open_still else Status.FAILED,
        error.what,
        code=error.code,
        expected=_plain(error.expected),
        found=_plain(error.found),
        hint=error.hint,
        **context,
    )


def _plain(value: object) -> str | None:
    return value.hex() if isinstance(value, bytes) else None if value is None else str(value)
