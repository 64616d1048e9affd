"""An exchange: what a client sent and what it got, in a file that the client wrote itself.

A receipt says which request a provider committed to. Whether that is the request that the client sent, only the
client's own copy shows. The file is JSON, so that any client can write it:

    {"version": 2, "path": "/v1/chat/completions", "body": {…}, "text": "…", "receipt": "…", "sent": …, "received": …}

`body` is the request as it was sent, `text` the answer as it came, `receipt` the receipt in base64url, and the times
are milliseconds since 1970 by the client's clock. All but the first three may be absent. A receipt opens the session's
evidence, so the file is as private as the conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from verifiable import files, limits
from verifiable.errors import MalformedError, PolicyError
from verifiable.request.request import CHAT, COMPLETION, Request, parse_body, read_json
from verifiable.session.receipt import Receipt
from verifiable.wire.text import read_base64url, write_base64url

VERSION = 2
_LONE = re.compile("[\ud800-\udfff]")
_FIELDS = ("version", "path", "body", "text", "receipt", "sent", "received")


@dataclass(frozen=True, slots=True)
class Asked:
    """A client's own copy of what it sent: the request, or its nonce alone, and when it was on its way (ms); and
    of what it got: readings of the answer's text, one of which must be the committed one.
    """

    request: Request | None = None
    nonce: bytes | None = None
    sent: int | None = None
    received: int | None = None
    texts: tuple[str, ...] = ()

    def over(self, kept: Asked) -> Asked:
        """The same, and what another copy has where this one has nothing."""
        own = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) not in (None, ())}
        return replace(kept, **own)

    def with_text(self, text: str | None) -> Asked:
        """The same with that text in the place of its own, where there is one."""
        return self if text is None else replace(self, texts=(text,))


NOTHING = Asked()
"""A client that gives nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a client sent and got. `sent` and `received` are milliseconds since 1970."""

    request: Request
    text: str | None = None
    receipt: Receipt | None = None
    sent: int | None = None
    received: int | None = None

    @classmethod
    def of(
        cls,
        body: Mapping[str, Any],
        *,
        path: str = CHAT,
        text: str | None = None,
        receipt: Receipt | bytes | str | None = None,
        sent: int | None = None,
        received: int | None = None,
    ) -> Exchange:
        """From what a client has at hand: the body that it sent, and the receipt as the API gave it.

        Raises PolicyError or MalformedError.
        """
        if isinstance(receipt, str):
            receipt = read_base64url(receipt, "receipt")
        if isinstance(receipt, bytes):
            receipt = Receipt.parse(receipt)
        for name, time in (("sent", sent), ("received", received)):
            _time({name: time}, name)
        return cls(_request(path, body), text, receipt, sent, received)

    @property
    def asked(self) -> Asked:
        """What of it is held against what was committed."""
        texts = () if self.text is None else (self.text,)
        return Asked(self.request, None, self.sent, self.received, texts)

    def encode(self) -> bytes:
        canonical = json.loads(self.request.canonical)
        receipt = None if self.receipt is None else write_base64url(self.receipt.encode())
        values = (VERSION, canonical["path"], canonical["body"], self.text, receipt, self.sent, self.received)
        given = {name: value for name, value in zip(_FIELDS, values, strict=True) if value is not None}
        data = (json.dumps(given, indent=2) + "\n").encode()
        # Where the spaces are too much for a reader, it is written without them.
        return data if len(data) <= limits.EXCHANGE_BYTES else json.dumps(given, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> Exchange:
        """Read an exchange strictly. Raises MalformedError."""
        if len(data) > limits.EXCHANGE_BYTES:
            raise MalformedError(
                "exchange", expected=f"at most {limits.EXCHANGE_BYTES:,} bytes", found=f"{len(data):,} bytes"
            )
        value = read_json(data)
        if not isinstance(value, dict) or "version" not in value:
            raise _wrong("a JSON object with version, path and body", "something else")
        if value["version"] != VERSION or isinstance(value["version"], bool):
            raise _wrong(f"version {VERSION}", f"version {value['version']}"[:80])
        unknown = [name for name in value if name not in _FIELDS]
        if unknown:
            raise _wrong(f"only {', '.join(_FIELDS)}", unknown[0][:80])
        text, receipt = value.get("text"), value.get("receipt")
        if text is not None and not _is_text(text):
            raise _wrong("text: a string of characters", type(text).__name__)
        if not isinstance(receipt, str | None):
            raise _wrong("receipt: base64url", type(receipt).__name__)
        made = cls(
            _request(value.get("path"), value.get("body")),
            text,
            None if receipt is None else Receipt.parse(read_base64url(receipt.rstrip("="), "exchange: receipt")),
            _time(value, "sent"),
            _time(value, "received"),
        )
        if made.sent is not None and made.received is not None and made.received < made.sent:
            raise _wrong("received not before sent", f"{made.received} before {made.sent}")
        return made

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Exchange:
        """Read an exchange from a file; raises OSError or MalformedError."""
        return cls.parse(files.read(path, limits.EXCHANGE_BYTES))

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file that only its owner can read; raises OSError."""
        files.replace(Path(path), self.encode(), 0o600)


def read_asked(data: bytes) -> Exchange:
    """A request that a client kept: an exchange, `{"path": …, "body": …}` or the body alone.

    Of a body alone the path follows from `messages` or `prompt`. Raises MalformedError.
    """
    value = read_json(data)
    if not isinstance(value, dict):
        raise MalformedError("the request", expected="a JSON object", found=type(value).__name__)
    if "version" in value:
        return Exchange.parse(data)
    if value.keys() == {"path", "body"}:
        return Exchange(_request(value["path"], value["body"]))
    return Exchange(_request(COMPLETION if "prompt" in value else CHAT, value))


def _request(path: object, body: object) -> Request:
    if path not in (CHAT, COMPLETION):
        raise _wrong(f"path: {CHAT} or {COMPLETION}", str(path)[:80])
    if not isinstance(body, Mapping):
        raise _wrong("body: the request as it was sent, an object", type(body).__name__)
    try:
        return parse_body(str(path), json.dumps(body).encode())
    except RecursionError:
        raise _wrong("body: at most 64 levels deep", "more") from None
    except PolicyError as error:
        raise MalformedError(
            f"your copy of the request is none that a provider answers: {error.what}",
            expected=error.expected,
            found=error.found,
            hint="Give the body exactly as it was sent, as JSON.",
        ) from error


def _is_text(value: object) -> bool:
    """Whether a value is a string without lone surrogates, which have no UTF-8."""
    return isinstance(value, str) and _LONE.search(value) is None


def _time(value: Mapping[str, Any], name: str) -> int | None:
    time = value.get(name)
    number = isinstance(time, int | float) and not isinstance(time, bool)
    if time is not None and not (number and limits.EARLIEST_MS <= time <= limits.JSON_NUMBER and time == int(time)):
        raise _wrong(f"{name}: milliseconds (not seconds) since 1970, a whole number", str(time)[:80])
    return None if time is None else int(time)


def _wrong(expected: str, found: str) -> MalformedError:
    return MalformedError(
        "the exchange is not well formed",
        expected=expected,
        found=found,
        hint="A client writes it: docs/tutorial.md has one that does.",
    )
