"""Where in a log a head would stand, by the times of the heads there: a missing one is found without reading all.

No head of an honest log is older by the merge delay than one before it. So a head of some time stands after every head
that is older than it by as much, and before every head that is younger by as much. Times are those of heads that
the provider signed, under any of its manifests that is known: the one in force, those of heads that were looked up, and
those that stand in the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from verifiable.checking import fraud
from verifiable.checking.checks import SignedHead, check_head
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.errors import VerifiableError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import open_manifest
from verifiable.session.head import Head
from verifiable.session.opening import Opening
from verifiable.tlog.entry import MANIFEST, kind_of
from verifiable.wire.keys import PublicKey
from verifier.provider.published import Published

PROBES = 16
"""Entries that are asked for at once while a place is looked for."""


@dataclass(slots=True)
class Known:
    """A provider's manifests that were met, by their digests: the envelope, and the session keys. `provider` is the key
    by which it is trusted, one of `chain`: a log may hold another provider's manifest too.
    """

    chain: Chain
    provider: PublicKey
    envelopes: dict[bytes, bytes] = field(default_factory=dict)
    keys: dict[bytes, tuple[PublicKey, ...]] = field(default_factory=dict)

    def add(self, envelope: bytes) -> None:
        """Remember a signed manifest; pass over what is none of the provider's."""
        with contextlib.suppress(VerifiableError):
            stated, key = open_manifest(envelope, self.chain)
            if self.chain.root_of(key) == self.provider:
                self.envelopes[stated.digest()] = envelope
                self.keys[stated.digest()] = stated.session_keys

    def signed(self, entry: bytes) -> SignedHead:
        """The head that an entry holds, under the manifest that it names. Raises a VerifiableError where none is known,
        or no key of it signed.
        """
        envelope = self.envelopes.get(Head.peek(entry).manifest_digest)
        if envelope is None:
            raise VerificationError("the head's manifest is not known", code="other-manifest")
        return check_head(envelope, entry, self.chain)

    def heads(self, entries: Iterable[bytes]) -> list[Head | None]:
        """The head that each entry holds; None where it holds none that is known to be the provider's."""
        listed = list(entries)
        for entry in listed:
            if kind_of(entry) == MANIFEST:
                self.add(entry)
        return [fraud.logged_head(entry, self.keys) for entry in listed]


@dataclass(frozen=True, slots=True)
class Window:
    """Entries `first` to `end - 1` of a log, among which a head would have to stand. `over`: a head was met that is
    younger by the merge delay, so that it has to be there, or none that tells.
    """

    first: int
    end: int
    over: bool

    @property
    def size(self) -> int:
        return self.end - self.first


def window_of(published: Published, known: Known, time: int, delay: int) -> Window:
    """Where a head of that time stands, if it was taken in. Raises as `Published.at`."""
    size = published.checkpoint.size
    younger = _around(published, known, time + delay, -1, size)[1]
    older = _around(published, known, time - delay + 1, -1, younger)[0]
    last = known.heads(published.at(range(max(0, size - PROBES), size))) if younger == size else []
    newest = max((head.time for head in last if head is not None), default=time + delay)
    return Window(max(older, 0), min(younger + 1, size), younger < size or newest >= time + delay)


def _around(published: Published, known: Known, time: int, low: int, high: int) -> tuple[int, int]:
    """Two indices from `low` to `high`, as near to each other as could be found: of a head that is older than `time`,
    or `low`, and of a later one that is not, or `high`. Of heads out of order, the first that is not older counts: what
    is dated back after it hides nothing.
    """
    while high - low > 1:
        between = high - low - 1
        probes = sorted({low + 1 + at * between // PROBES for at in range(min(PROBES, between))} | {high - 1})
        heads = known.heads(published.at(probes))
        shown = [(index, head.time) for index, head in zip(probes, heads, strict=True) if head is not None]
        before = (low, high)
        high = min((index for index, at in shown if at >= time), default=high)
        low = max((index for index, at in shown if at < time and index < high), default=low)
        if (low, high) == before:  # no head among those asked for
            break
    return low, high


def missing(published: Published, known: Known, signed: SignedHead, opening: Opening) -> Fraud:
    """The file for a head that none of these entries is. Verify it: they may also be honest."""
    entries = list(opening.leaves.values())
    latest = fraud.latest_time(entries, known.keys)
    after = next((entry for entry in entries if (head := fraud.peeked(entry)) is not None and head.time == latest), b"")
    heads = known.heads([entries[0], entries[-1], after])
    named = dict.fromkeys([signed.manifest.digest(), *(head.manifest_digest for head in heads if head is not None)])
    envelopes = tuple(known.envelopes[digest] for digest in list(named)[:3])
    return Fraud(FraudKind.MISSING, envelopes, (signed.head_envelope, published.note), opening)
