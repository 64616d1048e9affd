"""Who may read what: every route, asked by those who must not, in ways that it should not be asked."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from engine.api.app import proof_app
from engine.keys.auditors import Auditors
from engine.web.limits import ProofRates, Rate
from fixtures.synthetic import SyntheticProvider
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt

SECRET = "the words that only their owner may read"
PRIVATE = {
    "/v1/sessions/{session}/manifest",
    "/v1/sessions/{session}/receipt",
    "/v1/sessions/{session}/evidence",
    "/v1/sessions/{session}/proofs",
    "/v1/sessions/{session}",
}
PUBLIC = {
    "/", "/lookup", "/verify", "/v1/manifest", "/v1/keys", "/v1/sessions", "/v1/log", "/v1/log/proof",
    "/v1/log/consistency", "/v1/log/entries",
    "/v1/log/entries/{index}", "/v1/sessions/{session}/consistency", "/log/checkpoint", "/log/tile/{path}",
    "/v1/log/reports",  # who may publish there: tests/adversary/test_registry.py
}  # fmt: skip
QUERY = "?old=1&new=1&positions=3&index=0"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyntheticProvider]:
    found = SyntheticProvider(tmp_path_factory.mktemp("access"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def sessions(provider: SyntheticProvider) -> list[tuple[str, str]]:
    """Two sessions: id and reader's capability."""
    receipts = [Receipt.parse(provider.answer(SECRET, 3)) for _ in range(2)]
    provider.publish()
    return [(Head.peek(found.head).session.hex(), (found.capability or b"").hex()) for found in receipts]


