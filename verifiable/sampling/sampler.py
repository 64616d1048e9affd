"""Sampling that anyone can replay from the record, the committed parameters and a key that the provider can't choose.

The order is llama.cpp's: logit bias, penalties and grammar (`processors`), then top_k, top_p, min_p,
temperature; temperature 0 takes the first entry. The draw is Gumbel-max
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

from verifiable import limits
from verifiable.errors import MalformedError, PolicyError
from verifiable.sampling.logits import Ranked
from verifiable.wire import encoding

WHOLE_ANSWER = limits.U31
"""Tokens that the repeat penalty looks back where it looks at all of them."""
SLACK = 1e-9
"""Comparisons of computed float64 values allow this much, since logarithms differ in the last bits between machines."""
_ROUNDING = 2.0**-50
"""As `SLACK`, relative to the values: where they are large, one step of rounding is more than that."""

_UINT32, _UINT64, _FOUR_BYTES = np.dtype(">u4"), np.dtype(">u8"), np.dtype("V4")
_DROPPED = np.uint64(12)

_KEY_TAG = b"verifiable-inference/v2/sampling-key\n"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters as used for a turn. Units: temperature divides logits; top_p and min_p are probabilities.

    `top_k` counts entries and never exceeds the record's k. `max_tokens` bounds the answer, the end token included.

    The rest are processors, neutral by default (see `verifiable.sampling.processors` for what each does):
        repeat_penalty, repeat_last_n: factor, and the count of the answer's last tokens that it looks at; 1.0 and 0
            where it is off.
        frequency_penalty, presence_penalty: in logits.
        logit_bias: (token id, logits) by ascending id, none of them zero.
        ignore_eos: tokens that end a generation are never drawn.
        constraint: SHA-256 of the grammar or schema that the answer has to match (`Request.constraint`), or empty.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    max_tokens: int
    repeat_penalty: float = 1.0
    repeat_last_n: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    constraint: bytes = b""

    def __post_init__(self) -> None:
        for name, ends in limits.NUMBERS.items():
            _range(name, getattr(self, name), *ends)
        check_temperature(self.temperature)
        _range("top_k", self.top_k, 1, limits.ENTRIES)
        _range("max_tokens", self.max_tokens, 1, limits.ANSWER_TOKENS)
        _range("repeat_last_n", self.repeat_last_n, 0, limits.U31)
        if (self.repeat_penalty == 1.0) != (self.repeat_last_n == 0):
            raise PolicyError("parameter repeat_last_n", expected="0 exactly where repeat_penalty is 1")
        ids = [token for token, _ in self.logit_bias]
        if len(ids) > limits.BIASES or ids != sorted(set(ids)) or 0.0 in (bias for _, bias in self.logit_bias):
            raise PolicyError("parameter logit_bias", expected=f"up to {limits.BIASES} ascending ids, no bias of 0")
        for token, bias in self.logit_bias:
            _range("logit_bias", token, 0, limits.U31)
            _range("logit_bias", bias, *limits.BIAS)

    @property
    def processed(self) -> bool:
        """Whether a processor changes logits before the draw."""
        neutral = self.repeat_penalty == 1.0 and not self.frequency_penalty and not self.presence_penalty
        return not neutral or self.ignore_eos or bool(self.logit_bias) or bool(self.constraint)

    def to_cbor(self) -> encoding.Map:
        fields: encoding.Map = {1: self.temperature, 2: self.top_k, 3: self.top_p, 4: self.min_p, 5: self.max_tokens}
        if self.repeat_last_n:
            fields[6] = [self.repeat_penalty, self.repeat_last_n]
        if self.frequency_penalty:
            fields[7] = self.frequency_penalty
        if self.presence_penalty:
            fields[8] = self.presence_penalty
        if self.logit_bias:
            fields[9] = [[token, bias] for token, bias in self.logit_bias]
        if self.ignore_eos:
            fields[10] = True
        if self.constraint:
            fields[11] = self.constraint
        return fields

    @classmethod
    def from_cbor(cls, value: encoding.Value) -> SamplingParams:
        fields = encoding.map_(value, range(1, 6), "sampling parameters", optional=range(6, 12))
        if 0.0 in (fields.get(7), fields.get(8)) or fields.get(9) == [] or fields.get(10, True) is not True:
            raise MalformedError("sampling parameters", expected="no key whose value changes nothing", found="one")
        try:
            return cls(
                _float(fields[1], "temperature"),
                encoding.uint(fields[2], "top_k", limits.ENTRIES),
                _float(fields[3], "top_p"),
                _float(fields[4], "min_p"),
                encoding.uint(fields[5], "max_tokens", limits.ANSWER_TOKENS),
                *_repeat(fields.get(6)),
                _float(fields.get(7, 0.0), "frequency_penalty"),
                _float(fields.get(8, 0.0), "presence_penalty"),
                _biases(fields.get(9)),
                10 in fields,
                encoding.bytes_(fields[11], "constraint", 32) if 11 in fields else b"",
            )
        except PolicyError as error:
            raise MalformedError(f"sampling parameters: {error}") from error


def check_temperature(value: float) -> None:
    """Raise PolicyError unless the value is a temperature: 0, or one at which scores stay within what can be drawn."""
    least, most = limits.TEMPERATURE
    if value != 0.0 and not least <= value <= most:
        expected = f"0, or {least:g} to {most:g}"
        raise PolicyError("parameter temperature", expected=expected, found=repr(value), parameter="temperature")


def slack(value: float) -> float:
    """How far apart two machines may be about a computed float64 of this magnitude."""
    return max(SLACK, _ROUNDING * abs(value))


def repetition(penalty: float, last_n: int) -> tuple[float, int]:
    """A repeat penalty and how many tokens it looks back, as they are committed to.

    1.0 and 0 where they change nothing; a negative `last_n` is the whole answer.
    """
    if penalty == 1.0 or last_n == 0:
        return 1.0, 0
    return penalty, min(last_n, WHOLE_ANSWER) if last_n > 0 else WHOLE_ANSWER


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What the provider uses where a request is silent; part of the manifest. Fields as in `SamplingParams`.

    Raises PolicyError where a value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 40
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 0

    def __post_init__(self) -> None:
        self._params()

    def _params(self) -> SamplingParams:
        """These values in the place of a turn's, which has their ranges and their encoding."""
        values = (self.temperature, self.top_k, self.top_p, self.min_p)
        return SamplingParams(*values, 1, repeat_penalty=self.repeat_penalty, repeat_last_n=self.repeat_last_n)

    def to_cbor(self) -> encoding.Map:
        fields = self._params().to_cbor()
        del fields[5]
        return fields

    @classmethod
    def from_cbor(cls, value: encoding.Value) -> SamplingDefaults:
        fields = encoding.map_(value, range(1, 5), "sampling defaults", optional=(6,))
        params = SamplingParams.from_cbor({**fields, 5: 1})
        values = (params.temperature, params.top_k, params.top_p, params.min_p)
        return cls(*values, params.repeat_penalty, params.repeat_last_n)


