"""Fraud that proves itself: a file that anyone who has the provider's key can check, offline and without the model.

Five kinds. Each holds only what the provider signed, and contradicts itself:

- two heads of one session with one size and two roots;
- two checkpoints of the provider's log with one size and two roots;
- a token that does not follow from its own record, the committed parameters and the turn's key;
- two heads of one session with two sizes, of which the larger one does not continue the smaller one;
- a head that the log lacks where one of its time stands, although the log holds heads that were signed more than the
  merge delay later.

What needs a forward pass (logits that differ) is no such proof: it is repeated with the evidence file and the model.
Format: spec/protocol.md.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike

from verifiable import files, limits
from verifiable.errors import MalformedError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import Manifest, open_manifest
from verifiable.sampling.processors import visible
from verifiable.sampling.sampler import acceptable
from verifiable.session import records
from verifiable.session.head import Head, verify_head
from verifiable.session.opening import Opening
from verifiable.session.records import Token, Turn
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.merkle import leaf_hash, node_hash, roots_from_prefix, split
from verifiable.wire import encoding
from verifiable.wire.keys import PublicKey
from verifiable.wire.sealed import seal, unseal

SessionKeys = Mapping[bytes, Sequence[PublicKey]]
"""The session keys of manifests, by these manifests' digests."""


class FraudKind(enum.IntEnum):
    """What a fraud file shows."""

    TWO_HEADS = 1
    TWO_CHECKPOINTS = 2
    TOKEN = 3
    MISSING = 4
    TWO_SIZES = 5


