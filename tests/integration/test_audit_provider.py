"""Auditing a provider over HTTP, honest and hostile: the lottery, and every way to waste an auditor's time."""

from __future__ import annotations

import base64
import functools
import gzip
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.made_up_model import MadeUpModel
from tests.sessions import SESSION, TRUST, Recording, made_up
from tests.simulator import KEY, Answer, Provider, honest, other_model, seed, send, serve
from verifiable import limits
from verifiable.checking.checks import check_receipt
from verifiable.checking.verdict import Status
from verifiable.errors import PolicyError, VerificationError
from verifiable.net import client as net
from verifiable.session.evidence import Evidence
from verifier.campaign.campaign import audit_provider
from verifier.campaign.fetched import Auditor, Fetched, audit_session
from verifier.campaign.outcome import Outcome
from verifier.provider.client import Client


@pytest.fixture
def auditor(tmp_path: Path) -> Auditor:
    return Auditor(MadeUpModel(), TRUST, tmp_path / "kept")


def test_drawn_sessions_are_audited(auditor: Auditor) -> None:
    provider = Provider([honest(number) for number in range(8)])
    with serve(provider) as url, Client(f"{url}/v1/", auditor_key=KEY) as client:
        verdicts, draw = audit_provider(auditor, client, 5, seed)
        again, _ = audit_provider(auditor, client, 5, seed)
        everything, whole = audit_provider(auditor, client, 100, seed)
    assert [verdict.status for verdict in verdicts] == [Status.EXACT] * 5
    assert (draw.population, draw.drawn) == (8, 5)
    assert [verdict.session for verdict in again] == [verdict.session for verdict in verdicts]
    assert len(everything) == whole.drawn == 8
    outcome = Outcome("url", tuple(verdicts), draw)
    assert outcome.status is Status.EXACT
    assert any("3 of 8" in note for note in outcome.limits())
    assert not auditor.saved
    assert not any("size=" not in path for path in provider.asked if "evidence" in path)


def test_the_seed_is_drawn_after_the_list() -> None:
    provider = Provider([honest(number) for number in range(4)])
    order: list[str] = []

    def late() -> bytes:
        order.extend(provider.asked)
        return b"x" * 32

    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        audit_provider(Auditor(MadeUpModel(), TRUST, Path("unused")), client, 1, late)
    assert order == [path for path in provider.asked if "/evidence" not in path]


def test_a_cheat_in_some_sessions_is_found_there_and_its_evidence_kept(auditor: Auditor) -> None:
    provider = Provider([honest(number, other_model if number == 3 else made_up) for number in range(6)])
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        verdicts, draw = audit_provider(auditor, client, 6, seed)
    failed = [verdict for verdict in verdicts if verdict.status is Status.FAILED]
    assert [(verdict.session, verdict.code, verdict.token) for verdict in failed] == [("03" * 16, "logits-differ", 0)]
    assert Outcome("url", tuple(verdicts), draw).status is Status.FAILED
    assert sorted(Path(path).name for path in auditor.saved) == [
        "030303030303-turn0-full.evidence",
        "030303030303.evidence",
    ]
    from verifier import audit

    for path in auditor.saved:
        assert audit(Path(path).read_bytes(), MadeUpModel(), TRUST).status is Status.FAILED


def test_turns_are_drawn_too(auditor: Auditor) -> None:
    provider = Provider([honest(number, turns=5) for number in range(2)])
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        verdicts, _ = audit_provider(auditor, client, 2, seed, turns=2)
    assert [verdict.tokens_total for verdict in verdicts] == [10, 10]
    assert all(any("not opened by the evidence" in note for note in verdict.not_shown) for verdict in verdicts)


def test_without_the_right_key_nothing_is_shown(auditor: Auditor) -> None:
    made = honest(1)
    with serve(Provider([made])) as url:
        for key in (None, "wrong"):
            with Client(url, auditor_key=key) as client:
                verdicts, draw = audit_provider(auditor, client, 3, seed)
            assert [(verdict.status, verdict.code) for verdict in verdicts] == [(Status.INCONCLUSIVE, "no-evidence")]
            assert Outcome("url", tuple(verdicts), draw).status is Status.INCONCLUSIVE
        with Client(url, capability=made.capability) as client:
            wanted = Fetched(made.session, receipt=check_receipt(made.receipt(), TRUST))
            assert audit_session(auditor, client, wanted).status is Status.EXACT


