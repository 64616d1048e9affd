"""Where in a log a head would stand, by the times of the heads there: a missing one is found without reading all.

No entry of an honest log is older by `limits.LOG_ORDER` than one before it. So a head of some time stands after every
entry that is older than it by as much, and before every entry that is younger by as much. Times are those of heads that
the provider signed, under any of its manifests that is known: the one in force, those of heads that were looked up, and
those that stand in the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from verifiable import limits
from verifiable.checking import fraud
from verifiable.checking.checks import SignedHead
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.errors import VerifiableError
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

    def heads(self, entries: Iterable[bytes]) -> list[Head | None]:
        """The head that each entry holds; None where it holds none that is known to be the provider's."""
        listed = list(entries)
        for entry in listed:
            if kind_of(entry) == MANIFEST:
                self.add(entry)
        return [fraud.logged_head(entry, self.keys) for entry in listed]


@dataclass(frozen=True, slots=True)
class Window:
    """Entries `first` to `end - 1` of a log, among which a head would have to stand."""

    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first


def newest(published: Published, known: Known) -> int:
    """The latest time among the last entries of a log; 0 where none of them is a head. Raises as `Published.at`."""
    size = published.checkpoint.size
    times = [head.time for head in known.heads(published.at(range(max(0, size - PROBES), size))) if head is not None]
    return max(times, default=0)


def window_of(published: Published, known: Known, time: int, delay: int) -> Window:
    """Where a head of that time stands, if it was taken in. Raises as `Published.at`."""
    older, _ = _around(published, known, time - limits.LOG_ORDER + 1)
    _, younger = _around(published, known, time + max(delay, limits.LOG_ORDER))
    return Window(max(older, 0), min(younger + 1, published.checkpoint.size))


def _around(published: Published, known: Known, time: int) -> tuple[int, int]:
    """Two indices, as near to each other as could be found: of a head that is older than `time`, or -1, and of a later
    one that is not, or the log's size.
    """
    low, high = -1, published.checkpoint.size
    while high - low > 1:
        between = high - low - 1
        probes = sorted({low + 1 + at * between // PROBES for at in range(min(PROBES, between))} | {high - 1})
        heads = known.heads(published.at(probes))
        shown = [(index, head.time) for index, head in zip(probes, heads, strict=True) if head is not None]
        older = [index for index, at in shown if at < time]
        before = (low, high)
        low = max(older, default=low)
        high = min((index for index, at in shown if at >= time and index > low), default=high)
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
