"""Logit processors against the example of the specification, and against a literal reading of its rules."""

from __future__ import annotations

import numpy as np
import pytest

from verifiable.errors import EngineError, MalformedError, PolicyError
from verifiable.sampling.logits import Ids
from verifiable.sampling.processors import Mask, Processor, needs_vocabulary, visible
from verifiable.sampling.sampler import SamplingParams


def params(**changes: object) -> SamplingParams:
    return SamplingParams(1.0, 40, 1.0, 0.0, 16, **changes)  # type: ignore[arg-type]


class Only:
    """A grammar that allows some ids."""

    def __init__(self, *ids: int) -> None:
        self.ids = ids
        self.asked: list[int] = []

    def allowed(self, ids: Ids) -> Mask:
        self.asked.append(len(ids))
        return np.isin(ids, self.ids)

    def accept(self, token: int) -> None:
        """Nothing changes."""


def test_the_example_of_the_specification() -> None:
    used = params(
        repeat_penalty=1.3, repeat_last_n=64, frequency_penalty=0.5, presence_penalty=0.25, logit_bias=((17, -1.0),)
    )
    processor = Processor(used, 3)
    for token in (17, 52, 17):
        processor.accept(token)
    row = np.full(100, -5.0, np.float32)
    row[[17, 52, 9]] = 6.0, 5.5, 5.25
    entries = processor.entries(row)
    assert entries.ids.tolist() == [17, 52, 9]
    assert entries.logits.tolist() == [6.0, 5.5, 5.25]
    drawn = processor.candidates(entries)
    assert drawn.ids.tolist() == [9, 52, 17]
    assert drawn.logits.tolist() == [5.25, 3.480769230769231, 2.596153846153846]


@pytest.mark.parametrize("seed", range(20))
def test_suppressed_ids_come_last_and_are_never_drawn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, k = int(rng.integers(4, 60)), int(rng.integers(1, 12))
    barred = sorted(int(token) for token in rng.choice(size, int(rng.integers(1, size)), replace=False))
    row = rng.normal(0.0, 3.0, size).astype(np.float32)
    processor = Processor(params(), k, suppressed=barred)
    entries = processor.entries(row)
    order = sorted(range(size), key=lambda token: (token in barred, -row[token], token))[:k]
    assert set(entries.ids.tolist()) == set(order)
    assert (np.diff(entries.logits) <= 0.0).all()
    seen = [token for token in order if token not in barred]
    assert processor.candidates(entries).ids.tolist() == visible(entries, barred).ids.tolist() == seen
    assert visible(entries, barred).logits.tolist() == [float(row[token]) for token in seen]
    both = Processor(params(ignore_eos=True), k, ends=[seen[0]] if seen else [], suppressed=barred)
    assert both.candidates(both.entries(row)).ids.tolist()[: len(seen) - 1] == seen[1:]


