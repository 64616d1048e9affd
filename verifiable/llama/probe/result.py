"""What the numerics probe found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from verifiable.errors import MalformedError
from verifiable.llama.library import BuildInfo
from verifiable.llama.settings import STATED, RuntimeSettings
from verifiable.manifest.manifest import ALL_LAYERS, Runtime

PIECE: Final = 16
"""Hexadecimal digits by which a piece is known."""


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
class Pieces:
    """What was computed, piece by piece, for comparison with another machine's. Each value is `PIECE` hexadecimal
    digits of a SHA-256.

    `logits`: (position, value) of the reference, ascending. `operations`: (name, value) of every result on the way
    through a few batches, in the order of computation; the name begins with the number of rows.
    """

    logits: tuple[tuple[int, str], ...] = ()
    operations: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> Pieces:
        """The inverse of `dataclasses.asdict`, as JSON gives it. Raises MalformedError."""
        try:
            found = cls(
                *(tuple((_is(key, kind), _value(item)) for key, item in value[name]) for name, kind in _KEYS.items())
            )
        except (TypeError, ValueError, KeyError) as error:
            raise MalformedError("the pieces of a probe", expected="pairs of a key and a hash") from error
        return found


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`invariant`: all schedules agreed. `fingerprint`: SHA-256 of the reference logits, 32 bytes. `seconds`: what
    the measurement took, when it was made."""

    invariant: bool
    fingerprint: bytes
    schedules: tuple[ScheduleResult, ...]
    build: BuildInfo
    seconds: float
    pieces: Pieces = Pieces()


_KEYS: Final = {"logits": int, "operations": str}


def _is(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError("not a piece")
    return value


def _value(value: Any) -> str:
    if len(bytes.fromhex(_is(value, str))) * 2 != PIECE:
        raise ValueError("not a hash")
    return str(value)


def describe(settings: RuntimeSettings, probed: ProbeResult) -> Runtime:
    """What a manifest says of these settings and of what the probe found under them; the way back is `settings_of`."""
    stated = {name: getattr(settings, name) for name in STATED}
    if settings.n_gpu_layers < 0:
        stated["n_gpu_layers"] = ALL_LAYERS
    return Runtime(
        *probed.build.stated,
        **stated,
        fingerprint=probed.fingerprint,
        invariant=probed.invariant,
        libraries=probed.build.libraries,
        compiler=probed.build.compiler,
    )
