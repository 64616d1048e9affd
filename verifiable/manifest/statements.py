"""What a provider says of its keys: that one follows another, and that one counts no more. Format: spec/keys.md.

Both are signed objects; a keys file holds them together. None of it needs to be trusted: `Chain` says what follows.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

from verifiable import files, limits
from verifiable.errors import MalformedError
from verifiable.wire import cose, encoding
from verifiable.wire.keys import PrivateKey, PublicKey
from verifiable.wire.sealed import seal, unseal

SUCCESSOR = "application/vnd.verifiable.successor+cbor"
SUCCESSION = "application/vnd.verifiable.succession+cbor"
REVOCATION = "application/vnd.verifiable.revocation+cbor"
MEDIA_TYPE = "application/vnd.verifiable.keys+cbor"
"""Of a keys file, where HTTP serves it."""


class Role(enum.IntEnum):
    """What a key is for. Only the provider's and the log's are succeeded: a manifest names session keys."""

    PROVIDER = 0
    SESSION = 1
    LOG = 2

    @property
    def words(self) -> str:
        return f"{self.name.lower()} key"


@dataclass(frozen=True, slots=True)
class Succession:
    """`new` takes the place of `old` in a role, as of `time` (ms since 1970). Both keys sign it: first the new one.

    Raises MalformedError: a role that has no successions, one key twice, or a log's key of another name.
    """

    role: Role
    old: PublicKey
    new: PublicKey
    time: int

    def __post_init__(self) -> None:
        if self.role is Role.SESSION:
            raise MalformedError("succession: role", expected="provider or log", found="session")
        if self.old.kid == self.new.kid:
            raise MalformedError("succession: new key", expected="another than the old one", found=self.new.label)
        if self.role is Role.LOG and self.old.name != self.new.name:
            raise MalformedError("succession: name of a log's key", expected=self.old.name, found=self.new.name)

    def payload(self) -> bytes:
        return encoding.encode(
            {1: encoding.PROTOCOL, 2: int(self.role), 3: self.old.vkey(), 4: self.new.vkey(), 5: self.time}
        )

    def accept(self, new: PrivateKey) -> bytes:
        """What the new key signs: that it takes the place. The old key signs that (`confirm`)."""
        if new.public != self.new:
            raise MalformedError("the key that accepts", expected=self.new.label, found=new.public.label)
        return cose.sign1(self.payload(), new, SUCCESSOR)

    @classmethod
    def confirm(cls, accepted: bytes, old: PrivateKey) -> bytes:
        """The whole statement, of what the new key signed. Raises as `parse`, or where `old` is not the old key."""
        said = cls._accepted(accepted)
        if old.public.kid != said.old.kid:
            raise MalformedError("the key that is succeeded", expected=said.old.label, found=old.public.label)
        return cose.sign1(accepted, old, SUCCESSION)

    @classmethod
    def sign(cls, old: PrivateKey, new: PrivateKey, role: Role, time: int) -> bytes:
        """The whole statement, where both keys are at hand."""
        return cls.confirm(cls(role, old.public, new.public, time).accept(new), old)

    @classmethod
    def open(cls, data: bytes) -> Succession:
        """Read one and check both signatures, each by the key that it names. That says nothing about whose keys.

        Raises MalformedError, or VerificationError (`untrusted-key`, `bad-signature`).
        """
        said = cls._accepted(cose.peek1(data).payload)
        cose.verify1(data, [said.old], SUCCESSION)
        return said

    @classmethod
    def _accepted(cls, data: bytes) -> Succession:
        said = cls._parse(cose.peek1(data).payload)
        cose.verify1(data, [said.new], SUCCESSOR)
        return said

    @classmethod
    def _parse(cls, payload: bytes) -> Succession:
        fields = encoding.versioned(encoding.decode(payload), range(1, 6), "succession")
        return cls(
            _role(fields[2]),
            _key(fields[3], "succession: old key"),
            _key(fields[4], "succession: new key"),
            encoding.uint(fields[5], "succession: time"),
        )


@dataclass(frozen=True, slots=True)
class Revocation:
    """What `key` signs in a role at `time` (ms since 1970) or later counts no more, for a `reason` in words.

    Raises MalformedError: no reason, one too long, or one with control characters.
    """

    role: Role
    key: PublicKey
    time: int
    reason: str

    def __post_init__(self) -> None:
        size = len(self.reason.encode("utf-8", "surrogatepass"))
        control = any(char < " " or "\x7f" <= char <= "\x9f" for char in self.reason)
        if not 1 <= size <= limits.REASON_BYTES or control:
            expected = f"1 to {limits.REASON_BYTES} bytes of UTF-8, no control characters"
            raise MalformedError("revocation: reason", expected=expected, found=self.reason)

    def payload(self) -> bytes:
        return encoding.encode(
            {1: encoding.PROTOCOL, 2: int(self.role), 3: self.key.vkey(), 4: self.time, 5: self.reason}
        )

    def sign(self, provider: PrivateKey) -> bytes:
        return cose.sign1(self.payload(), provider, REVOCATION)

    @classmethod
    def peek(cls, data: bytes) -> Revocation:
        """Read one without checking who signed it. Raises MalformedError."""
        fields = encoding.versioned(encoding.decode(cose.peek1(data).payload), range(1, 6), "revocation")
        return cls(
            _role(fields[2]),
            _key(fields[3], "revocation: key"),
            encoding.uint(fields[4], "revocation: time"),
            encoding.text(fields[5], "revocation: reason", limits.REASON_BYTES),
        )

    @classmethod
    def open(cls, data: bytes, providers: Sequence[PublicKey]) -> tuple[Revocation, PublicKey]:
        """Read one that one of these provider keys signed, and that key. Raises as `cose.verify1`."""
        said = cls.peek(data)
        return said, cose.verify1(data, providers, REVOCATION).key


def _role(value: encoding.Value) -> Role:
    return Role(encoding.uint(value, "statement on keys: role", Role.LOG))


def _key(value: encoding.Value, what: str) -> PublicKey:
    return PublicKey.parse(encoding.text(value, what, limits.KEY_BYTES))


@dataclass(frozen=True, slots=True)
class KeysFile:
    """Successions and revocations, signed, in the order in which they were made. Nothing of it is checked here."""

    statements: tuple[bytes, ...]

    def encode(self) -> bytes:
        """Raises PolicyError where there are more than a reader takes."""
        return seal({1: encoding.PROTOCOL, 2: list(self.statements)}, limits.KEYS_BYTES)

    @classmethod
    def parse(cls, data: bytes) -> KeysFile:
        """Read one strictly; raises MalformedError or NewerVersionError."""
        fields = unseal(data, 2, "keys file", limits.KEYS_BYTES)
        items = encoding.array(fields[2], None, "keys file: statements", maximum=limits.KEY_STATEMENTS)
        return cls(tuple(encoding.bytes_(item, "keys file: statement", maximum=limits.ENTRY_BYTES) for item in items))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> KeysFile:
        """Read one from a file; raises OSError or MalformedError."""
        return cls.parse(files.read(path, limits.KEYS_BYTES))
