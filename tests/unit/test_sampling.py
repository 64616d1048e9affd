"""The replayable sampler: what it draws, how the draws are spread, and what a verifier accepts."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.sessions import made_up
from verifiable.errors import MalformedError, PolicyError
from verifiable.sampling.logits import Candidates, Entries
from verifiable.sampling.sampler import (
    SamplingDefaults,
    SamplingParams,
    acceptable,
    choose,
    gumbel,
    sampling_key,
    slack,
    survivors,
)
from verifiable.sampling.turn import TurnSampler
from verifiable.wire import encoding

PARAMS = SamplingParams(1.0, 40, 1.0, 0.0, 10)
KEY = sampling_key(0, b"nonce", b"d" * 32)


def entries(logits: list[float], ids: list[int] | None = None) -> Entries:
    return Entries(np.array(ids or range(len(logits)), np.uint32), np.array(logits, np.float32))


def test_the_key_binds_nonce_its_source_and_the_prompt() -> None:
    data = b"verifiable-inference/v2/sampling-key\n" + b"\0" + b"\0\0\0\x05nonce" + b"d" * 32
    assert hashlib.sha256(data).digest() == KEY
    keys = {sampling_key(s, n, d * 32) for s in (0, 1) for n in (b"", b"a", b"b") for d in (b"d", b"e")}
    assert len(keys) == 12


def test_noise_is_gumbel_and_within_reach() -> None:
    ids = np.arange(200_000, dtype=np.uint32)
    noise = gumbel(KEY, 3, ids)
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)  # Euler's constant
    assert noise.std() == pytest.approx(math.pi / math.sqrt(6), abs=0.01)
    word = int.from_bytes(hashlib.sha256(KEY + b"\0\0\0\x03" + b"\0\0\0\x07").digest()[:8], "big") >> 12
    assert noise[7] == pytest.approx(-math.log(-math.log((word + 0.5) / 2**52)), rel=1e-12)


def test_the_largest_and_smallest_noise_are_finite() -> None:
    for word in (0, 2**52 - 1):
        uniform = (np.float64(word) + 0.5) * 2.0**-52
        assert 0.0 < uniform < 1.0
        assert np.isfinite(-np.log(-np.log(uniform)))


def test_noise_of_a_token_does_not_depend_on_its_company() -> None:
    alone = gumbel(KEY, 9, np.array([77], np.uint32))
    among = gumbel(KEY, 9, np.array([5, 77, 6], np.uint32))
    assert alone[0] == among[1]
    assert gumbel(KEY, 10, np.array([77], np.uint32))[0] != alone[0]


def test_draws_follow_the_probabilities() -> None:
    row = entries([2.0, 1.0, 0.0, -1.0])
    expected = np.exp(row.logits / 1.0) / np.exp(row.logits).sum()
    drawn = np.bincount([choose(row, PARAMS, KEY, position) for position in range(20_000)], minlength=4) / 20_000
    assert drawn == pytest.approx(expected, abs=0.015)


def test_temperature_zero_takes_the_first_entry() -> None:
    greedy = replace(PARAMS, temperature=0.0)
    row = entries([5.0, 5.0, 4.9], [7, 9, 1])
    assert {choose(row, greedy, KEY, position) for position in range(200)} == {7}
    assert acceptable(row, greedy, KEY, 0) == {7}


def test_higher_temperatures_spread_draws() -> None:
    row = made_up([1])
    share = [
        np.mean([choose(row, replace(PARAMS, temperature=t), KEY, p) == row.ids[0] for p in range(2000)])
        for t in (0.3, 1.0, 3.0)
    ]
    assert share[0] > share[1] > share[2]


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, 4),
        ({"top_k": 2}, 2),
        ({"top_k": 1}, 1),
        ({"top_p": 0.5}, 1),
        ({"top_p": 0.7}, 2),
        ({"top_p": 0.0}, 1),
        ({"min_p": 0.2}, 2),
        ({"min_p": 1.0}, 1),
        ({"top_k": 3, "top_p": 0.95, "min_p": 0.1}, 3),
    ],
)
def test_filters_keep_the_leading_entries(changes: dict[str, float], kept: int) -> None:
    # Probabilities 0.643, 0.237, 0.087, 0.032.
    row = entries([3.0, 2.0, 1.0, 0.0])
    params = replace(PARAMS, **changes)  # type: ignore[arg-type]
    assert survivors(row, params) == kept
    assert {choose(row, params, KEY, position) for position in range(3000)} <= set(range(kept))


def test_what_was_drawn_is_acceptable_and_little_else() -> None:
    others = 0
    for position in range(3000):
        row = made_up([position])
        params = replace(PARAMS, temperature=0.8, top_p=0.9, min_p=0.02)
        allowed = acceptable(row, params, KEY, position)
        assert choose(row, params, KEY, position) in allowed
        others += len(allowed) - 1
    assert others == 0


def test_scores_within_the_slack_are_both_acceptable() -> None:
    ids = np.array([3, 4], np.uint32)
    noise = gumbel(KEY, 0, ids)
    # Logits that cancel the noise: both scores equal, as two machines' logarithms might order either way.
    for apart, count in ((0.0, 2), (1e-3, 1)):
        row = Entries(ids, np.zeros(2, np.float32))
        gap = noise[1] - noise[0] + apart
        params = replace(PARAMS, temperature=1.0)
        moved = Entries(ids, np.array([gap, 0.0]).astype(np.float64))  # exact, for this test
        assert len(acceptable(moved, params, KEY, 0)) == count
        assert len(acceptable(row, params, KEY, 0)) == 1


def test_where_scores_are_large_the_slack_is_a_step_of_their_rounding() -> None:
    assert slack(0.0) == slack(-1e5) == 1e-9
    params = replace(PARAMS, temperature=0.01)
    row = entries([1e12, 1e12])  # scores of 1e14, between which steps of rounding are 0.016
    counts = set()
    for position in range(400):
        apart = abs(np.subtract(*gumbel(KEY, position, row.ids))) / (2.0**-50 * 1e14)
        allowed = acceptable(row, params, KEY, position)
        assert choose(row, params, KEY, position) in allowed
        if not 0.7 < apart < 1.5:
            assert len(allowed) == (2 if apart < 1 else 1)
            counts.add(len(allowed))
    assert counts == {1, 2}
    # So at the border of min_p: half of the largest, but for two steps of rounding.
    border = Candidates(np.array([1, 2], np.uint32), np.array([1e11, 1e11 + math.log(0.5) - 3e-5]))
    half = replace(PARAMS, min_p=0.5)
    assert [survivors(border, half, side) for side in (-1, 0, 1)] == [1, 1, 2]


def test_a_score_that_is_not_finite_is_no_draw() -> None:
    row = Candidates(np.array([1, 2], np.uint32), np.array([math.inf, 0.0]))
    with pytest.raises(MalformedError, match="scores"):
        acceptable(row, PARAMS, KEY, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": 101.0},
        {"temperature": 5e-324},
        {"temperature": 0.0099},
        {"top_k": 0},
        {"top_k": 129},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"max_tokens": 0},
    ],
)
def test_parameters_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PolicyError) as caught:
        replace(PARAMS, **wrong)  # type: ignore[arg-type]
    assert caught.value.parameter == next(iter(wrong))
    encoded = {**PARAMS.to_cbor(), 1 + list(PARAMS.__slots__).index(next(iter(wrong))): next(iter(wrong.values()))}
    with pytest.raises(MalformedError):
        SamplingParams.from_cbor(encoded)


def test_parameters_have_one_encoding() -> None:
    assert SamplingParams.from_cbor(encoding.decode(encoding.encode(PARAMS.to_cbor()))) == PARAMS
    with pytest.raises(MalformedError):
        SamplingParams.from_cbor({**PARAMS.to_cbor(), 1: 1})  # an integer is not a temperature
    with pytest.raises(MalformedError):
        SamplingParams.from_cbor({**PARAMS.to_cbor(), 9: 0})
    defaults = SamplingDefaults(0.5, 20, 0.9, 0.1)
    assert SamplingDefaults.from_cbor(defaults.to_cbor()) == defaults


@pytest.mark.parametrize("changes", [{}, {"frequency_penalty": 2.0, "presence_penalty": 2.0}])
def test_a_turns_sampler_goes_from_row_to_record_to_token(changes: dict[str, float]) -> None:
    row = np.random.default_rng(3).normal(0.0, 1.0, 64).astype(np.float32)
    params = replace(PARAMS, **changes)  # type: ignore[arg-type]
    sampler = TurnSampler(params, KEY, 40)
    for position in range(5):
        record = sampler.entries(row)
        candidates = sampler.candidates(record)
        token = sampler.draw(candidates, position)
        assert token == choose(candidates, params, KEY, position) == sampler.sample(row, position)
        assert sampler.allowed(record.ids).all()
        assert sampler.best(row).ids.tolist() == sampler.best(row, record).ids.tolist()
        assert (candidates is record) == (not changes)  # nothing is copied where nothing is changed
        sampler.accept(token)
        assert np.array_equal(sampler.candidates(record).logits, record.logits) == (not changes)
