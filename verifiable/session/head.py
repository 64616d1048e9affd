"""A session head: the signed statement "this session's log has this size and this root"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from verifiable.errors import MalformedError, reading_signed
from verifiable.session.records import SESSION_ID_BYTES
from verifiable.wire import cose, encoding
from verifiable.wire.keys import PrivateKey, PublicKey

TYPE = "application/vnd.verifiable.head+cbor"


@dataclass(frozen=True, slots=True)
class Head:
    """`size` leaves have the RFC 9162 root `root`; `time` is milliseconds since 1970.

    An `interim` head was signed in the middle of a turn, for a chunk of it: the provider's log never takes it in.
    """

    session: bytes
    size: int
    root: bytes
    manifest_digest: bytes
    time: int
    interim: bool = False

    def payload(self) -> bytes:
        mark = (True,) if self.interim else ()
        fields = (encoding.PROTOCOL, self.session, self.size, self.root, self.manifest_digest, self.time)
        return encoding.encode([*fields, *mark])

    def sign(self, key: PrivateKey) -> bytes:
        return cose.sign1(self.payload(), key, TYPE)

    @classmethod
    def parse(cls, payload: bytes) -> Head:
        """Read a head's payload strictly; raises MalformedError."""
        fields = encoding.array(encoding.decode(payload), None, "head")
        encoding.version(fields[0] if fields else None, "head version")
        interim = len(fields) == 7
        encoding.array(fields, 7 if interim else 6, "head")
        if interim and fields[6] is not True:
            raise MalformedError("head: the mark of an interim one", expected="true, or none", found=str(fields[6]))
        return cls(
            encoding.bytes_(fields[1], "head session id", SESSION_ID_BYTES),
            encoding.uint(fields[2], "head size"),
            encoding.bytes_(fields[3], "head root", 32),
            encoding.bytes_(fields[4], "head manifest digest", 32),
            encoding.uint(fields[5], "head time"),
            interim,
        )

    @classmethod
    def peek(cls, data: bytes) -> Head:
        """Read a signed head without verifying it; raises MalformedError."""
        return cls.parse(cose.peek1(data).payload)


def verify_head(data: bytes, session_keys: Iterable[PublicKey]) -> Head:
    """Check a signed head against the session keys that a verified manifest names, and read it."""
    return open_head(data, session_keys)[0]


def open_head(data: bytes, session_keys: Iterable[PublicKey]) -> tuple[Head, PublicKey]:
    """As `verify_head`, with the session key that signed it."""
    signed = cose.verify1(data, session_keys, TYPE)
    with reading_signed():
        return Head.parse(signed.payload), signed.key
