"""What the numerics probe found."""

from __future__ import annotations

from dataclasses import dataclass

from verifiable.llama.library import BuildInfo


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """One way of cutting the work, against the reference.

    `equal`: every logit compared has the same bits. `first_difference`: lowest position that differs, or None.
    `worst`: largest absolute difference of a logit (infinite when one is no number). `compared`: rows of logits.
    """

    name: str
    equal: bool
    first_difference: int | None
    worst: float
    compared: int = 0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`invariant`: all schedules agreed. `fingerprint`: SHA-256 of the reference logits, 32 bytes. `seconds`: what
    the measurement took, when it was made."""

    invariant: bool
    fingerprint: bytes
    schedules: tuple[ScheduleResult, ...]
    build: BuildInfo
    seconds: float