def sampling_key(source: int, nonce: bytes, prompt_digest: bytes) -> bytes:
    """The turn's key: SHA-256(tag ‖ nonce source as a byte ‖ nonce length as u32 BE ‖ nonce ‖ prompt digest).

    What the client brings and what is continued, and nothing that a provider chooses once it has seen the request.
    """
    head = _KEY_TAG + source.to_bytes(1, "big") + len(nonce).to_bytes(4, "big")
    return hashlib.sha256(head + nonce + prompt_digest).digest()


def gumbel(key: bytes, position: int, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """Gumbel(0, 1) noise of each id, shape of `ids`.

    u = (top 52 bits of SHA-256(key ‖ position ‖ id), numbers as u32 big-endian, + 1/2) / 2^52, and G = -ln(-ln(u)).
    With one bit more the sum would no longer fit a float64, and u could round to 1.
    """
    sha256, prefix = hashlib.sha256, key + position.to_bytes(4, "big")
    digests = b"".join([sha256(prefix + each).digest() for each in ids.astype(_UINT32).view(_FOUR_BYTES).tolist()])
    words = np.frombuffer(digests, _UINT64)[::4] >> _DROPPED
    uniform: npt.NDArray[np.float64] = (words.astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(uniform))


def choose(entries: Ranked, params: SamplingParams, key: bytes, position: int) -> int:
    """The token id drawn for `position` (its index in the whole sequence, prompt included)."""
    if params.temperature == 0.0:
        return int(entries.ids[0])
    kept = survivors(entries, params)
    return int(entries.ids[_scores(entries, kept, params, key, position).argmax()])


def acceptable(entries: Ranked, params: SamplingParams, key: bytes, position: int) -> frozenset[int]:
    """The ids that an honest provider may have drawn: `choose`, and what lies within `slack` of it.

    More than one id comes back only where the float64 results of two machines may fall on two sides of a comparison.
    Raises MalformedError where a score is not finite: nothing can be said of such a draw.
    """
    if params.temperature == 0.0:
        return frozenset((int(entries.ids[0]),))
    counts = {survivors(entries, params, side) for side in (-1, 0, 1)}
    scores = _scores(entries, max(counts), params, key, position)
    if not np.isfinite(scores).all():
        raise MalformedError("the scores of a draw", expected="finite numbers", found="a NaN or an infinity")
    best = {kept: float(scores[:kept].max()) for kept in counts}
    near = [np.flatnonzero(scores[:kept] >= best[kept] - slack(best[kept])) for kept in counts]
    return frozenset(int(entries.ids[index]) for indices in near for index in indices)


def survivors(entries: Ranked, params: SamplingParams, side: int = 0) -> int:
    """How many of the leading entries survive top_k, top_p and min_p (at least one).

    `side` 1 lowers the bounds of the last two by their slack, -1 raises them.
    """
    kept = min(params.top_k, len(entries.logits))
    if params.top_p == 1.0 and params.min_p == 0.0:
        return max(kept, 1)
    logits = entries.logits[:kept].astype(np.float64)
    if params.top_p < 1.0:
        weights = np.exp(logits - logits[0])
        reached = weights.cumsum() / weights.sum() >= params.top_p - side * SLACK
        first = int(reached.argmax())
        kept = first + 1 if reached[first] else kept
    if params.min_p > 0.0:
        floor = logits[0] + math.log(params.min_p) - side * slack(float(logits[0]))
        kept = min(kept, int(np.count_nonzero(logits >= floor)))
    return max(kept, 1)


def _scores(entries: Ranked, kept: int, params: SamplingParams, key: bytes, position: int) -> npt.NDArray[np.float64]:
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


def _repeat(value: encoding.Value) -> tuple[float, int]:
    if value is None:
        return 1.0, 0
    penalty, count = encoding.array(value, 2, "repeat penalty")
    if count == 0:
        raise MalformedError("repeat_last_n", expected="at least 1 where it is given", found="0")
    return _float(penalty, "repeat_penalty"), encoding.uint(count, "repeat_last_n", limits.U31)


def _biases(value: encoding.Value) -> tuple[tuple[int, float], ...]:
    given = encoding.array([] if value is None else value, None, "logit_bias")
    pairs = [encoding.array(pair, 2, "logit bias") for pair in given]
    return tuple((encoding.uint(token, "biased id", limits.U31), _float(bias, "bias")) for token, bias in pairs)
