"""The files of machine code that compute at a provider's, named so that builds can be told apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from verifiable import limits
from verifiable.errors import MalformedError
from verifiable.wire import encoding

_NAME = re.compile(r"[A-Za-z0-9_.+-]+")


@dataclass(frozen=True, slots=True)
class Library:
    """A file of machine code: its name without version and ending ("libggml-cpu"), and its SHA-256 (32 bytes)."""

    name: str
    sha256: bytes


def to_cbor(libraries: Sequence[Library]) -> list[encoding.Value]:
    return [[each.name, each.sha256] for each in libraries]


def from_cbor(value: encoding.Value) -> tuple[Library, ...]:
    """Read a list of libraries strictly, their names ascending. Raises MalformedError."""
    libraries = []
    for entry in encoding.array(value, None, "runtime libraries", maximum=limits.LIBRARIES):
        name, digest = encoding.array(entry, 2, "runtime library")
        found = encoding.text(name, "library name", limits.LIBRARY_BYTES)
        if not _NAME.fullmatch(found):
            raise MalformedError("library name", expected="letters, digits, and _ . + -", found=found)
        libraries.append(Library(found, encoding.bytes_(digest, "library sha256", 32)))
    for one, other in pairwise(libraries):
        if one.name >= other.name:
            raise MalformedError("runtime libraries", expected="names that ascend", found=f"{one.name}, {other.name}")
    return tuple(libraries)
