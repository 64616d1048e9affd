"""What an entry of a log is, by the type in its header: the head of a session, or a statement that stands beside them.

Whoever looks for heads passes over what is none: an entry says itself what it is, and its signature is checked where
it counts.
"""

from __future__ import annotations

import re
from typing import Final

from verifiable.errors import MalformedError
from verifiable.wire import cose
from verifiable.wire.keys import PublicKey

HEAD: Final = "head"
MANIFEST: Final = "manifest"
SUCCESSION: Final = "succession"
REVOCATION: Final = "revocation"
VERDICT: Final = "verdict"
STATEMENTS: Final = (MANIFEST, SUCCESSION, REVOCATION, VERDICT)
"""What an entry may be besides a head."""
OTHER: Final = "other"
"""What this version does not know, or cannot read."""

_TYPE = re.compile(rf"application/vnd\.verifiable\.({'|'.join((HEAD, *STATEMENTS))})\+cbor", re.ASCII)


def subject_of(entry: bytes) -> bytes:
    """Whom a verdict is about by what it says, unverified: the thumbprint of a key. Empty for any other entry."""
    if kind_of(entry) != VERDICT:
        return b""
    try:
        return PublicKey.parse(cose.peek_claimed(entry)[1].subject).kid
    except MalformedError:
        return b""


def kind_of(entry: bytes) -> str:
    """The kind of an entry by what it says of itself, unverified: `HEAD`, one of `STATEMENTS`, or `OTHER`."""
    try:
        said = _TYPE.fullmatch(str(cose.parse(entry).protected.get(cose.TYP)))
    except MalformedError:
        return OTHER
    return OTHER if said is None else said[1]
