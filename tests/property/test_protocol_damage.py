"""Damage of any kind to a receipt, to evidence or to a manifest never verifies, and says what is wrong."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

import verifiable
from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import PROVIDER, SESSION, TRUST, Recording, ask, manifest
from verifiable.checking.verdict import Status, Verdict
from verifiable.errors import MalformedError, VerifiableError
from verifiable.manifest.manifest import verify_manifest
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.head import verify_head
from verifiable.session.receipt import Receipt
from verifier.auditing.session import audit

XOR = st.integers(1, 255)
PLACE = st.floats(0.0, 1.0, exclude_max=True)


@cache
def made() -> Recording:
    recording = Recording()
    recording.turn(ask(max_tokens=6, stop=["zzz"]), PROMPT, burst=2)
    recording.turn(ask(max_tokens=5, temperature=0.7), PROMPT)
    return recording


@cache
def receipt() -> bytes:
    return made().receipt().encode()


@cache
def evidence(kind: Kind) -> bytes:
    return made().evidence(kind, positions=[8, 9]).encode()


def flip(data: bytes, place: float, xor: int) -> bytes:
    index = int(place * len(data))
    return data[:index] + bytes([data[index] ^ xor]) + data[index + 1 :]


def reseal(data: bytes) -> bytes:
    """With a checksum that fits again, as somebody who changes a file on purpose would write it."""
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


def refused(verdict: Verdict) -> None:
    assert verdict.status in (Status.FAILED, Status.INCONCLUSIVE)
    assert verdict.code
    assert verdict.summary
    assert verdict.exit_code in (1, 3)


def test_every_single_byte_of_a_receipt_counts() -> None:
    data, text = receipt(), made().texts[-1]
    assert verifiable.verify(data, trust=TRUST, text=text).status is Status.RECEIPT
    for index in range(len(data)):
        damaged = data[:index] + bytes([data[index] ^ 0x01]) + data[index + 1 :]
        refused(verifiable.verify(damaged, trust=TRUST, text=text))


@given(PLACE, XOR)
def test_any_change_of_a_receipts_byte_is_refused(place: float, xor: int) -> None:
    refused(verifiable.verify(flip(receipt(), place, xor), trust=TRUST))


@given(PLACE, XOR)
def test_a_receipt_that_was_changed_on_purpose_says_no_more_than_before(place: float, xor: int) -> None:
    changed = reseal(flip(receipt(), place, xor))
    verdict = verifiable.verify(changed, trust=TRUST, text=made().texts[-1])
    if verdict.status is Status.RECEIPT:
        # Only what its holder could choose anyway may differ: the capability.
        honest = Receipt.parse(receipt())
        assert replace(Receipt.parse(changed), capability=honest.capability) == honest
    else:
        refused(verdict)


@given(st.sampled_from(list(Kind)), PLACE, XOR)
@settings(max_examples=300, deadline=None)
def test_any_change_of_an_evidence_byte_is_refused(kind: Kind, place: float, xor: int) -> None:
    refused(audit(flip(evidence(kind), place, xor), MadeUpModel(), TRUST))


@pytest.mark.parametrize("kind", [Kind.TOKENS, Kind.FULL])
def test_evidence_that_was_not_changed_verifies(kind: Kind) -> None:
    assert audit(evidence(kind), MadeUpModel(), TRUST).status is Status.EXACT


@given(st.sampled_from([Kind.TOKENS, Kind.FULL]), PLACE, XOR)
@settings(max_examples=400, deadline=None)
def test_evidence_that_was_changed_on_purpose_never_verifies(kind: Kind, place: float, xor: int) -> None:
    data = evidence(kind)
    changed = reseal(flip(data[:-32], place, xor) + data[-32:])
    refused(audit(changed, MadeUpModel(), TRUST))


@given(st.sampled_from([Kind.TOKENS, Kind.FULL]), PLACE, st.integers(1, 40), st.booleans())
@settings(deadline=None)
def test_bytes_cut_out_or_put_in_are_refused(kind: Kind, place: float, count: int, cut: bool) -> None:
    data = evidence(kind)
    index = int(place * len(data))
    changed = data[:index] + (data[index + count :] if cut else b"\0" * count + data[index:])
    refused(audit(changed, MadeUpModel(), TRUST))


@given(PLACE, XOR)
def test_any_change_of_a_manifests_or_heads_byte_is_refused(place: float, xor: int) -> None:
    signed, head = manifest().sign(PROVIDER), made().head()
    for data, keys, verify in ((signed, TRUST, verify_manifest), (head, [SESSION.public], verify_head)):
        verify(data, keys)
        with pytest.raises(VerifiableError) as caught:
            verify(flip(data, place, xor), keys)
        assert str(caught.value)


@given(PLACE, XOR)
@settings(deadline=None)
def test_any_change_of_a_stored_record_is_refused(place: float, xor: int) -> None:
    """A record that changed in the provider's store: its hash no longer leads to the root."""
    whole = made().evidence(Kind.FULL)
    leaves = dict(whole.opening.leaves)
    index = int(place * len(leaves))
    leaves[index] = flip(leaves[index], (place * len(leaves)) % 1.0, xor)
    refused(audit(replace(whole, opening=replace(whole.opening, leaves=leaves)), MadeUpModel(), TRUST))


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_malformed(data: bytes) -> None:
    for parse in (Receipt.parse, Evidence.parse):
        with pytest.raises(MalformedError) as caught:
            parse(data)
        assert str(caught.value)
