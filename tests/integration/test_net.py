"""The one HTTP client against servers that break it: whoever asks, an exchange has one set of bounds."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from engine.log.tree import LogTree
from engine.log.witnesses import WitnessEndpoint, Witnesses
from verifiable.errors import PolicyError, VerificationError
from verifiable.net import client as net
from verifiable.net.client import ExchangeError, Failure, HttpAnswer, HttpClient
from verifiable.tlog.checkpoint import Checkpoint, sign_checkpoint
from verifiable.tlog.cosignature import witness_key
from verifiable.tlog.merkle import EMPTY_ROOT
from verifiable.wire.keys import PrivateKey
from verifier.monitor.fetch import HttpFetch
from verifier.provider.client import Client

MAXIMUM = 1000
OK = b"HTTP/1.1 200 OK\r\n"
SECONDS = 0.5
Talk = Callable[[socket.socket], None]


@contextmanager
def served(talk: Talk) -> Iterator[str]:
    """A server that reads a request's first bytes and then does as it likes with the socket."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # the client has left, as it should
            connection.settimeout(20)
            connection.recv(1 << 16)
            talk(connection)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):  # to close with bytes unread would reset what the client has yet to read
                pass

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def says(*parts: bytes, again: int = 1, pause: float = 0.0) -> Talk:
    """Sends the parts, the last of them again and again."""

    def talk(connection: socket.socket) -> None:
        for part in (*parts[:-1], *[parts[-1]] * again):
            connection.sendall(part)
            time.sleep(pause)

    return talk


PACKED = gzip.compress(b"\0" * (1 << 20))
HOSTILE: dict[str, tuple[Talk, Failure]] = {
    "headers without end": (says(OK, b"X-Filler: " + b"x" * 1000 + b"\r\n", again=1 << 20), Failure.BROKEN),
    "one header without end": (says(OK + b"X-Filler: ", b"x" * 1000, again=1 << 20), Failure.BROKEN),
    "a header in drops": (says(OK + b"X-Slow: ", b"x", again=100, pause=0.1), Failure.SLOW),
    "hints without end": (says(b"HTTP/1.1 103 Early Hints\r\n\r\n", again=1000, pause=0.01), Failure.SLOW),
    "a body in drops": (says(OK + b"\r\n", b"x", again=100, pause=0.1), Failure.SLOW),
    "a chunk's length in drops": (
        says(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0", again=100, pause=0.1),
        Failure.SLOW,
    ),
    "trailers without end": (
        says(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Filler: " + b"x" * 1000 + b"\r\n", again=1 << 20),
        Failure.BROKEN,
    ),
    "a body without end": (says(OK + b"\r\n", b"x" * 1000, again=1 << 20), Failure.LONG),
    "one byte too many": (says(OK + b"Content-Length: 1001\r\n\r\n" + b"x" * 1001), Failure.LONG),
    "compression unasked": (says(OK + b"Content-Encoding: gzip\r\n\r\n" + PACKED), Failure.COMPRESSED),
    "silence": (says(b"", pause=20), Failure.SLOW),
    "nothing": (says(b""), Failure.BROKEN),
}
EACH = pytest.mark.parametrize(("talk", "failure"), list(HOSTILE.values()), ids=list(HOSTILE))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "TOTAL_SECONDS", SECONDS)
    monkeypatch.setattr("engine.log.witnesses.TIMEOUT", SECONDS)


def ask(url: str, **how: bytes) -> HttpAnswer:
    client = HttpClient(url, "the server", "test")
    try:
        return client.ask("file", MAXIMUM, **how)  # type: ignore[arg-type]
    finally:
        client.close()


@EACH
def test_an_exchange_ends_within_its_bounds(talk: Talk, failure: Failure) -> None:
    for how in ({}, {"post": b"question"}):
        began = time.monotonic()
        with served(talk) as url, pytest.raises(ExchangeError) as caught:
            ask(url, **how)
        assert caught.value.failure is failure
        assert time.monotonic() - began < SECONDS + 2


def test_what_is_within_the_bounds_is_read_whole() -> None:
    body = b"x" * MAXIMUM
    with served(says(OK + b"Content-Length: 1000\r\n\r\n" + body)) as url:
        assert ask(url) == HttpAnswer(200, body)
    with served(says(OK + b"X-Filler: " + b"x" * 50_000 + b"\r\nContent-Length: 1\r\n\r\n!")) as url:
        assert ask(url) == HttpAnswer(200, b"!")
    with served(says(b"HTTP/1.1 404 No\r\n\r\n", b"x" * 1000, again=1 << 20)) as url:
        assert ask(url) == HttpAnswer(404, b"")  # a refusal's body is left where it is


def test_no_redirect_is_followed() -> None:
    reached: list[socket.socket] = []
    with (
        served(reached.append) as elsewhere,
        served(says(b"HTTP/1.1 302 Found\r\nLocation: %s/x\r\n\r\n" % elsewhere.encode())) as url,
    ):
        assert ask(url).status == 302
        with pytest.raises(VerificationError, match="elsewhere") as caught, Client(url) as client:
            client.manifest()
        assert caught.value.code == "unreachable"
        with pytest.raises(VerificationError, match="does not hand over") as caught:
            fetched(url)
        assert caught.value.code == "no-evidence"
        assert "302" in str(trouble(url))
    assert not reached


@pytest.mark.parametrize(
    "base", ["", "server", "ftp://h", "http://", "http://u:p@h", "http://u@h", "http://h/?q", "http://h/#f", "http://["]
)
def test_an_address_that_is_none_or_holds_credentials_is_refused(base: str) -> None:
    for make in (Client, HttpFetch, trouble):
        with pytest.raises(PolicyError, match="address") as caught:
            make(base)
        assert "u:p" not in str(caught.value)


def fetched(url: str) -> bytes:
    fetch = HttpFetch(url)
    try:
        return fetch("checkpoint", MAXIMUM)
    finally:
        fetch.close()


@EACH
def test_the_audit_the_monitor_and_the_log_have_these_bounds(talk: Talk, failure: Failure) -> None:
    with served(talk) as url:
        began = time.monotonic()
        with Client(url) as client, pytest.raises(VerificationError) as caught:
            client.log_file("checkpoint", MAXIMUM)
        assert caught.value.code == "unreachable"
        with pytest.raises(VerificationError) as caught:
            fetched(url)
        too_much = failure in (Failure.LONG, Failure.COMPRESSED)
        assert caught.value.code == ("no-evidence" if too_much else "unreachable")
        if talk is not HOSTILE["one byte too many"][0]:  # a witness may say more
            assert failure.value in str(trouble(url))
        assert time.monotonic() - began < 3 * SECONDS + 3


def trouble(url: str) -> str | None:
    """Why a witness at that address does not cosign the first checkpoint."""
    log, key = PrivateKey.generate("log", bytes(32)), witness_key(PrivateKey.generate("witness", b"w" * 32).public)
    witnesses = Witnesses([WitnessEndpoint(key, url)], 0)
    try:
        note = sign_checkpoint(Checkpoint(log.name, 0, EMPTY_ROOT), log)
        assert witnesses.cosign(note, log.public, LogTree(NoTiles())) == note
        return witnesses.states[key.name].trouble
    finally:
        witnesses.close()


class NoTiles:
    """The tiles of a log without entries."""

    def tile(self, level: int, index: int) -> bytes | None:
        return None
