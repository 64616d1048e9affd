"""Schemathesis over the whole OpenAPI document: no answer that the document does not promise, and never a 5xx."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from engine.api.app import make_app, proof_app
from engine.engine import Engine, EngineSettings
from engine.scheduling.scheduler import SchedulerSettings
from engine.web.limits import ProofRates, Rate
from verifiable.errors import PolicyError
from verifiable.llama.settings import RuntimeSettings
from verifiable.request.request import CHAT, COMPLETION, parse_body

EXAMPLES = 8
# Left out: the check that whatever fits the document is accepted. "index, or session and head" and "a size that was
# published" are rules that OpenAPI can't say.


def told(error: BaseException) -> str:
    """An error and those in it."""
    inner = "\n".join(map(told, error.exceptions)) if isinstance(error, BaseExceptionGroup) else ""
    return f"{error}\n{inner}"


@pytest.fixture(scope="module")
def engine(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    runtime = RuntimeSettings(n_ctx=64, n_seq_max=2)
    made = EngineSettings(runtime=runtime, scheduler=SchedulerSettings(slots=2))
    with Engine(smollm2, tmp_path_factory.mktemp("openapi"), made) as found:
        found.chat([{"role": "user", "content": "hi"}], max_tokens=2)
        yield found


def test_every_operation_keeps_its_promises(engine: Engine) -> None:
    document: Any = schemathesis.openapi.from_asgi("/openapi.json", make_app(engine))
    walked, broken = 0, []
    for found in document.get_all_operations():
        operation = found.ok()

        @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def keeps(case: Any) -> None:
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        try:
            keeps()
        except (Exception, BaseExceptionGroup) as error:
            broken.append(f"{operation.label}: {told(error)}")
        walked += 1
    assert not broken, "\n\n".join(broken)
    assert walked >= 16


def test_the_document_names_every_route_with_a_summary_and_its_refusals(engine: Engine) -> None:
    paths = make_app(engine).openapi()["paths"]
    assert len(paths) >= 16
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert operation.get("summary"), (method, path)
            assert operation["responses"], (method, path)


def test_every_route_with_a_limit_says_so(engine: Engine) -> None:
    """Each is called once too often: what the document promises is what comes."""
    app = proof_app(engine, ProofRates(*[Rate(1e-9, 0)] * 3))
    client = TestClient(app)
    called = 0
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            answer = client.request(method, path.replace("{index}", "0"))
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limited"), (method, path)
            assert "429" in operation["responses"], (method, path)
            called += 1
    assert called >= 14
    generating = make_app(engine).openapi()["paths"]
    assert all("429" in generating[path]["post"]["responses"] for path in (CHAT, COMPLETION))


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_the_ranges_in_the_document_are_those_that_are_taken(engine: Engine, path: str) -> None:
    body = make_app(engine).openapi()["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    base = {**body["example"], "logprobs": True} if path == CHAT else body["example"]
    ranges = {name: schema for name, schema in body["schema"]["properties"].items() if "minimum" in schema}
    assert set(ranges) >= {"temperature", "top_p", "max_tokens", "seed", "repeat_last_n"}
    for name, schema in ranges.items():
        for value in (schema["minimum"], schema["maximum"], None):
            parse_body(path, json.dumps({**base, name: value}).encode())
        for value in (schema["minimum"] - 1, schema["maximum"] + 1):
            with pytest.raises(PolicyError):
                parse_body(path, json.dumps({**base, name: value}).encode())
