from __future__ import annotations

import pytest

from verifiable.errors import (
    EngineError,
    MalformedError,
    PolicyError,
    StoreError,
    VerifiableError,
    VerificationError,
)


def test_message_says_what_expected_found_and_next():
    error = MalformedError("tree size", expected="0 to 7", found=9, hint="Ask for a smaller one.")
    assert str(error) == "tree size: expected 0 to 7, found 9. Ask for a smaller one."
    assert str(VerifiableError("broken")) == "broken"
    assert str(StoreError("row", found=0)) == "row: found 0"


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (b"", "no bytes"),
        (b"\x01\x02", "0102 (2 bytes)"),
        pytest.param(bytes(10_000_000), "00" * 32 + "… (10000000 bytes)", id="long"),
        ("x" * 500, "x" * 120 + "… (500 characters)"),
        ("\x1b[2Jall is well\n", r"\x1b[2Jall is well\n"),
        pytest.param(1 << 100_000, "int of thousands of digits", id="huge"),
    ],
)
def test_found_values_are_short_and_harmless(found, shown: str):
    message = str(MalformedError("field", found=found))
    assert message == f"field: found {shown}"
    assert message.isprintable()


def test_codes_and_exit_statuses():
    assert VerificationError("x", code="bad-signature").code == "bad-signature"
    assert PolicyError("x", parameter="top_k").parameter == "top_k"
    statuses: dict[type[VerifiableError], int] = {
        VerificationError: 1,
        MalformedError: 2,
        PolicyError: 2,
        EngineError: 4,
        StoreError: 4,
        VerifiableError: 4,
    }
    for kind, status in statuses.items():
        assert kind.exit_code == status
        assert issubclass(kind, VerifiableError)
