"""The question of an audit: which evidence is asked for. It is stated before anything is fetched, and what came is held
against it.

A provider chooses what it hands over. Evidence that is sound and answers another question shows nothing about what was
asked, whatever it holds: it is `no-evidence`, which is inconclusive.
"""

from __future__ import annotations

from dataclasses import dataclass

from verifiable.checking.caveats import Caveat, name_turns
from verifiable.checking.checks import OpenedEvidence, OpenedReceipt
from verifiable.errors import VerificationError
from verifiable.session.evidence import Kind
from verifiable.session.head import Head


@dataclass(frozen=True, slots=True)
class Question:
    """Evidence of `kind` is asked for, of some turns of a session, under a head of `size` leaves.

    `turns` are those to open, all of the session where None; `size` may be left open. `held` is the turn of a client's
    receipt, which has to be among them.
    """

    session: bytes
    size: int | None = None
    turns: tuple[int, ...] | None = None
    kind: Kind = Kind.TOKENS
    held: int | None = None

    def check_head(self, head: Head) -> None:
        """Raise VerificationError (`no-evidence`) unless the head is of this session and size."""
        if head.session != self.session:
            raise _other("another session", self.session.hex(), head.session.hex())
        if self.size is not None and head.size != self.size:
            raise _other("another head of the session", f"{self.size} leaves", f"{head.size} leaves")

    def check(self, opened: OpenedEvidence) -> None:
        """Raise VerificationError (`no-evidence`) unless the evidence is what was asked for."""
        self.check_head(opened.session.head)
        if opened.evidence.kind is not self.kind:
            raise _other("another kind of evidence", self.kind.name.lower(), opened.evidence.kind.name.lower())
        there = range(len(opened.session.spans))
        wanted, given = list(there if self.turns is None else self.turns), [turn.number for turn in opened.turns]
        if given != wanted:
            raise _other("other turns", name_turns(wanted), name_turns(given))
        if self.held is not None:
            check_holds(opened, self.held)


def check_answers(opened: OpenedEvidence, held: OpenedReceipt) -> None:
    """Raise VerificationError (`no-evidence`) unless the evidence opens the receipt's own turn of its session."""
    Question(held.session.head.session).check_head(opened.session.head)
    mine, theirs = held.session.signed.provider, opened.session.signed.provider
    if mine.kid != theirs.kid:
        raise _other("another provider's session", f"signed under {mine.label}", theirs.label)
    check_holds(opened, held.receipt.turn)


def check_holds(opened: OpenedEvidence, turn: int) -> None:
    """Raise VerificationError (`no-evidence`) unless the evidence opens that turn."""
    if opened.turn(turn) is None:
        given = name_turns([each.number for each in opened.turns])
        raise _other("other turns than the receipt's", f"turn {turn} among them", given)


def not_opened(opened: OpenedEvidence) -> list[Caveat]:
    """What is to be said of the session's turns that the evidence does not open."""
    closed = tuple(span.number for span in opened.session.spans if opened.turn(span.number) is None)
    return [Caveat("turns-not-opened", turns=closed)] if closed else []


def check_whole(opened: OpenedEvidence) -> None:
    """Raise VerificationError (`no-evidence`) where some token of an opened turn can't be known from the evidence.

    Only kinds *tokens* and *full* give every token together with what the turn's end binds.
    """
    if opened.evidence.kind is Kind.RECORDS:
        shown = sum(len(turn.shown) for turn in opened.turns)
        raise _other("single records", "every token of the turns that it opens", f"{shown} of {opened.count} records")


def _other(what: str, expected: str, found: str) -> VerificationError:
    return VerificationError(
        f"the evidence answers another question than was asked: {what}",
        code="no-evidence",
        expected=expected,
        found=found,
        hint="Nothing is shown about what was asked, and nothing is proven. Ask for evidence of kind tokens or full.",
    )