@pytest.fixture(scope="module")
def client(provider: SyntheticProvider) -> TestClient:
    rates = ProofRates(Rate(1e6, 1e6), Rate(1e6, 1e6))
    return TestClient(proof_app(provider, rates), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def revoked(provider: SyntheticProvider) -> str:
    register = Auditors(provider.keys.auditors_file)
    register.register("former", "a-token-that-was-good", 1)
    register.revoke("former", 2)
    return "a-token-that-was-good"


def routes(client: TestClient) -> list[tuple[str, str]]:
    paths: dict[str, dict[str, Any]] = client.get("/openapi.json").json()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


def filled(path: str, session: str) -> str:
    return path.replace("{session}", session).replace("{index}", "0").replace("{path}", "0/000.p/2")


def test_every_route_is_known_here(client: TestClient) -> None:
    assert {path for _, path in routes(client)} == PRIVATE | PUBLIC


def test_nothing_private_without_the_right_key(
    client: TestClient, sessions: list[tuple[str, str]], revoked: str, provider: SyntheticProvider
) -> None:
    (session, _), (_, other) = sessions
    wrong: list[dict[str, str]] = [
        {},
        {"X-Verifiable-Capability": other},
        {"X-Verifiable-Capability": "00" * 32},
        {"X-Verifiable-Capability": ""},
        {"X-Verifiable-Capability": "zz" * 32},
        {"X-Verifiable-Capability": "00" * 100_000},
        {"Authorization": f"Bearer {revoked}"},
        {"Authorization": f"Bearer {revoked}", "X-Verifiable-Capability": other},
        {"Authorization": "Bearer "},
        {"Authorization": provider.keys.auditor_key},
        {"Authorization": f"Basic {provider.keys.auditor_key}"},
        {"Authorization": "Bearer \xff\xfe"},
    ]
    walked = 0
    for method, path in routes(client):
        for headers in wrong:
            if path not in PRIVATE:
                continue
            raw = {name: value.encode("latin-1") for name, value in headers.items()}
            answers = [
                client.request(method, filled(path, name) + QUERY, headers=raw)  # type: ignore[arg-type]
                for name in (session, "0" * 32)
            ]
            for answer in answers:
                assert 400 <= answer.status_code < 500, (method, path, headers)
                assert SECRET.encode() not in answer.content
            if answers[0].status_code != 400:  # a header too long is refused before anyone looks
                assert answers[0].status_code == 404
            assert answers[0].content == answers[1].content, "an unknown session and a forbidden one answer alike"
            walked += 1
    assert walked == len(PRIVATE) * len(wrong)


def test_the_right_keys_open_and_public_routes_hold_no_content(
    client: TestClient, sessions: list[tuple[str, str]], provider: SyntheticProvider
) -> None:
    session, capability = sessions[0]
    for headers in (
        {"X-Verifiable-Capability": capability},
        {"Authorization": f"Bearer {provider.keys.auditor_key}"},
    ):
        url = f"/v1/sessions/{session}"
        for path in ("manifest", "receipt", "evidence", "evidence?kind=full", "proofs?positions=3"):
            answer = client.get(f"{url}/{path}", headers=headers)
            assert answer.status_code == 200, path
            assert answer.headers["cache-control"] == "no-store"
    for method, path in routes(client):
        if path in PUBLIC and method == "get":
            answer = client.get(filled(path, session) + QUERY)
            assert SECRET.encode() not in answer.content
            assert bytes.fromhex(capability) not in answer.content
            assert capability.encode() not in answer.content


def test_a_revoked_key_stops_at_the_next_request(
    client: TestClient, sessions: list[tuple[str, str]], provider: SyntheticProvider
) -> None:
    register = Auditors(provider.keys.auditors_file)
    register.register("visitor", "visitors-token", 1)
    url, headers = f"/v1/sessions/{sessions[0][0]}/evidence", {"Authorization": "Bearer visitors-token"}
    assert client.get(url, headers=headers).status_code == 200
    register.revoke("visitor", 2)
    assert client.get(url, headers=headers).status_code == 404


def test_what_the_store_says_of_its_files_is_for_the_operator_alone(
    client: TestClient,
    sessions: list[tuple[str, str]],
    provider: SyntheticProvider,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = provider.keys.auditors_file
    kept = file.read_bytes()
    file.write_bytes(kept + b"damaged\n")
    try:
        answer = client.get(f"/v1/sessions/{sessions[0][0]}/evidence", headers={"Authorization": "Bearer any"})
    finally:
        file.write_bytes(kept)
    assert answer.status_code == 500
    assert str(file.parent) not in answer.text
    assert "log says more" in answer.text
    assert str(file) in caplog.text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD", "PROPFIND"])
def test_wrong_methods_are_refused(client: TestClient, sessions: list[tuple[str, str]], method: str) -> None:
    allowed = {(name.upper(), path) for name, path in routes(client)}
    for path in PRIVATE | PUBLIC:
        if (method, path) not in allowed:
            answer = client.request(method, filled(path, sessions[0][0]) + QUERY)
            assert 400 <= answer.status_code < 500, (method, path)


@pytest.mark.parametrize(
    "path",
    [
        "/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/log/..%2f..%2f..%2fetc%2fpasswd",
        "/log/tile/%2e%2e/keys/log.key",
        "/v1/sessions/..%2f..%2fkeys", "/v1/sessions/%00/receipt", "/v1/sessions//receipt", "/v1//sessions/x",
        "/v1/sessions/" + "0" * 32 + "/../" + "1" * 32 + "/receipt/x", "/v1/sessions/" + "A" * 32 + "/receipt",
        "/v1/sessions/" + "0" * 31 + "/receipt", "/v1/sessions/" + "٠" * 32 + "/receipt", "/" + "a" * 60_000,
        "/v1/sessions/" + "0" * 50_000 + "/receipt", "/static/app.js", "/docs", "/redoc", "/.git/config",
        "/keys/provider.key",
        "/log/tile/0/" + "x999/" * 9000 + "000", "/v1/log/entries/-1", "/v1/log/entries/99999999999999999999999999",
        "/v1/log/entries/1e3", "/v1/log/proof?index=99999999999999999999", "/v1/log/proof?index=-1", "/v1/log/proof",
        "/v1/log/proof?session=x", "/v1/log/proof?index=0&size=99999999", "/v1/log/proof?index=0&session=x&head=1",
        "/v1/log/consistency", "/v1/log/consistency?old=x", "/v1/log/consistency?old=9999", "/v1/sessions?limit=0",
        "/v1/log/entries", "/v1/log/entries?indices=" + "9" * 9000, "/v1/log/entries?indices=0,٠",
        "/v1/sessions?limit=1001", "/v1/sessions?before=0", "/v1/sessions?before=99999999999999999999",
        "/v1/sessions?limit=" + "1" * 5000,
    ],
)  # fmt: skip
def test_tricks_with_paths_and_numbers_are_refused(client: TestClient, path: str) -> None:
    answer = client.get(path, follow_redirects=False)
    assert 400 <= answer.status_code < 500 or answer.status_code == 307, path
    assert b"PRIVATE+KEY" not in answer.content
    assert b"Traceback" not in answer.content


@pytest.mark.parametrize("query", ["positions=" + "1," * 5000 + "1", "positions=-1", "positions=x", "positions=", ""])
def test_oversized_and_malformed_queries_are_refused(
    client: TestClient, sessions: list[tuple[str, str]], query: str
) -> None:
    headers = {"X-Verifiable-Capability": sessions[0][1]}
    answer = client.get(f"/v1/sessions/{sessions[0][0]}/proofs?{query}", headers=headers)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert len(answer.content) < 2000


def test_a_wrong_capability_is_compared_where_there_is_no_session_too(
    client: TestClient, sessions: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same work, so that the time taken tells nothing; hmac sees to that of the comparison itself."""
    compared: list[int] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(len(one))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr("engine.sessions.sessions.hmac", SimpleNamespace(compare_digest=compare))
    answers = [
        client.get(f"/v1/sessions/{session}/receipt", headers={"X-Verifiable-Capability": "00" * 32})
        for session in (sessions[0][0], "0" * 32)
    ]
    assert compared == [32] * 4
    assert len({answer.content for answer in answers}) == 1


def test_the_page_says_nothing_private(client: TestClient, sessions: list[tuple[str, str]]) -> None:
    page = client.get("/").text
    assert sessions[0][0] in page
    assert not any(capability in page for _, capability in sessions)
    assert SECRET not in page
    assert not re.search(r"<script|https?://(?!testserver)", page)