@pytest.mark.parametrize("seed", range(80))
def test_against_a_literal_reading(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, k = int(rng.integers(5, 60)), int(rng.integers(1, 20))
    repeat = float(rng.choice([1.0, 0.7, 1.4]))
    biased = sorted(int(token) for token in rng.choice(size + 5, 4, replace=False))
    used = params(
        repeat_penalty=repeat,
        repeat_last_n=int(rng.integers(1, 6)) if repeat != 1.0 else 0,
        frequency_penalty=float(rng.choice([0.0, 0.5, -1.0])),
        presence_penalty=float(rng.choice([0.0, 0.25, 2.0])),
        logit_bias=tuple((token, float(rng.normal(0, 3) or 1.0)) for token in biased),
        ignore_eos=bool(rng.integers(2)),
    )
    ends = {1, 3}
    suppressed = [int(token) for token in rng.choice(size + 3, int(rng.integers(0, size // 2)), replace=False)]
    banned = set(suppressed) | (ends if used.ignore_eos else set())
    processor = Processor(used, k, ends, suppressed=suppressed)
    answer: list[int] = []
    for _ in range(12):
        row = np.round(rng.normal(0, 3, size), 1).astype(np.float32)  # rounded, so that there are ties
        values = [literal(used, answer, token, row) for token in range(size)]
        order = sorted(range(size), key=lambda t: (t in banned, -values[t], t))
        chosen = order[: min(k, size)]
        entries = processor.entries(row)
        assert entries.ids.tolist() == sorted(chosen, key=lambda t: (-row[t], t))
        drawn = processor.candidates(entries)
        kept = [token for token in chosen if token not in banned]
        assert drawn.ids.tolist() == kept
        assert drawn.logits.tolist() == [values[token] for token in kept]
        token = int(rng.integers(size))
        processor.accept(token)
        answer.append(token)


def literal(used: SamplingParams, answer: list[int], token: int, row: np.ndarray) -> float:
    x = float(row[token])
    bias = dict(used.logit_bias)
    if token in bias:
        x = x + bias[token]
    if used.repeat_last_n and token in answer[-used.repeat_last_n :]:
        x = x / used.repeat_penalty if x > 0 else x * used.repeat_penalty
    count = answer.count(token)
    if count:
        x = x - (count * used.frequency_penalty + used.presence_penalty)
    return x


def test_a_grammar_widens_only_until_something_is_allowed() -> None:
    row = np.arange(5000, 0, -1).astype(np.float32)  # token 0 is the best
    used = params(constraint=b"g" * 32)
    near = Only(2, 7)
    entries = Processor(used, 4, constraint=near).entries(row)
    assert entries.ids.tolist() == [0, 1, 2, 3]
    assert max(near.asked) == 4
    middle = Only(900, 4999)
    entries = Processor(used, 4, constraint=middle).entries(row)
    assert entries.ids.tolist() == [0, 1, 2, 900]
    assert max(middle.asked) == 1024
    far = Only(4999)
    processor = Processor(used, 4, constraint=far)
    entries = processor.entries(row)
    assert entries.ids.tolist() == [0, 1, 2, 4999]
    assert processor.candidates(entries).ids.tolist() == [4999]
    with pytest.raises(EngineError):
        Processor(used, 4, constraint=Only()).entries(row)


def test_bad_logits_are_refused_wherever_they_stand() -> None:
    for place in (0, 5):
        row = np.zeros(50, np.float32)
        row[place] = np.nan
        with pytest.raises(EngineError):
            Processor(params(logit_bias=((5, 1.0),)), 4).entries(row)


@pytest.mark.parametrize(
    "change",
    [
        {6: [1.5, 0]},
        {6: [1.0, 5]},
        {6: [1.5]},
        {7: 0.0},
        {8: 0.0},
        {7: 3.0},
        {9: []},
        {9: [[5, 1.0], [4, 1.0]]},
        {9: [[5, 1.0], [5, 2.0]]},
        {9: [[5, 0.0]]},
        {9: [[5, 101.0]]},
        {10: False},
        {11: b""},
        {11: b"short"},
        {12: 1},
    ],
)
def test_parameters_that_say_nothing_or_nonsense_are_malformed(change: dict[int, object]) -> None:
    with pytest.raises(MalformedError):
        SamplingParams.from_cbor({**params().to_cbor(), **change})  # type: ignore[dict-item]


def test_parameters_without_processors_have_the_bytes_they_had() -> None:
    assert set(params().to_cbor()) == {1, 2, 3, 4, 5}
    used = params(repeat_penalty=1.2, repeat_last_n=3, logit_bias=((1, 2.0),), ignore_eos=True, constraint=b"c" * 32)
    assert SamplingParams.from_cbor(used.to_cbor()) == used
    assert used.processed
    assert needs_vocabulary(used)
    assert not params().processed
    with pytest.raises(PolicyError):
        params(repeat_penalty=1.2)
