"""Receipts, evidence, manifests and heads as bytes: read as written, and strictly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import verifiable
from tests.sessions import PROVIDER, SESSION, TIME, TRUST, identity, manifest, recording, runtime
from verifiable import limits
from verifiable.checking.verdict import INCONCLUSIVE_CODES, Status, from_error
from verifiable.errors import MalformedError, NewerVersionError, PolicyError, VerificationError
from verifiable.manifest.manifest import Manifest, ModelFile, ModelIdentity, verify_manifest
from verifiable.session.evidence import Evidence, Kind, PackedTokens
from verifiable.session.head import Head, verify_head
from verifiable.session.receipt import Receipt
from verifiable.session.records import Source
from verifiable.wire import encoding
from verifiable.wire.sealed import seal, unseal


def test_sealed_files_tell_damage() -> None:
    data = seal({1: 2, 2: b"x"})
    assert unseal(data, 2, "thing", 100) == {1: 2, 2: b"x", 3: data[-32:]}
    for index in range(len(data)):
        for bit in (1, 128):
            damaged = bytearray(data)
            damaged[index] ^= bit
            with pytest.raises(MalformedError):
                unseal(bytes(damaged), 2, "thing", 100)
    for wrong in (data + b"\0", data[:-1], b"", seal({1: 2}), seal({1: 2, 2: b"x", 3: 0})):
        with pytest.raises(MalformedError):
            unseal(wrong, 2, "thing", 100)
    with pytest.raises(MalformedError, match="at most 10 bytes"):
        unseal(data, 2, "thing", 10)
    fewest, _ = limits.SEALED_ITEMS
    assert unseal(seal({1: 2, 2: [0] * (fewest - 10)}), 2, "thing", 10_000)
    with pytest.raises(MalformedError, match="too many items"):
        unseal(seal({1: 2, 2: [0] * fewest}), 2, "thing", 10_000)


def test_files_are_read_as_written(tmp_path: Path) -> None:
    made = recording(2)
    receipt = made.receipt()
    assert Receipt.parse(receipt.encode()) == receipt
    path = tmp_path / "a.receipt"
    path.write_bytes(receipt.encode())
    assert verifiable.Receipt.load(path) == receipt
    for kind in Kind:
        evidence = made.evidence(kind, positions=[8, 9])
        assert Evidence.parse(evidence.encode()) == evidence
    path.write_bytes(made.evidence().encode())
    assert Evidence.load(path) == made.evidence()


def refused(parse: Callable[[bytes], Any], fields: encoding.Map) -> None:
    with pytest.raises(MalformedError):
        parse(seal(fields))


def test_receipts_and_evidence_are_strict() -> None:
    made = recording(1)
    count = {Receipt.parse: 8, Evidence.parse: 7}
    for parse, data in ((Receipt.parse, made.receipt().encode()), (Evidence.parse, made.evidence().encode())):
        fields = unseal(data, count[parse], "file", 1 << 20)
        del fields[max(key for key in fields if isinstance(key, int))]
        parse(seal(fields))
        for key in fields:
            refused(parse, {name: value for name, value in fields.items() if name != key})
            others: list[encoding.Value] = [-1, 2.5, True, {}]
            for wrong in others:
                refused(parse, {**fields, key: wrong})
        refused(parse, {**fields, 99: 0})
        with pytest.raises(MalformedError, match="an object of protocol 1; this reads 2"):
            parse(seal({**fields, 1: 1}))
        with pytest.raises(NewerVersionError, match="an object of protocol 3; this reads 2"):
            parse(seal({**fields, 1: 3, 99: 0}))


def test_evidence_opens_each_turn_once_and_in_order() -> None:
    evidence = recording(2).evidence()
    for turns in (evidence.turns[::-1], (evidence.turns[0], evidence.turns[0])):
        with pytest.raises(MalformedError, match="ascending"):
            Evidence.parse(replace(evidence, turns=turns).encode())


@pytest.mark.parametrize(("vocabulary", "width"), [(2, 1), (256, 1), (257, 2), (49_152, 2), (65_537, 3), (262_144, 3)])
def test_ids_are_packed_in_as_few_bytes_as_the_vocabulary_needs(vocabulary: int, width: int) -> None:
    ids = [0, vocabulary - 1, vocabulary // 2]
    sources = [Source.PLAIN, Source.DRAFT_ACCEPTED, Source.BONUS]
    packed = PackedTokens.pack(ids, sources, [True, True, False], vocabulary)
    assert packed.width == width
    assert packed.unpack() == (ids, sources, [True, True, False])
    assert packed.steps(packed.unpack()[2]) == [(0, 0), (1, 0), (1, 1)]
    assert PackedTokens.from_cbor(packed.to_cbor()) == packed


def test_packed_tokens_have_one_spelling() -> None:
    packed = PackedTokens.pack([1, 2, 3], [Source.PLAIN] * 3, [True] * 3, 500)
    for changes in (
        {"count": 2},
        {"count": 1 << 23},
        {"width": 0},
        {"width": 5},
        {"ids": packed.ids[:-1]},
        {"marks": packed.marks + b"\0"},
        {"marks": bytes([packed.marks[0], packed.marks[1] | 0x10])},  # bits past the last mark
        {"marks": bytes([7, packed.marks[1]])},  # a source that does not exist
    ):
        with pytest.raises(MalformedError):
            PackedTokens.from_cbor(replace(packed, **changes).to_cbor())
    empty = PackedTokens.pack([], [], [], 500)
    assert PackedTokens.from_cbor(empty.to_cbor()).unpack() == ([], [], [])


def test_manifests_are_read_as_signed() -> None:
    made = manifest()
    assert verify_manifest(made.sign(PROVIDER), TRUST) == made
    assert Manifest.parse(made.payload()) == made
    with pytest.raises(VerificationError) as caught:
        verify_manifest(made.sign(SESSION), TRUST)
    assert caught.value.code == "untrusted-key"
    with pytest.raises(VerificationError):
        verify_head(made.sign(PROVIDER), TRUST)  # a manifest is no head


@pytest.mark.parametrize(
    "changes",
    [
        {"valid_from": TIME + 10**9},
        {"k": 0},
        {"k": 129},
        {"value_kind": 2},
        {"session_keys": ()},
        {"session_keys": (SESSION.public,) * 65},
        {"model": identity(files=())},
        {"model": identity(files=(ModelFile("a", b"short", 1),))},
        {"model": identity(tokenizer_digest=b"short")},
        {"runtime": runtime(fingerprint=b"short")},
        {"runtime": runtime(n_ctx=2**31)},
        {"runtime": runtime(repack=1)},
        {"provider": "x" * 257},
    ],
)
def test_manifests_out_of_range_are_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        Manifest.parse(manifest(**changes).payload())


@pytest.mark.parametrize("data", [bytes(6), b"", bytes(8), b"\1\0\0\0\0\0\0\0"])
def test_what_is_wrong_with_suppressed_ids_is_said_of_them(data: bytes) -> None:
    stated = replace(identity(), suppressed=(7,)).to_cbor()
    stated[-1] = {2: data}
    with pytest.raises(MalformedError, match="suppressed ids: expected ascending ids of 4 bytes each"):
        ModelIdentity.from_cbor(stated)


def test_validity_is_inclusive() -> None:
    made = manifest()
    made.check_valid_at(made.valid_from, "thing")
    made.check_valid_at(made.valid_to, "thing")
    for time in (made.valid_from - 1, made.valid_to + 1):
        with pytest.raises(VerificationError) as caught:
            made.check_valid_at(time, "thing")
        assert caught.value.code == "manifest-expired"


def test_heads_are_read_as_signed() -> None:
    head = recording(1).log.head(TIME)
    assert verify_head(head.sign(SESSION), [SESSION.public]) == head
    with pytest.raises(MalformedError):
        Head.parse(head.payload() + b"\0")
    for wrong in (replace(head, session=b"x"), replace(head, root=b"x"), replace(head, size=2**63)):
        with pytest.raises(MalformedError):
            Head.parse(wrong.payload())


def test_verify_says_what_it_checked_and_what_not() -> None:
    made = recording(2)
    verdict = verifiable.verify(made.receipt(), trust=TRUST, text=made.texts[-1])
    assert (verdict.status, verdict.exit_code, verdict.turn) == (Status.RECEIPT, 0, 1)
    assert {check.name for check in verdict.checks} == {"Manifest", "Head", "Structure", "Text"}
    assert any("really said it" in note for note in verdict.not_shown)
    assert verifiable.verify(made.receipt(0), trust=TRUST, text=made.texts[0]).status is Status.RECEIPT
    wrong = verifiable.verify(made.receipt(), trust=TRUST, text="other")
    assert (wrong.status, wrong.code, wrong.exit_code) == (Status.FAILED, "text-differs", 1)
    assert verifiable.verify(made.receipt(2), trust=TRUST).code == "incomplete"
    assert verifiable.verify(b"nonsense", trust=TRUST).code == "malformed"
    other = verifiable.verify(made.receipt(), trust=[SESSION.public])
    assert (other.status, other.code, other.exit_code) == (Status.INCONCLUSIVE, "untrusted-key", 3)
    with pytest.raises(PolicyError):
        verifiable.verify(made.receipt(), trust=[])


def test_errors_become_verdicts() -> None:
    for code in INCONCLUSIVE_CODES:
        assert from_error(VerificationError("x", code=code)).status is Status.INCONCLUSIVE
    failed = from_error(VerificationError("x", code="counts-differ", expected=b"\x01", found=b"\x02"))
    assert (failed.status, failed.expected, failed.found) == (Status.FAILED, "01", "02")
    assert from_error(MalformedError("x")).status is Status.INCONCLUSIVE
    assert from_error(PolicyError("x")).status is Status.INCONCLUSIVE
    assert [status.exit_code for status in Status] == [0, 0, 0, 1, 3]
