"""The leaves of a session log: one spelling each, and the values that are derived from secrets."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import pytest

from tests.sessions import made_up
from verifiable.errors import MalformedError
from verifiable.sampling.sampler import SamplingParams
from verifiable.session import records
from verifiable.session.records import Close, End, Finish, Leaf, NonceSource, Open, Source, Token, Turn
from verifiable.wire import encoding

HEAD: tuple[bytes, int, bytes] = (b"s" * 16, 5, b"t" * 16)
PARAMS = SamplingParams(0.7, 40, 0.9, 0.05, 100)
LEAVES: list[Leaf] = [
    Open(*HEAD, b"m" * 32, 1_800_000_000_000),
    Turn(*HEAD, 0, b"r" * 32, b"p" * 32, 12, PARAMS, b"o" * 32, b"nonce of the client", NonceSource.CLIENT, 3),
    Token(*HEAD, 0, 17, 123, Source.BONUS, 4, 1, made_up([1, 2])),
    End(*HEAD, 0, Finish.STOP, 12, 30, b"x" * 32, b"y" * 32, 8, 5),
    Close(*HEAD, 2),
]
NAMES = [type(leaf).__name__ for leaf in LEAVES]


@pytest.mark.parametrize("leaf", LEAVES, ids=NAMES)
def test_a_leaf_is_read_as_it_was_written(leaf: Leaf) -> None:
    again = records.parse(leaf.encode())
    assert type(again) is type(leaf)
    assert again.encode() == leaf.encode()
    for name in type(leaf).__slots__:
        if name != "entries":
            assert getattr(again, name) == getattr(leaf, name)


@pytest.mark.parametrize("leaf", LEAVES, ids=NAMES)
def test_a_leaf_begins_with_kind_session_number_and_salt(leaf: Leaf) -> None:
    fields = encoding.array(encoding.decode(leaf.encode()), None, "leaf")
    assert fields[:4] == [type(leaf).kind, *HEAD]


@pytest.mark.parametrize("leaf", LEAVES, ids=NAMES)
def test_missing_and_further_fields_are_malformed(leaf: Leaf) -> None:
    fields = encoding.array(encoding.decode(leaf.encode()), None, "leaf")
    wrongs: list[list[encoding.Value]] = [fields[:-1], [*fields, 0], fields[:3], []]
    for wrong in wrongs:
        with pytest.raises(MalformedError):
            records.parse(encoding.encode(wrong))
    with pytest.raises(MalformedError):
        records.parse(leaf.encode() + b"\x00")


@pytest.mark.parametrize("leaf", LEAVES, ids=NAMES)
def test_every_field_has_its_type(leaf: Leaf) -> None:
    fields = encoding.array(encoding.decode(leaf.encode()), None, "leaf")
    for index in range(len(fields)):
        others: list[encoding.Value] = [None, "text", -1, [], True]
        for wrong in others:
            with pytest.raises(MalformedError):
                records.parse(encoding.encode([*fields[:index], wrong, *fields[index + 1 :]]))


@pytest.mark.parametrize(
    ("leaf", "changes"),
    [
        (LEAVES[0], {"session": b"short"}),
        (LEAVES[0], {"salt": b"short"}),
        (LEAVES[0], {"manifest_digest": b"short"}),
        (LEAVES[1], {"nonce": b"n" * 65}),
        (LEAVES[1], {"prompt_count": 2**31}),
        (LEAVES[2], {"token": 2**31}),
        (LEAVES[3], {"tokens_digest": b"z" * 31}),
        (LEAVES[4], {"seq": 2**63}),
    ],
)
def test_values_out_of_range_are_malformed(leaf: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        records.parse(replace(leaf, **changes).encode())


def test_unknown_enumerators_are_malformed() -> None:
    fields = encoding.array(encoding.decode(LEAVES[3].encode()), None, "leaf")
    for value in (4, 99):
        with pytest.raises(MalformedError):
            records.parse(encoding.encode([*fields[:5], value, *fields[6:]]))


def test_salts_differ_by_secret_and_number() -> None:
    secret = records.turn_secret(b"k" * 32, 7)
    assert secret == hmac.new(b"k" * 32, b"turn\x00\x00\x00\x07", hashlib.sha256).digest()
    expected = hmac.new(secret, (300).to_bytes(8, "big"), hashlib.sha256).digest()[:16]
    assert records.salt(secret, 300) == expected
    salts = {records.salt(records.turn_secret(b"k" * 32, turn), seq) for turn in range(5) for seq in range(50)}
    assert len(salts) == 250


def test_digests_are_over_little_endian_ids() -> None:
    assert records.ids_digest([1, 256]) == hashlib.sha256(b"\x01\0\0\0\x00\x01\0\0").digest()
    assert records.ids_digest([]) == hashlib.sha256(b"").digest()
    marked = records.tokens_digest([1, 256], [Source.PLAIN, Source.BONUS], [True, False])
    assert marked == hashlib.sha256(b"\x01\0\0\0\x08" + b"\x00\x01\0\0\x03").digest()
    assert records.stop_digest(("a", "b")) != records.stop_digest(("ab",))
