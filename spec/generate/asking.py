"""Vectors of requests and of what comes out of them: canonical form, parameters, draws and delivered text."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from spec.generate.cases import VectorFile
from spec.generate.world import MANIFEST, N_CTX, NONCE, K, digest, entries
from verifiable import limits
from verifiable.request.request import CHAT, COMPLETION
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingParams, choose, gumbel, sampling_key

MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "now", "strict": True}},
]
CHOICE = {"type": "function", "function": {"name": "weather"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
CALLED = [
    *MESSAGES,
    {"role": "assistant", "content": None, "reasoning_content": "Where?", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "sun"},
]


def canonical(path: str = CHAT, /, **body: Any) -> str:
    """The canonical form, by sorting and writing without spaces; right for plain ASCII and short numbers."""
    if path == CHAT:
        body.setdefault("messages", MESSAGES)
    return json.dumps({"body": body, "path": path}, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def request() -> VectorFile:
    file = VectorFile(
        "request",
        "text: a canonical request (input: the same where it is no UTF-8). context: the manifest's defaults "
        "(temperature, top_k, top_p, min_p, and perhaps repeat_penalty, repeat_last_n), its k and n_ctx, and the count "
        "of prompt tokens. params: temperature, top_k, top_p, min_p, max_tokens; null where the prompt does not fit.",
    )
    defaults = MANIFEST.defaults
    context: dict[str, Any] = {
        "defaults": [defaults.temperature, defaults.top_k, defaults.top_p, defaults.min_p],
        "k": K,
        "n_ctx": N_CTX,
        "prompt_count": 12,
    }

    def good(name: str, text: str, **changed: Any) -> None:
        file.add(name, text=text, context=context | changed)

    def two_names(text: str) -> str:
        return canonical(metadata={"X": 1}).replace('"X":1', text)

    nonce = {"nonce": NONCE.hex()}
    good("silent: defaults, and all of the context", canonical())
    good("a client's nonce", canonical(verifiable=nonce))
    good("a seed", canonical(seed=7))
    good("a nonce and a seed: the nonce counts", canonical(seed=7, verifiable=nonce))
    good("a new session", canonical(verifiable={"session": "new"}))
    good("a turn expected, and a manifest pinned", canonical(verifiable={"manifest": "0f" * 32, "turn": 4294967295}))
    good("a session to go on with", canonical(verifiable={"session": "00112233445566778899aabbccddeeff"}))
    good("all parameters", canonical(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, max_tokens=9))
    good("greedy", canonical(temperature=0))
    good("temperature 2, a whole number", canonical(temperature=2))
    good("top_k 0: all entries of the record", canonical(top_k=0))
    good("top_k -1: all entries of the record", canonical(top_k=-1))
    good("top_k over k", canonical(top_k=1000))
    good("max_tokens over what the context has left", canonical(max_tokens=1000))
    good("max_tokens over what an answer may have", canonical(max_tokens=limits.U31), n_ctx=limits.U31)
    good("max_completion_tokens counts before max_tokens", canonical(max_tokens=9, max_completion_tokens=5))
    good("parameters that are null are silent", canonical(temperature=None, stop=None, seed=None, top_p=None))
    good("a completion: 16 tokens", canonical(COMPLETION, prompt="The sky is"))
    good("a completion of token ids", canonical(COMPLETION, prompt=[1, 2, 3], max_tokens=3))
    good("one stop string", canonical(stop="\n"))
    good("stop strings", canonical(stop=["</s>", "水"]))
    good("values that change nothing", canonical(n=1, tools=[], logit_bias={}, response_format={"type": "text"}))
    good("penalties", canonical(frequency_penalty=0.5, presence_penalty=-1, repeat_penalty=1.25, repeat_last_n=8))
    good("a repeat penalty alone: 64 tokens", canonical(repeat_penalty=1.5))
    good("a repeat penalty over all of the answer", canonical(repeat_penalty=1.5, repeat_last_n=-1))
    good("a repeat penalty over no tokens is none", canonical(repeat_penalty=1.5, repeat_last_n=0))
    penalised = [*context["defaults"], 1.25, 32]
    good("silent where the manifest has a repeat penalty", canonical(), defaults=penalised)
    good("another penalty than the manifest's, over its count", canonical(repeat_penalty=1.5), defaults=penalised)
    good("the manifest's penalty over another count", canonical(repeat_last_n=-1), defaults=penalised)
    good("the manifest's penalty switched off", canonical(repeat_penalty=1), defaults=penalised)
    good("the manifest's penalty over no tokens", canonical(repeat_last_n=0), defaults=penalised)
    good("penalties of 0, and 1, are none", canonical(frequency_penalty=0, presence_penalty=0, repeat_penalty=1))
    good("biases by ascending id, without those of 0", canonical(logit_bias={"10": 1, "9": -100, "100": 0, "2": 0.5}))
    good("end tokens banned", canonical(ignore_eos=True))
    good("a grammar", canonical(grammar='root ::= "yes" | "no"'))
    good("a JSON object", canonical(response_format={"type": "json_object"}))
    good(
        "a JSON object of a schema", canonical(response_format={"type": "json_object", "schema": {"b": 1, "a": [True]}})
    )
    named = {"name": "n", "strict": True, "schema": {"type": "array"}}
    good("a named schema", canonical(response_format={"type": "json_schema", "json_schema": named}))
    good("a schema that allows anything", canonical(response_format={"type": "json_object", "schema": True}))
    good("tools that may be called", canonical(tools=TOOLS, tool_choice="auto"))
    good("tools that may not be called", canonical(tools=TOOLS, tool_choice="none"))
    good("one tool that must be called", canonical(tools=TOOLS, tool_choice=CHOICE))
    good("any tool must be called", canonical(tools=TOOLS, tool_choice="required"))
    good("a conversation with calls", canonical(messages=CALLED, tools=TOOLS))
    good("parts of text", canonical(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}]))
    good("prompt of one token less than the context", canonical(), prompt_count=N_CTX - 1)
    good("prompt as long as the context", canonical(), prompt_count=N_CTX)
    good("prompt of no tokens", canonical(), prompt_count=0)
    numbers = "0.1,1e-7,0.000001,5e-324,123456789012.34,-0.5,9007199254740991,-9007199254740991,333333333.3333333"
    good("numbers as RFC 8785 writes them", canonical(metadata={"x": 0}).replace("0}", f"[{numbers}]}}"))
    good("control characters escaped", canonical(user="X").replace("X", '\\b\\t\\n\\f\\r\\u001f\\"\\\\/\x7f'))
    good("names sorted by UTF-16: U+10000 before U+FF21", two_names('"\U00010000":1,"Ａ":2'))
    deep = "[" * (limits.JSON_DEPTH - 2) + "]" * (limits.JSON_DEPTH - 2)
    good("64 levels", canonical(metadata={"x": 0}).replace("0}", deep + "}"))

    def bad(name: str, text: str) -> None:
        file.add(name, "malformed", text=text)

    plain = canonical()
    bad("nothing", "")
    bad("not JSON", plain[:-1])
    bad("a space", plain.replace(":", ": ", 1))
    bad("a newline at its end", plain + "\n")
    swapped = plain.replace('{"body":', '{"path":"/v1/chat/completions","body":').replace(f',"path":"{CHAT}"}}', "}")
    bad("names in another order", swapped)
    bad("a name twice", plain.replace('{"body"', '{"body":0,"body"'))
    bad("a name twice, deeper", canonical(seed=7).replace('"seed":7', '"seed":7,"seed":7'))
    bad("1.0 for 1", canonical(seed=7).replace("7}", "7.0}"))
    bad("0.50 for 0.5", canonical(temperature=0.5).replace("0.5}", "0.50}"))
    bad("5e-1 for 0.5", canonical(temperature=0.5).replace("0.5}", "5e-1}"))
    bad("-0", canonical(seed=7).replace("7}", "-0}"))
    bad("1e20", canonical(metadata={"x": 7}).replace("7}", "1e20}"))
    bad("1e20 in digits", canonical(metadata={"x": 7}).replace("7}", "100000000000000000000}"))
    bad("2^53", canonical(metadata={"x": 7}).replace("7}", "9007199254740992}"))
    bad("1e+21", canonical(metadata={"x": 7}).replace("7}", "1e+21}"))
    bad("1e400", canonical(metadata={"x": 7}).replace("7}", "1e400}"))
    bad("NaN", canonical(metadata={"x": 7}).replace("7}", "NaN}"))
    bad("an escape that is not needed", canonical(user="a/b").replace("/b", "\\/b"))
    bad("a letter escaped", canonical(user="ü").replace("ü", "\\u00fc"))
    bad("an escape in upper case", canonical(user="X").replace("X", "\\u001F"))
    bad("a lone surrogate", canonical(user="X").replace("X", "\\ud800"))
    bad("names sorted by code point", two_names('"Ａ":2,"\U00010000":1'))
    bad("65 levels", canonical(metadata={"x": 0}).replace("0}", "[" + deep + "]}"))
    bad("another path", plain.replace("/v1/chat/completions", "/v1/embeddings"))
    bad("a third name", plain.replace('"path"', '"note":1,"path"'))
    bad("body is an array", '{"body":[],"path":"/v1/chat/completions"}')
    bad("an array", "[]")
    bad("no messages", '{"body":{},"path":"/v1/chat/completions"}')
    bad("an unknown parameter", canonical(mirostat=1))
    bad("a value that changes something", canonical(n=2))
    bad("a pinned manifest of 31 bytes", canonical(verifiable={"manifest": "0f" * 31}))
    bad("a nonce in upper case", canonical(verifiable={"nonce": "AABBCCDDEEFF0011"}))
    file.add("not UTF-8", "malformed", input=plain.encode().replace(b"sky", b"sk\xff").hex())
    file.add("a byte order mark", "malformed", input=(b"\xef\xbb\xbf" + plain.encode()).hex())
    return file


def _call(**function: Any) -> dict[str, Any]:
    return {**CALL, "function": {"name": "f", "arguments": "{}", **function}}


def _choice(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def body() -> VectorFile:
    file = VectorFile(
        "body",
        "path and text: what a client sent (input: the same where it is no UTF-8). The outcome is the canonical "
        "request. policy: well formed, but not to be answered.",
    )

    def add(name: str, expected: str, text: str, path: str = CHAT) -> None:
        file.add(name, expected, path=path, text=text)

    def good(name: str, **fields: Any) -> None:
        add(name, "ok", json.dumps({"messages": MESSAGES, **fields}))

    def refused(name: str, **fields: Any) -> None:
        add(name, "policy", json.dumps({"messages": MESSAGES, **fields}))

    good("spaces and order do not matter", temperature=0.50, seed=3)
    numbers = '"seed":3.0,"temperature":5E-1,"top_k":1e1}'
    add("numbers of many spellings", "ok", '{"messages":[{"role":"user","content":"x"}],' + numbers)
    add("escapes of many spellings", "ok", '{"messages":[{"role":"user","content":"\\u00fc\\/\\ud83d\\ude00\\u000a"}]}')
    add("whitespace around", "ok", ' \r\n\t{"messages" : [ {"role":"user","content":"x"} ] }\n')
    good("minus zero", metadata={"x": -0.0, "y": 123456.789, "z": 1e-7})
    good("the lowest temperature over 0", temperature=0.01)
    good("a name and a developer", messages=[{"role": "developer", "content": "x", "name": "n", "tool_calls": None}])
    good("calls and results", messages=CALLED)
    good("content beside calls", messages=[*MESSAGES, {"role": "assistant", "content": "So:", "tool_calls": [CALL]}])
    good("reasoning alone", messages=[*MESSAGES, {"role": "assistant", "reasoning_content": ""}])
    good("no calls", messages=[*MESSAGES, {"role": "assistant", "content": "x", "tool_calls": []}])
    good("a call without its type", messages=[*MESSAGES, {"role": "assistant", "tool_calls": [{**CALL, "type": None}]}])
    good("tools", tools=TOOLS, parallel_tool_calls=False)
    good("any tool must be called", tools=TOOLS, tool_choice="required")
    good("one tool must be called", tools=TOOLS, tool_choice=CHOICE)
    good("no tool", tools=[], tool_choice="auto")
    add("no tools for a completion", "ok", '{"prompt":"x","tools":[],"tool_choice":"none"}', COMPLETION)
    good("labels", user="u", metadata={"a": 1}, safety_identifier="s", prompt_cache_key="k", modalities=["text"])
    good("a nonce of 8 bytes", verifiable={"nonce": "00" * 8})
    good("a nonce of 64 bytes", verifiable={"nonce": "ff" * 64, "commitments": "none"})
    good("16 stop strings", stop=["x" * 256, *map(str, range(15))])
    good("logprobs", logprobs=True, top_logprobs=20)
    good("a grammar and text are one", grammar="root ::= [0-9]+", response_format={"type": "text"})
    good("heads in the stream", stream=True, verifiable={"commitments": "stream"})
    prompt = '{"prompt":[0,2147483647],"echo":false,"best_of":1,"logprobs":5,"suffix":null}'
    add("a completion", "ok", prompt, COMPLETION)
    add("a token id of 1.0", "ok", '{"prompt":[1.0]}', COMPLETION)

    add("not JSON", "malformed", "{")
    add("two values", "malformed", "{}{}")
    add("a name twice", "malformed", '{"seed":1,"seed":1}')
    add("an array", "malformed", "[]")
    add("NaN", "malformed", '{"temperature":NaN}')
    add("single quotes", "malformed", "{'seed':1}")
    add("a comma too much", "malformed", '{"seed":1,}')
    add("a raw newline in a string", "malformed", '{"user":"a\nb"}')
    add("a number with a zero before it", "malformed", '{"seed":01}')
    add("a number that ends in a point", "malformed", '{"seed":1.}')
    add("a number with a plus", "malformed", '{"seed":+1}')
    file.add("not UTF-8", "malformed", path=CHAT, input="7b2275736572223a22ff227d")
    file.add("a byte order mark", "malformed", path=CHAT, input="efbbbf7b7d")

    add("no messages", "policy", "{}")
    refused("no message in messages", messages=[])
    refused("a role of its own", messages=[{"role": "robot", "content": "x"}])
    refused("content missing", messages=[{"role": "user"}])
    refused("an image", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    refused("an empty tool call", messages=[{"role": "assistant", "content": "x", "tool_calls": [{}]}])
    refused("calls that are no list", messages=[{"role": "assistant", "content": "x", "tool_calls": {}}])
    refused("a user's call", messages=[{"role": "user", "content": "x", "tool_calls": [CALL]}])
    refused("a call's arguments as an object", messages=[{"role": "assistant", "tool_calls": [_call(arguments={})]}])
    refused("a call of no name", messages=[{"role": "assistant", "tool_calls": [_call(name="")]}])
    refused("neither content nor calls", messages=[{"role": "assistant", "content": None, "tool_calls": []}])
    refused("a result's id as a number", messages=[{"role": "tool", "content": "x", "tool_call_id": 1}])
    refused("a user's reasoning", messages=[{"role": "user", "content": "x", "reasoning_content": "x"}])
    refused("an unknown parameter", mirostat=2)
    refused("a penalty over 2", presence_penalty=2.5)
    refused("a repeat penalty under 0.01", repeat_penalty=0)
    refused("a count to look back of -2", repeat_last_n=-2)
    refused("a bias over 100", logit_bias={"1": 101})
    refused("a bias of a token that is no decimal", logit_bias={"01": 5})
    refused("a bias of a token past 2^31 - 1", logit_bias={"2147483648": 5})
    refused("a bias as true", logit_bias={"1": True})
    refused("an empty grammar", grammar="")
    refused("a grammar and a schema", grammar="x", response_format={"type": "json_object"})
    refused("a named schema without its schema", response_format={"type": "json_schema", "json_schema": {"name": "n"}})
    refused("a schema that is a number", response_format={"type": "json_object", "schema": 1})
    refused("an unknown field beside a schema", response_format={"type": "json_object", "json_schema": {}})
    refused("ignore_eos as 1", ignore_eos=1)
    refused("two answers", n=2)
    refused("a turn of -1", verifiable={"turn": -1})
    refused("a turn of 2^32", verifiable={"turn": 2**32})
    refused("a turn as text", verifiable={"turn": "0"})
    refused("a pinned manifest in upper case", verifiable={"manifest": "AB" * 32})
    refused("an answer in sound", modalities=["text", "audio"])
    refused("n as true", n=True)
    refused("a response format that is not known", response_format={"type": "xml"})
    refused("a tool without its function", tools=[{"type": "function"}])
    refused("a tool of another type", tools=[{**TOOLS[0], "type": "web_search"}])
    refused(
        "a tool's parameters as an array", tools=[{"type": "function", "function": {"name": "f", "parameters": []}}]
    )
    refused("a tool's name of 257 characters", tools=[{"type": "function", "function": {"name": "n" * 257}}])
    refused("an unknown field of a tool", tools=[{**_choice("f"), "note": 1}])
    refused("two tools of one name", tools=[TOOLS[0], TOOLS[0]])
    refused("a call of a tool that is not there", tools=TOOLS, tool_choice=_choice("other"))
    refused("a call of no tool", tool_choice="required")
    refused("a choice that is not known", tools=TOOLS, tool_choice="always")
    refused("a call and a grammar", tools=TOOLS, tool_choice="required", grammar="root ::= [0-9]")
    add("tools for a completion", "policy", json.dumps({"prompt": "x", "tools": TOOLS}), COMPLETION)
    refused("temperature over 100", temperature=100.5)
    refused("temperature under 0.01", temperature=0.009)
    refused("temperature as text", temperature="1")
    refused("temperature as true", temperature=True)
    refused("top_p over 1", top_p=1.01)
    refused("top_k of -2", top_k=-2)
    refused("top_k of 1.5", top_k=1.5)
    refused("max_tokens of 0", max_tokens=0)
    refused("seed of 2^53", seed=2**53)
    refused("a number that no reader has in full", metadata={"x": 1e20})
    add("a number past all bounds", "policy", '{"messages":[{"role":"user","content":"x"}],"metadata":1e400}')
    refused("17 stop strings", stop=["x"] * 17)
    refused("an empty stop string", stop=[""])
    refused("a stop string of 257 characters", stop="x" * 257)
    refused("stop as a number", stop=3)
    refused("stream as 1", stream=1)
    refused("a model of 257 characters", model="m" * 257)
    refused("a nonce of 7 bytes", verifiable={"nonce": "00" * 7})
    refused("a nonce of 65 bytes", verifiable={"nonce": "00" * 65})
    refused("a nonce in upper case", verifiable={"nonce": "AA" * 8})
    refused("a nonce of an odd length", verifiable={"nonce": "0" * 17})
    refused("a session that is no id", verifiable={"session": "mine"})
    refused("an unknown extension", verifiable={"nonces": "00" * 8})
    refused("top_logprobs without logprobs", top_logprobs=3)
    refused("top_logprobs of 21", logprobs=True, top_logprobs=21)
    add("a lone surrogate", "policy", '{"messages":[{"role":"user","content":"\\udc00"}]}')
    deep = "[" * limits.JSON_DEPTH + "]" * limits.JSON_DEPTH
    add("65 levels", "policy", '{"prompt":"x","metadata":' + deep + "}", COMPLETION)
    add("64 levels", "ok", '{"prompt":"x","metadata":' + deep[1:-1] + "}", COMPLETION)
    add("a prompt for the chat path", "policy", '{"messages":[{"role":"user","content":"x"}],"prompt":"x"}')
    add("a token id of 2^31", "policy", '{"prompt":[2147483648]}', COMPLETION)
    add("a token id of 1.5", "policy", '{"prompt":[1.5]}', COMPLETION)
    add("no token ids", "policy", '{"prompt":[]}', COMPLETION)
    add("echo", "policy", '{"prompt":"x","echo":true}', COMPLETION)
    return file


def draw() -> VectorFile:
    file = VectorFile(
        "draw",
        "One token's draw. key: the turn's sampling key. ids and logits (little-endian binary32): the record's "
        "entries. params: temperature, top_k, top_p, min_p. noise: of each entry, to 1e-8. acceptable: the ids that a "
        "verifier accepts.",
    )
    key = sampling_key(0, NONCE, digest("prompt"))

    def add(
        name: str, found: Entries, temperature: float, top_k: int, top_p: float, min_p: float, at: int = 12
    ) -> None:
        file.add(
            name,
            key=key.hex(),
            position=at,
            ids=[int(token) for token in found.ids],
            logits=found.logit_bytes().hex(),
            params=[temperature, top_k, top_p, min_p],
        )

    add("greedy", entries(1), 0.0, 8, 1.0, 0.0)
    for at in range(12, 18):
        add(f"temperature 0.8, position {at}", entries(at), 0.8, 8, 1.0, 0.0, at)
    add("a large position", entries(1), 1.0, 8, 1.0, 0.0, 2**31 - 1)
    add("the largest ids", Entries(np.array([2**32 - 1, 0], "<u4"), np.array([1.5, 1], "<f4")), 1.0, 8, 1.0, 0.0)
    # A row so flat, and a place so chosen, that the last entry is drawn unless a filter takes it away.
    row = Entries(entries(1).ids, np.arange(2.0, 0.0, -0.25).astype("<f4"))
    at = next(at for at in range(10_000) if choose(row, SamplingParams(1.0, 8, 1.0, 0.0, 1), key, at) == row.ids[7])
    add("no filter", row, 1.0, 8, 1.0, 0.0, at)
    add("the lowest temperature", row, 0.01, 8, 1.0, 0.0, at)
    add("the highest temperature", row, 100.0, 8, 1.0, 0.0, at)
    for top_k in (1, 3, 7):
        add(f"top_k {top_k}", row, 1.0, top_k, 1.0, 0.0, at)
    for top_p in (0.0, 0.3, 0.6, 0.9, 0.999):
        add(f"top_p {top_p}", row, 1.0, 8, top_p, 0.0, at)
    for min_p in (0.05, 0.3, 0.6, 1.0):
        add(f"min_p {min_p}", row, 1.0, 8, 1.0, min_p, at)
    add("top_p and min_p come before the temperature", row, 10.0, 8, 0.9, 0.3, at)
    add("top_p among what top_k leaves", row, 1.0, 4, 0.7, 0.0, at)
    add("top_k, top_p and min_p", row, 2.0, 6, 0.9, 0.4, at)
    _ties(file, key)
    _thresholds(file, key)
    _large(file, key)
    one: dict[str, Any] = {"key": key.hex(), "position": 1, "ids": [1], "logits": "0000803f"}
    for temperature in (5e-324, 1e-5, 0.00999, -1.0, 100.5):
        file.add(f"temperature {temperature:g}", "malformed", **one, params=[temperature, 8, 1.0, 0.0])
    bad = {"key": key.hex(), "position": 1, "params": [1.0, 8, 1.0, 0.0]}
    file.add("ascending", "malformed", **bad, ids=[1, 2], logits="0000803f00000040")
    file.add("an id twice", "malformed", **bad, ids=[1, 1], logits="000000400000803f")
    file.add("more logits than ids", "malformed", **bad, ids=[1], logits="000000400000803f")
    file.add("not a number", "malformed", **bad, ids=[1], logits="0000c07f")
    file.add("half an id", "malformed", **bad, id_bytes="010000", logits="000000")
    return file


def _ties(file: VectorFile, key: bytes) -> None:
    """Scores that two machines may order differently: both ids are accepted, but not a billionth further apart."""
    row = entries(5, k=2)
    position = next(at for at in range(10_000) if 0.5 < (noise := gumbel(key, at, row.ids))[1] - noise[0] < 3.0)
    noise = gumbel(key, position, row.ids)
    tie = float(row.logits[0] - row.logits[1]) / float(noise[1] - noise[0])  # the two scores meet at this temperature
    for name, factor in (("a tie", 1.0), ("a tie but for 1e-10", 1 + 1e-10), ("no tie by 1e-7", 1 + 1e-7)):
        params = SamplingParams(tie * factor, 2, 1.0, 0.0, 1)
        file.add(
            name,
            key=key.hex(),
            position=position,
            ids=[int(token) for token in row.ids],
            logits=row.logit_bytes().hex(),
            params=[params.temperature, 2, 1.0, 0.0],
        )


def _large(file: VectorFile, key: bytes) -> None:
    """Scores so large that one step of rounding is more than a billionth: what it may decide is accepted either way."""
    for exponent in (11, 35):
        logit = np.float32(10.0**exponent)
        row = Entries(np.array([1, 2], "<u4"), np.array([logit, logit], "<f4"))
        reach = 2.0**-50 * float(logit) / 0.01
        for name, low, high in (("within a step of rounding", 1e-6, reach), ("further apart", 2 * reach, math.inf)):
            apart = (abs(np.subtract(*gumbel(key, at, row.ids))) for at in range(10_000))
            position = next((at for at, found in enumerate(apart) if low < found < high), None)
            if position is not None:
                file.add(
                    f"two logits of 1e{exponent}, noise {name}",
                    key=key.hex(),
                    position=position,
                    ids=[1, 2],
                    logits=row.logit_bytes().hex(),
                    params=[0.01, 2, 1.0, 0.0],
                )


def _thresholds(file: VectorFile, key: bytes) -> None:
    """A top_p or a min_p exactly at an entry's border: with and without that entry are both accepted."""
    row = Entries(np.array([10, 20, 30], "<u4"), np.array([3.0, 3.0, 1.0], "<f4"))
    for position in range(1000):
        noise = gumbel(key, position, row.ids)
        if noise[2] > noise[0] + 3.0 and noise[2] > noise[1] + 3.0:
            break
    common: dict[str, Any] = {
        "key": key.hex(),
        "position": position,
        "ids": [10, 20, 30],
        "logits": row.logit_bytes().hex(),
    }
    weight = float(np.exp(-2.0))
    border = 2 / (2 + weight)
    for name, top_p in (("at", border), ("1e-7 above", border + 1e-7), ("1e-7 below", border - 1e-7)):
        file.add(f"top_p {name} a border", **common, params=[1.0, 3, top_p, 0.0])
    for name, min_p in (("at", weight), ("1e-7 above", weight + 1e-7), ("1e-7 below", weight - 1e-7)):
        file.add(f"min_p {name} a border", **common, params=[1.0, 3, 1.0, min_p])


