"""The leaves of a session log: open, turn, token, end, close. Each is one deterministic CBOR array.

Every leaf starts [kind, session id, sequence number, salt], so a leaf can't be moved to another index or another
session, and a sibling's hash tells nothing about a low-entropy token. Format: spec/protocol.md.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from verifiable import limits
from verifiable.errors import MalformedError
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingParams, sampling_key
from verifiable.wire import encoding
from verifiable.wire.ids import pack

SALT_BYTES = 16
SESSION_ID_BYTES = 16
SECRET_BYTES = 32
SEED_BYTES = 8
"""A seed is the nonce where the client brings no other: two's complement, big-endian."""


class Source(enum.IntEnum):
    """Where a token came from. Only the first four occur today; FORCED is for tokens a grammar leaves no choice in."""

    PLAIN = 0
    DRAFT_ACCEPTED = 1
    DRAFT_CORRECTED = 2
    BONUS = 3
    FORCED = 4


class Finish(enum.IntEnum):
    """Why an answer ended."""

    STOP = 0
    LENGTH = 1
    CANCELLED = 2
    ERROR = 3


class NonceSource(enum.IntEnum):
    """Whose the nonce in the sampling key is: the client's, the request's seed, or the provider's."""

    CLIENT = 0
    SEED = 1
    PROVIDER = 2


def turn_secret(session_secret: bytes, turn: int) -> bytes:
    """The secret that salts one turn's leaves; giving it away opens no other turn."""
    return hmac.digest(session_secret, b"turn" + turn.to_bytes(4, "big"), "sha256")


def salt(secret: bytes, seq: int) -> bytes:
    """The salt of leaf `seq`: the first 16 bytes of HMAC-SHA-256(secret, seq as u64 big-endian)."""
    return hmac.digest(secret, seq.to_bytes(8, "big"), "sha256")[:SALT_BYTES]


def ids_digest(ids: Sequence[int]) -> bytes:
    """SHA-256 over token ids as packed little-endian u32."""
    return hashlib.sha256(pack(ids)).digest()


def token_bytes(token: int, source: Source, fresh: bool) -> bytes:
    """What a token adds to the digest in the turn's end: its id as u32 little-endian, then a byte: source, and 8 for
    the first of a decode step.
    """
    return (token | (int(source) | (8 if fresh else 0)) << 32).to_bytes(5, "little")


def tokens_digest(ids: Sequence[int], sources: Sequence[Source], fresh: Sequence[bool]) -> bytes:
    """SHA-256 over `token_bytes` of all tokens of a turn."""
    return hashlib.sha256(b"".join(map(token_bytes, ids, sources, fresh))).digest()


def stop_digest(stops: tuple[str, ...]) -> bytes:
    """SHA-256 over the stop strings as a CBOR array of text."""
    return hashlib.sha256(encoding.encode(list(stops))).digest()


def _encode(leaf: Open | Turn | End | Close, *fields: encoding.Encodable) -> bytes:
    return encoding.encode([leaf.kind, leaf.session, leaf.seq, leaf.salt, *fields])


@dataclass(frozen=True, slots=True)
class Open:
    """The first leaf: which manifest the session runs under, and when it was opened (ms since 1970)."""

    kind: ClassVar[int] = 0
    session: bytes
    seq: int
    salt: bytes
    manifest_digest: bytes
    time: int

    def encode(self) -> bytes:
        return _encode(self, encoding.PROTOCOL, self.manifest_digest, self.time)


class TurnFacts(NamedTuple):
    """What the provider commits to before the first token of a turn; the last fields of `Turn`, in its order."""

    request_digest: bytes
    prompt_digest: bytes
    prompt_count: int
    params: SamplingParams
    stop_digest: bytes
    nonce: bytes
    nonce_source: NonceSource
    cached: int

    def key(self) -> bytes:
        """The turn's sampling key."""
        return sampling_key(self.nonce_source, self.nonce, self.prompt_digest)


