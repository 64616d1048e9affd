"""Sampling that anyone can replay from the record, the committed parameters and a key that the provider can't choose.

The order is llama.cpp's: top_k, top_p, min_p, temperature; temperature 0 takes the first entry. The draw is Gumbel-max
(score = logit / T + G), with G computed from (key, position, token id) alone. A token's noise therefore depends
neither on its rank nor on how it was computed, and a draft is accepted exactly when it equals what would have been
drawn anyway: speculation changes no output. All arithmetic is float64.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verifiable import encoding
from verifiable.errors import MalformedError, PolicyError
from verifiable.logits import MAX_K, Entries

SAMPLER_VERSION = 1
SLACK = 1e-9
"""Comparisons of computed float64 values allow this much, since logarithms differ in the last bits between machines."""

_KEY_TAG = b"verifiable-inference/v1/sampling-key\n"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters as used for a turn. Units: temperature divides logits; top_p and min_p are probabilities.

    `top_k` counts entries and never exceeds the record's k. `max_tokens` bounds the answer, the end token included.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    max_tokens: int

    def __post_init__(self) -> None:
        _range("temperature", self.temperature, 0.0, 100.0)
        _range("top_k", self.top_k, 1, MAX_K)
        _range("top_p", self.top_p, 0.0, 1.0)
        _range("min_p", self.min_p, 0.0, 1.0)
        _range("max_tokens", self.max_tokens, 1, 2**31 - 1)

    def to_cbor(self) -> encoding.Map:
        return {1: self.temperature, 2: self.top_k, 3: self.top_p, 4: self.min_p, 5: self.max_tokens}

    @classmethod
    def from_cbor(cls, value: encoding.Value) -> SamplingParams:
        fields = encoding.map_(value, range(1, 6), "sampling parameters")
        try:
            return cls(
                _float(fields[1], "temperature"),
                encoding.uint(fields[2], "top_k", MAX_K),
                _float(fields[3], "top_p"),
                _float(fields[4], "min_p"),
                encoding.uint(fields[5], "max_tokens", 2**31 - 1),
            )
        except PolicyError as error:
            raise MalformedError(f"sampling parameters: {error}") from error


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What the provider uses where a request is silent; part of the manifest."""

    temperature: float = 1.0
    top_k: int = 40
    top_p: float = 1.0
    min_p: float = 0.0

    def to_cbor(self) -> encoding.Map:
        return {1: self.temperature, 2: self.top_k, 3: self.top_p, 4: self.min_p}

    @classmethod
    def from_cbor(cls, value: encoding.Value) -> SamplingDefaults:
        params = SamplingParams.from_cbor({**encoding.map_(value, range(1, 5), "sampling defaults"), 5: 1})
        return cls(params.temperature, params.top_k, params.top_p, params.min_p)


def sampling_key(nonce: bytes, request_digest: bytes, turn: int) -> bytes:
    """The turn's key: SHA-256(tag ‖ nonce length ‖ nonce ‖ request digest ‖ turn), length and turn as u32 BE."""
    return hashlib.sha256(
        _KEY_TAG + len(nonce).to_bytes(4, "big") + nonce + request_digest + turn.to_bytes(4, "big")
    ).digest()


def gumbel(key: bytes, position: int, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """Gumbel(0, 1) noise of each id, shape of `ids`.

    u = (top 52 bits of SHA-256(key ‖ position ‖ id), numbers as u32 big-endian, + 1/2) / 2^52, and G = -ln(-ln(u)).
    With one bit more the sum would no longer fit a float64, and u could round to 1.
    """
    prefix = key + position.to_bytes(4, "big")
    raw = ids.astype(">u4").tobytes()
    sha256 = hashlib.sha256
    digests = b"".join([sha256(prefix + raw[at : at + 4]).digest()[:8] for at in range(0, len(raw), 4)])
    words = np.frombuffer(digests, ">u8") >> np.uint64(12)
    uniform: npt.NDArray[np.float64] = (words.astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(uniform))


def choose(entries: Entries, params: SamplingParams, key: bytes, position: int) -> int:
    """The token id drawn for `position` (its index in the whole sequence, prompt included)."""
    if params.temperature == 0.0:
        return int(entries.ids[0])
    kept = survivors(entries, params, 0.0)
    return int(entries.ids[np.argmax(_scores(entries, kept, params, key, position))])


def acceptable(entries: Entries, params: SamplingParams, key: bytes, position: int) -> frozenset[int]:
    """The ids that an honest provider may have drawn: `choose`, and what lies within SLACK of it.

    More than one id comes back only where the float64 results of two machines may fall on two sides of a comparison.
    """
    if params.temperature == 0.0:
        return frozenset((int(entries.ids[0]),))
    found: set[int] = set()
    for slack in (-SLACK, 0.0, SLACK):
        scores = _scores(entries, survivors(entries, params, slack), params, key, position)
        found.update(int(entries.ids[index]) for index in np.flatnonzero(scores >= scores.max() - SLACK))
    return frozenset(found)


def survivors(entries: Entries, params: SamplingParams, slack: float) -> int:
    """How many of the leading entries survive top_k, top_p and min_p (at least one)."""
    logits = entries.logits[: params.top_k].astype(np.float64)
    kept = len(logits)
    if params.top_p < 1.0:
        weights = np.exp(logits - logits[0])
        reached = np.cumsum(weights) / weights.sum() >= params.top_p - slack
        kept = int(np.argmax(reached)) + 1 if reached.any() else kept
    if params.min_p > 0.0:
        floor = logits[0] + math.log(params.min_p) - slack
        kept = min(kept, int(np.count_nonzero(logits >= floor)))
    return max(kept, 1)


def _scores(entries: Entries, kept: int, params: SamplingParams, key: bytes, position: int) -> npt.NDArray[np.float64]:
    logits = entries.logits[:kept].astype(np.float64)
    scores: npt.NDArray[np.float64] = logits / params.temperature + gumbel(key, position, entries.ids[:kept])
    return scores


def _range(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise PolicyError(f"parameter {name}", expected=f"{low:g} to {high:g}", found=f"{value!r}", parameter=name)


def _float(value: object, what: str) -> float:
    if not isinstance(value, float):
        raise MalformedError(what, expected="a floating-point number", found=type(value).__name__)
    return value
