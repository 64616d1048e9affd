"""The text and byte forms that both sides share: base64url, hexadecimal, packed token ids, bodies in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, strategies as st

from verifiable.errors import MalformedError
from verifiable.wire.bodies import join_parts
from verifiable.wire.ids import common_prefix, pack, unpack
from verifiable.wire.text import from_hex, read_base64url, write_base64url


@given(st.binary(max_size=40))
def test_base64url_comes_back(data: bytes) -> None:
    text = write_base64url(data)
    assert set(text).isdisjoint("+/=")
    assert read_base64url(text, "data") == data


@pytest.mark.parametrize("text", ["QQ==", "QR", "Q", "+w", "Q Q", "\n", "é"])
def test_base64url_has_one_spelling(text: str) -> None:
    with pytest.raises(MalformedError, match="base64url"):
        read_base64url(text, "data")


def test_hexadecimal_has_one_spelling() -> None:
    assert from_hex("00ff", 2) == b"\x00\xff"
    for wrong in ("00FF", "00f", "00ff ", "0x00", "٠٠٠٠", "", None, 255, b"00ff"):
        assert from_hex(wrong, 2) is None


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_packed_ids_come_back(ids: list[int]) -> None:
    assert unpack(pack(ids)) == ids


def test_packed_ids_take_four_bytes_each() -> None:
    assert pack([1, 2**32 - 1]) == b"\1\0\0\0\xff\xff\xff\xff"
    with pytest.raises(OverflowError):
        pack([2**32])
    with pytest.raises(MalformedError, match="4 bytes each"):
        unpack(b"12345")


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), max_size=8))
def test_the_common_prefix_is_the_longest(one: list[int], other: list[int]) -> None:
    length = common_prefix(one, tuple(other))
    assert one[:length] == other[:length]
    assert length in (len(one), len(other)) or one[length] != other[length]


@pytest.mark.parametrize(("most", "expected"), [(4, None), (5, b"12345"), (6, b"12345")])
def test_of_a_body_no_more_is_taken_than_the_bound(most: int, expected: bytes | None) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"12", b"", b"345"):
            yield part

    assert asyncio.run(join_parts(parts(), most)) == expected
