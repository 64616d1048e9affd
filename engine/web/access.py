"""Who may generate, and how much at once: API keys, and a limit of simultaneous requests for each."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Request

from engine.web.limits import TooManyRequestsError
from verifiable.errors import PolicyError


class UnauthorisedError(PolicyError):
    """No API key, or a wrong one."""


class Access:
    """The routes that generate ask here. Proof routes have capabilities of their own; public ones need nothing."""

    def __init__(self, api_keys: Sequence[str], at_once: int | None = None) -> None:
        self._keys = [key.encode() for key in api_keys]
        self._at_once = at_once
        self._lock = threading.Lock()
        self._running: Counter[str | None] = Counter()

    def principal(self, authorization: str) -> str | None:
        """The caller by its header: a digest of the API key, or None where no key is asked for.

        Raises UnauthorisedError.
        """
        sent = authorization.removeprefix("Bearer ").encode("utf-8", "replace")
        # Every key is compared, so that the time taken tells nothing about which one came close.
        matches = [hmac.compare_digest(sent, key) for key in self._keys]
        if not self._keys:
            return None
        if not any(matches):
            raise UnauthorisedError("no such API key", hint="Send it as bearer token.")
        return hashlib.sha256(b"principal\n" + sent).hexdigest()[:16]

    def take(self, principal: str | None) -> None:
        """Count one request of a principal. Raises TooManyRequestsError where it has as many as it may."""
        with self._lock:
            if principal is not None and self._at_once is not None and self._running[principal] >= self._at_once:
                raise TooManyRequestsError(
                    "too many requests with this API key at once",
                    expected=f"at most {self._at_once}",
                    hint="Wait until one of them is finished.",
                )
            self._running[principal] += 1

    def free(self, principal: str | None) -> None:
        """One request of a principal is over."""
        with self._lock:
            self._running -= Counter([principal])  # which forgets who has none left


async def caller(http: Request) -> str | None:
    """A FastAPI dependency: the caller's principal. Raises UnauthorisedError."""
    access: Access = http.app.state.access
    return access.principal(http.headers.get("authorization", ""))


Caller = Annotated[str | None, Depends(caller)]


def parse_capability(header: str | None) -> bytes | None:
    """The capability that a caller sent, or None. A malformed one is as good as a wrong one."""
    try:
        return bytes.fromhex(header or "") or None
    except ValueError:
        return None


def parse_bearer(header: str | None) -> str | None:
    """The token of an `Authorization` header, or None where it has none."""
    scheme, space, token = (header or "").partition(" ")
    return token if scheme == "Bearer" and space else None
