"""What a provider lists, held against what stands in its log: nobody signs the list, so it is not believed.

The log's checkpoint is read before the list. Every head under it is of a session that the list must have, at that size
or a larger one; what the list leaves out, or shows shorter, is drawn from all the same, and said. Of a long log a
sample is read, by indices that this machine draws at random once the list is there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verifiable.checking.caveats import Caveat
from verifiable.checking.checks import SignedHead
from verifiable.checking.verdict import Verdict, from_error
from verifiable.errors import MalformedError, VerificationError
from verifiable.session.head import Head
from verifiable.tlog.entry import STATEMENTS, kind_of
from verifier.provider.client import Client, Listed
from verifier.provider.published import Published
from verifier.provider.window import Known

MAX_SESSIONS = 100_000
"""The newest sessions of a provider that the lottery is held over."""
SHORT = 2048
"""Entries of a log that is read whole."""
SAMPLE = 512
"""Entries that are drawn of a longer one; and as many of those that it has taken in since it was seen last."""
SHARE = 0.01
"""Share of what was logged for which it is said how likely a list is caught that leaves it out."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The list, with what it left out.

    Args:
        entries: what sessions are drawn from.
        left_out: sessions that stand in the log and are not in the list, or shorter than there or in a receipt.
        read, logged: entries of the log that were read, and how many it has.
        drawn: how many of those that were read were drawn from all of a log that is too long to be read whole.
        others: entries read that are no heads under the manifest in force or one that was read there, nor a known
            statement.
        unread: why the log was not read, where the manifest names one.
        cut: the list is longer than what is read of it, so that its last entries are missing.
    """

    entries: Sequence[Listed] = ()
    left_out: tuple[bytes, ...] = ()
    read: int = 0
    logged: int = 0
    others: int = 0
    drawn: int = 0
    unread: str | None = None
    cut: bool = False

    @property
    def finding(self) -> Verdict | None:
        """What is to be said of a list that leaves sessions out."""
        if not self.left_out:
            return None
        error = VerificationError(
            f"the provider's list leaves out, or shows shorter, {len(self.left_out):,} sessions of its log or receipts",
            code="list-differs",
            expected=f"every session of the {self.read:,} heads read from the log and of clients' receipts",
            found=f"without {', '.join(session.hex() for session in self.left_out[:3])}",
            hint="They were drawn from all the same. Count it against the provider, and insist on a whole list.",
        )
        return from_error(error)

    def caveats(self) -> list[Caveat]:
        made = [Caveat("list-cut", f"the first {MAX_SESSIONS:,} of the list")] if self.cut else []
        if self.unread is not None:
            return [*made, Caveat("list-not-compared", self.unread)]
        part = [self.compared] if self.compared else []
        part += (
            [f"{self.others:,} are no heads by its manifest in force, or by one that was read there"]
            if self.others
            else []
        )
        return [*made, Caveat("list-not-compared", "; ".join(part))] if part else made

    @property
    def compared(self) -> str:
        """How much of the log the list was held against, and what that would have noticed; empty where all of it."""
        if self.unread is not None or self.read >= self.logged:
            return ""
        chance = math.floor(1000 * (1.0 - (1.0 - SHARE) ** self.drawn)) / 10
        return (
            f"{self.read:,} of its {self.logged:,} entries were read, drawn at random: a list that leaves out "
            f"{SHARE:.0%} of them is caught with at least {chance}%"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "log_entries": self.logged,
            "log_entries_read": self.read,
            "log_entries_of_others": self.others,
            "left_out": [session.hex() for session in self.left_out],
            "unread": self.unread,
            "cut": self.cut,
        }


def read_listing(
    client: Client,
    known: Known | None,
    log: Published | VerificationError | None,
    held: Mapping[bytes, int] | None = None,
) -> Listing:
    """The provider's list, held against its log, read before: None where the manifest names none, else why it can't be.

    `known` tells the provider's heads, with the manifests that stand in the log; None where it shows no manifest.
    `held` is how many leaves sessions have by clients' receipts: where they are listed, it must be as many.

    Raises a VerifiableError: there is no list.
    """
    shown = client.sessions(MAX_SESSIONS + 1)
    listed = {entry.session: entry for entry in shown[:MAX_SESSIONS]}
    size = log.checkpoint.size if isinstance(log, Published) else 0
    unread = log.what if isinstance(log, VerificationError) else None
    if len(shown) > MAX_SESSIONS:  # what it leaves out may be in the rest
        return Listing(list(listed.values()), logged=size, unread=unread or "the list was not read whole", cut=True)
    heads: list[tuple[bytes, Head | None]] = []
    drawn = 0
    if isinstance(log, Published) and known is not None:
        known.add(log.manifest)
        try:
            sample, drawn = read_sample(log)
            heads = list(zip(sample, known.heads(sample), strict=True))
        except VerificationError as error:
            size, unread = 0, error.what
    logged = _sessions([(entry, head) for entry, head in heads if head is not None])
    missing = {
        session: entry
        for session, entry in logged.items()
        if session not in listed or listed[session].size < entry.size
    }
    shorter = [each for each, size in (held or {}).items() if each in listed and listed[each].size < size]
    others = sum(head is None and kind_of(entry) not in STATEMENTS for entry, head in heads)
    entries = list((listed | missing).values())
    return Listing(entries, tuple({*missing, *shorter}), len(heads), size, others, drawn, unread)


def listed_head(signed: SignedHead, listed: Listed) -> SignedHead:
    """The head that the provider's list showed, under the manifest of one that it showed later.

    Raises VerificationError (`list-differs`): the entry's head is none, or not that of the entry.
    """
    try:
        promised = signed.other(listed.head)
    except (MalformedError, VerificationError) as error:
        raise VerificationError(
            "the provider's list shows a head that is not its own",
            code="list-differs",
            expected="a head under the manifest of what was shown",
            found=error.what,
        ) from error
    if (promised.head.session, promised.head.size) != (listed.session, listed.size):
        raise VerificationError(
            "the provider's list contradicts its own head",
            code="list-differs",
            expected=f"session {listed.session.hex()}, {listed.size} leaves",
            found=f"head of {promised.head.session.hex()}, {promised.head.size} leaves",
        )
    return promised


def check_promise(head: Head, promised: Head) -> None:
    """Raise VerificationError unless what was shown stands under the head that the list showed for the same size."""
    if head.root != promised.root:
        raise VerificationError(
            "the provider signed two histories of one session: in its list and in what it shows",
            code="two-histories",
            expected=promised.root.hex(),
            found=head.root.hex(),
        )


def read_sample(log: Published, choose: random.Random | None = None) -> tuple[list[bytes], int]:
    """Entries of a log, and how many of them were drawn from all: every entry of a short log, else `SAMPLE`, and of the
    entries that it has taken in since it was seen last as many again.

    Raises VerificationError where they can't be had, or are not what the checkpoint signed (`no-evidence`).
    """
    size = log.checkpoint.size
    if size <= SHORT:
        return log.at(range(size)), size
    choose = choose or random.SystemRandom()
    since = range(log.since, size) if log.since else range(0)
    chosen = {*choose.sample(range(size), SAMPLE), *choose.sample(since, min(SAMPLE, len(since)))}
    return log.at(sorted(chosen)), SAMPLE


def _sessions(heads: Sequence[tuple[bytes, Head]]) -> dict[bytes, Listed]:
    """The largest head of each session."""
    found: dict[bytes, Listed] = {}
    for entry, head in heads:
        if head.session not in found or found[head.session].size < head.size:
            found[head.session] = Listed(head.session, head.size, 0, entry)
    return found
