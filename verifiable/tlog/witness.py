"""The witness's side of c2sp.org/tlog-witness, without the HTTP: what may be cosigned, and why not.

    old 20852014
    PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=

    example.com/behind-the-sofa
    20852163
    CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

    — example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZni…

A log sends this `add-checkpoint` request; a witness that finds it consistent with the last checkpoint that it
cosigned for that log cosigns the new one. Whoever serves this must replace the remembered head by compare-and-swap
before the cosignature leaves the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from verifiable import limits
from verifiable.errors import MalformedError, VerifiableError, VerificationError
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint
from verifiable.tlog.merkle import EMPTY_ROOT, verify_consistency
from verifiable.tlog.note import Note
from verifiable.wire.keys import PublicKey
from verifiable.wire.text import HASH_SIZE, decimal, read_base64, read_utf8, take_prefix, write_base64


@dataclass(frozen=True, slots=True)
class AddCheckpoint:
    """The body of an add-checkpoint request: the size that the log believes the witness saw last, and the proof."""

    old_size: int
    proof: tuple[bytes, ...]
    checkpoint: bytes

    def format(self) -> bytes:
        """The request's body."""
        lines = [f"old {self.old_size}", *map(write_base64, self.proof), "", ""]
        return "\n".join(lines).encode("ascii") + self.checkpoint

    @classmethod
    def parse(cls, data: bytes) -> AddCheckpoint:
        """Parse a body strictly; `format` gives the same bytes back."""
        content = read_utf8(data, "add-checkpoint", 2 * limits.NOTE_BYTES)
        head, blank, checkpoint = content.partition("\n\n")
        lines = head.split("\n")
        if not blank or len(lines) > 1 + limits.PROOF_HASHES:
            raise MalformedError(
                "add-checkpoint",
                expected=f"a size, at most {limits.PROOF_HASHES} hashes and a checkpoint",
                found=len(lines),
            )
        old_size = decimal(take_prefix(lines[0], "old ", "add-checkpoint"), "add-checkpoint: old size")
        proof = tuple(read_base64(line, "add-checkpoint: hash", HASH_SIZE) for line in lines[1:])
        return cls(old_size, proof, checkpoint.encode("utf-8"))


@dataclass(frozen=True, slots=True)
class Cosigned:
    """The last checkpoint that this witness cosigned for a log. A log never seen counts as empty."""

    size: int = 0
    root: bytes = EMPTY_ROOT


def consider(
    request: AddCheckpoint, logs: Mapping[str, PublicKey | Sequence[PublicKey]], seen: Mapping[str, Cosigned]
) -> Checkpoint:
    """Decide whether a checkpoint may be cosigned; the caller then remembers its size and root, and cosigns.

    `logs` are the keys of the logs that this witness serves, of which a log that exchanged its key has several; `seen`
    is what it cosigned last, both by origin.

    Raises:
        MalformedError: the request makes no sense.
        VerificationError: `unknown-log`, `untrusted-key`, `bad-signature`, `stale-size` (the log must ask again
            with the size found), `two-roots` (the log signed two roots for one size: keep the request, it is the
            evidence) or `bad-consistency-proof`.
    """
    claimed = Checkpoint.parse(Note.parse(request.checkpoint).text)
    log = logs.get(claimed.origin)
    if log is None:
        raise VerificationError("unknown log", code="unknown-log", found=claimed.origin)
    head = open_checkpoint(request.checkpoint, log).checkpoint
    if request.old_size > head.size:
        raise MalformedError("add-checkpoint: old size", expected=f"at most {head.size}", found=request.old_size)
    last = seen.get(head.origin, Cosigned())
    if request.old_size != last.size:
        raise VerificationError(
            "another size was cosigned last", code="stale-size", expected=last.size, found=request.old_size
        )
    if head.size == last.size and head.root != last.root:
        raise VerificationError("two roots for one size", code="two-roots", expected=last.root, found=head.root)
    verify_consistency(last.size, head.size, request.proof, last.root, head.root)
    return head


_STATUS: Final = {
    "unknown-log": 404,
    "untrusted-key": 403,
    "bad-signature": 403,
    "wrong-origin": 403,
    "stale-size": 409,
    "two-roots": 409,
    "bad-consistency-proof": 422,
}


def status(error: VerifiableError) -> int:
    """The HTTP status that tlog-witness gives to what `AddCheckpoint.parse` and `consider` raise."""
    return _STATUS.get(error.code, 400)


def conflict_body(error: VerifiableError) -> bytes:
    """The body that goes with a 409 for `stale-size`: the size to start from (media type text/x.tlog.size)."""
    return f"{error.expected}\n".encode()