def delivery() -> VectorFile:
    file = VectorFile(
        "delivery",
        "pieces: the bytes of each token. stops: the stop strings. text: what is delivered; stopped: index of the "
        "token that completed a stop string; digest: SHA-256 of the text.",
    )

    def add(name: str, *pieces: bytes, stops: list[str] | None = None) -> None:
        file.add(name, pieces=[piece.hex() for piece in pieces], stops=stops or [])

    add("no tokens")
    add("plain text", b"The ", b"sky", b"", b".")
    add("a character in two tokens", b"\xc3", b"\xa9t\xc3\xa9")
    add("a character in four tokens", b"\xf0", b"\x9f", b"\x98", b"\x80!")
    add("a character cut off at the end is left out", b"ab\xe6\xb0")
    add("an invalid byte is replaced", b"a\xffb")
    add("a continuation byte alone", b"\x80", b"a")
    add("a lead byte and then a letter", b"\xe6\xb0", b"a")
    add("an overlong form: two replacements", b"\xc0\x80")
    add("a surrogate: three replacements", b"\xed\xa0\x80")
    add("two bytes of a surrogate at the end: two replacements", b"a\xed", b"\xb4")
    add("two bytes of a surrogate and a letter", b"\xed", b"\xb4", b"a")
    add("a surrogate in three tokens", b"\xed", b"\xb4", b"\x80")
    add("past the last character: four replacements", b"\xf4\x90\x80\x80")
    add("a byte order mark stays", b"\xef\xbb\xbfa")
    add("a stop string", b"Hello", b" wor", b"ld!", b" more", stops=["world"])
    add("at once", b"stop", stops=["stop"])
    add("never", b"sto", b"pping", stops=["stopped"])
    add("in the middle of a token", b"ab", b"cSTOPd", b"e", stops=["STOP"])
    add("one that began and did not come", b"aST", b"Ob", stops=["STOP"])
    add("one cut off at the end is delivered", b"aST", stops=["STOP"])
    add("the one that begins first wins", b"xabc", stops=["bc", "abc"])
    add("the one that is complete first wins", b"xa", b"b", b"c", stops=["abc", "b"])
    add("of overlapping ones", b"aa", b"ab", stops=["aab", "aaab"])
    add("one made of replacements", b"a\xff", b"b", stops=["\ufffd"])
    add("one made of replacements for half a surrogate", b"a\xed", b"\xb4", b"b", stops=["\ufffd\ufffd"])
    add("one that a half character may become", b"a\xc3", b"\xa9b", stops=["é"])
    add("one that is never complete", b"a\xc3", stops=["é"])
    add("letters beyond 16 bits", "x😀y".encode(), b"z", stops=["😀"])
    return file
