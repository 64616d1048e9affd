"""A clock that tests set by hand, and what a provider signs by it."""

from __future__ import annotations

from fixtures.synthetic import SyntheticProvider
from verifiable import Receipt, verify
from verifiable.checking.verdict import Status

DAY = 86_400_000
START = 1_700_000_000_000


class Clock:
    """Milliseconds since 1970, as they are set."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> int:
        return self.time


def good(provider: SyntheticProvider, receipt: bytes) -> Receipt:
    """A receipt that verifies."""
    verdict = verify(receipt, trust=[provider.keys.provider.public])
    assert verdict.status is Status.RECEIPT, verdict
    return Receipt.parse(receipt)
