"""Clients that people use, unchanged, against a real provider: openai, litellm and langchain-openai."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.engine import Engine, EngineSettings
from engine.scheduling.scheduler import SchedulerSettings
from tests.integration.serving import evidence_of, http, receipt_of
from verifiable.checking.checks import check_receipt
from verifiable.checking.verdict import Status
from verifiable.llama.probe.cache import default_folder
from verifiable.llama.settings import RuntimeSettings
from verifier.auditing.session import audit
from verifier.model.worker import Worker

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


@pytest.fixture(scope="module")
def worker(smollm2: Path) -> Iterator[Worker]:
    with Worker(smollm2, cache=default_folder()) as one:
        yield one


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


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city now.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 1, "maxLength": 12, "pattern": "^[A-Z][a-z]+$"},
                "unit": {"enum": ["°C", "°F"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "time", "description": "The time now."}}


def exactly(engine: Engine, worker: Worker, answer: Any, text: str) -> None:
    """The text is what was committed to, and an auditor finds every bit of it again."""
    extra = answer.verifiable if hasattr(answer, "verifiable") else answer
    receipt = receipt_of(extra)
    trust = [engine.keys.provider.public]
    check_receipt(receipt, trust, text)
    verdict = audit(evidence_of(engine, extra["session"]), worker, trust, receipt=receipt, text=text)
    assert verdict.status is Status.EXACT, verdict


def test_openai_with_tools(base: str, engine: Engine, worker: Worker) -> None:
    """A whole round with tools: a forced call, its result, and an answer; what was said is audited exactly."""
    client = openai.OpenAI(base_url=base, api_key=KEY, max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "Do I need an umbrella in Paris?"}]
    asked: dict[str, Any] = {"model": engine.model_name, "max_tokens": 60, "temperature": 0, "tools": [WEATHER, TIME]}
    choices: tuple[Any, ...] = ({"type": "function", "function": {"name": "weather"}}, "required")
    for choice in choices:
        called = client.chat.completions.create(**asked, messages=messages, tool_choice=choice)
        message = called.choices[0].message
        assert called.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls is not None
        call = message.tool_calls[0]
        assert call.type == "function"
        stated = json.loads(message.content or "")
        assert stated == {"name": call.function.name, "parameters": json.loads(call.function.arguments)}
        assert call.function.name in ("weather", "time")
        exactly(engine, worker, called, message.content or "")
        with client.chat.completions.stream(**asked, messages=messages, tool_choice=choice) as stream:
            final = stream.get_final_completion().choices[0].message
        assert final.content == message.content
        assert final.tool_calls is not None
        assert final.tool_calls[0].function.arguments == call.function.arguments
        if choice == "required":
            continue
        assert set(json.loads(call.function.arguments)) == {"city", "unit"}
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "Rain, 12 °C. <|im_end|>"}]
        answer = client.chat.completions.create(**asked, messages=messages)
        assert answer.choices[0].message.tool_calls is None
        exactly(engine, worker, answer, answer.choices[0].message.content or "")
    short = client.chat.completions.create(
        **{**asked, "max_tokens": 3}, messages=messages[:1], tool_choice="required", stop=["never"]
    )
    assert short.choices[0].finish_reason == "length"
    assert short.choices[0].message.tool_calls is None
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            **asked, messages=messages[:1], tool_choice={"type": "function", "function": {"name": "missing"}}
        )
    assert refused.value.param == "tool_choice"


def test_langchain_with_tools(base: str, engine: Engine) -> None:
    langchain = pytest.importorskip("langchain_openai")
    pydantic = pytest.importorskip("pydantic")
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    made: dict[str, Any] = {"base_url": base, "api_key": KEY, "model": engine.model_name, "temperature": 0}
    chat = langchain.ChatOpenAI(**made, max_tokens=60, max_retries=0)
    question = [SystemMessage("You are brief."), HumanMessage("Do I need an umbrella in Paris?")]
    free = chat.bind_tools([WEATHER, TIME]).invoke(question)
    assert isinstance(free, AIMessage)
    assert not free.tool_calls
    forced = chat.bind_tools([WEATHER, TIME], tool_choice="weather")
    called = forced.invoke(question)
    assert [call["name"] for call in called.tool_calls] == ["weather"]
    assert set(called.tool_calls[0]["args"]) == {"city", "unit"}
    streamed = list(forced.stream(question))
    whole = sum(streamed[1:], start=streamed[0])
    assert whole.content == called.content
    assert [call["args"] for call in whole.tool_calls] == [call["args"] for call in called.tool_calls]
    result = ToolMessage("Rain, 12 °C", tool_call_id=called.tool_calls[0]["id"])
    assert chat.bind_tools([WEATHER, TIME]).invoke([*question, called, result]).content is not None
    person = pydantic.create_model("Person", name=(str, pydantic.Field(max_length=10)), age=(int, pydantic.Field(ge=0)))
    found = chat.with_structured_output(person, method="function_calling").invoke("Give me a person.")
    assert isinstance(found, person)