def test_a_provider_without_sessions_is_no_pass(auditor: Auditor) -> None:
    with serve(Provider([])) as url, Client(url, auditor_key=KEY) as client:
        verdicts, draw = audit_provider(auditor, client, 3, seed)
    assert Outcome("url", tuple(verdicts), draw).status is Status.INCONCLUSIVE


def test_the_list_and_the_evidence_must_belong_together(auditor: Auditor) -> None:
    made, other = honest(1), honest(1, other_model)

    def listing(**changes: Any) -> Callable[[str, bytes], bytes]:
        def change(path: str, body: bytes) -> bytes:
            if path != "/v1/sessions":
                return body
            page = json.loads(body)
            page["sessions"][0] |= changes
            return json.dumps(page).encode()

        return change

    def head(recording: Recording, **changes: Any) -> str:
        signed = replace(recording.log.head(1_800_000_005_000), **changes).sign(SESSION)
        return base64.urlsafe_b64encode(signed).decode().rstrip("=")

    for changes, code in (
        ({"size": 3}, "list-differs"),
        ({"head": head(made, size=3)}, "list-differs"),
        ({"head": head(other)}, "two-histories"),
        ({"head": head(honest(2))}, "list-differs"),
        ({"head": "AAAA"}, "list-differs"),
    ):
        provider = Provider([made])
        provider.change = listing(**changes)
        with serve(provider) as url, Client(url, auditor_key=KEY) as client:
            verdicts, _ = audit_provider(auditor, client, 1, seed)
        status = Status.FAILED if code == "two-histories" else Status.INCONCLUSIVE
        assert [(verdict.status, verdict.code) for verdict in verdicts] == [(status, code)]


def test_another_sessions_evidence_does_not_pass(auditor: Auditor) -> None:
    provider = Provider([honest(1)])
    provider.change = lambda path, body: honest(2).evidence().encode() if "evidence" in path else body
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        verdicts, _ = audit_provider(auditor, client, 1, seed)
    assert (verdicts[0].status, verdicts[0].code) == (Status.INCONCLUSIVE, "no-evidence")


# Hostile servers.


def bound(monkeypatch: pytest.MonkeyPatch, **values: float) -> None:
    for name, value in values.items():
        monkeypatch.setattr(net if hasattr(net, name) else limits, name, value)


def fails(answer: Answer, code: str = "unreachable") -> VerificationError:
    began = time.monotonic()
    with serve(answer) as url, Client(url) as client, pytest.raises(VerificationError) as caught:
        client.evidence(b"\1" * 16)
    assert caught.value.code == code
    assert time.monotonic() - began < 8
    return caught.value


def test_endless_answers_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, EVIDENCE_BYTES=1 << 20)

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65536)

    assert "too long" in str(fails(endless))
    assert "too long" in str(fails(lambda handler: send(handler, b"x" * (2 << 20))))


def test_slow_answers_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, TOTAL_SECONDS=1.0, QUIET_SECONDS=0.5)

    def silent(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(3)

    def dripping_body(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b"x")
            time.sleep(0.1)

    def dripping_headers(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        for _ in range(100):
            handler.wfile.write(b"x")
            time.sleep(0.1)

    fails(silent)
    assert "too slow" in str(fails(dripping_body))
    assert "too slow" in str(fails(dripping_headers))


def test_compressed_answers_are_refused() -> None:
    bomb = gzip.compress(b"\0" * (8 << 20))
    assert "compressed" in str(fails(lambda handler: send(handler, bomb, Content_Encoding="gzip")))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        send(handler, b"secret")

    with serve(answer) as elsewhere:
        error = fails(lambda handler: send(handler, b"", status, Location=f"{elsewhere}/x"))
    assert "elsewhere" in str(error)
    assert not asked


REFUSALS = [(401, "no-evidence"), (404, "no-evidence"), (429, "unreachable"), (500, "unreachable")]


@pytest.mark.parametrize(("status", "code"), REFUSALS)
def test_refusals_have_their_code(status: int, code: str) -> None:
    fails(lambda handler: send(handler, b"{}", status), code)


def test_broken_protocol_is_unreachable() -> None:

    def nonsense(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"nonsense\r\n\r\n")

    fails(nonsense)
    fails(lambda handler: setattr(handler, "close_connection", True))
    with Client("http://127.0.0.1:9") as client, pytest.raises(VerificationError) as caught:
        client.manifest()
    assert caught.value.code == "unreachable"


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"[]",
        b"{}",
        b'{"sessions":{}}',
        b'{"sessions":[5]}',
        b'{"sessions":[{"id":"../../x","size":1,"opened":1,"head":""}]}',
        b'{"sessions":[{"id":"' + b"a" * 32 + b'","size":-1,"opened":1,"head":""}]}',
        b'{"sessions":[{"id":"' + b"a" * 32 + b'","size":1,"opened":true,"head":""}]}',
        b'{"sessions":[{"id":"' + b"a" * 32 + b'","size":1,"opened":1,"head":"***"}]}',
        b'{"sessions":[' + b'{"id":"' + b"a" * 32 + b'","size":1,"opened":1,"head":""},' * 2 + b"0]}",
        b'{"sessions":[],"next":5}',
        b'{"sessions":[],"next":"' + b"x" * 300 + b'"}',
        b"[" * 10_000,
    ],
)
def test_lists_that_are_none_say_nothing(page: bytes) -> None:
    no_list(page)


