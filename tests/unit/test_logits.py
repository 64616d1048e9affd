"""Top-k in record order, whatever way it was found, and the strict reading of entries."""

from __future__ import annotations

import numpy as np
import pytest

from verifiable import limits
from verifiable.errors import EngineError, MalformedError
from verifiable.sampling.logits import Entries, TopK


def by_sorting(row: np.ndarray, k: int) -> list[tuple[int, float]]:
    order = sorted(range(len(row)), key=lambda index: (-row[index], index))[:k]
    return [(index, float(row[index])) for index in order]


def pairs(entries: Entries) -> list[tuple[int, float]]:
    return [(int(token), float(logit)) for token, logit in zip(entries.ids, entries.logits, strict=True)]


@pytest.mark.parametrize("k", [1, 7, 40, 128])
def test_rows_of_one_text_and_of_strangers_give_the_k_best(k: int) -> None:
    rng = np.random.default_rng(1)
    topk = TopK(k)
    for scale, offset in ((3, 0), (3, 0.1), (3, 50), (3, -50), (0.01, 0), (30, 0)):
        row = (rng.normal(offset, scale, 3000)).astype(np.float32)
        assert pairs(topk(row)) == by_sorting(row, k)


def test_equal_logits_go_by_id() -> None:
    row = np.zeros(500, np.float32)
    row[[400, 30, 7]] = 2.0
    topk = TopK(10)
    for _ in range(3):  # the second time by the threshold of the first
        assert topk(row).ids.tolist() == [7, 30, 400, 0, 1, 2, 3, 4, 5, 6]


def test_a_vocabulary_smaller_than_k_is_taken_whole() -> None:
    row = np.array([0.5, 2.0, 1.0], np.float32)
    topk = TopK(40)
    for _ in range(2):
        assert topk(row).ids.tolist() == [1, 2, 0]


def test_negative_zero_and_zero_are_equal_and_ordered_by_id() -> None:
    row = np.array([-0.0, 0.0, -0.0, -1.0], np.float32)
    assert TopK(3)(row).ids.tolist() == [0, 1, 2]
    entries = TopK(3)(row)
    assert pairs(Entries.from_bytes(entries.id_bytes(), entries.logit_bytes())) == pairs(entries)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_an_error(bad: float) -> None:
    row = np.zeros(100, np.float32)
    row[50] = bad
    for warm in (False, True):
        topk = TopK(5)
        if warm:
            topk(np.zeros(100, np.float32))
        with pytest.raises(EngineError, match="NaN"):
            topk(row)
    with pytest.raises(EngineError):
        TopK(5)(np.full(100, np.nan, np.float32))


@pytest.mark.parametrize("k", [0, -1, limits.ENTRIES + 1])
def test_k_has_bounds(k: int) -> None:
    with pytest.raises(EngineError):
        TopK(k)


def raw(ids: list[int], logits: list[float]) -> tuple[bytes, bytes]:
    return np.array(ids, "<u4").tobytes(), np.array(logits, "<f4").tobytes()


@pytest.mark.parametrize(
    ("ids", "logits"),
    [
        ([], []),
        ([1], [1.0, 2.0]),
        ([1, 2], [1.0, 2.0]),  # ascending
        ([2, 1], [1.0, 1.0]),  # equal logits, higher id first
        ([1, 1], [2.0, 1.0]),  # one id twice
        ([1, 2], [np.nan, 1.0]),
        ([1, 2], [np.inf, 1.0]),
        (list(range(limits.ENTRIES + 1)), [float(-i) for i in range(limits.ENTRIES + 1)]),
    ],
)
def test_entries_in_another_order_are_malformed(ids: list[int], logits: list[float]) -> None:
    with pytest.raises(MalformedError):
        Entries.from_bytes(*raw(ids, logits))


def test_entries_of_odd_length_are_malformed() -> None:
    ids, logits = raw([1, 2], [2.0, 1.0])
    for wrong in ((ids[:-1], logits[:-1]), (ids, logits[:-4]), (ids + b"\0", logits + b"\0")):
        with pytest.raises(MalformedError):
            Entries.from_bytes(*wrong)