@dataclass(frozen=True, slots=True)
class Turn:
    """What was asked: digests of request, prompt ids and stop strings, the parameters as used, and the nonce.

    `prompt_count` counts the prompt's ids; `cached` says how many of them were reused from a cache.
    """

    kind: ClassVar[int] = 1
    session: bytes
    seq: int
    salt: bytes
    turn: int
    request_digest: bytes
    prompt_digest: bytes
    prompt_count: int
    params: SamplingParams
    stop_digest: bytes
    nonce: bytes
    nonce_source: NonceSource
    cached: int

    def encode(self) -> bytes:
        return _encode(
            self,
            self.turn,
            self.request_digest,
            self.prompt_digest,
            self.prompt_count,
            self.params.to_cbor(),
            self.stop_digest,
            self.nonce,
            int(self.nonce_source),
            self.cached,
        )

    def key(self) -> bytes:
        """The turn's sampling key."""
        return sampling_key(self.nonce_source, self.nonce, self.prompt_digest)


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token with the k best entries of the row that produced it.

    `position` is the token's index in the whole sequence, prompt included. `step` counts this turn's decode steps
    from 0 and `row` the rows of the step from 0: a step that verified a draft emits several rows.
    """

    kind: ClassVar[int] = 2
    session: bytes
    seq: int
    salt: bytes
    turn: int
    position: int
    token: int
    source: Source
    step: int
    row: int
    entries: Entries

    def encode(self) -> bytes:
        place, row = (self.session, self.seq, self.salt), (self.source, self.step, self.row)
        return encode_token(*place, self.turn, self.position, self.token, *row, self.entries)


def encode_token(
    session: bytes,
    seq: int,
    leaf_salt: bytes,
    turn: int,
    position: int,
    token: int,
    source: Source,
    step: int,
    row: int,
    entries: Entries,
) -> bytes:
    """The bytes of a `Token` with these fields. One is written for every token, so without the detour over an object,
    and item by item.
    """
    uint, data = encoding.encode_uint, encoding.encode_bytes
    return b"".join(
        (
            _TOKEN_START,
            data(session),
            uint(seq),
            data(leaf_salt),
            uint(turn),
            uint(position),
            uint(token),
            uint(source),
            uint(step),
            uint(row),
            data(entries.id_bytes()),
            data(entries.logit_bytes()),
        )
    )


_TOKEN_START = b"\x8c\x02"  # an array of 12, the first of them the kind


@dataclass(frozen=True, slots=True)
class End:
    """How a turn ended: counts as billed, and the SHA-256 of the UTF-8 text that was delivered.

    `tokens_digest` binds the ids and marks of the turn's tokens, so that evidence which holds only those can't be
    changed on its way to an auditor, and then accuse an honest provider.
    """

    kind: ClassVar[int] = 3
    session: bytes
    seq: int
    salt: bytes
    turn: int
    finish: Finish
    prompt_count: int
    completion_count: int
    text_digest: bytes
    tokens_digest: bytes
    drafted: int
    accepted: int

    def encode(self) -> bytes:
        counts = (self.prompt_count, self.completion_count)
        digests = (self.text_digest, self.tokens_digest)
        return _encode(self, self.turn, int(self.finish), *counts, *digests, self.drafted, self.accepted)


@dataclass(frozen=True, slots=True)
class Close:
    """The last leaf: nothing may follow it. `turns` counts the session's turns."""

    kind: ClassVar[int] = 4
    session: bytes
    seq: int
    salt: bytes
    turns: int

    def encode(self) -> bytes:
        return _encode(self, self.turns)


Leaf = Open | Turn | Token | End | Close
_Place = tuple[bytes, int, bytes]
"""What every leaf starts with: session, sequence number and salt."""
_LENGTHS = {0: 7, 1: 13, 2: 12, 3: 12, 4: 5}


