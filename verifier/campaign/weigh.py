"""What the lottery is held over: the provider's list with its heads verified, and what clients hand over themselves.

A session's weight is its signed size. A size that nobody signed would let a provider make its worst sessions light, so
the heads are verified before anything is drawn. Sessions whose head can't be verified have no weight, and are drawn
apart: else a size that nobody signed would thin out the others.

A client's receipt is the provider's word, and holds against it. What the client says beside it, and a file that does
not hold, is the word of a third party, whom the auditor can't ask: it is named, and decides nothing about the provider.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verifiable import limits
from verifiable.checking.asked import check_asked
from verifiable.checking.checks import OpenedReceipt, check_receipt, check_text
from verifiable.errors import MalformedError, PolicyError, VerifiableError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import Manifest, open_manifest, verify_manifest
from verifiable.request.exchange import NOTHING, Asked
from verifiable.session.challenge import draw_turns, weight_of
from verifiable.session.head import Head, verify_head
from verifiable.session.receipt import Receipt
from verifiable.wire.cose import peek1
from verifiable.wire.keys import PublicKey
from verifier.campaign.fetched import Fetched
from verifier.provider.client import Client, Listed

MANIFESTS = 256
"""Manifests before the current one that are asked for, to verify the heads that were signed under them."""
TRIES = 3
"""Receipts that are asked for to have one manifest."""


CLIENTS_WORD = frozenset({"text-differs", "request-differs", "nonce-differs", "time-differs"})
"""Reason codes of a copy that is another than what was committed: who changed it is not shown."""


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
class Disputed:
    """What a client handed over and does not fit: a copy of its own, of a turn whose receipt holds, or the receipt."""

    code: str
    what: str
    session: bytes | None = None
    turn: int | None = None

    def __str__(self) -> str:
        of = "" if self.session is None else f" in turn {self.turn} of session {self.session.hex()}"
        return f"{self.code}{of}: {self.what}"

    def to_json(self) -> dict[str, Any]:
        session = None if self.session is None else self.session.hex()
        return {"code": self.code, "what": self.what, "session": session, "turn": self.turn}


@dataclass(frozen=True, slots=True)
class Held:
    """A client's receipt, of which every check holds, and its own copy of its request, as far as it fits."""

    receipt: OpenedReceipt
    asked: Asked = NOTHING

    @property
    def session(self) -> bytes:
        return self.receipt.session.head.session

    @property
    def size(self) -> int:
        return self.receipt.session.head.size

    @property
    def turn(self) -> int:
        return self.receipt.receipt.turn


@dataclass(frozen=True, slots=True)
class HeldSession:
    """The receipts of one session, the newest first: it is fetched and audited once, and all of them must fit."""

    receipts: tuple[Held, ...]

    @property
    def newest(self) -> Held:
        return self.receipts[0]

    @property
    def session(self) -> bytes:
        return self.newest.session

    @property
    def weight(self) -> int:
        return weight_of(self.newest.size)

    def wanted(self, seed: bytes, turns: int | None, listed: Listed | None = None, by_list: bool = False) -> Fetched:
        """What is to be fetched for it: at most `turns` turns, the receipts' own among them, however many these are.

        `listed` is what the provider's list shows of it. Under that head it is fetched where it was drawn from the list
        too (`by_list`) and the head is no older than the receipts; how many turns that has is not known yet.
        """
        others = tuple(each.receipt for each in self.receipts[1:])
        wanted = Fetched(self.session, receipt=self.newest.receipt, asked=self.newest.asked, others=others)
        if by_list and listed is not None and listed.size >= self.newest.size:
            wanted.listed, wanted.size = listed, listed.size
            return wanted
        wanted.beside, wanted.size = listed, self.newest.size
        if turns is not None:
            there = len(self.newest.receipt.session.spans)
            wanted.turns = wanted.with_own(draw_turns(seed, self.session, there, turns), turns)
        return wanted


def hold(receipt: Receipt, asked: Asked, trust: Sequence[PublicKey]) -> tuple[Held | None, Disputed | None]:
    """A client's receipt and its own copy, as far as they hold; and what does not, which rests on its word alone."""
    try:
        opened = check_receipt(receipt, trust)
    except VerifiableError as error:
        return None, Disputed(error.code, error.statement)
    try:
        if asked.texts:
            check_text(opened.session, receipt.turn, *asked.texts)
        check_asked(opened.session, receipt.turn, asked)
    except VerifiableError as error:
        if error.code in CLIENTS_WORD:
            return Held(opened), Disputed(error.code, error.statement, opened.session.head.session, receipt.turn)
        # The copy is what was committed, and the provider's own facts do not follow from it: the audit says so.
    return Held(opened, asked), None


def by_session(held: Iterable[Held]) -> dict[bytes, HeldSession]:
    """The receipts of each session, the newest first; the same one twice is one, with the copy that came with it."""
    found: dict[bytes, dict[tuple[bytes, int], Held]] = {}
    for each in held:
        known = found.setdefault(each.session, {})
        place = (each.receipt.receipt.head, each.turn)
        if place not in known or known[place].asked == NOTHING:
            known[place] = each

    def newest(each: Held) -> tuple[int, bool]:
        return each.size, each.asked != NOTHING

    return {
        session: HeldSession(tuple(sorted(some.values(), key=newest, reverse=True))) for session, some in found.items()
    }


def current_manifest(client: Client, trust: Sequence[PublicKey]) -> tuple[Manifest, PublicKey] | tuple[None, None]:
    """The manifest that the provider serves, and the key by which its signer is trusted; None where none holds.

    Raises PolicyError: its signer is none of the trusted keys, which are most likely another provider's.
    """
    try:
        signed = client.manifest()
        check_signer(signed, trust)
        manifest, key = open_manifest(signed, trust)
        return manifest, Chain.of(trust).root_of(key) or key
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
            hint=f"Is it this provider's key? Nothing is said about the provider by this. {Chain.of(trust).advice}",
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
