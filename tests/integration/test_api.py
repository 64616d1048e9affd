"""The provider over real HTTP: the official OpenAI client, and everything that can be wrong with a request."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from engine.engine import Engine, EngineSettings
from engine.scheduling.scheduler import SchedulerSettings
from tests.integration import serving
from verifiable.checking.checks import check_evidence, check_receipt
from verifiable.errors import VerifiableError
from verifiable.llama.settings import RuntimeSettings
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.receipt import Receipt
from verifiable.session.records import Finish

KEY = "sk-test"
QUESTION: Any = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def engine(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    settings = EngineSettings(
        runtime=RuntimeSettings(n_ctx=256),
        scheduler=SchedulerSettings(slots=2, queue=2),
        drafter="ngram",
        name="acme",
    )
    with Engine(smollm2, tmp_path_factory.mktemp("provider"), settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving.http(engine, [KEY]) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as session:
        yield session


def receipt_of(answer: Any) -> Receipt:
    text = answer.verifiable["receipt"]
    return Receipt.parse(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def idle(engine: Engine) -> None:
    deadline = time.monotonic() + 20
    while engine.scheduler.load() != (0, 0):
        assert time.monotonic() < deadline, "a slot was not freed"
        time.sleep(0.01)


def test_whole_answer_has_a_receipt(client: openai.OpenAI, engine: Engine) -> None:
    answer = client.chat.completions.create(
        model=engine.model_name,
        messages=QUESTION,
        max_tokens=24,
        temperature=0,
        extra_body={"verifiable": {"nonce": "00" * 8}},
    )
    text = answer.choices[0].message.content
    assert text
    session = check_receipt(receipt_of(answer), [engine.keys.provider.public], text).session
    end = session.spans[0].end
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (end.prompt_count, end.completion_count)
    assert session.closed
    assert answer.choices[0].finish_reason == {Finish.STOP: "stop", Finish.LENGTH: "length"}[end.finish]


def test_stream_equals_whole_and_ends_with_receipt_and_usage(client: openai.OpenAI, engine: Engine) -> None:
    body: dict[str, Any] = {
        "model": engine.model_name,
        "messages": QUESTION,
        "max_tokens": 24,
        "temperature": 0.8,
        "seed": 7,
        "logprobs": True,
        "top_logprobs": 3,
    }
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    usage = chunks[-1]
    assert usage.choices == []
    assert usage.usage is not None
    last = chunks[-2]
    assert last.choices[0].finish_reason is not None
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    session = check_receipt(receipt_of(last), [engine.keys.provider.public], text).session
    assert usage.usage.completion_tokens == session.spans[0].end.completion_count
    shown = [entry for chunk in chunks[:-1] if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert len(shown) == usage.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in shown)
    whole = client.chat.completions.create(**body)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content is not None
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens


def test_same_seed_same_prompt_same_text(http: httpx.Client, engine: Engine) -> None:
    """Whatever else a request says that is not about sampling; and each time it can be audited (the engine's own)."""
    asked = {"messages": QUESTION, "temperature": 0.9, "seed": -3, "max_tokens": 12}

    def text(**changes: Any) -> str:
        answer = http.post("/v1/chat/completions", json={**asked, **changes}).raise_for_status()
        if not changes.get("stream"):
            return str(answer.json()["choices"][0]["message"]["content"])
        chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])

    first = text()
    for changes in (
        {},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"user": "somebody", "metadata": {"trace": "1"}},
        {"logprobs": True, "top_logprobs": 3},
        {"verifiable": {"session": "new"}},
        {"verifiable": {"commitments": "none"}},
        {"verifiable": {"manifest": engine.manifest.digest().hex(), "turn": 0}},
    ):
        assert text(**changes) == first
    assert text(max_tokens=5) != first
    assert first.startswith(text(max_tokens=5))
    assert text(seed=-4) != first


def test_a_request_is_answered_in_its_place_and_under_its_manifest_or_not_at_all(
    http: httpx.Client, engine: Engine
) -> None:
    def ask(extra: dict[str, Any], capability: str = "") -> httpx.Response:
        body = {"messages": QUESTION, "max_tokens": 4, "verifiable": extra}
        return http.post("/v1/chat/completions", json=body, headers={"X-Verifiable-Capability": capability})

    def refused(answer: httpx.Response, param: str) -> str:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (409, param)
        assert engine.scheduler.load() == (0, 0)
        return str(error["message"])

    digest = engine.manifest.digest().hex()
    alone = ask({"manifest": digest}).json()["verifiable"]
    assert (alone["turn"], alone["next_turn"], alone["capability"]) == (0, None, None)
    assert digest in refused(ask({"manifest": "00" * 32}), "verifiable.manifest")
    assert "its next turn is 0" in refused(ask({"turn": 1}), "verifiable.turn")
    refused(ask({"session": "new", "turn": 1}), "verifiable.turn")
    first = ask({"session": "new", "turn": 0}).json()["verifiable"]
    assert (first["turn"], first["next_turn"]) == (0, 1)
    on, capability = {"session": first["session"]}, first["capability"]
    assert "its next turn is 1" in refused(ask({**on, "turn": 0}, capability), "verifiable.turn")
    second = ask({**on, "turn": first["next_turn"]}, capability).json()["verifiable"]
    assert (second["turn"], second["next_turn"]) == (1, 2)
    refused(ask({**on, "turn": 1}, capability), "verifiable.turn")


