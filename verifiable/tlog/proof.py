"""`.tlog-proof` files (c2sp.org/tlog-proof): an inclusion proof and its signed checkpoint, to be checked offline.

c2sp.org/tlog-proof@v1
index 73894
gSKyXoYZUgZ6jduWYrkDOARinOMGJveXjgMkBTcdPlQ=
B95lDa8R83lS8n0eG+o0buTxRKQTYFi//1U8anccXmA=

example.com/fancylog
109482
sFodV/vSp5O8n9a8QpW6PRY97tfOSW5bsc2Xl/EQi08=

— example.com/fancylog hI2DJw…1roloI=
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from verifiable import limits
from verifiable.errors import MalformedError
from verifiable.tlog import merkle
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint
from verifiable.wire.keys import PublicKey
from verifiable.wire.text import HASH_SIZE, decimal, read_base64, read_utf8, take_prefix, write_base64

_HEADER: Final = "c2sp.org/tlog-proof@v1"


@dataclass(frozen=True, slots=True)
class Inclusion:
    """What a verified proof shows: an entry is at `index` under a checkpoint that the log's key signed, `note`. Of
    several keys of the log that signed it, `log` is the newest.

    That others are shown this checkpoint is another matter: see `cosignature.Quorum`.
    """

    log: PublicKey
    index: int
    checkpoint: Checkpoint
    note: bytes


@dataclass(frozen=True, slots=True)
class TlogProof:
    """A parsed file: the entry's index, its audit path, leaf end first, and the signed note as the log published it.

    `extra` are data of the application, or None. Nothing authenticates them.
    """

    index: int
    proof: tuple[bytes, ...]
    checkpoint: bytes
    extra: bytes | None = None

    def format(self) -> bytes:
        """The file's bytes."""
        lines = [_HEADER]
        if self.extra is not None:
            lines.append(f"extra {write_base64(self.extra)}")
        lines += [f"index {self.index}", *map(write_base64, self.proof), "", ""]
        return "\n".join(lines).encode("ascii") + self.checkpoint

    @classmethod
    def parse(cls, data: bytes) -> TlogProof:
        """Parse a file strictly; `format` gives the same bytes back. The checkpoint is not looked into."""
        content = read_utf8(data, "tlog-proof", 2 * limits.NOTE_BYTES)
        head, blank, checkpoint = content.partition("\n\n")
        lines = head.split("\n")
        if not blank or lines.pop(0) != _HEADER:
            raise MalformedError("tlog-proof", expected=f"{_HEADER}, a proof and a checkpoint", found=head)
        extra = None
        if lines and lines[0].startswith("extra "):
            extra = read_base64(take_prefix(lines.pop(0), "extra ", "tlog-proof"), "tlog-proof: extra")
        if not lines or len(lines) > 1 + limits.PROOF_HASHES:
            raise MalformedError(
                "tlog-proof", expected=f"an index and at most {limits.PROOF_HASHES} hashes", found=len(lines)
            )
        index = decimal(take_prefix(lines[0], "index ", "tlog-proof"), "tlog-proof: index")
        proof = tuple(read_base64(line, "tlog-proof: hash", HASH_SIZE) for line in lines[1:])
        return cls(index, proof, checkpoint.encode("utf-8"), extra)

    def verify(self, entry: bytes, log: PublicKey | Sequence[PublicKey]) -> Inclusion:
        """Verify that an entry stands under the checkpoint, and that the log's key signed that, or one of several.

        Raises:
            VerificationError: what `open_checkpoint` raises, or `bad-inclusion-proof`.
        """
        signed = open_checkpoint(self.checkpoint, log)
        head = signed.checkpoint
        merkle.verify_inclusion(merkle.leaf_hash(entry), self.index, head.size, self.proof, head.root)
        return Inclusion(signed.keys[-1], self.index, head, self.checkpoint)
