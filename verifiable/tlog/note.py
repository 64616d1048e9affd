"""C2SP signed notes (c2sp.org/signed-note): text, a blank line, and signature lines.

    This is an example message.

    — example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=

A signature line names its key and carries the key's 4-byte ID before the signature. A signature by a key that the
verifier knows must verify, or the whole note is refused; those by unknown keys are passed over. A note that no
known key signed is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from verifiable import limits
from verifiable.errors import MalformedError, VerificationError
from verifiable.wire.keys import NOTE_ED25519, PrivateKey, PublicKey, check_name, key_id
from verifiable.wire.text import read_base64, read_utf8, take_prefix, write_base64

_DASH: Final = "— "


class Verifier(Protocol):
    """A key that can verify note signatures. Name and ID together select it."""

    @property
    def name(self) -> str: ...

    @property
    def key_id(self) -> bytes: ...

    def verify_note(self, text: str, signature: bytes) -> None:
        """Raise VerificationError unless this is the key's signature of the text."""


@dataclass(frozen=True, slots=True)
class Ed25519Verifier:
    """A note verifier of type 0x01: the signature is plain Ed25519 over the text."""

    key: PublicKey

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def key_id(self) -> bytes:
        return key_id(self.key.name, NOTE_ED25519, self.key.raw)

    def verify_note(self, text: str, signature: bytes) -> None:
        self.key.verify(signature, text.encode("utf-8"))


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature line: key name, 4-byte key ID, and the signature's bytes."""

    name: str
    key_id: bytes
    signature: bytes

    def line(self) -> str:
        """The line with its newline."""
        return f"{_DASH}{self.name} {write_base64(self.key_id + self.signature)}\n"

    @classmethod
    def parse(cls, line: str) -> Signature:
        """Parse a line without its newline."""
        name, space, encoded = take_prefix(line, _DASH, "note: signature line").partition(" ")
        if not space:
            raise MalformedError("note: signature line", expected="— name base64", found=line)
        data = read_base64(encoded, "note: signature")
        if len(data) < 5:
            raise MalformedError("note: signature", expected="a key ID and a signature", found=data)
        return cls(check_name(name), data[:4], data[4:])


@dataclass(frozen=True, slots=True)
class Note:
    """A parsed note. Nothing in it may be believed before `verify`."""

    text: str
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, data: bytes) -> Note:
        """Parse a note strictly; `format` gives the same bytes back."""
        content = read_utf8(data, "note", limits.NOTE_BYTES)
        border = content.rfind("\n\n")
        if border < 0:
            raise MalformedError("note", expected="text, a blank line and signatures", found="no blank line")
        lines = content[border + 2 :].split("\n")
        if lines.pop() != "" or not lines:
            raise MalformedError("note", expected="signature lines, each with its newline", found="none, or cut short")
        if len(lines) > limits.NOTE_SIGNATURES:
            raise MalformedError("note", expected=f"at most {limits.NOTE_SIGNATURES} signatures", found=len(lines))
        return cls(content[: border + 1], tuple(map(Signature.parse, lines)))

    def format(self) -> bytes:
        """The note's bytes."""
        return (self.text + "\n" + "".join(signature.line() for signature in self.signatures)).encode("utf-8")

    def add(self, *signatures: Signature) -> Note:
        """The same note with more signature lines at its end."""
        return replace(self, signatures=self.signatures + signatures)

    def verify(self, verifiers: Iterable[Verifier]) -> Opened:
        """Check every signature that a known key claims to have made.

        Raises:
            VerificationError: a known key's signature does not verify (`bad-signature`), or no known key signed
                (`untrusted-key`).
        """
        known: dict[tuple[str, bytes], list[Verifier]] = {}
        for verifier in verifiers:
            known.setdefault((verifier.name, verifier.key_id), []).append(verifier)
        verified: dict[tuple[str, bytes], Signature] = {}
        unverified: dict[Signature, None] = {}
        for signature in self.signatures:
            selector = (signature.name, signature.key_id)
            if selector not in known:
                unverified[signature] = None
            else:
                if len(known[selector]) > 1:
                    # Four bytes can collide by design; two trusted keys that do would make the note ambiguous.
                    raise MalformedError("trusted note keys", expected="distinct names or IDs", found=signature.name)
                known[selector][0].verify_note(self.text, signature.signature)
                verified.setdefault(selector, signature)  # a key's second signature says nothing new
        if not verified:
            raise VerificationError(
                "note is not signed by a key that you trust",
                code="untrusted-key",
                expected=", ".join(sorted(name for name, _ in known)) or "no key: none was given",
                found=", ".join(signature.name for signature in unverified),
            )
        return Opened(self.text, tuple(verified.values()), tuple(unverified))


@dataclass(frozen=True, slots=True)
class Opened:
    """A verified note: its text, the lines of known keys (one for each), and the lines of unknown ones."""

    text: str
    verified: tuple[Signature, ...]
    unverified: tuple[Signature, ...]


def check_text(text: str) -> str:
    """Refuse a text that could not be the text of a note."""
    if not text.endswith("\n"):
        raise MalformedError("note text", expected="a newline at its end", found=ascii(text[-20:]))
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise MalformedError("note text", expected="valid Unicode", found="a lone surrogate") from None
    return read_utf8(data, "note text", limits.NOTE_BYTES)


def sign_text(text: str, key: PrivateKey) -> Signature:
    """The signature line of an Ed25519 key over a note text."""
    signature = key.sign(check_text(text).encode("utf-8"))
    return Signature(key.name, key_id(key.name, NOTE_ED25519, key.public.raw), signature)


def sign_note(text: str, *keys: PrivateKey) -> bytes:
    """A note with the signatures of one key or more."""
    return Note(check_text(text), tuple(sign_text(text, key) for key in keys)).format()
