"""Strict readers for the text forms of the C2SP formats: each value has one spelling, and no other is read."""

from __future__ import annotations

import base64
import re
from typing import Final

from verifiable import limits
from verifiable.errors import MalformedError

HASH_SIZE: Final = 32

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_HEX = re.compile(r"[0-9a-f]*", re.ASCII)


def decimal(text: str, what: str, maximum: int = limits.U63) -> int:
    """Read an ASCII decimal without sign, spaces or leading zeros."""
    if not _DECIMAL.fullmatch(text):
        raise MalformedError(what, expected="a decimal without sign or leading zeros", found=text)
    value = int(text)
    if value > maximum:
        raise MalformedError(what, expected=f"at most {maximum}", found=text)
    return value


def read_base64(text: str, what: str, length: int | None = None) -> bytes:
    """Read standard padded base64 (RFC 4648 §4) whose unused bits are zero, perhaps of a given length."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise MalformedError(what, expected="standard base64 with padding", found=text) from None
    if base64.b64encode(data).decode("ascii") != text:
        raise MalformedError(what, expected="base64 in its one canonical spelling", found=text)
    if length is not None and len(data) != length:
        raise MalformedError(what, expected=f"{length} bytes", found=f"{len(data)} bytes")
    return data


def write_base64(data: bytes) -> str:
    """The inverse of `read_base64`."""
    return base64.b64encode(data).decode("ascii")


def read_base64url(text: str, what: str) -> bytes:
    """Read base64url without padding (RFC 4648 §5) whose unused bits are zero."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise MalformedError(what, expected="base64url without padding", found=text) from None
    if write_base64url(data) != text:
        raise MalformedError(what, expected="base64url in its one canonical spelling", found=text)
    return data


def write_base64url(data: bytes) -> str:
    """The inverse of `read_base64url`."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_hex(text: object, length: int) -> bytes | None:
    """The bytes that lower-case hexadecimal digits give; None for whatever does not spell `length` bytes so."""
    if not isinstance(text, str) or len(text) != 2 * length or not _HEX.fullmatch(text):
        return None
    return bytes.fromhex(text)


def read_utf8(data: bytes, what: str, maximum: int) -> str:
    """Read a text file of at most `maximum` bytes that is valid UTF-8 and has no control character but newline."""
    if type(data) is not bytes:
        raise MalformedError(what, expected="bytes", found=type(data).__name__)
    if len(data) > maximum:
        raise MalformedError(what, expected=f"at most {maximum} bytes", found=f"{len(data)} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(what, expected="valid UTF-8", found=f"{error.reason} at byte {error.start}") from None
    for char in text:
        if char < " " and char != "\n":
            raise MalformedError(what, expected="no control character but newline", found=ascii(char))
    return text


def take_prefix(line: str, prefix: str, what: str) -> str:
    """The rest of a line that must begin with a prefix."""
    if not line.startswith(prefix):
        raise MalformedError(what, expected=f"a line that begins with {prefix!r}", found=line)
    return line[len(prefix) :]