@dataclass(frozen=True, slots=True)
class Proven:
    """What a fraud file proves: a reason code, a sentence, what would have been honest, and what was signed."""

    code: str
    what: str
    expected: str
    found: str
    session: bytes | None = None
    turn: int | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Fraud:
    """A fraud file. `manifests` are the signed manifests that name the keys; the other fields depend on the kind.

    Args:
        kind: what it shows.
        manifests: one, or two where two heads were signed under two manifests; of a missing head that which names its
            key and the log, and those of the heads that tell where it would stand.
        signed: two heads, the smaller first; two checkpoints; one head (`TOKEN`); the missing head and a checkpoint
            (`MISSING`).
        opening: the leaves of turn and token (`TOKEN`), the log's entries where the head would stand, one after the
            other (`MISSING`), or no leaves and the larger tree's `prefix_path` for the smaller one's size
            (`TWO_SIZES`), else empty.
    """

    kind: FraudKind
    manifests: tuple[bytes, ...]
    signed: tuple[bytes, ...]
    opening: Opening = field(default_factory=lambda: Opening({}, ()))

    def encode(self) -> bytes:
        leaves, proof = self.opening.to_cbor()
        return seal(
            {
                1: encoding.PROTOCOL,
                2: int(self.kind),
                3: list(self.manifests),
                4: list(self.signed),
                5: leaves,
                6: proof,
            },
            limits.FRAUD_BYTES,
        )

    @classmethod
    def parse(cls, data: bytes) -> Fraud:
        """Read a file strictly; raises MalformedError. Proves nothing yet: see `verify`."""
        fields = unseal(data, 6, "fraud file", limits.FRAUD_BYTES)
        number = encoding.uint(fields[2], "fraud kind", max(FraudKind))
        if number < 1:
            raise MalformedError("fraud kind", expected=f"1 to {int(max(FraudKind))}", found="0")
        kind = FraudKind(number)
        manifests = encoding.array(fields[3], None, "fraud manifests")
        signed = encoding.array(fields[4], 1 if kind is FraudKind.TOKEN else 2, "signed statements")
        most = (limits.FRAUD_ENTRIES, limits.ENTRY_BYTES) if kind is FraudKind.MISSING else (2, limits.LEAF_BYTES)
        made = cls(
            kind,
            tuple(encoding.bytes_(item, "manifest", maximum=limits.SIGNED_BYTES) for item in manifests),
            tuple(encoding.bytes_(item, "signed statement", maximum=limits.SIGNED_BYTES) for item in signed),
            Opening.from_cbor(fields[5], fields[6], *most),
        )
        wanted = {FraudKind.TWO_CHECKPOINTS: 1, FraudKind.TOKEN: 1, FraudKind.MISSING: 3}.get(kind, 2)
        if not 1 <= len(made.manifests) <= wanted:
            raise MalformedError("fraud manifests", expected=f"1 to {wanted}", found=len(made.manifests))
        shows = kind in (FraudKind.TOKEN, FraudKind.MISSING)
        if bool(made.opening.leaves) != shows:
            raise MalformedError("fraud file", expected="leaves exactly of a token or of the log", found=kind.name)
        if not shows and bool(made.opening.proof) != (kind is FraudKind.TWO_SIZES):
            raise MalformedError("fraud file", expected="hashes exactly with leaves or two sizes", found=kind.name)
        return made

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Fraud:
        """Read a file; raises OSError or MalformedError."""
        return cls.parse(files.read(path, limits.FRAUD_BYTES))

    def verify(self, trust: Sequence[PublicKey], delay: int = limits.MERGE_DELAY) -> Proven:
        """What the file proves against the holder of a trusted key: spec/protocol.md §10.6.

        `trust` is never taken from the file, and may be a `Chain`, whose revocations change nothing; within `delay`
        milliseconds a head had to be in the log.

        Raises:
            VerificationError: a signature does not hold, or (`nothing-checked`) the statements do not contradict each
                other: then nothing is proven against anybody.
            MalformedError: a part is not what it should be.
        """
        chain = Chain.of(trust).whole()
        opened = [open_manifest(item, chain) for item in self.manifests]
        stated = [manifest for manifest, _ in opened]
        if len({chain.root_of(key) for _, key in opened}) > 1:  # anybody's key can sign another's name
            raise _nothing("the manifests are of two providers", "one key", "two")
        match self.kind:
            case FraudKind.TWO_HEADS:
                return self._two_heads(stated)
            case FraudKind.TWO_SIZES:
                return self._two_sizes(stated)
            case FraudKind.TWO_CHECKPOINTS:
                return self._two_checkpoints(_log(stated[0], chain))
            case FraudKind.TOKEN:
                return self._token(stated[0])
            case FraudKind.MISSING:
                return self._missing(stated, _log(stated[0], chain), delay)

    def _heads(self, stated: Sequence[Manifest]) -> tuple[Head, Head]:
        """Two heads, each under its manifest."""
        one = verify_head(self.signed[0], stated[0].session_keys)
        other = verify_head(self.signed[1], stated[-1].session_keys)
        return one, other

    def _two_heads(self, stated: Sequence[Manifest]) -> Proven:
        """Step 2."""
        one, other = self._heads(stated)
        if (one.session, one.size) != (other.session, other.size) or one.root == other.root:
            raise _nothing(
                "the two heads do not contradict each other",
                "one session, one size and two roots",
                f"sizes {one.size} and {other.size}, {'one root' if one.root == other.root else 'two roots'}",
            )
        return Proven(
            "two-histories",
            f"the provider signed two histories of one session at size {one.size}",
            one.root.hex(),
            other.root.hex(),
            one.session,
        )

    def _two_sizes(self, stated: Sequence[Manifest]) -> Proven:
        """Step 6."""
        one, other = self._heads(stated)
        if one.session != other.session or not 0 < one.size < other.size:
            raise _nothing(
                "the two heads are not a smaller and a larger one of one session",
                "one session and two sizes, the smaller first",
                f"sizes {one.size} and {other.size}",
            )
        before, after = roots_from_prefix(one.size, other.size, self.opening.proof)
        if after != other.root:
            raise _nothing("the hashes are not of the larger head's tree", other.root.hex(), after.hex())
        if before == one.root:
            raise _nothing("the larger head continues the smaller one", "another root", "the root that was signed")
        return Proven(
            "two-histories",
            f"the provider signed two histories of one session: at size {other.size} it has not the first {one.size} "
            "leaves that were signed for",
            one.root.hex(),
            before.hex(),
            one.session,
        )

    def _two_checkpoints(self, log: Sequence[PublicKey]) -> Proven:
        """Step 3."""
        one, other = (open_checkpoint(data, log).checkpoint for data in self.signed)
        if one.size != other.size or one.root == other.root:
            raise _nothing(
                "the two checkpoints do not contradict each other",
                "one size and two roots",
                f"sizes {one.size} and {other.size}",
            )
        return Proven(
            "two-histories",
            f"the provider's log signed two roots at size {one.size}",
            one.root.hex(),
            other.root.hex(),
        )

    def _token(self, stated: Manifest) -> Proven:
        """Step 4."""
        head = verify_head(self.signed[0], stated.session_keys)
        if head.manifest_digest != stated.digest():
            raise VerificationError(
                "the head was made under another manifest",
                code="other-manifest",
                expected=stated.digest(),
                found=head.manifest_digest,
            )
        self.opening.check(head.size, head.root)
        leaves = [records.parse(data) for data in self.opening.leaves.values()]
        if len(leaves) != 2:
            raise MalformedError("fraud opening", expected="the leaves of a turn and a token", found=len(leaves))
        turn, token = leaves
        if not isinstance(turn, Turn) or not isinstance(token, Token) or turn.turn != token.turn:
            raise MalformedError("fraud opening", expected="a turn and one of its tokens", found="other leaves")
        if {turn.session, token.session} != {head.session}:
            raise _nothing("the leaves are of another session", head.session.hex(), token.session.hex())
        if turn.params.processed:  # the draw depends on tokens that are not shown
            raise _nothing("the turn has processors", "a turn whose draws follow from single records", "processors")
        key = turn.key()
        seen = visible(token.entries, stated.model.suppressed)
        allowed = acceptable(seen, turn.params, key, token.position) if len(seen.ids) else frozenset[int]()
        if token.token in allowed:
            raise _nothing("the token follows from its record", "another token", str(token.token))
        return Proven(
            "token-not-sampled",
            "a token is not the one that its own record, the committed parameters and the nonce give",
            "id " + " or ".join(map(str, sorted(allowed))),
            f"id {token.token}",
            head.session,
            turn.turn,
            token.position,
        )

    def _missing(self, stated: Sequence[Manifest], log: Sequence[PublicKey], delay: int) -> Proven:
        """Step 5."""
        head = verify_head(self.signed[0], stated[0].session_keys)
        if head.interim:
            raise _nothing("the head is one that is never logged", "the head of a turn's end", "one of a chunk")
        if head.manifest_digest != stated[0].digest():
            raise _nothing("the head was made under another manifest", "one that names this log", "another digest")
        checkpoint = open_checkpoint(self.signed[1], log).checkpoint
        self.opening.check(checkpoint.size, checkpoint.root)
        first, last = min(self.opening.leaves), max(self.opening.leaves)
        if last - first + 1 != len(self.opening.leaves):
            raise _nothing("entries are left out", f"{last - first + 1} entries", f"{len(self.opening.leaves)}")
        keys = {each.digest(): each.session_keys for each in stated}
        entries = list(self.opening.leaves.values())
        for entry in of_session(entries, head.session):
            logged = logged_head(entry, keys)
            if logged is not None and logged.size >= head.size:
                raise _nothing("the log has the head or a later one of its session", "none", f"size {logged.size}")
        # No head of an honest log is older by the delay than one before it.
        oldest, newest = logged_head(entries[0], keys), logged_head(entries[-1], keys)
        if first and (oldest is None or oldest.time > head.time - delay):
            raise _nothing("the head may stand before these entries", f"one older by {delay} ms", f"entry {first}")
        if last + 1 < checkpoint.size and (newest is None or newest.time < head.time + delay):
            raise _nothing("the head may stand after these entries", f"one younger by {delay} ms", f"entry {last}")
        latest = latest_time(entries, keys)
        if latest < head.time + delay:
            raise _nothing(
                "the log may still have been about to take it in",
                f"a head in the log that was signed after {head.time + delay}",
                f"the latest was signed at {latest}",
            )
        return Proven(
            code="missing-from-log",
            what=f"a head of {head.size} leaves is missing from the log, which went on for {latest - head.time} ms",
            expected=f"an entry within {delay} ms",
            found=f"none among entries {first} to {last} of {checkpoint.size}",
            session=head.session,
        )