def no_list(*pages: bytes) -> None:
    """Nobody signs a list, so one that is none shows nothing against the provider: it is as if none had come."""
    left = list(pages)
    with (
        serve(lambda handler: send(handler, left.pop(0) if len(left) > 1 else left[0])) as url,
        Client(url) as client,
        pytest.raises(VerificationError) as caught,
    ):
        client.sessions(10)
    assert caught.value.code == "unreachable"


ENTRY = b'{"id":"' + b"a" * 32 + b'","size":%s,"opened":1,"head":""}'


@pytest.mark.parametrize(
    "page",
    [
        b'data: {"sessions":[],"next":null}\n\ndata: [DONE]\n\n',
        b'{"sessions":[' + ENTRY % b"1e400" + b"]}",
        b'{"sessions":[' + ENTRY % b"NaN" + b"]}",
        b'{"sessions":[' + ENTRY % (b"9" * 5000) + b"]}",
        b'{"sessions":[' + ENTRY % (b"[" * 50_000 + b"]" * 50_000) + b"]}",
        b'{"sessions":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
        b'{"sessions":[],"next":null}' * 2,
        b"\xff\xfe{\x00",
        b'{"sessions":[' + b",".join([ENTRY % b"1"] * 1001) + b"]}",
    ],
    ids=["events", "infinite", "nan", "digits", "deep list", "deep map", "two", "utf-16", "more than a page"],
)
def test_lists_made_to_hurt_say_nothing(page: bytes) -> None:
    began = time.monotonic()
    no_list(page)
    assert time.monotonic() - began < 8


def raw(*parts: bytes, again: int = 1, pause: float = 0.0) -> Answer:
    """A server that writes these bytes and nothing else, the last of them again and again."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        for part in (*parts[:-1], *[parts[-1]] * again):
            handler.wfile.write(part)
            time.sleep(pause)

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
BROKEN: list[tuple[str, Answer]] = [
    ("a longer body announced", raw(OK + b"Content-Length: 1000\r\n\r\n", b"short")),
    ("a negative length", raw(OK + b"Content-Length: -5\r\n\r\nabc")),
    ("two lengths", raw(OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef")),
    ("a length that is no number", raw(OK + b"Content-Length: many\r\n\r\nabc")),
    ("a chunk that is no chunk", raw(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n")),
    ("a chunk that never comes", raw(OK + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\nabc")),
    ("an unknown coding", raw(OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")),
    ("headers without end", raw(OK, b"X-Filler: " + b"x" * 1000 + b"\r\n", again=2000)),
    ("one header without end", raw(OK + b"X-Filler: ", b"x" * 1000, again=2000)),
    ("a status that is none", raw(b"HTTP/1.1 99999 Well\r\n\r\n")),
    ("a switch of protocols", raw(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n")),
    ("hints without end", raw(b"HTTP/1.1 103 Early Hints\r\n\r\n", again=400, pause=0.01)),
    (
        "events without end",
        raw(OK + b"Content-Type: text/event-stream\r\n\r\n", b"data: {}\n\n", again=400, pause=0.01),
    ),
]


@pytest.mark.parametrize("answer", [answer for _, answer in BROKEN], ids=[name for name, _ in BROKEN])
def test_answers_that_break_http_end_within_limits(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, TOTAL_SECONDS=1.5, QUIET_SECONDS=1.0)
    fails(answer)


def test_what_follows_an_answer_is_not_taken_for_the_next_one() -> None:
    """Two answers where one was asked for: the second is nobody's."""
    made = honest(1)
    page = Provider([made]).page({})
    forged = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"

    def smuggling(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.startswith("/v1/sessions?"):
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page)
            handler.wfile.write(head + page + forged)
        else:
            send(handler, made.evidence().encode())

    with serve(smuggling) as url, Client(url) as client:
        assert len(client.sessions(10)) == 1
        assert client.evidence(made.session) == made.evidence().encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x81" * 5000,
        b"\xa1\x01" * 5000,
        b"\x9b" + b"\xff" * 8,
        b"\x5b" + b"\xff" * 8,
        b"\xbb" + b"\xff" * 8,
        b"\xd8\x12" * 3000,
        b"data: {}\n\n",
        b"\x98\xff" + b"\x80" * 255,
        b"\x9a\x00\xff\xff\xff" + b"\x01" * (1 << 24),
    ],
    ids=["nothing", "deep lists", "deep maps", "items", "bytes", "pairs", "tags", "events", "small lists", "ones"],
)
def test_evidence_made_to_hurt_is_none(auditor: Auditor, data: bytes) -> None:
    provider = Provider([honest(1)])
    provider.change = lambda path, body: data if "evidence" in path else body
    began = time.monotonic()
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        (verdict,), _ = audit_provider(auditor, client, 1, seed)
        receipt = check_receipt(honest(1).receipt(), TRUST)
        again = audit_session(auditor, client, Fetched(receipt.session.head.session, receipt=receipt))
    for each in (verdict, again):
        assert (each.status, each.code) == (Status.INCONCLUSIVE, "unreachable")
    assert time.monotonic() - began < 20


