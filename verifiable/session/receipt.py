"""The receipt: what a client keeps, to prove later who said what, and to read or pass on the evidence."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from os import PathLike

from verifiable import files, limits
from verifiable.session.opening import Opening
from verifiable.wire import encoding
from verifiable.wire.sealed import seal, unseal

CAPABILITY_BYTES = 32


def reader_capability(owner: bytes) -> bytes:
    """What lets its holder read a session, from what lets its owner continue and erase it; nothing leads back."""
    return hashlib.sha256(b"verifiable/reader" + owner).digest()


@dataclass(frozen=True, slots=True)
class Receipt:
    """`head` and `manifest` are signed objects; `opening` holds every leaf so far that is not a token.

    `capability` is the session's reader's: it lets whoever gets the receipt read the session's evidence. None is for
    handing on, and what auditors are given. `turn` is the turn that the receipt was given for. `log` is a `.tlog-proof`
    that the head is in the provider-wide log; None until it was integrated there.
    """

    head: bytes
    manifest: bytes
    opening: Opening
    turn: int
    capability: bytes | None = field(repr=False)
    log: bytes | None = None

    def encode(self) -> bytes:
        leaves, proof = self.opening.to_cbor()
        fields: encoding.Map = {1: encoding.PROTOCOL, 2: self.head, 3: self.manifest, 4: leaves, 5: proof}
        return seal({**fields, 6: self.turn, 7: self.capability, 8: self.log}, limits.RECEIPT_BYTES)

    @classmethod
    def parse(cls, data: bytes) -> Receipt:
        """Read a receipt strictly; raises MalformedError. Checks no signature: see checks.check_receipt."""
        fields = unseal(data, 8, "receipt", limits.RECEIPT_BYTES)
        return cls(
            encoding.bytes_(fields[2], "receipt head", maximum=limits.RECEIPT_BYTES),
            encoding.bytes_(fields[3], "receipt manifest", maximum=limits.RECEIPT_BYTES),
            Opening.from_cbor(fields[4], fields[5]),
            encoding.uint(fields[6], "receipt turn", limits.U32),
            None if fields[7] is None else encoding.bytes_(fields[7], "receipt capability", CAPABILITY_BYTES),
            None
            if fields[8] is None
            else encoding.bytes_(fields[8], "receipt log proof", maximum=limits.RECEIPT_BYTES),
        )

    def without_capability(self) -> Receipt:
        """The same for handing on: it can be checked as before, and opens nothing."""
        return replace(self, capability=None)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Receipt:
        """Read a receipt from a file; raises OSError or MalformedError."""
        return cls.parse(files.read(path, limits.RECEIPT_BYTES))