def test_a_session_of_two_turns(client: openai.OpenAI, engine: Engine, http: httpx.Client) -> None:
    first = client.chat.completions.create(
        model=engine.model_name, messages=QUESTION, max_tokens=8, extra_body={"verifiable": {"session": "new"}}
    )
    kept = receipt_of(first)
    session = first.verifiable["session"]  # type: ignore[attr-defined]
    said = {"role": "assistant", "content": first.choices[0].message.content}
    messages = [*QUESTION, said, {"role": "user", "content": "One more."}]
    again = {"model": engine.model_name, "messages": messages, "max_tokens": 8, "verifiable": {"session": session}}
    assert http.post("/v1/chat/completions", json=again).status_code == 404  # without the capability: unknown
    headers = {"X-Verifiable-Capability": first.verifiable["capability"]}  # type: ignore[attr-defined]
    second = http.post("/v1/chat/completions", json=again, headers=headers).json()
    assert second["verifiable"]["session"] == session
    assert second["verifiable"]["turn"] == 1
    assert second["verifiable"]["capability"] == headers["X-Verifiable-Capability"]
    data = http.get(f"/v1/sessions/{session}/evidence", params={"kind": "full"}, headers=headers).content
    opened = check_evidence(Evidence.parse(data), [engine.keys.provider.public])
    assert [turn.number for turn in opened.turns] == [0, 1]
    assert not opened.session.closed
    check_receipt(kept, [engine.keys.provider.public], first.choices[0].message.content or "")


def test_evidence_and_proofs_need_the_capability(client: openai.OpenAI, engine: Engine, http: httpx.Client) -> None:
    answer = client.chat.completions.create(model=engine.model_name, messages=QUESTION, max_tokens=8)
    receipt, session = receipt_of(answer), answer.verifiable["session"]  # type: ignore[attr-defined]
    reader = (receipt.capability or b"").hex()
    good = {"X-Verifiable-Capability": reader}
    auditor = {"Authorization": f"Bearer {engine.keys.auditor_key}"}
    for path in ("receipt", "evidence", "manifest", "proofs?positions=60"):
        refused = [
            http.get(f"/v1/sessions/{session}/{path}", headers={"X-Verifiable-Capability": bad})
            for bad in ("", "00" * 32, "zz", reader[:-2])
        ]
        unknown = http.get(f"/v1/sessions/{'0' * 32}/{path}", headers=good)
        assert {response.status_code for response in [*refused, unknown]} == {404}
        assert len({response.text for response in [*refused, unknown]}) == 1
    for headers in (good, auditor):
        data = http.get(f"/v1/sessions/{session}/evidence", headers=headers)
        evidence = Evidence.parse(data.content)
        assert evidence.kind is Kind.TOKENS
        assert data.headers["cache-control"] == "no-store"
    position = check_receipt(receipt, [engine.keys.provider.public]).session.spans[0].turn.prompt_count
    shown = Evidence.parse(http.get(f"/v1/sessions/{session}/proofs?positions={position}", headers=good).content)
    turns = check_evidence(shown, [engine.keys.provider.public]).turns
    assert [token.position for token in turns[0].shown.values()] == [position]
    listed = http.get("/v1/sessions").json()["sessions"]
    assert session in {entry["id"] for entry in listed}


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"temperature": "hot"}, 400, "temperature"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 1.5}, 400, "top_p"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"n": 2}, 400, "n"),
        ({"colour": "red"}, 400, "colour"),
        ({"logit_bias": {"49152": 5}}, 400, "logit_bias"),
        ({"logit_bias": {"1": 101}}, 400, "logit_bias"),
        ({"logit_bias": {"one": 1}}, 400, "logit_bias"),
        ({"frequency_penalty": 2.5}, 400, "frequency_penalty"),
        ({"repeat_penalty": 0}, 400, "repeat_penalty"),
        ({"ignore_eos": 1}, 400, "ignore_eos"),
        ({"mirostat": 2}, 400, "mirostat"),
        ({"response_format": {"type": "xml"}}, 400, "response_format"),
        ({"grammar": "root ::= ("}, 400, "grammar"),
        ({"grammar": 'root ::= "a"{3,2}'}, 400, "grammar"),
        ({"grammar": "root ::= " + '"a" | ' * 10000 + '"b"'}, 400, "grammar"),
        ({"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}, 400, "grammar"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
        ({"model": "gpt-4"}, 404, "model"),
        ({"verifiable": {"nonce": "xyz"}}, 400, "verifiable.nonce"),
        ({"verifiable": {"session": "0" * 32}}, 404, None),
        ({"verifiable": {"turn": -1}}, 400, "verifiable.turn"),
        ({"verifiable": {"manifest": "AB" * 32}}, 400, "verifiable.manifest"),
        ({"verifiable": {"commitments": "none", "turn": 1}}, 400, "verifiable.commitments"),
        ({"verifiable": {"commitments": "none", "session": "new"}}, 400, "verifiable.commitments"),
        ({"stop": [""]}, 400, "stop"),
        ({"messages": [{"role": "user", "content": "word " * 600}]}, 400, "messages"),
    ],
)
def test_bad_requests_are_refused_by_name(
    http: httpx.Client, engine: Engine, change: dict[str, Any], status: int, param: str | None
) -> None:
    body = {"model": engine.model_name, "messages": QUESTION, "max_tokens": 4, **change}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"]
    assert error["code"]
    assert engine.scheduler.load() == (0, 0)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff\xfe", b'{"a":1,"a":2}', b'{"temperature": NaN}', b"[" * 100000]
)
def test_bodies_that_are_not_json_objects(http: httpx.Client, data: bytes) -> None:
    response = http.post("/v1/chat/completions", content=data)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "malformed"


