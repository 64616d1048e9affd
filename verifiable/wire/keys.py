"""Ed25519 keys: signing, verification, and their two names.

A key is known by its `kid`, the RFC 9679 thumbprint of its COSE_Key, inside COSE objects, and by its C2SP
signed-note verifier key (`name+hash+base64`) in files that people exchange. Both are derived from the 32
bytes of the key, so neither can be set to something else.

Verification is libsodium's (through PyNaCl): it refuses small-order keys and points, and signatures whose S
is not reduced. OpenSSL accepts small-order keys, under which one signature fits many messages, so it must
not be used for this.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Final

from nacl import bindings
from nacl.exceptions import BadSignatureError

from verifiable import limits
from verifiable.errors import MalformedError, VerificationError
from verifiable.wire.encoding import encode
from verifiable.wire.text import read_base64, write_base64

NOTE_ED25519: Final = 0x01
"""Signature type of an Ed25519 signature over the text of a note (C2SP signed-note)."""


_PRIVATE: Final = "PRIVATE+KEY+"


def check_name(name: str) -> str:
    """Return a name that C2SP signed-note allows: not empty, no `+`, Unicode space or control character."""
    if not name or "+" in name or any(char.isspace() or char < " " for char in name):
        raise MalformedError("key name", expected="text without '+', spaces or control characters", found=name)
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise MalformedError("key name", expected="valid Unicode", found=ascii(name)) from None
    if size > limits.KEY_NAME_BYTES:
        raise MalformedError("key name", expected=f"at most {limits.KEY_NAME_BYTES} bytes", found=f"{size} bytes")
    return name


def key_id(name: str, kind: int, raw: bytes) -> bytes:
    """The key ID of C2SP signed-note: SHA-256(name ‖ 0x0A ‖ kind ‖ raw)[:4]. A hint, not an identity."""
    return hashlib.sha256(name.encode("utf-8") + b"\n" + bytes((kind,)) + raw).digest()[:4]


def split_vkey(text: str, what: str = "verifier key") -> tuple[str, int, bytes]:
    """Name, kind and key bytes of `name+hash+base64(kind ‖ key)`. Checks the hash, and judges neither kind nor key."""
    parts = text.split("+", 2)
    if len(parts) != 3:
        raise MalformedError(what, expected="name+hash+base64", found=text)
    name, hash_hex, encoded = parts
    check_name(name)
    data = read_base64(encoded, f"{what}: key data")
    if len(data) < 2:
        raise MalformedError(f"{what}: key data", expected="a type byte and a key", found=data)
    kind, raw = data[0], data[1:]
    expected = key_id(name, kind, raw).hex()
    if hash_hex != expected:
        raise MalformedError(
            f"{what}: hash does not match the name and the key",
            expected=expected,
            found=hash_hex,
            hint="The line was damaged or edited: get it again from the key's owner.",
        )
    return name, kind, raw


def join_vkey(name: str, kind: int, raw: bytes) -> str:
    """The inverse of `split_vkey`."""
    return f"{name}+{key_id(name, kind, raw).hex()}+{write_base64(bytes((kind,)) + raw)}"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """An Ed25519 public key with the name that its owner uses.

    Args:
        name: C2SP key name, e.g. a log's origin.
        raw: the 32 bytes of RFC 8032 §5.1.2. A point that is not canonical, of small order or outside the
            main subgroup is refused: no honest private key has it.
    """

    name: str
    raw: bytes
    kid: bytes = field(init=False, repr=False, compare=False)
    """RFC 9679 thumbprint: SHA-256 of the COSE_Key {1: 1 (OKP), -1: 6 (Ed25519), -2: raw}; 32 bytes."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if type(self.raw) is not bytes or len(self.raw) != 32:
            raise MalformedError("Ed25519 public key", expected="32 bytes", found=self.raw)
        if not bindings.crypto_core_ed25519_is_valid_point(self.raw):
            raise MalformedError(
                "Ed25519 public key",
                expected="a canonical point of the main subgroup",
                found=self.raw,
                hint="Do not trust whoever gave you this key: signatures under such keys prove nothing.",
            )
        thumbprint = hashlib.sha256(encode({1: 1, -1: 6, -2: self.raw})).digest()
        object.__setattr__(self, "kid", thumbprint)

    @property
    def label(self) -> str:
        """How a message names it: `name+hash`, with which the key's line begins in its file."""
        return f"{self.name}+{key_id(self.name, NOTE_ED25519, self.raw).hex()}"

    def verify(self, signature: bytes, message: bytes) -> None:
        """Raise VerificationError (`bad-signature`) unless this is the key's 64-byte signature of the message."""
        if len(signature) == bindings.crypto_sign_BYTES:
            try:
                bindings.crypto_sign_open(signature + message, self.raw)
                return
            except BadSignatureError:
                pass
        raise VerificationError(
            "signature does not verify",
            code="bad-signature",
            expected=f"a signature by {self.label}",
            found=signature,
            hint="The signed bytes were changed, or another key signed them.",
        )

    def vkey(self) -> str:
        """The C2SP verifier key, `name+hash+base64(0x01 ‖ raw)`."""
        return join_vkey(self.name, NOTE_ED25519, self.raw)

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Parse a C2SP verifier key of type Ed25519."""
        name, kind, raw = split_vkey(text)
        if kind != NOTE_ED25519:
            raise MalformedError("verifier key: type", expected="0x01 (Ed25519)", found=f"{kind:#04x}")
        return cls(name, raw)


@dataclass(frozen=True, slots=True, eq=False)
class PrivateKey:
    """An Ed25519 private key: a C2SP key name, shared with the public key, and the 32 bytes of RFC 8032 §5.1.5.

    Its seed is never shown: not by repr, not in an error.
    """

    name: str
    seed: bytes = field(repr=False)
    public: PublicKey = field(init=False)
    _secret: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if type(self.seed) is not bytes or len(self.seed) != 32:
            raise MalformedError("Ed25519 seed", expected="32 bytes")
        raw, secret = bindings.crypto_sign_seed_keypair(self.seed)
        object.__setattr__(self, "public", PublicKey(self.name, raw))
        object.__setattr__(self, "_secret", secret)

    @classmethod
    def generate(cls, name: str, seed: bytes) -> PrivateKey:
        """A new key from 32 bytes of the caller's randomness (`os.urandom(32)`); nothing here is random."""
        return cls(name, seed)

    def sign(self, message: bytes) -> bytes:
        """The 64-byte Ed25519 signature of RFC 8032; the same for the same message."""
        return bytes(bindings.crypto_sign(message, self._secret)[: bindings.crypto_sign_BYTES])

    def skey(self) -> str:
        """The signer key of Go's sumdb/note, `PRIVATE+KEY+name+hash+base64(0x01 ‖ seed)`. Secret."""
        identifier = key_id(self.name, NOTE_ED25519, self.public.raw).hex()
        return f"{_PRIVATE}{self.name}+{identifier}+{write_base64(bytes((NOTE_ED25519,)) + self.seed)}"

    @classmethod
    def parse(cls, text: str) -> PrivateKey:
        """Parse what `skey` writes. No error shows any of the text."""
        parts = text.removeprefix(_PRIVATE).split("+", 2) if text.startswith(_PRIVATE) else []
        try:
            name, _, encoded = parts
            data = base64.b64decode(encoded, validate=True)  # not read_base64: its errors show what they read
        except ValueError:
            raise MalformedError("signer key", expected="PRIVATE+KEY+name+hash+base64") from None
        if len(data) != 33 or data[0] != NOTE_ED25519:
            raise MalformedError("signer key", expected="type 0x01 (Ed25519) and a seed of 32 bytes")
        key = cls(name, data[1:])
        if key.skey() != text:
            raise MalformedError("signer key: hash or spelling does not match the name and the seed")
        return key
