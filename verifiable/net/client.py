"""One exchange with a server that may be hostile, held to a time and to a size.

The bounds are the same whoever is asked: the whole exchange has a deadline, from the connection to the last byte of the
body, and so has each silence in it. A body is cut where it passes what the caller allows. Status line and headers are
held to 100 KiB together by httpcore (`AsyncHTTP11Connection.MAX_INCOMPLETE_EVENT_SIZE`), and so is each piece of
framing after them. Redirects are not followed, nothing is decompressed, and an address holds no credentials.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

import httpx

from verifiable.errors import PolicyError, UnknownHostError, VerifiableError
from verifiable.wire.bodies import join_parts

CONNECT_SECONDS = 10.0
QUIET_SECONDS = 30.0
TOTAL_SECONDS = 300.0
"""A whole exchange: a server that sends a byte every few seconds holds nobody for ever."""

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class Failure(Enum):
    """Why there is no whole answer."""

    SLOW = "the answer is too slow"
    LONG = "the answer is too long"
    COMPRESSED = "the answer is compressed, unasked"
    BROKEN = "no answer"


class ExchangeError(VerifiableError):
    """There is no whole answer within the bounds."""

    def __init__(self, failure: Failure, expected: str, found: str) -> None:
        super().__init__(failure.value, expected=expected, found=found)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a server answered. `body` is empty where the status is not among those whose body was asked for."""

    status: int
    body: bytes


class HttpClient:
    """Talks to one server, from one thread at a time.

    Args:
        base: the URL that every path is appended to.
        who: the server's name in errors, as "the provider".
        seconds: the deadline of a whole exchange; `TOTAL_SECONDS` by default.

    Raises:
        PolicyError: `base` is no http or https URL, or it holds credentials.
    """

    def __init__(self, base: str, who: str, agent: str, seconds: float | None = None) -> None:
        self._who = who
        host = self._name = self._host(base)
        self._reached = False
        self.base = base.rstrip("/")
        self._seconds = TOTAL_SECONDS if seconds is None else seconds
        # Asynchronous inside, for the one thing that only a cancelled task gives: a bound on the whole exchange,
        # also against a server that sends its headers a byte at a time.
        self._runner = asyncio.Runner()
        self._http = httpx.AsyncClient(
            follow_redirects=False,
            # A connection for each exchange: what a server sends after an answer is not taken for the next one.
            limits=httpx.Limits(max_keepalive_connections=0),
            timeout=httpx.Timeout(QUIET_SECONDS, connect=CONNECT_SECONDS),
            trust_env=host not in _LOOPBACK,  # no proxy between two processes of one machine
            headers={"Accept-Encoding": "identity", "User-Agent": agent},
        )

    def ask(
        self,
        path: str,
        maximum: int,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        post: bytes | None = None,
        read: Container[int] = (200,),
    ) -> HttpAnswer:
        """GET a path below the base, or POST to it.

        Args:
            maximum: bytes that the body may have.
            post: the body to send; None for a GET.
            read: the statuses whose body is read.

        Raises:
            ExchangeError: no whole answer within the bounds.
            UnknownHostError: there is no such host, and nothing was reached there before.
            PolicyError: with the path the address is none.
        """
        method = "GET" if post is None else "POST"

        async def exchange() -> HttpAnswer:
            stream = self._http.stream(method, f"{self.base}/{path}", params=query, headers=headers, content=post)
            async with asyncio.timeout(self._seconds), stream as response:
                body = await _body(response, maximum) if response.status_code in read else b""
                return HttpAnswer(response.status_code, body)

        try:
            answer = self._runner.run(exchange())
            self._reached = True
            return answer
        except TimeoutError:
            raise ExchangeError(Failure.SLOW, f"{self._seconds:g} s", "more") from None
        except httpx.HTTPError as error:
            if not self._reached and _unknown_host(error):
                raise UnknownHostError(f"{self._who}'s address", expected="a host", found=self._name) from error
            raise ExchangeError(Failure.BROKEN, "an answer", str(error) or type(error).__name__) from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise PolicyError(f"{self._who}'s address", found=str(error)) from error

    def _host(self, base: str) -> str:
        what = f"{self._who}'s address"
        try:
            parts = urlsplit(base)
        except ValueError as error:
            raise PolicyError(what, expected="http://HOST or https://HOST", found=str(error)) from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise PolicyError(what, expected="http://HOST or https://HOST", found=base)
        if parts.username is not None or parts.password is not None:
            raise PolicyError(what, expected="no user name or password in it", found=parts.hostname)
        return parts.hostname

    def close(self) -> None:
        """End the loop; no connection is kept between exchanges."""
        self._runner.close()


def _unknown_host(error: BaseException | None) -> bool:
    """Whether an error goes back to a name that does not resolve."""
    while error is not None:
        if isinstance(error, socket.gaierror):
            return True
        error = error.__cause__ or error.__context__
    return False


async def _body(response: httpx.Response, maximum: int) -> bytes:
    coding = response.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise ExchangeError(Failure.COMPRESSED, "no content encoding", coding[:40])
    data = await join_parts(response.aiter_raw(), maximum)
    if data is None:
        raise ExchangeError(Failure.LONG, f"at most {maximum:,} bytes", "more")
    return data
