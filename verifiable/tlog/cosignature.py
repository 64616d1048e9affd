"""Witness cosignatures (c2sp.org/tlog-cosignature): a witness says when it saw a checkpoint as a log's largest.

A cosignature is a note signature of type 0x04 (Ed25519) or 0x06 (ML-DSA-44): eight bytes of time, then the
signature over a message that includes the time. The Ed25519 kind is verified here. The ML-DSA-44 kind has its
place — keys, lines and the signed message are read and written — and is verified when the caller brings the
algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from verifiable import limits
from verifiable.errors import MalformedError, PolicyError, VerificationError
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint
from verifiable.tlog.note import Signature
from verifiable.wire.keys import PrivateKey, PublicKey, check_name, join_vkey, key_id, split_vkey
from verifiable.wire.text import HASH_SIZE

ED25519: Final = 0x04
ML_DSA_44: Final = 0x06
_SIZES: Final = {ED25519: (32, 64), ML_DSA_44: (1312, 2420)}
"""Bytes of a public key and of a signature, by kind (RFC 8032; FIPS 204 table 2)."""

Verify = Callable[[bytes, bytes, bytes], bool]
"""`verify(public_key, message, signature)` of pure ML-DSA-44 with an empty context."""


@dataclass(frozen=True, slots=True)
class Cosignature:
    """The `timestamped_signature` of a signature line: POSIX seconds and the signature's bytes."""

    kind: int
    timestamp: int
    signature: bytes

    @classmethod
    def parse(cls, kind: int, data: bytes) -> Cosignature:
        """Parse what follows the key ID in the line of a key of this kind."""
        length = 8 + _SIZES[kind][1]
        if len(data) != length:
            raise MalformedError("cosignature", expected=f"{length} bytes", found=f"{len(data)} bytes")
        timestamp = int.from_bytes(data[:8], "big")
        if timestamp > limits.U63:
            raise MalformedError("cosignature: timestamp", expected="at most 2^63 - 1", found=timestamp)
        return cls(kind, timestamp, data[8:])

    def format(self) -> bytes:
        """The inverse of `parse`."""
        return self.timestamp.to_bytes(8, "big") + self.signature


def ed25519_message(text: str, timestamp: int) -> bytes:
    """What an Ed25519 cosigner signs: a header, the time, and the whole text of the checkpoint."""
    return f"cosignature/v1\ntime {timestamp}\n{text}".encode()


def subtree_message(cosigner: str, timestamp: int, origin: str, start: int, end: int, root: bytes) -> bytes:
    """What an ML-DSA-44 cosigner signs, the `cosigned_message`; a checkpoint has start 0 and end = its size."""
    names = []
    for name in (cosigner, origin):
        raw = name.encode("utf-8")
        if not 1 <= len(raw) <= 255:
            raise MalformedError("cosigned name", expected="1 to 255 bytes", found=name)
        names.append(bytes((len(raw),)) + raw)
    if len(root) != HASH_SIZE:
        raise MalformedError("cosigned root", expected=f"{HASH_SIZE} bytes", found=root)
    cosigner_name, log_origin = names
    numbers = start.to_bytes(8, "big") + end.to_bytes(8, "big")
    return b"subtree/v1\n\0" + cosigner_name + timestamp.to_bytes(8, "big") + log_origin + numbers + root


