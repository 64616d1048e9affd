"""Requests: what may stand in them, their one canonical form, and the parameters that follow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from verifiable.errors import MalformedError, PolicyError
from verifiable.request.request import CHAT, COMPLETION, Request, parse_body, parse_canonical
from verifiable.sampling.sampler import SamplingDefaults
from verifiable.session.records import NonceSource

MESSAGES = [{"role": "user", "content": "Why?"}]


def chat(**body: Any) -> Request:
    return parse_body(CHAT, json.dumps({"messages": MESSAGES, **body}).encode())


def complete(**body: Any) -> Request:
    return parse_body(COMPLETION, json.dumps({"prompt": "Once", **body}).encode())


def test_the_canonical_form_is_one_for_all_spellings() -> None:
    one = parse_body(CHAT, b'{"temperature": 0.50, "messages": [ {"content":"W\\u0068y?","role":"user"} ]}')
    other = chat(temperature=0.5)
    expected = (
        b'{"body":{"messages":[{"content":"Why?","role":"user"}],"temperature":0.5},"path":"/v1/chat/completions"}'
    )
    assert one.canonical == other.canonical == expected
    again = parse_canonical(one.canonical)
    assert again == one
    assert again.digest() == one.digest()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"body":{},"path":[]}',
        b'{"body":{},"path":{}}',
        b'{"body":[],"path":"/v1/completions"}',
        b'{"body":{"prompt":"x"},"path":"/v1/other"}',
        b'{"body":{"prompt":"x"},"extra":1,"path":"/v1/completions"}',
        b'{"path":"/v1/completions","body":{"prompt":"x"}}',
        b'{"body":{"prompt":"x"}, "path":"/v1/completions"}',
        b'{"body":{"prompt":"x","temperature":1.0},"path":"/v1/completions"}',
        b'{"body":{"prompt":"\\u0078"},"path":"/v1/completions"}',
        b'{"body":{"prompt":"x","prompt":"y"},"path":"/v1/completions"}',
        b'{"body":{"prompt":"x"},"path":"/v1/completions"}\n',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_other_spellings_of_a_canonical_request_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_canonical(data)


@pytest.mark.parametrize(
    "data", [b"", b"nothing", b"[1]", b'"text"', b"\xff\xfe", b'{"a":NaN}', b'{"a":1,"a":2}', b"{" * 5000, b"9" * 5000]
)
def test_what_is_no_json_object_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_body(CHAT, data)


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Why?"}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages[0].tool_calls"),
        ({"temperature": 2000}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 0.001}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": -0.1}, "top_p"),
        ({"min_p": 7}, "min_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": str(at)}} for at in range(129)]}, "tools"),
        ({"mirostat": 2}, "mirostat"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stream": 1}, "stream"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"verifiable": {"nonce": "zz"}}, "verifiable.nonce"),
        ({"verifiable": {"nonce": "AA" * 8}}, "verifiable.nonce"),
        ({"verifiable": {"nonce": "aa" * 7}}, "verifiable.nonce"),
        ({"verifiable": {"nonce": "aa" * 65}}, "verifiable.nonce"),
        ({"verifiable": {"session": "old"}}, "verifiable.session"),
        ({"verifiable": {"commitments": "some"}}, "commitments"),
        ({"verifiable": {"other": 1}}, "verifiable"),
        ({"model": 5}, "model"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(body: dict[str, Any], parameter: str) -> None:
    with pytest.raises(PolicyError) as caught:
        chat(**body)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("prompt", [None, 5, [], ["a"], [-1], [2**31], [True], {"a": 1}])
def test_prompts_are_text_or_ids(prompt: Any) -> None:
    with pytest.raises(PolicyError):
        complete(prompt=prompt)


def test_prompts_of_both_kinds_are_read() -> None:
    assert complete(prompt="").prompt == ""
    assert complete(prompt=[3, 4]).prompt == (3, 4)
    assert complete().messages is None
    assert chat().prompt is None


def test_neutral_values_and_null_change_nothing() -> None:
    request = chat(n=1, frequency_penalty=0, tools=[], temperature=None, stop=None, unknown=None, user="me")
    assert request.temperature is None
    assert request.stops == ()
    parts = [{"type": "text", "text": "W"}, {"type": "text", "text": "hy?"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages == ({"role": "user", "content": "Why?"},)


def test_numbers_mean_the_same_in_every_spelling() -> None:
    # RFC 8785 writes 3.0 as 3, so provider and auditor must read both alike.
    assert chat(max_tokens=3.0).max_tokens == chat(max_tokens=3).max_tokens == 3
    assert chat(max_tokens=3.0).canonical == chat(max_tokens=3).canonical
    assert chat(max_tokens=3, max_completion_tokens=5).max_tokens == 5


def test_who_chose_the_nonce() -> None:
    assert chat().nonce_source() is NonceSource.PROVIDER
    assert chat(seed=0).nonce_source() is NonceSource.SEED
    assert chat(seed=0, verifiable={"nonce": "ab" * 8}).nonce_source() is NonceSource.CLIENT
    assert chat(verifiable={"nonce": "ab" * 64}).nonce == b"\xab" * 64


def test_parameters_follow_from_request_and_manifest() -> None:
    defaults = SamplingDefaults(0.8, 30, 0.95, 0.05)
    silent = chat().params(defaults, 40, 100, 60)
    assert (silent.temperature, silent.top_k, silent.top_p, silent.min_p) == (0.8, 30, 0.95, 0.05)
    assert silent.max_tokens == 40  # what the context has left
    assert complete().params(defaults, 40, 100, 60).max_tokens == 16
    asked = chat(temperature=0, top_k=-1, top_p=1, min_p=0, max_tokens=1000).params(defaults, 40, 100, 60)
    assert (asked.temperature, asked.top_k, asked.max_tokens) == (0.0, 40, 40)
    assert chat(top_k=100).params(defaults, 40, 100, 60).top_k == 40
    assert chat(top_k=5).params(defaults, 40, 100, 60).top_k == 5
    for prompt in (0, 100, 200):
        with pytest.raises(PolicyError) as caught:
            chat().params(defaults, 40, 100, prompt)
        assert caught.value.parameter == "messages"


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ({}, (1.1, 32)),
        ({"repeat_penalty": 1.5}, (1.5, 32)),
        ({"repeat_last_n": -1}, (1.1, 2**31 - 1)),
        ({"repeat_penalty": 1}, (1.0, 0)),
        ({"repeat_last_n": 0}, (1.0, 0)),
    ],
)
def test_a_repeat_penalty_of_the_manifest(asks: dict[str, float], expected: tuple[float, int]) -> None:
    penalised = SamplingDefaults(repeat_penalty=1.1, repeat_last_n=32)
    found = chat(**asks).params(penalised, 40, 100, 60)
    assert (found.repeat_penalty, found.repeat_last_n) == expected
    assert chat(repeat_penalty=1.5).params(SamplingDefaults(), 40, 100, 60).repeat_last_n == 64


def test_values_without_a_canonical_form_are_refused() -> None:
    for body in (b'{"messages":[{"role":"user","content":"\\ud800"}]}', b'{"metadata":{"a":1e999},"prompt":"x"}'):
        with pytest.raises((PolicyError, MalformedError)):
            parse_body(CHAT if b"messages" in body else COMPLETION, body)
