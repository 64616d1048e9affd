"""How a monitor gets a log's files."""

from __future__ import annotations

from collections.abc import Callable

from verifiable.errors import VerificationError
from verifiable.net.client import ExchangeError, Failure, HttpClient

Fetch = Callable[[str, int], bytes]
"""`fetch(path, maximum)`: a file below the log's URL. Raises VerificationError (`unreachable`, `no-evidence`)."""

_FAILED = {
    Failure.SLOW: ("the log is too slow", "unreachable"),
    Failure.LONG: ("the log sends too much", "no-evidence"),
    Failure.COMPRESSED: ("the log sends something else than the file", "no-evidence"),
    Failure.BROKEN: ("the log can't be reached", "unreachable"),
}


class HttpFetch:
    """Implements `Fetch`, within the bounds of `verifiable.net`."""

    def __init__(self, base: str) -> None:
        self._http = HttpClient(base, "the log", "verifiable-monitor")

    def __call__(self, path: str, maximum: int) -> bytes:
        try:
            answer = self._http.ask(path, maximum)
        except ExchangeError as error:
            what, code = _FAILED[error.failure]
            found = f"{error.found} ({self._http.base}/{path})"
            raise VerificationError(what, code=code, expected=error.expected, found=found) from error
        if answer.status != 200:
            raise VerificationError(
                "the log does not hand over a file", code="no-evidence", expected=path, found=answer.status
            )
        return answer.body

    def close(self) -> None:
        self._http.close()