def parse(data: bytes) -> Leaf:
    """Read one leaf strictly. Raises MalformedError on anything but the one spelling of a known leaf."""
    fields = encoding.array(encoding.decode(data), None, "leaf")
    if len(fields) < 4:
        raise MalformedError("leaf", expected="at least 4 fields", found=str(len(fields)))
    kind = encoding.uint(fields[0], "leaf kind")
    if kind not in _LENGTHS or len(fields) != _LENGTHS[kind]:
        raise MalformedError(
            "leaf",
            expected=f"a kind of {sorted(_LENGTHS)} with its number of fields",
            found=f"kind {kind}, {len(fields)} fields",
        )
    place = (
        encoding.bytes_(fields[1], "leaf session id", SESSION_ID_BYTES),
        encoding.uint(fields[2], "leaf sequence number"),
        encoding.bytes_(fields[3], "leaf salt", SALT_BYTES),
    )
    return _PARSERS[kind](place, fields[4:])


def _parse_open(place: _Place, fields: list[encoding.Value]) -> Leaf:
    encoding.version(fields[0], "record version")
    return Open(*place, encoding.bytes_(fields[1], "manifest digest", 32), encoding.uint(fields[2], "open time"))


def _parse_turn(place: _Place, fields: list[encoding.Value]) -> Leaf:
    source = NonceSource(encoding.uint(fields[7], "nonce source", max(NonceSource)))
    least, most = limits.NONCE_BYTES
    nonce = encoding.bytes_(fields[6], "nonce", SEED_BYTES if source is NonceSource.SEED else None, most)
    if len(nonce) < least:
        raise MalformedError("nonce", expected=f"at least {least} bytes", found=f"{len(nonce)} bytes")
    return Turn(
        *place,
        turn=encoding.uint(fields[0], "turn number", limits.U32),
        request_digest=encoding.bytes_(fields[1], "request digest", 32),
        prompt_digest=encoding.bytes_(fields[2], "prompt digest", 32),
        prompt_count=encoding.uint(fields[3], "prompt count", limits.U31),
        params=SamplingParams.from_cbor(fields[4]),
        stop_digest=encoding.bytes_(fields[5], "stop digest", 32),
        nonce=nonce,
        nonce_source=source,
        cached=encoding.uint(fields[8], "cached count", limits.U31),
    )


def _parse_token(place: _Place, fields: list[encoding.Value]) -> Leaf:
    return Token(
        *place,
        turn=encoding.uint(fields[0], "turn number", limits.U32),
        position=encoding.uint(fields[1], "token position", limits.U31),
        token=encoding.uint(fields[2], "token id", limits.U31),
        source=Source(encoding.uint(fields[3], "token source", max(Source))),
        step=encoding.uint(fields[4], "decode step", limits.U31),
        row=encoding.uint(fields[5], "decode row", limits.U31),
        entries=Entries.from_bytes(
            encoding.bytes_(fields[6], "record ids", maximum=4 * limits.ENTRIES),
            encoding.bytes_(fields[7], "record logits", maximum=4 * limits.ENTRIES),
        ),
    )


def _parse_end(place: _Place, fields: list[encoding.Value]) -> Leaf:
    return End(
        *place,
        turn=encoding.uint(fields[0], "turn number", limits.U32),
        finish=Finish(encoding.uint(fields[1], "finish reason", max(Finish))),
        prompt_count=encoding.uint(fields[2], "prompt count", limits.U31),
        completion_count=encoding.uint(fields[3], "completion count", limits.U31),
        text_digest=encoding.bytes_(fields[4], "text digest", 32),
        tokens_digest=encoding.bytes_(fields[5], "tokens digest", 32),
        drafted=encoding.uint(fields[6], "drafted count", limits.U31),
        accepted=encoding.uint(fields[7], "accepted count", limits.U31),
    )


def _parse_close(place: _Place, fields: list[encoding.Value]) -> Leaf:
    return Close(*place, turns=encoding.uint(fields[0], "turn count", limits.U32))


_PARSERS = {0: _parse_open, 1: _parse_turn, 2: _parse_token, 3: _parse_end, 4: _parse_close}
