"""The sampling that a GGUF file asks for in its metadata, as far as it can be replayed.

The keys are those of `common_init_sampler_from_model` in llama.cpp's common/common.cpp, which takes them as defaults,
as is done here. What the replayable sampler does not have (mirostat, XTC, another order of samplers) is left out, and
named.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from verifiable import limits
from verifiable.errors import PolicyError
from verifiable.request.request import REPEAT_LAST_N
from verifiable.sampling.sampler import SamplingDefaults, repetition

PREFIX: Final = "general.sampling."
_Reader = Callable[[float], float]
_READERS: Final[Mapping[str, tuple[str, _Reader]]] = {
    "temp": (
        "temperature",
        lambda value: 0.0 if value <= 0.0 else min(max(value, limits.TEMPERATURE[0]), limits.TEMPERATURE[1]),
    ),
    "top_k": ("top_k", int),
    "top_p": ("top_p", lambda value: min(max(value, 0.0), 1.0)),
    "min_p": ("min_p", lambda value: min(max(value, 0.0), 1.0)),
    "penalty_repeat": ("repeat_penalty", lambda value: min(max(value, 0.01), 100.0)),
    "penalty_last_n": ("repeat_last_n", int),
}
"""Key -> name in `SamplingDefaults`, and how a value comes within what can be replayed."""
_NEUTRAL: Final = {"xtc_probability": 0.0, "mirostat": 0}
"""Keys of what can't be replayed, with the value that switches it off; their other keys say nothing without these."""
_SILENT: Final = ("xtc_threshold", "mirostat_tau", "mirostat_eta")


def defaults(
    metadata: Mapping[str, object], k: int, overrides: Mapping[str, float] | None = None
) -> tuple[SamplingDefaults, tuple[str, ...]]:
    """What is used where a request is silent, and what the file asks for that can't be replayed.

    `k` are the entries of a record, which bound top_k; `overrides` is what the operator wants instead, by the names of
    `SamplingDefaults`. Raises PolicyError where an override is out of range.
    """
    stated: dict[str, float] = {}
    left_out = []
    for key, value in sorted(metadata.items()):
        name = key.removeprefix(PREFIX)
        if not key.startswith(PREFIX) or name in _SILENT or value == _NEUTRAL.get(name, ()):
            continue
        number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
        if name not in _READERS or not math.isfinite(number):
            left_out.append(f"{name} {value}"[:80])
            continue
        ours, read = _READERS[name]
        stated[ours] = read(_shortest(number))
    return _bounded({**stated, **(overrides or {})}, k), tuple(left_out)


def _shortest(value: float) -> float:
    """0.7 for the binary32 next to it: files hold binary32, and a manifest is read by people."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else value


def _bounded(values: Mapping[str, float], k: int) -> SamplingDefaults:
    fields: dict[str, float] = {**dataclasses.asdict(SamplingDefaults()), **values}
    if unknown := set(fields) - set(SamplingDefaults.__slots__):
        raise PolicyError("sampling default", expected=", ".join(SamplingDefaults.__slots__), found=min(unknown))
    top_k, last_n = int(fields["top_k"]), int(fields["repeat_last_n"])
    if "repeat_last_n" not in values:
        last_n = REPEAT_LAST_N
    repeat_penalty, repeat_last_n = repetition(float(fields["repeat_penalty"]), last_n)
    return SamplingDefaults(
        temperature=float(fields["temperature"]),
        top_k=k if top_k < 1 else min(top_k, k),
        top_p=float(fields["top_p"]),
        min_p=float(fields["min_p"]),
        repeat_penalty=repeat_penalty,
        repeat_last_n=repeat_last_n,
    )
