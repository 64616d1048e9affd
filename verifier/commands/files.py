"""Reading what people name on the command line: keys, receipts, evidence, answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from verifiable import files, limits
from verifiable.errors import MalformedError
from verifiable.session.evidence import Evidence
from verifiable.session.receipt import Receipt
from verifiable.wire.key_file import MAX_BYTES, read_public
from verifiable.wire.keys import PublicKey
from verifiable.wire.text import read_base64url

MAX_TEXT = 64 << 20
_BASE64URL = re.compile(rb"[A-Za-z0-9_-]+={0,2}\s*")


def read_trust(values: Sequence[str]) -> list[PublicKey]:
    """The keys of `--trust`; see `read_public` for what each may be and what is raised."""
    return [key for value in values for key in read_public(value)]


def read_receipt(path: Path) -> Receipt:
    """A receipt from a file: the bytes, or the base64url text in which the API hands them out."""
    try:
        return Receipt.parse(_decoded(files.read(path, 2 * limits.RECEIPT_BYTES)))
    except MalformedError as error:
        hint = error.hint or "Name the file that came with an answer as its receipt."
        raise MalformedError(
            f"{path} is not a sound receipt: {error.what}", expected=error.expected, found=error.found, hint=hint
        ) from error


def read_target(path: Path) -> Receipt | Evidence:
    """A receipt or evidence from a file, whichever it is. Raises MalformedError when it is neither."""
    data = _decoded(files.read(path, limits.EVIDENCE_BYTES))
    # Both begin as a map {1: version, 2: …}; the second value is a receipt's head or the evidence's kind.
    major = data[4] >> 5 if len(data) > 4 and data[1:4] == b"\x01\x01\x02" else -1
    if major == 2:
        return Receipt.parse(data)
    if major == 0:
        return Evidence.parse(data)
    raise MalformedError(
        f"{path} is neither a receipt nor evidence",
        expected="a file that this project wrote",
        found=data[:8],
        hint="A receipt comes with an answer; evidence comes from the provider, or from an audit with --save.",
    )


def read_text(path: Path) -> str:
    """An answer's text. Raises MalformedError when it is not UTF-8."""
    try:
        return files.read(path, MAX_TEXT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(f"{path} is no text", expected="UTF-8", found=f"{error.reason} at {error.start}") from None


def read_secret(value: str | None) -> str | None:
    """A key given as a file or as itself."""
    if value is not None and Path(value).is_file():
        return files.read(Path(value), MAX_BYTES).decode("utf-8", "replace").strip()
    return value


def _decoded(data: bytes) -> bytes:
    if data[:1].isalnum() and _BASE64URL.fullmatch(data):
        return read_base64url(data.decode("ascii").strip().rstrip("="), "receipt or evidence as text")
    return data