def test_keys_routes_and_methods(url: str) -> None:
    body = {"messages": QUESTION, "max_tokens": 1}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY + "x"}):
        refused = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(f"{url}/nowhere").json()["error"]["code"] == "not_found"
    assert httpx.put(f"{url}/v1/sessions").status_code == 405
    assert httpx.get(f"{url}/health").json()["status"] == "ok"
    assert httpx.get(f"{url}/v1/sessions?limit=0").status_code == 400


def test_a_client_that_leaves_frees_its_slot(http: httpx.Client, engine: Engine) -> None:
    body = {"messages": QUESTION, "max_tokens": 200, "stream": True, "temperature": 1.5}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        chunks = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
        next(chunk for chunk in chunks if chunk["choices"][0]["delta"].get("content"))
    idle(engine)
    newest = engine.store.sessions(1)[0][1]
    engine.store.flush()
    evidence = engine.evidence.evidence(newest, Kind.TOKENS)
    opened = check_evidence(evidence, [engine.keys.provider.public]).session
    assert opened.closed
    assert opened.spans[0].end.finish is Finish.CANCELLED


def test_more_requests_than_slots_and_queue(engine: Engine, url: str) -> None:
    body = {"messages": QUESTION, "max_tokens": 60, "temperature": 1.0}
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(
            httpx.post(f"{url}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=120)
        )

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = sorted(answer.status_code for answer in answers)
    assert codes.count(200) >= 4
    assert set(codes) <= {200, 503}
    assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 503)
    idle(engine)


GENERATING = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name}"}


def test_generating_needs_an_api_key_on_every_route(url: str, engine: Engine) -> None:
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Bearer {engine.keys.auditor_key}"},
        {"X-Verifiable-Capability": "00" * 32},
    ]
    with httpx.Client(base_url=url, timeout=60) as session:
        paths = session.get("/openapi.json").json()["paths"]
        assert set(paths) >= GENERATING
        walked = 0
        for path, methods in paths.items():
            filled = path.replace("{name}", engine.model_name).replace("{session}", "0" * 32).replace("{index}", "0")
            for method in {"get", "post", "put", "patch", "delete"} - set(methods):
                assert session.request(method, filled).status_code == 405, (method, path)
            for method in methods if path in GENERATING else ():
                for headers in wrong:
                    answer = session.request(method, filled, headers=headers, content=b"{}")
                    assert answer.status_code == 401, (method, path, headers)
                    walked += 1
        assert walked == len(wrong) * len(GENERATING)
        for trick in (
            "//v1/models",
            "/v1//models",
            "/v1/./models",
            "/%76%31/models/",
            "/v1/models/..%2f",
            "/v1/models%00",
        ):
            assert 400 <= session.get(trick, follow_redirects=True).status_code < 500, trick
        oversized = session.post(
            "/v1/completions", content=b" " * (17 << 20), headers={"Authorization": f"Bearer {KEY}"}
        )
        assert 400 <= oversized.status_code < 500
    assert engine.scheduler.load() == (0, 0)


def test_a_file_that_cannot_be_served_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(60))
    for name in ("bad.gguf", "missing.gguf"):
        with pytest.raises(VerifiableError):
            Engine(tmp_path / name, tmp_path / "data")
    assert not (tmp_path / "data").exists()
