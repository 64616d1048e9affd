"""C2SP checkpoints (c2sp.org/tlog-checkpoint): a log's signed size and root, as the text of a note.

    example.com/behind-the-sofa
    20852163
    CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

Only a checkpoint that the log's key signed says anything about a log's size; its cosignatures say that witnesses
saw the same one (see `verifiable.tlog.cosignature`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verifiable import limits
from verifiable.errors import MalformedError, VerificationError
from verifiable.tlog.note import Ed25519Verifier, Note, Verifier, check_text, sign_note
from verifiable.wire.keys import PrivateKey, PublicKey
from verifiable.wire.text import HASH_SIZE, decimal, read_base64, write_base64


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The body of a checkpoint: the log's name, its number of leaves and their RFC 9162 root, 32 bytes.

    `extensions` are further lines, opaque to us and not empty. We write none.
    """

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.size <= limits.U63 or len(self.root) != HASH_SIZE:
            raise MalformedError("checkpoint", expected="a size below 2^63 and a root of 32 bytes", found=self.size)
        for line in (self.origin, *self.extensions):
            if not line or "\n" in line:
                raise MalformedError("checkpoint: line", expected="some text on one line", found=ascii(line))
        check_text(self.text())

    def text(self) -> str:
        """The note text."""
        lines = (self.origin, str(self.size), write_base64(self.root), *self.extensions)
        return "".join(f"{line}\n" for line in lines)

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Parse a note text; `text` gives the same one back."""
        lines = text.split("\n")
        if lines.pop() != "" or len(lines) < 3:
            raise MalformedError("checkpoint", expected="three lines or more, each with its newline", found=len(lines))
        origin, size, root, *extensions = lines
        return cls(
            origin,
            decimal(size, "checkpoint: tree size"),
            read_base64(root, "checkpoint: root hash", HASH_SIZE),
            tuple(extensions),
        )


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A checkpoint, the keys of its log that signed it, and the names of the trusted witnesses that cosigned it."""

    checkpoint: Checkpoint
    note: Note
    keys: tuple[PublicKey, ...]
    witnesses: tuple[str, ...]


def sign_checkpoint(checkpoint: Checkpoint, key: PrivateKey) -> bytes:
    """Sign a checkpoint. The key must bear the log's name, as C2SP recommends and our verifier demands."""
    if key.name != checkpoint.origin:
        raise MalformedError("log key's name", expected=checkpoint.origin, found=key.name)
    return sign_note(checkpoint.text(), key)


def open_checkpoint(
    data: bytes, log: PublicKey | Sequence[PublicKey], witnesses: Iterable[Verifier] = (), quorum: int = 0
) -> SignedCheckpoint:
    """Verify a checkpoint against its log's key and perhaps a quorum of witnesses.

    Of several keys of the log one must have signed. At least `quorum` of the trusted witnesses
    (`cosignature.CosignerKey`) must have cosigned; a wrong signature by any of all these refuses the whole. The origin
    must be the log key's name: otherwise a key that signs for two logs could lend one's size to the other.

    Raises:
        MalformedError: not a checkpoint.
        VerificationError: `untrusted-key`, `bad-signature`, `wrong-origin` or `too-few-witnesses`.
    """
    note = Note.parse(data)
    logs = [Ed25519Verifier(key) for key in ((log,) if isinstance(log, PublicKey) else log)]
    witness_keys = tuple(witnesses)
    note.verify(logs)  # the log itself: cosignatures alone do not make a checkpoint
    opened = note.verify((*logs, *witness_keys))
    checkpoint = Checkpoint.parse(opened.text)
    seen = {(signature.name, signature.key_id) for signature in opened.verified}
    keys = tuple(each.key for each in logs if (each.name, each.key_id) in seen)
    if any(checkpoint.origin != key.name for key in keys):
        raise VerificationError(
            "checkpoint of another log", code="wrong-origin", expected=keys[0].name, found=checkpoint.origin
        )
    # By name: one witness that changed its key, or has one of each kind, counts once.
    names = tuple(dict.fromkeys(key.name for key in witness_keys if (key.name, key.key_id) in seen))
    if len(names) < quorum:
        raise VerificationError(
            "checkpoint is cosigned by too few witnesses",
            code="too-few-witnesses",
            expected=f"{quorum} of {len(witness_keys)}",
            found=", ".join(names) or "none",
            hint="Ask again later: witnesses may not have answered the log yet.",
        )
    return SignedCheckpoint(checkpoint, note, keys, names)
