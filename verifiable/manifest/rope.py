"""How positions are turned into angles (RoPE), where a provider sets that itself instead of leaving it to the model.

The names and the values that mean "as the model says" are those of llama.cpp's `llama_context_params`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final

from verifiable import limits
from verifiable.errors import MalformedError, PolicyError
from verifiable.wire import encoding

SCALINGS: Final = ("none", "linear", "yarn", "longrope")
"""Kinds of scaling by their number in `enum llama_rope_scaling_type`."""
FIRST_KEY: Final = 2
"""Key of `freq_base` in the manifest's runtime settings; the other fields follow in order."""


@dataclass(frozen=True, slots=True)
class Rope:
    """RoPE settings. The default of each leaves it to the model.

    Args:
        freq_base: base of the frequencies; 0 for the model's.
        freq_scale: factor of the positions (0.5 doubles the context); 0 for the model's.
        scaling: one of `SCALINGS`; empty for the model's.
        yarn_ext_factor, yarn_attn_factor: YaRN's extrapolation mix and magnitude; -1 for the model's.
        yarn_beta_fast, yarn_beta_slow: YaRN's correction dimensions; -1 for the model's.
        yarn_orig_ctx: context length before YaRN, tokens; 0 for the model's.

    Raises:
        PolicyError: a value is out of range.
    """

    freq_base: float = 0.0
    freq_scale: float = 0.0
    scaling: str = ""
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_orig_ctx: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in limits.ROPE.items():
            value = getattr(self, name)
            if type(value) is not float or not (value == _DEFAULTS[name] or low <= value <= high):
                raise _wrong(name, f"a number from {low:g} to {high:g}", value)
        if self.scaling not in ("", *SCALINGS):
            raise _wrong("scaling", ", ".join(SCALINGS), self.scaling)
        if type(self.yarn_orig_ctx) is not int or not 0 <= self.yarn_orig_ctx <= limits.U31:
            raise _wrong("yarn_orig_ctx", "a whole number below 2^31", self.yarn_orig_ctx)

    def stated(self) -> dict[str, float | str | int]:
        """The fields that are not left to the model."""
        return {name: value for name, default in _DEFAULTS.items() if (value := getattr(self, name)) != default}

    def to_cbor(self) -> encoding.Map:
        """The stated fields under their keys."""
        keys = {field.name: key for key, field in enumerate(fields(self), FIRST_KEY)}
        return {keys[name]: value for name, value in self.stated().items()}

    @classmethod
    def from_cbor(cls, value: encoding.Map) -> Rope:
        """Read the fields among these keys strictly. Raises MalformedError."""
        stated: dict[str, Any] = {}
        for key, field in enumerate(fields(cls), FIRST_KEY):
            if key not in value:
                continue
            what = f"runtime rope {field.name}"
            if field.name == "scaling":
                stated[field.name] = encoding.text(value[key], what, limits.SCALING_BYTES)
            elif field.name == "yarn_orig_ctx":
                stated[field.name] = encoding.uint(value[key], what, limits.U31)
            else:
                stated[field.name] = encoding.float_(value[key], what)
            if stated[field.name] == _DEFAULTS[field.name]:
                raise MalformedError(what, expected="no key that leaves it to the model", found=stated[field.name])
        try:
            return cls(**stated)
        except PolicyError as error:
            raise MalformedError(f"manifest runtime: {error}") from error

    def __str__(self) -> str:
        """The stated fields for people, such as "freq_base 10000, scaling yarn"; empty where there are none."""
        return ", ".join(f"{name} {value}" for name, value in self.stated().items())


_DEFAULTS: Final[dict[str, Any]] = {field.name: field.default for field in fields(Rope)}
MODELS_OWN: Final = Rope()
"""Everything as the model says."""


def _wrong(name: str, expected: str, found: object) -> PolicyError:
    finite = not isinstance(found, float) or math.isfinite(found)
    return PolicyError(f"RoPE setting {name}", expected=expected, found=found if finite else "no finite number")
