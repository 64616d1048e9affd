"""What runs for every token is written to be fast: here it is held against the plain definition of each step."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from verifiable import limits
from verifiable.errors import EngineError, MalformedError
from verifiable.sampling.logits import Entries, TopK, superset
from verifiable.sampling.sampler import SamplingParams, gumbel, survivors
from verifiable.session import records
from verifiable.session.delivery import TextStream
from verifiable.session.records import Source, Token
from verifiable.wire import encoding

EDGES = (1, 2, 40, 8191, 8192, 8193, 10_240, 12_289, 49_152, 131_071, 131_072, 131_073, 200_000)
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 3.0, float(np.float32(3.4e38)), float(np.float32(1e-45)))
U31 = st.integers(0, 2**31 - 1)


@st.composite
def rows(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """A row of some size, with many or few ties and some special values in it, and a k."""
    size = draw(st.one_of(st.integers(1, 300), st.sampled_from(EDGES)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    row = random.normal(draw(st.sampled_from([0.0, 20.0, -20.0])), draw(st.sampled_from([1e-3, 1.0, 8.0])), size)
    digits = draw(st.sampled_from([0, 1, 9]))
    row = np.round(row, digits).astype(np.float32)
    for at, value in draw(st.lists(st.tuples(st.integers(0, size - 1), st.sampled_from(SPECIAL)), max_size=4)):
        row[at] = value
    if draw(st.booleans()):  # a plateau that holds the border of the k best
        row[random.permutation(size)[: size // 2]] = row[np.argsort(row)[size // 2]]
    return row, draw(st.sampled_from([1, 2, 39, 40, 41, limits.ENTRIES]))


@given(rows())
@settings(max_examples=300, deadline=None)
def test_the_k_best_are_those_that_sorting_the_whole_row_gives(case: tuple[np.ndarray, int]) -> None:
    row, k = case
    order = np.lexsort((np.arange(len(row)), -row))[:k]
    if np.isnan(row).any() or not np.isfinite(row[order]).all():
        with pytest.raises(EngineError, match="NaN or an infinity"):
            TopK(k)(row)
        return
    entries = TopK(k)(row)
    assert entries.ids.tolist() == order.tolist()
    assert entries.logit_bytes() == row[order].tobytes()
    if len(row) >= k:
        found = superset(row, k)
        assert set(order.tolist()) <= set(found.tolist())
        assert (np.diff(found) > 0).all()


@pytest.mark.parametrize("size", [8_192, 10_241, 49_152, 200_001])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_bad_logit_is_found_wherever_it_stands(size: int, bad: float) -> None:
    random = np.random.default_rng(size)
    row = random.normal(0, 3, size).astype(np.float32)
    for at in {0, 1, size // 2, size - 2, size - 1, *random.integers(0, size, 40).tolist()}:
        wrong = row.copy()
        wrong[at] = bad
        with pytest.raises(EngineError, match="NaN or an infinity"):
            TopK(40)(wrong)


@given(
    st.binary(min_size=32, max_size=32), U31, st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=limits.ENTRIES)
)
@settings(deadline=None)
def test_noise_is_what_its_definition_says(key: bytes, position: int, ids: list[int]) -> None:
    words = [
        int.from_bytes(hashlib.sha256(key + position.to_bytes(4, "big") + each.to_bytes(4, "big")).digest()[:8], "big")
        >> 12
        for each in ids
    ]
    uniform = (np.array(words, np.float64) + 0.5) / 2.0**52
    assert gumbel(key, position, np.array(ids, np.uint32)).tobytes() == (-np.log(-np.log(uniform))).tobytes()


@given(st.integers(1, limits.ENTRIES), st.integers(1, limits.ENTRIES))
def test_filters_that_are_off_keep_what_filters_that_drop_nothing_keep(count: int, top_k: int) -> None:
    row = Entries(np.arange(count, dtype=np.uint32), np.linspace(5.0, 4.0, count, dtype=np.float32))
    off = SamplingParams(1.0, top_k, 1.0, 0.0, 1)
    assert survivors(row, off) == survivors(row, replace(off, min_p=1e-6)) == min(count, top_k)


@given(
    st.binary(max_size=40),
    st.integers(0, 2**63 - 1),
    st.binary(max_size=40),
    st.tuples(U31, U31, U31, st.sampled_from(Source), U31, U31),
    st.lists(U31, min_size=1, max_size=limits.ENTRIES, unique=True),
)
@example(b"s" * 16, 23, b"t" * 16, (24, 255, 256, Source.PLAIN, 65_535, 65_536), [0])
def test_a_token_is_encoded_like_anything_else(
    session: bytes, seq: int, salt: bytes, numbers: tuple[int, int, int, Source, int, int], ids: list[int]
) -> None:
    turn, position, token, source, step, row = numbers
    entries = Entries(np.array(ids, np.uint32), np.zeros(len(ids), np.float32))
    marks = [turn, position, token, int(source), step, row]
    expected = encoding.encode([2, session, seq, salt, *marks, entries.id_bytes(), entries.logit_bytes()])
    assert Token(session, seq, salt, *numbers, entries).encode() == expected
    assert records.encode_token(session, seq, salt, *numbers, entries) == expected


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_number_that_has_no_encoding_is_refused(number: int) -> None:
    entries = Entries(np.array([1], np.uint32), np.array([1.0], np.float32))
    with pytest.raises(MalformedError):
        records.encode_token(b"s" * 16, number, b"t" * 16, 0, 0, 0, Source.PLAIN, 0, 0, entries)


PIECES = st.lists(
    st.one_of(
        st.sampled_from([b"a", b" word", b"", b"\n", b"\x7f", b"\x00"]),
        st.text(max_size=3).map(str.encode),
        st.binary(max_size=3),
        st.sampled_from([b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x98\x80", b"\xed", b"\xa0\x80"]),
    ),
    max_size=12,
)


@given(PIECES)
@example([b"\xe2\x82", b"a", b"b"])
@example([b"\xed\xa0", b"a"])
@example([b"\xc3", b"", b"\xa9"])
def test_text_without_stop_strings_is_text_with_one_that_never_comes(pieces: list[bytes]) -> None:
    fast, plain = TextStream(), TextStream(("\U0010fffd a stop string that no example holds",))
    texts = ["".join([*map(stream.feed, pieces), stream.finish()]) for stream in (fast, plain)]
    assert texts[0] == texts[1]
    assert fast.digest() == plain.digest() == hashlib.sha256(texts[0].encode()).digest()
