"""Evidence: what an auditor needs to decide about a session, in three sizes.

`tokens` holds each chosen turn's token ids and marks packed, two or three bytes a token: an auditor with the model
recomputes every record and compares the root. `records` holds chosen records with their path; `full` holds every
record.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

from verifiable import files, limits
from verifiable.errors import MalformedError
from verifiable.session.opening import Opening
from verifiable.session.records import SECRET_BYTES, Source
from verifiable.wire import encoding
from verifiable.wire.sealed import seal, unseal

_NEW_STEP = 8


class Kind(enum.IntEnum):
    TOKENS = 0
    RECORDS = 1
    FULL = 2


def id_width(vocabulary: int) -> int:
    """Bytes that a packed token id takes: as many as the largest id needs, so that there is one packing only."""
    return max(1, ((vocabulary - 1).bit_length() + 7) // 8)


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """Token ids (`width` little-endian bytes each) and marks (4 bits each, low half first: source, and 8 for a new
    step).
    """

    count: int
    width: int
    ids: bytes
    marks: bytes

    @classmethod
    def pack(
        cls, ids: Sequence[int], sources: Sequence[Source], new_steps: Sequence[bool], vocabulary: int
    ) -> PackedTokens:
        width = id_width(vocabulary)
        marks = [int(source) | (_NEW_STEP if fresh else 0) for source, fresh in zip(sources, new_steps, strict=True)]
        if len(marks) % 2:
            marks.append(0)
        return cls(
            len(ids),
            width,
            b"".join([token.to_bytes(width, "little") for token in ids]),
            bytes([low | high << 4 for low, high in zip(marks[::2], marks[1::2], strict=True)]),
        )

    def unpack(self) -> tuple[list[int], list[Source], list[bool]]:
        """Ids, sources and new-step marks, each `count` long."""
        width = self.width
        ids = [int.from_bytes(self.ids[at : at + width], "little") for at in range(0, len(self.ids), width)]
        marks = [nibble for byte in self.marks for nibble in (byte & 15, byte >> 4)][: self.count]
        return ids, [Source(mark & 7) for mark in marks], [mark & _NEW_STEP != 0 for mark in marks]

    @staticmethod
    def steps(new_steps: Sequence[bool]) -> list[tuple[int, int]]:
        """The decode step and the row in it of each token, counted from the marks as `records.Token` counts them."""
        step = row = -1
        places = []
        for fresh in new_steps:
            step, row = (step + 1, 0) if fresh else (step, row + 1)
            places.append((step, row))
        return places

    def to_cbor(self) -> list[encoding.Value]:
        return [self.count, self.width, self.ids, self.marks]

    @classmethod
    def from_cbor(cls, value: encoding.Value) -> PackedTokens:
        items = encoding.array(value, 4, "packed tokens")
        count = encoding.uint(items[0], "packed token count", limits.ANSWER_TOKENS)
        width = encoding.uint(items[1], "packed token width", 4)
        packed = cls(
            count,
            width,
            encoding.bytes_(items[2], "packed token ids", count * width),
            encoding.bytes_(items[3], "packed token marks", (count + 1) // 2),
        )
        if width < 1:
            raise MalformedError("packed token width", expected="1 to 4", found="0")
        if count % 2 and packed.marks[-1] >> 4:
            raise MalformedError("packed token marks", expected="zero after the last mark", found="more bits")
        nibbles = {nibble for byte in set(packed.marks) for nibble in (byte & 7, byte >> 4 & 7)}
        if nibbles and max(nibbles) > max(Source):
            raise MalformedError("packed token marks", expected=f"sources 0 to {max(Source)}", found=str(max(nibbles)))
        return packed


@dataclass(frozen=True, slots=True)
class TurnEvidence:
    """What opens one turn: its number, the canonical request, the turn's salt secret, and the packed tokens.

    `tokens` is None where the turn's records are among the opened leaves (kinds `records` and `full`).
    """

    turn: int
    request: bytes
    secret: bytes
    tokens: PackedTokens | None

    def to_cbor(self) -> list[encoding.Value]:
        return [self.turn, self.request, self.secret, None if self.tokens is None else self.tokens.to_cbor()]

    @classmethod
    def from_cbor(cls, value: encoding.Value) -> TurnEvidence:
        items = encoding.array(value, 4, "turn evidence")
        return cls(
            encoding.uint(items[0], "turn number", limits.U32),
            encoding.bytes_(items[1], "turn request", maximum=limits.REQUEST_BYTES),
            encoding.bytes_(items[2], "turn secret", SECRET_BYTES),
            None if items[3] is None else PackedTokens.from_cbor(items[3]),
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """`head` and `manifest` are signed; `opening` holds the leaves that are not tokens, and any records shown whole."""

    kind: Kind
    head: bytes
    manifest: bytes
    opening: Opening
    turns: tuple[TurnEvidence, ...]

    def encode(self) -> bytes:
        leaves, proof = self.opening.to_cbor()
        return seal(
            {
                1: encoding.PROTOCOL,
                2: int(self.kind),
                3: self.head,
                4: self.manifest,
                5: leaves,
                6: proof,
                7: [turn.to_cbor() for turn in self.turns],
            },
            limits.EVIDENCE_BYTES,
        )

    @classmethod
    def parse(cls, data: bytes) -> Evidence:
        """Read evidence strictly; raises MalformedError. Checks nothing against the signatures: see
        checks.check_evidence.
        """
        fields = unseal(data, 7, "evidence", limits.EVIDENCE_BYTES)
        turns = tuple(TurnEvidence.from_cbor(turn) for turn in encoding.array(fields[7], None, "evidence turns"))
        numbers = [turn.turn for turn in turns]
        if numbers != sorted(set(numbers)):
            raise MalformedError("evidence turns", expected="ascending turn numbers", found=str(numbers[:10]))
        return cls(
            Kind(encoding.uint(fields[2], "evidence kind", max(Kind))),
            encoding.bytes_(fields[3], "evidence head", maximum=limits.SIGNED_BYTES),
            encoding.bytes_(fields[4], "evidence manifest", maximum=limits.SIGNED_BYTES),
            Opening.from_cbor(fields[5], fields[6]),
            turns,
        )

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Evidence:
        """Read evidence from a file; raises OSError or MalformedError."""
        return cls.parse(files.read(path, limits.EVIDENCE_BYTES))
