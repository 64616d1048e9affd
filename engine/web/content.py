"""Bytes over HTTP: entity tags, conditional and range requests, and a choice of forms (RFC 9110 §8.8, §12.5, §14)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from fastapi import Request, Response

from verifiable import limits
from verifiable.errors import PolicyError

PRIVATE = "no-store"
REVALIDATE = "no-cache"
FOREVER = "public, max-age=31536000, immutable"

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)
_MEDIA = re.compile(
    r"\s*([a-z0-9*.+-]+/[a-z0-9*.+-]+)\s*(?:;.*?\bq=([01](?:\.[0-9]{1,3})?))?.*", re.ASCII | re.IGNORECASE
)


class NotAcceptableError(PolicyError):
    """None of the forms that a caller accepts is one that we have."""


def answer(http: Request, data: bytes, media_type: str, cache: str) -> Response:
    """Respond with bytes, a part of them (one range), or 304 where the caller has them already."""
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"Cache-Control": cache, "ETag": tag, "Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    known = http.headers.get("if-none-match", "")
    if known.strip() == "*" or tag in [part.strip().removeprefix("W/") for part in known.split(",")]:
        return Response(None, 304, headers)
    wanted = _RANGE.fullmatch(http.headers.get("range", "").strip())
    condition = http.headers.get("if-range")
    if wanted is None or (condition is not None and condition.strip() != tag):
        return Response(data, 200, headers, media_type)
    first, last = wanted.groups()
    if first:
        start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
    else:
        start, end = max(len(data) - int(last or 0), 0), len(data)
    if start >= end:
        return Response(None, 416, {**headers, "Content-Range": f"bytes */{len(data)}"})
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
    return Response(data[start:end], 206, headers, media_type)


def choose(http: Request, offered: Sequence[str]) -> str:
    """The media type that the caller likes best among those offered, the first where it has no wish.

    Raises NotAcceptableError.
    """
    header = http.headers.get("accept", "").strip()
    if not header:
        return offered[0]
    liked: dict[str, float] = {}
    for part in header.split(",")[:64]:
        match = _MEDIA.fullmatch(part)
        if match is not None:
            liked[match[1].lower()] = float(match[2] or 1)
    best = max(offered, key=lambda form: (_quality(form, liked), -offered.index(form)))
    if _quality(best, liked) <= 0:
        raise NotAcceptableError("no form of it that you accept", expected=", ".join(offered), found=header)
    return best


def _quality(form: str, liked: dict[str, float]) -> float:
    plain = form.partition(";")[0]
    for name in (plain, plain.partition("/")[0] + "/*", "*/*"):
        if name in liked:
            return liked[name]
    return 0


def numbers(text: str, name: str) -> list[int]:
    """What a parameter lists, with commas between: at least one. Raises PolicyError."""
    parts = text.split(",")
    if len(parts) > limits.ASKED or not all(part.isascii() and part.isdigit() and len(part) <= 10 for part in parts):
        raise PolicyError(
            f"parameter {name}",
            expected=f"at most {limits.ASKED} whole numbers with commas between",
            found=text[:80],
            parameter=name,
        )
    return [int(part) for part in parts]
