"""Answers in OpenAI's shapes, for /v1/chat/completions and /v1/completions, whole and as chunks. Pure functions.

What is ours travels in one extra field, `verifiable`, which OpenAI's clients ignore: the session, the turn, the number
of the next one, the owner's capability where the session goes on (hexadecimal), and the receipt (base64url without
padding), all in the last message or chunk. With commitments "stream", every chunk carries the hashes of its tokens'
leaves (hexadecimal), the index of the first, and the signed head after the last.

An answer's text is always its `content`, since that is what was committed to. Where the request forced a call of a tool
the text is that call, and `tool_calls` repeats what it says, for clients that look there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engine.generation import Delta, Done, Generation, TokenInfo
from verifiable.request.request import CHAT
from verifiable.session.records import Finish
from verifiable.wire.text import write_base64url

_REASONS = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.CANCELLED: "cancelled", Finish.ERROR: "error"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What all parts of one answer share. `created` is in seconds since 1970."""

    generation: Generation
    id: str
    created: int
    model: str
    fingerprint: str

    @property
    def chat(self) -> bool:
        return self.generation.request.path == CHAT

    def whole(self, text: str, tokens: Iterable[TokenInfo], done: Done) -> dict[str, Any]:
        """The answer to a request without `stream`."""
        calls = self._calls(text, done)
        choice = {"index": 0, "finish_reason": _reason(done, calls), "logprobs": self._logprobs(tokens, 0)}
        choice |= {"message": {"role": "assistant", "content": text, **calls}} if self.chat else {"text": text}
        return {
            **self._base(""),
            "choices": [choice],
            "usage": usage(done),
            "verifiable": self._extra(done),
        }

    def first(self) -> dict[str, Any] | None:
        """The chunk that opens a chat stream."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}) if self.chat else None

    def delta(self, step: Delta, offset: int) -> dict[str, Any]:
        """One step's chunk; `offset` counts the characters handed out before it."""
        part: dict[str, Any] = {"delta": {"content": step.text}} if self.chat else {"text": step.text}
        chunk = self._chunk({**part, "logprobs": self._logprobs(step.tokens, offset)})
        if step.proof is None:
            return chunk
        proof = {
            "session": self.generation.session,
            "turn": self.generation.turn,
            "first": step.proof.first,
            "leaves": [value.hex() for value in step.proof.hashes],
            "head": write_base64url(step.proof.head),
        }
        return {**chunk, "verifiable": proof}

    def last(self, done: Done, text: str) -> dict[str, Any]:
        """The chunk with the finish reason and the receipt; `text` is the whole answer."""
        calls = self._calls(text, done)
        part: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
        if calls:
            part = {"delta": {"tool_calls": [{"index": 0, **calls["tool_calls"][0]}]}}
        chunk = self._chunk({**part, "finish_reason": _reason(done, calls)})
        return {**chunk, "verifiable": self._extra(done)}

    def usage_chunk(self, done: Done) -> dict[str, Any]:
        """The chunk that `stream_options.include_usage` asks for: no choices, only usage."""
        return {**self._base(".chunk"), "choices": [], "usage": usage(done)}

    def _calls(self, text: str, done: Done) -> dict[str, Any]:
        """`tool_calls` of a message whose text a forced call's grammar has made: {"name":…,"parameters":…}."""
        if not self.generation.request.forced or done.finish is not Finish.STOP:
            return {}
        for tool in self.generation.request.forced:
            name = tool["function"]["name"]
            head = '{"name":' + json.dumps(name, ensure_ascii=False) + ',"parameters":'
            if text.startswith(head) and text.endswith("}"):
                function = {"name": name, "arguments": text[len(head) : -1]}
                number = self.id.partition("-")[2]
                return {"tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}
        return {}  # a stop string has cut it short

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        whole = {"index": 0, "finish_reason": None, "logprobs": None, **choice}
        extra = {"usage": None} if self.generation.request.include_usage else {}
        return {**self._base(".chunk"), "choices": [whole], **extra}

    def _base(self, part: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": f"chat.completion{part}" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _extra(self, done: Done) -> dict[str, Any] | None:
        if done.receipt is None:
            return None
        place = {"session": self.generation.session, "turn": self.generation.turn, "next_turn": self._next()}
        owner = self.generation.capability
        return {**place, "capability": owner and owner.hex(), "receipt": write_base64url(done.receipt)}

    def _next(self) -> int | None:
        """The number that the session's next turn will have; None where it has ended with this one."""
        turn = self.generation.turn
        return None if turn is None or self.generation.request.session is None else turn + 1

    def _logprobs(self, tokens: Iterable[TokenInfo], offset: int) -> dict[str, Any] | None:
        if self.generation.request.top_logprobs is None:
            return None
        if self.chat:
            return {"content": [_chat_logprob(token) for token in tokens], "refusal": None}
        listed = list(tokens)
        offsets = []
        for token in listed:
            offsets.append(offset)
            offset += len(_text(token.piece))
        return {
            "tokens": [_text(token.piece) for token in listed],
            "token_logprobs": [token.logprob for token in listed],
            "top_logprobs": [{_text(piece): logprob for _, piece, logprob in token.top} for token in listed],
            "text_offset": offsets,
        }


def _reason(done: Done, calls: dict[str, Any]) -> str:
    return "tool_calls" if calls else _REASONS[done.finish]


def usage(done: Done) -> dict[str, Any]:
    return {
        "prompt_tokens": done.prompt_count,
        "completion_tokens": done.completion_count,
        "total_tokens": done.prompt_count + done.completion_count,
        "prompt_tokens_details": {"cached_tokens": done.cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": done.accepted,
            "rejected_prediction_tokens": done.drafted - done.accepted,
        },
    }


def _chat_logprob(token: TokenInfo) -> dict[str, Any]:
    def one(piece: bytes, logprob: float | None) -> dict[str, Any]:
        return {"token": _text(piece), "bytes": list(piece), "logprob": logprob}

    return {**one(token.piece, token.logprob), "top_logprobs": [one(piece, value) for _, piece, value in token.top]}


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")
