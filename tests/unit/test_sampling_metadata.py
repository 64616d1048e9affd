"""What a model file asks for in its sampling metadata, and what of it becomes a default."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from verifiable.errors import PolicyError
from verifiable.llama.gguf.sampling_metadata import PREFIX, defaults
from verifiable.sampling.sampler import SamplingDefaults

ALL = {"temp": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "penalty_repeat": 1.1, "penalty_last_n": 32}


def asked(**values: object) -> dict[str, object]:
    return {"general.architecture": "llama", **{PREFIX + name: value for name, value in values.items()}}


def test_a_silent_file_has_ours() -> None:
    assert defaults(asked(), 40) == (SamplingDefaults(), ())


def test_all_that_can_be_replayed_is_taken() -> None:
    assert defaults(asked(**ALL), 40) == (SamplingDefaults(0.7, 20, 0.8, 0.05, 1.1, 32), ())


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("temp", 0.0, "temperature", 0.0),
        ("temp", -1.0, "temperature", 0.0),  # llama.cpp: greedy
        ("temp", 0.001, "temperature", 0.01),
        ("temp", 1000.0, "temperature", 100.0),
        ("temp", 1, "temperature", 1.0),
        ("top_k", 0, "top_k", 40),  # llama.cpp: all
        ("top_k", -1, "top_k", 40),
        ("top_k", 64, "top_k", 40),
        ("top_p", 1.5, "top_p", 1.0),
        ("min_p", -0.5, "min_p", 0.0),
        ("penalty_repeat", 1.0, "repeat_last_n", 0),
        ("penalty_repeat", 1.2, "repeat_last_n", 64),
        ("penalty_last_n", 16, "repeat_last_n", 0),  # without a penalty it says nothing
    ],
)
def test_values_come_within_what_can_be_replayed(name: str, value: float, field: str, expected: float) -> None:
    found, left_out = defaults(asked(**{name: value}), 40)
    assert getattr(found, field) == expected
    assert left_out == ()


def test_a_penalty_over_the_whole_answer() -> None:
    assert defaults(asked(penalty_repeat=1.2, penalty_last_n=-1), 40)[0].repeat_last_n == 2**31 - 1
    assert defaults(asked(penalty_repeat=1.2, penalty_last_n=0), 40)[0] == SamplingDefaults()


def test_what_cant_be_replayed_is_named() -> None:
    found, left_out = defaults(
        asked(mirostat=2, mirostat_tau=5.0, xtc_probability=0.5, sequence="temperature;top_k", dry_base=1.75), 40
    )
    assert found == SamplingDefaults()
    assert left_out == ("dry_base 1.75", "mirostat 2", "sequence temperature;top_k", "xtc_probability 0.5")
    assert defaults(asked(mirostat=0, mirostat_tau=5.0, xtc_probability=0.0, xtc_threshold=0.1), 40)[1] == ()


@given(st.integers(1, 10_000))
def test_a_decimal_that_the_file_holds_as_binary32_is_that_decimal(number: int) -> None:
    written = number / 10_000
    held = struct.unpack("<f", struct.pack("<f", written))[0]
    assert defaults(asked(top_p=held), 40)[0].top_p == written
    assert defaults(asked(top_p=written), 40)[0].top_p == written


@pytest.mark.parametrize("value", ["0.7", True, math.nan, math.inf, (0.7,), None])
def test_what_is_no_number_is_left_out(value: object) -> None:
    found, left_out = defaults(asked(temp=value), 40)
    assert found == SamplingDefaults()
    assert len(left_out) == 1


def test_the_operator_counts_before_the_file() -> None:
    found, _ = defaults(asked(**ALL), 40, {"temperature": 0.0, "repeat_penalty": 1.0})
    assert found == SamplingDefaults(0.0, 20, 0.8, 0.05)
    assert defaults(asked(), 40, {"repeat_penalty": 1.3})[0] == SamplingDefaults(repeat_penalty=1.3, repeat_last_n=64)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 2.0}, {"min_p": math.nan}, {"typical_p": 0.5}])
def test_an_operators_value_out_of_range_is_an_error(wrong: dict[str, float]) -> None:
    with pytest.raises(PolicyError):
        defaults(asked(), 40, wrong)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys([*ALL, "mirostat"], st.floats() | st.integers())),
    st.integers(1, 128),
)
def test_any_metadata_gives_defaults_that_can_be_signed(values: dict[str, object], k: int) -> None:
    found, _ = defaults(asked(**values), k)
    assert 1 <= found.top_k <= k
    assert SamplingDefaults.from_cbor(found.to_cbor()) == found