@dataclass(frozen=True, slots=True)
class CosignerKey:
    """A witness's public key: a note verifier of kind `ED25519` (`raw` has 32 bytes) or `ML_DSA_44` (1,312).

    `ml_dsa_44` verifies the second kind; without it such signatures are refused, never passed over.
    """

    name: str
    kind: int
    raw: bytes
    ml_dsa_44: Verify | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.kind not in _SIZES:
            raise MalformedError("witness key: type", expected="0x04 or 0x06", found=f"{self.kind:#04x}")
        if len(self.raw) != _SIZES[self.kind][0]:
            raise MalformedError("witness key", expected=f"{_SIZES[self.kind][0]} bytes", found=self.raw)
        if self.kind == ED25519:
            PublicKey(self.name, self.raw)  # refuses points that no honest key is

    @property
    def key_id(self) -> bytes:
        return key_id(self.name, self.kind, self.raw)

    @classmethod
    def parse(cls, text: str, ml_dsa_44: Verify | None = None) -> CosignerKey:
        """Parse a witness's C2SP verifier key."""
        return cls(*split_vkey(text, "witness key"), ml_dsa_44)

    def vkey(self) -> str:
        """The C2SP verifier key."""
        return join_vkey(self.name, self.kind, self.raw)

    def verify_note(self, text: str, signature: bytes) -> None:
        """Check a signature line's bytes over a checkpoint's text.

        Raises VerificationError: `bad-signature`, or `unsupported-algorithm` for ML-DSA-44 without a verifier.
        """
        try:
            parsed = Cosignature.parse(self.kind, signature)
        except MalformedError as error:  # a known key's line that cannot be its signature
            raise self._bad(error.expected, error.found) from None
        if self.kind == ED25519:
            PublicKey(self.name, self.raw).verify(parsed.signature, ed25519_message(text, parsed.timestamp))
            return
        if self.ml_dsa_44 is None:
            raise VerificationError(
                "ML-DSA-44 cosignature cannot be verified here",
                code="unsupported-algorithm",
                expected="an Ed25519 witness key (type 0x04)",
                found=self.name,
                hint="Remove this witness from the trusted ones, or count it as not verified.",
            )
        body = Checkpoint.parse(text)
        message = subtree_message(self.name, parsed.timestamp, body.origin, 0, body.size, body.root)
        if not self.ml_dsa_44(self.raw, message, parsed.signature):
            raise self._bad(f"a signature by {self.name}", parsed.signature)

    def _bad(self, expected: object, found: object) -> VerificationError:
        return VerificationError(
            f"cosignature of {self.name} does not verify", code="bad-signature", expected=expected, found=found
        )


@dataclass(frozen=True, slots=True)
class Quorum:
    """The witnesses whom a verifier trusts, and how many of them must have cosigned a checkpoint before it counts as
    one that others see too. Where nobody is named, none does.
    """

    witnesses: tuple[CosignerKey, ...] = ()
    needed: int = 0

    @classmethod
    def of(cls, witnesses: Sequence[CosignerKey], needed: int | None = None) -> Quorum:
        """`needed` of these, or all. Raises PolicyError: it can't be reached, or a key can't be verified here."""
        names = {key.name for key in witnesses}
        unusable = [key.name for key in witnesses if key.kind != ED25519 and key.ml_dsa_44 is None]
        if unusable:
            raise PolicyError("a witness's key can't be verified here", expected="Ed25519 (0x04)", found=unusable[0])
        if needed is not None and not 1 <= needed <= len(names):
            expected = f"1 to {len(names)}" if names else "witnesses, whom you name"
            raise PolicyError("the quorum of witnesses", expected=expected, found=needed)
        return cls(tuple(witnesses), len(names) if needed is None else needed)

    def check(self, note: bytes, log: PublicKey | Sequence[PublicKey]) -> tuple[str, ...]:
        """The names of those who cosigned a log's checkpoint.

        Raises VerificationError: `too-few-witnesses`; else as `open_checkpoint`.
        """
        return open_checkpoint(note, log, self.witnesses, self.needed).witnesses

    def seen(self, note: bytes, log: PublicKey | Sequence[PublicKey]) -> int | None:
        """When the quorum had cosigned a log's checkpoint, in ms since 1970, rounded up; None where it has not, or
        nobody is named. Raises as `open_checkpoint`, but for too few.
        """
        signed = open_checkpoint(note, log, self.witnesses)
        lines = {(each.name, each.key_id): each.signature for each in signed.note.signatures}
        times: dict[str, int] = {}
        for key in self.witnesses:
            if (key.name, key.key_id) in lines:
                cosigned = Cosignature.parse(key.kind, lines[key.name, key.key_id])
                times[key.name] = min(1000 * (cosigned.timestamp + 1), times.get(key.name, limits.U63))
        return sorted(times.values())[self.needed - 1] if 0 < self.needed <= len(times) else None


NOBODY: Final = Quorum()


def cosign(text: str, key: PrivateKey, timestamp: int) -> Signature:
    """The cosignature line of an Ed25519 witness key over a checkpoint's text.

    Only for a text whose consistency with the last one signed was checked: see `verifiable.tlog.witness`.
    """
    Checkpoint.parse(text)
    if not 0 <= timestamp <= limits.U63:
        raise MalformedError("cosignature: timestamp", expected="0 to 2^63 - 1", found=timestamp)
    signature = Cosignature(ED25519, timestamp, key.sign(ed25519_message(text, timestamp)))
    return Signature(key.name, key_id(key.name, ED25519, key.public.raw), signature.format())


def witness_key(key: PublicKey) -> CosignerKey:
    """The cosigner key of an Ed25519 key. One key must not be both a log's and a witness's (C2SP)."""
    return CosignerKey(key.name, ED25519, key.raw)