def _log(stated: Manifest, chain: Chain) -> tuple[PublicKey, ...]:
    """All keys of the log that a manifest names, whichever was exchanged for which."""
    if stated.log is None:
        raise VerificationError("the manifest names no log", code="untrusted-key", expected="a log key", found="none")
    return chain.log_family(stated.log)


def logged_head(entry: bytes, keys: SessionKeys) -> Head | None:
    """The head that a log's entry holds; None where it is no head by a session key of the manifest that it names.

    Such an entry is passed over, whatever it is: a provider must not be able to spoil the proof with one.
    """
    head = peeked(entry)
    try:
        return None if head is None else verify_head(entry, keys.get(head.manifest_digest, ()))
    except (MalformedError, VerificationError):
        return None


def peeked(entry: bytes) -> Head | None:
    """The head that an entry seems to hold, by no signature; None where it holds none, or an interim one."""
    try:
        head = Head.peek(entry)
    except MalformedError:
        return None
    return None if head.interim else head


def of_session(entries: Iterable[bytes], session: bytes) -> list[bytes]:
    """The entries that seem to be heads of a session."""
    return [entry for entry in entries if (head := peeked(entry)) is not None and head.session == session]


def latest_time(entries: Iterable[bytes], keys: SessionKeys) -> int:
    """The latest time of the heads that entries hold, 0 where they hold none. Few signatures are checked for it."""
    seem = [(head.time, entry) for entry in entries if (head := peeked(entry)) is not None]
    return next((time for time, entry in sorted(seem, reverse=True) if logged_head(entry, keys) is not None), 0)


def _nothing(what: str, expected: str, found: str) -> VerificationError:
    return VerificationError(
        what,
        code="nothing-checked",
        expected=expected,
        found=found,
        hint="The file proves nothing against the provider.",
    )


def narrowed(opening: Opening, size: int, keep: Collection[int]) -> Opening:
    """The same tree with only the leaves `keep` shown, all of which `opening` shows. Call only after `check`."""
    known = {(low, high): value for low, high, value in opening.hidden(size)}
    proof: list[bytes] = []

    def value(low: int, high: int) -> bytes:
        if (low, high) in known:
            return known[low, high]
        if high - low == 1:
            return leaf_hash(opening.leaves[low])
        middle = low + split(high - low)
        return node_hash(value(low, middle), value(middle, high))

    def walk(low: int, high: int) -> None:
        if not any(low <= index < high for index in keep):
            proof.append(value(low, high))
        elif high - low > 1:
            middle = low + split(high - low)
            walk(low, middle)
            walk(middle, high)

    walk(0, size)
    return Opening({index: opening.leaves[index] for index in sorted(keep)}, tuple(proof))
