"""How often one caller may ask: a token bucket for each address, kept for the addresses that asked last."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from verifiable.errors import PolicyError

_ADDRESSES = 10_000
"""Addresses remembered. Who has not asked for a long time starts with a full bucket anyway."""


TOO_MANY: dict[int | str, dict[str, Any]] = {429: {"description": "Too many requests from this address."}}
"""What the OpenAPI document says of routes with a limit."""


class TooManyRequestsError(PolicyError):
    """The caller asks more often than it may."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`burst` requests at once, and `each_second` after that."""

    each_second: float
    burst: float


@dataclass(frozen=True, slots=True)
class ProofRates:
    """`public` for what is cheap and for everybody, `private` for what reads and hashes a whole session,
    `reports` for what auditors have the log take in, for good.
    """

    public: Rate = Rate(5000, 10_000)
    private: Rate = Rate(50, 200)
    reports: Rate = Rate(0.1, 20)


class RateLimit:
    """One bucket for each address."""

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> None:
        """Count one request of an address. Raises TooManyRequestsError."""
        now = self._clock()
        with self._lock:
            tokens, last = self._buckets.pop(address, (self._rate.burst, now))
            tokens = min(self._rate.burst, tokens + (now - last) * self._rate.each_second)
            allowed = tokens >= 1
            self._buckets[address] = (tokens - 1 if allowed else tokens, now)
            if len(self._buckets) > _ADDRESSES:
                self._buckets.popitem(last=False)
        if not allowed:
            raise TooManyRequestsError(
                "too many requests from this address",
                expected=f"at most {self._rate.each_second:g} a second",
                hint="Wait a second.",
            )


async def limit_public(http: Request) -> None:
    """A FastAPI dependency of routes that are cheap and for everybody."""
    http.app.state.public_limit.take(_address(http))


async def limit_private(http: Request) -> None:
    """A FastAPI dependency of routes that read and hash a whole session."""
    http.app.state.private_limit.take(_address(http))


async def limit_reports(http: Request) -> None:
    """A FastAPI dependency of the route by which the log grows."""
    http.app.state.report_limit.take(_address(http))


def _address(http: Request) -> str:
    return http.client.host if http.client else ""
