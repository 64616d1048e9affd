"""Clients that people use, unchanged, against a real provider: openai, litellm and langchain-openai."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.engine import Engine, EngineSettings
from engine.scheduler import SchedulerSettings
from tests.integration.serving import http
from verifiable.llama.settings import RuntimeSettings

KEY = "sk-clients"
QUESTION: list[dict[str, str]] = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Give me a person as JSON, with name and age."},
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def engine(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    settings = EngineSettings(RuntimeSettings(n_ctx=512), SchedulerSettings(slots=2), drafter="auto")
    with Engine(smollm2, tmp_path_factory.mktemp("clients"), settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def base(engine: Engine) -> Iterator[str]:
    with http(engine, [KEY]) as url:
        yield f"{url}/v1"


def test_openai(base: str, engine: Engine) -> None:
    client = openai.OpenAI(base_url=base, api_key=KEY, max_retries=0)
    assert [model.id for model in client.models.list()] == [engine.model_name]
    asked: dict[str, Any] = {"model": engine.model_name, "messages": QUESTION, "max_tokens": 40, "temperature": 0}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    choice = whole.choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert whole.usage is not None
    assert len(choice.logprobs.content) == whole.usage.completion_tokens
    streamed = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    assert text == choice.message.content
    assert streamed[-1].usage is not None
    assert streamed[-1].usage.completion_tokens == whole.usage.completion_tokens
    person = client.chat.completions.create(**{**asked, "max_tokens": 60}, response_format=FORM)
    assert set(json.loads(person.choices[0].message.content or "")) == {"name", "age"}
    biased = client.chat.completions.create(**asked, frequency_penalty=0.5, presence_penalty=0.2, logit_bias={"28": -5})
    assert biased.choices[0].message.content
    legacy = client.completions.create(model=engine.model_name, prompt="Once", max_tokens=4, logprobs=1, seed=1)
    assert legacy.choices[0].logprobs is not None
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked, n=2)
    assert refused.value.param == "n"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=base, api_key="wrong", max_retries=0).models.with_raw_response.list()


def test_openai_parses_into_types(base: str, engine: Engine) -> None:
    pydantic = pytest.importorskip("pydantic")
    person = pydantic.create_model("Person", name=(str, ...), age=(int, ...))
    client = openai.OpenAI(base_url=base, api_key=KEY, max_retries=0)
    answer = client.chat.completions.parse(
        model=engine.model_name,
        messages=QUESTION,  # type: ignore[arg-type]
        response_format=person,
        max_tokens=120,
        temperature=0,
        logit_bias={"198": -100},
    )
    assert isinstance(answer.choices[0].message.parsed, person)


def test_litellm(base: str, engine: Engine) -> None:
    litellm = pytest.importorskip("litellm")
    asked: dict[str, Any] = {
        "model": f"openai/{engine.model_name}",
        "api_base": base,
        "api_key": KEY,
        "messages": QUESTION,
        "max_tokens": 24,
        "temperature": 0,
    }
    whole = litellm.completion(**asked, logprobs=True, top_logprobs=2)
    text = whole.choices[0].message.content
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    person = litellm.completion(**{**asked, "max_tokens": 60}, response_format=FORM)
    assert set(json.loads(person.choices[0].message.content)) == {"name", "age"}
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**asked, n=2)


def test_langchain(base: str, engine: Engine) -> None:
    langchain = pytest.importorskip("langchain_openai")
    made: dict[str, Any] = {"base_url": base, "api_key": KEY, "model": engine.model_name, "temperature": 0}
    chat = langchain.ChatOpenAI(**made, max_tokens=24, max_retries=0, logprobs=True, top_logprobs=2)
    messages = [(message["role"], message["content"]) for message in QUESTION]
    whole = chat.invoke(messages)
    assert whole.content
    assert len(whole.response_metadata["logprobs"]["content"]) == whole.usage_metadata["output_tokens"]
    assert "".join(part.content for part in chat.stream(messages)) == whole.content
    person = langchain.ChatOpenAI(**made, max_tokens=60, max_retries=0).with_structured_output(
        {"title": "person", **SCHEMA}, method="json_schema"
    )
    assert set(person.invoke(messages)) == {"name", "age"}
    free = langchain.ChatOpenAI(**made, max_tokens=120, max_retries=0, model_kwargs={"logit_bias": {"198": -100}})
    answer = free.bind(response_format={"type": "json_object"}).invoke(messages)
    assert answer.response_metadata["finish_reason"] == "length" or isinstance(json.loads(answer.content), dict)
    conversation = [*messages, ("assistant", whole.content), ("user", "Another one.")]
    assert chat.invoke(conversation).content is not None
