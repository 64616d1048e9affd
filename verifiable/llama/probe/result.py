"""What the numerics probe found."""

from __future__ import annotations

from dataclasses import dataclass

from verifiable.llama.library import BuildInfo
from verifiable.llama.settings import STATED, RuntimeSettings
from verifiable.manifest.manifest import ALL_LAYERS, Runtime


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """One way of cutting the work, against the reference.

    `equal`: every logit and every intermediate value compared has the same bits. `first_difference`: lowest position
    whose logits differ, or None. `worst`: largest absolute difference of a logit (infinite when one is no number).
    `compared`: rows of logits. `traced`: intermediate values, one for each operation and token. `operation`: the
    first operation whose values differ, or None.
    """

    name: str
    equal: bool
    first_difference: int | None
    worst: float
    compared: int = 0
    traced: int = 0
    operation: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`invariant`: all schedules agreed. `fingerprint`: SHA-256 of the reference logits, 32 bytes. `seconds`: what
    the measurement took, when it was made."""

    invariant: bool
    fingerprint: bytes
    schedules: tuple[ScheduleResult, ...]
    build: BuildInfo
    seconds: float


def describe(settings: RuntimeSettings, probed: ProbeResult) -> Runtime:
    """What a manifest says of these settings and of what the probe found under them; the way back is `settings_of`."""
    stated = {name: getattr(settings, name) for name in STATED}
    if settings.n_gpu_layers < 0:
        stated["n_gpu_layers"] = ALL_LAYERS
    return Runtime(*probed.build, **stated, fingerprint=probed.fingerprint, invariant=probed.invariant)
