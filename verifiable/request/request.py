"""A client's request: its canonical bytes, what may stand in it, and the parameters that follow from it.

Provider and auditor run the same code here. What can't be replayed is refused by name, never ignored. The canonical
form is RFC 8785 over {"body": …, "path": …}; its SHA-256 is the request digest that a turn commits to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import rfc8785

from verifiable import limits
from verifiable.errors import MalformedError, PolicyError
from verifiable.request import conversation, fields
from verifiable.sampling.sampler import SamplingDefaults, SamplingParams, check_temperature, repetition
from verifiable.session.records import SEED_BYTES, NonceSource, TurnFacts, ids_digest, stop_digest

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
REPEAT_LAST_N = 64
"""Tokens that the repeat penalty looks back where request and manifest are silent: llama.cpp's own default."""

_PENALTIES = ("frequency_penalty", "presence_penalty", "repeat_penalty", "repeat_last_n", "logit_bias", "ignore_eos")
_SAMPLING = ("temperature", "top_p", "min_p", "top_k", "seed", "max_tokens", "stop", *_PENALTIES, "grammar")
_OTHER = ("response_format", "model", "stream", "stream_options", "logprobs", "verifiable")
_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key")
_COMMON = {*_SAMPLING, *_OTHER, *_LABELS}
_PATH_FIELDS = {
    CHAT: _COMMON | {"messages", "tools", "tool_choice", "max_completion_tokens", "top_logprobs"},
    COMPLETION: _COMMON | {"prompt"},
}
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "store": (False, True),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
}
"""Fields that are accepted only with the values that change nothing, unless the path knows them; null always is one."""


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed request. Exactly one of `messages` and `prompt` is set; None means that the request is silent.

    `top_logprobs` is the number of alternatives asked for (0: only the chosen token's), or None without logprobs.
    `turn` is the number that the client expects its turn to have, `manifest` the digest of the only manifest under
    which it wants an answer. `stream_heads` asks for a signed head with each chunk. `tools` are those that the prompt
    tells of, `forced` those of which the answer has to call one (`conversation`). `constraint` is the RFC 8785 form of
    what the answer has to match: {"grammar": …}, {"schema": …} or {"tools": …}; empty without.
    """

    path: str
    canonical: bytes
    model: str | None
    messages: tuple[Mapping[str, Any], ...] | None
    prompt: str | tuple[int, ...] | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    max_tokens: int | None
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    top_logprobs: int | None
    nonce: bytes | None
    session: str | None
    turn: int | None
    manifest: bytes | None
    commitments: bool
    stream_heads: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    constraint: bytes = b""
    tools: tuple[Mapping[str, Any], ...] = ()
    forced: tuple[Mapping[str, Any], ...] = ()

    def digest(self) -> bytes:
        return hashlib.sha256(self.canonical).digest()

    def nonce_source(self) -> NonceSource:
        if self.nonce is not None:
            return NonceSource.CLIENT
        return NonceSource.SEED if self.seed is not None else NonceSource.PROVIDER

    def turn_nonce(self, drawn: bytes) -> bytes:
        """The nonce of a turn that answers this request: the client's, the seed's, or else `drawn` by the provider."""
        if self.nonce is not None:
            return self.nonce
        return drawn if self.seed is None else self.seed.to_bytes(SEED_BYTES, "big", signed=True)

    def params(self, defaults: SamplingDefaults, k: int, n_ctx: int, prompt_count: int) -> SamplingParams:
        """The parameters as used: the manifest's defaults where the request is silent, top_k at most k.

        `max_tokens` never exceeds what the context has left, nor `limits.ANSWER_TOKENS`; a request without one gets all
        of it (completions: 16, as OpenAI has it). Raises PolicyError where the prompt leaves no room.
        """
        room = n_ctx - prompt_count
        if prompt_count < 1 or room < 1:
            raise PolicyError(
                "the prompt does not fit the context",
                expected=f"1 to {n_ctx - 1} tokens",
                found=f"{prompt_count} tokens",
                parameter="messages" if self.path == CHAT else "prompt",
                hint="Shorten the prompt, or ask the operator for a longer context.",
            )
        silent = room if self.path == CHAT else 16
        top_k = defaults.top_k if self.top_k is None else self.top_k
        penalty = _or(self.repeat_penalty, defaults.repeat_penalty)
        last_n = (defaults.repeat_last_n or REPEAT_LAST_N) if self.repeat_last_n is None else self.repeat_last_n
        repeat_penalty, repeat_last_n = repetition(penalty, last_n)
        return SamplingParams(
            temperature=_or(self.temperature, defaults.temperature),
            top_k=k if top_k < 1 else min(top_k, k),
            top_p=_or(self.top_p, defaults.top_p),
            min_p=_or(self.min_p, defaults.min_p),
            max_tokens=min(silent if self.max_tokens is None else self.max_tokens, room, limits.ANSWER_TOKENS),
            repeat_penalty=repeat_penalty,
            repeat_last_n=repeat_last_n,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=self.logit_bias,
            ignore_eos=self.ignore_eos,
            constraint=hashlib.sha256(self.constraint).digest() if self.constraint else b"",
        )

    def turn_facts(self, prompt: Sequence[int], params: SamplingParams, nonce: bytes, cached: int = 0) -> TurnFacts:
        """What a turn commits to that answers this request: its digests, and the prompt's ids and parameters as used.

        `cached` counts the prompt's ids that were reused from a cache.
        """
        return TurnFacts(
            request_digest=self.digest(),
            prompt_digest=ids_digest(prompt),
            prompt_count=len(prompt),
            params=params,
            stop_digest=stop_digest(self.stops),
            nonce=nonce,
            nonce_source=self.nonce_source(),
            cached=cached,
        )


def parse_body(path: str, data: bytes) -> Request:
    """Read a request body as a client sent it. Raises MalformedError (not JSON) or PolicyError (named parameter)."""
    body = read_json(data)
    if not isinstance(body, dict):
        raise MalformedError("the request body", expected="a JSON object", found=type(body).__name__)
    return _parse(path, body)


def parse_canonical(data: bytes) -> Request:
    """Read a request from its canonical bytes, as evidence holds it. Raises MalformedError on any other spelling."""
    value = read_json(data)
    if not isinstance(value, dict) or set(value) != {"body", "path"} or value["path"] not in (CHAT, COMPLETION):
        raise MalformedError("canonical request", expected='{"body": …, "path": …}', found="something else")
    if not isinstance(value["body"], dict):
        raise MalformedError("canonical request body", expected="an object", found=type(value["body"]).__name__)
    try:
        request = _parse(value["path"], value["body"])
    except PolicyError as error:
        raise MalformedError(f"canonical request: {error}") from error
    if request.canonical != data:
        raise MalformedError("canonical request", expected="RFC 8785 form", found="another spelling")
    return request


def _parse(path: str, body: dict[str, Any]) -> Request:
    _check_values(body)
    for name, value in body.items():
        _check_known(path, name, value)
    try:
        canonical = rfc8785.dumps({"body": body, "path": path})
    except (rfc8785.CanonicalizationError, UnicodeError, RecursionError) as error:
        raise PolicyError("the request has no canonical form (RFC 8785)", found=str(error)) from error
    if len(canonical) > limits.REQUEST_BYTES:
        expected = f"at most {limits.REQUEST_BYTES} bytes in canonical form"
        raise PolicyError("the request is too long", expected=expected, found=f"{len(canonical)} bytes")
    # What is meant is what the canonical form says, so that an auditor reads the same: 3 for 3.0, names in its order.
    body = json.loads(canonical)["body"]
    extra = fields.object_(body, "verifiable", {"nonce", "session", "turn", "manifest", "commitments"})
    options = fields.object_(body, "stream_options", {"include_usage", "include_obfuscation"})
    max_tokens = fields.integer(body, "max_tokens")
    if path == CHAT and body.get("max_completion_tokens") is not None:
        max_tokens = fields.integer(body, "max_completion_tokens")
    temperature = fields.number(body, "temperature")
    if temperature is not None:
        check_temperature(temperature)
    offered = conversation.tools(body.get("tools"))
    forced = conversation.forced(body.get("tool_choice"), offered)
    return Request(
        path=path,
        canonical=canonical,
        model=fields.string(body, "model", limits.NAME_CHARACTERS),
        messages=conversation.messages(body.get("messages")) if path == CHAT else None,
        prompt=fields.prompt(body.get("prompt")) if path == COMPLETION else None,
        temperature=temperature,
        top_k=fields.integer(body, "top_k"),
        top_p=fields.number(body, "top_p"),
        min_p=fields.number(body, "min_p"),
        seed=fields.integer(body, "seed"),
        max_tokens=max_tokens,
        stops=fields.stops(body.get("stop")),
        stream=fields.boolean(body, "stream"),
        include_usage=fields.boolean(options, "include_usage"),
        top_logprobs=fields.logprobs(path == CHAT, body),
        nonce=fields.nonce(extra.get("nonce")),
        session=fields.session(extra.get("session")),
        turn=fields.whole(extra.get("turn"), "verifiable.turn", 0, limits.U32),
        manifest=fields.manifest(extra.get("manifest")),
        commitments=fields.choice(extra, "commitments", ("receipt", "none", "stream")) != "none",
        stream_heads=extra.get("commitments") == "stream",
        frequency_penalty=fields.number(body, "frequency_penalty") or 0.0,
        presence_penalty=fields.number(body, "presence_penalty") or 0.0,
        repeat_penalty=fields.number(body, "repeat_penalty"),
        repeat_last_n=fields.integer(body, "repeat_last_n"),
        logit_bias=fields.biases(body.get("logit_bias")),
        ignore_eos=fields.boolean(body, "ignore_eos"),
        constraint=fields.constraint(body, conversation.calls(forced)),
        tools=() if body.get("tool_choice") == "none" else offered,
        forced=forced,
    )


def _check_values(body: object) -> None:
    """Refuse what has no canonical form, or one that not every reader reads back."""
    open_values = [(body, 1)]
    while open_values:
        value, depth = open_values.pop()
        if isinstance(value, (int, float)):
            if not -limits.JSON_NUMBER <= value <= limits.JSON_NUMBER:
                raise PolicyError(
                    "a number in the request", expected=f"a magnitude up to {limits.JSON_NUMBER}", found=value
                )
        elif isinstance(value, (dict, list)):
            if depth > limits.JSON_DEPTH:
                raise PolicyError("the request is nested too deeply", expected=f"at most {limits.JSON_DEPTH} levels")
            inner = value.values() if isinstance(value, dict) else value
            open_values += [(item, depth + 1) for item in inner]


def _check_known(path: str, name: str, value: object) -> None:
    if value is None or name in _PATH_FIELDS[path]:
        return
    allowed = _NEUTRAL.get(name)
    if allowed is None:
        raise PolicyError(
            f"unknown or unsupported parameter '{name[:64]}'",
            hint="Remove it. Parameters that can't be replayed by an auditor are refused, not ignored.",
            parameter=name[:64],
        )
    if not any(value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in allowed):
        raise PolicyError(
            f"parameter {name}",
            expected=" or ".join(json.dumps(neutral) for neutral in allowed),
            found=json.dumps(value),
            hint="Other values are not supported here, since an auditor could not replay them.",
            parameter=name,
        )


def read_json(data: bytes) -> object:
    """A JSON value in UTF-8 in which no object has a name twice. Raises MalformedError."""

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(items)
        if len(members) != len(items):
            raise MalformedError("JSON object", expected="each name once", found="a repeated name")
        return members

    def constant(name: str) -> object:
        raise MalformedError("JSON number", expected="a finite number", found=name)

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise MalformedError("the request body is not JSON", expected="UTF-8 JSON", found=str(error)) from error


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