def test_a_provider_that_answers_differently_each_time_is_told_by_what_it_signed(auditor: Auditor) -> None:
    """Every second answer is of a cheating history: the session fails, or what was audited holds."""
    made, other = honest(1), honest(1, other_model)
    found = set()
    for first in (0, 1):
        turns = itertools.count(first)

        def flapping(path: str, body: bytes, turns: Iterator[int] = turns) -> bytes:
            if not path.endswith("/evidence"):
                return body
            kind = Evidence.parse(body).kind
            return (made, other)[next(turns) % 2].evidence(kind).encode()

        provider = Provider([made])
        provider.change = flapping
        with serve(provider) as url, Client(url, auditor_key=KEY) as client:
            (verdict,), _ = audit_provider(auditor, client, 1, seed)
        found.add((verdict.status, verdict.code))
    assert found == {(Status.EXACT, None), (Status.FAILED, "two-histories")}


def test_a_list_that_goes_in_circles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, PAGES=20)
    cursors = iter(range(10**6))

    def pages(handler: BaseHTTPRequestHandler) -> None:
        send(handler, b'{"sessions":[],"next":"%d"}' % next(cursors))

    with serve(pages) as url, Client(url) as client, pytest.raises(VerificationError, match="too many pages"):
        client.sessions(10)  # what was read of it is not the list
    page = b'{"sessions":[],"next":"same"}'
    no_list(page)
    first = b'{"sessions":[' + ENTRY % b"1" + b'],"next":"%d"}'
    no_list(first % 1, first % 2, b'{"sessions":[],"next":null}')


@pytest.mark.parametrize(
    "base",
    ["", "provider", "ftp://x", "file:///etc/passwd", "http://", "http://a:b@host", "http://host/?x=1", "http://h/#f"],
)
def test_addresses_that_are_none_are_refused(base: str) -> None:
    with pytest.raises(PolicyError):
        Client(base)


def test_evidence_for_gigabytes_of_tokens_is_refused(auditor: Auditor) -> None:
    """A count is no allocation: what is not there is not read."""
    made = honest(1)
    evidence = made.evidence()
    part = evidence.turns[0]
    assert part.tokens is not None
    for count in (limits.ANSWER_TOKENS, 2**31):
        lying = replace(evidence, turns=(replace(part, tokens=replace(part.tokens, count=count)),))
        provider = Provider([made])
        data = lying.encode()
        provider.change = functools.partial(lambda data, path, body: data if "evidence" in path else body, data)
        with serve(provider) as url, Client(url, auditor_key=KEY) as client:
            verdicts, _ = audit_provider(auditor, client, 1, seed)
        assert verdicts[0].code == "unreachable"
