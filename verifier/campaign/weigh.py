"""What the lottery is held over: the provider's list with its heads verified, and what clients hand over themselves.

A session's weight is its signed size. A size that nobody signed would let a provider make its worst sessions light, so
the heads are verified before anything is drawn. Sessions whose head can't be verified have no weight, and are drawn
apart: else a size that nobody signed would thin out the others.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from verifiable import limits
from verifiable.checking.checks import OpenedReceipt
from verifiable.errors import MalformedError, PolicyError, VerificationError
from verifiable.manifest.manifest import Manifest, open_manifest, verify_manifest
from verifiable.request.exchange import NOTHING, Asked
from verifiable.session.challenge import draw_turns, weight_of
from verifiable.session.head import Head, verify_head
from verifiable.session.receipt import Receipt
from verifiable.wire.cose import peek1
from verifiable.wire.keys import PublicKey
from verifier.campaign.client import Client, Listed
from verifier.campaign.fetched import Fetched

MANIFESTS = 256
"""Manifests before the current one that are asked for, to verify the heads that were signed under them."""
TRIES = 3
"""Receipts that are asked for to have one manifest."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """The list: its entries, by session id; the weights of those whose head was verified, and which are not; how many
    were left out by their times, and how many of all say that they were signed after this machine's clock.
    """

    listed: Mapping[bytes, Listed]
    weights: Mapping[bytes, int]
    unproven: tuple[bytes, ...] = ()
    excluded: int = 0
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A client's receipt, of which every check holds, and its own copy of its request."""

    receipt: OpenedReceipt
    asked: Asked = NOTHING

    @property
    def session(self) -> bytes:
        return self.receipt.session.head.session

    @property
    def weight(self) -> int:
        return weight_of(self.receipt.session.head.size)

    def wanted(self, seed: bytes, turns: int | None, listed: Listed | None = None) -> Fetched:
        """What is to be fetched for it: at most `turns` turns, the receipt's own among them. `listed` is what the
        provider's list shows of it.
        """
        session, own = self.receipt.session, self.receipt.receipt.turn
        head, drawn = session.head, None
        if turns is not None:
            others = [turn for turn in draw_turns(seed, head.session, len(session.spans), turns) if turn != own]
            drawn = sorted([own, *others[: turns - 1]])
        return Fetched(head.session, None, self.receipt, listed, head.size, self.asked, drawn)


def current_manifest(client: Client, trust: Sequence[PublicKey]) -> Manifest | None:
    """The manifest that the provider serves; see `current`."""
    return current(client, trust)[0]


def current(client: Client, trust: Sequence[PublicKey]) -> tuple[Manifest, PublicKey] | tuple[None, None]:
    """The manifest that the provider serves, and the key that signed it; None where there is none that holds.

    Raises PolicyError: its signer is none of the trusted keys, which are most likely another provider's.
    """
    try:
        signed = client.manifest()
        check_signer(signed, trust)
        return open_manifest(signed, trust)
    except (MalformedError, VerificationError):
        return None, None


def check_signer(manifest: bytes, trust: Sequence[PublicKey]) -> None:
    """Raise PolicyError where a manifest says that its signer is none of the trusted keys, MalformedError: it is none.

    Whoever trusts another provider's key has made a mistake, and learns nothing about this one.
    """
    signer = peek1(manifest).kid
    if signer not in {key.kid for key in trust}:
        raise PolicyError(
            "--trust names no key that signed this provider's manifest",
            expected=signer.hex(),
            found=", ".join(f"{key.kid.hex()} of {key.label}" for key in trust),
            hint="Is it this provider's key? Nothing is said about the provider by this.",
        )


def weigh(
    client: Client,
    entries: Sequence[Listed],
    current: Manifest | None,
    trust: Sequence[PublicKey],
    before: int | None,
) -> Weighed:
    """Verify the heads of a list and weigh its sessions; those that were signed at `before` (ms) or later are left out.

    Args:
        current: the manifest that the provider serves, if there is one.
    """
    heads: dict[bytes, Head] = {}
    waiting = {entry.session: entry for entry in entries}
    for manifest in itertools.chain([] if current is None else [current], _older(client, trust, waiting)):
        for entry in list(waiting.values()):
            head = _head(entry, manifest)
            if head is not None:
                heads[entry.session] = head
                del waiting[entry.session]
    listed = {
        entry.session: entry
        for entry in entries
        if before is None or entry.session in waiting or heads[entry.session].time < before
    }
    weights = {session: weight_of(entry.size) for session, entry in listed.items() if session not in waiting}
    soon = time.time_ns() // 1_000_000 + limits.CLOCK_SKEW
    ahead = sum(head.time > soon for head in heads.values())
    return Weighed(listed, weights, tuple(waiting), len(entries) - len(listed), ahead)


def _older(client: Client, trust: Sequence[PublicKey], waiting: Mapping[bytes, Listed]) -> Iterator[Manifest]:
    """The manifests of sessions that still wait, from their receipts."""
    asked: Counter[bytes] = Counter()
    for entry in list(waiting.values()):
        if entry.session not in waiting:
            continue
        with contextlib.suppress(MalformedError, VerificationError):
            digest = Head.peek(entry.head).manifest_digest
            if asked[digest] < TRIES and (digest in asked or len(asked) < MANIFESTS):
                asked[digest] += 1
                yield verify_manifest(Receipt.parse(client.receipt(entry.session, entry.size)).manifest, trust)


def _head(entry: Listed, manifest: Manifest) -> Head | None:
    """The entry's head, where it is of that session and size and a session key of the manifest signed it."""
    try:
        head = verify_head(entry.head, manifest.session_keys)
    except (MalformedError, VerificationError):
        return None
    return head if (head.session, head.size) == (entry.session, entry.size) else None
