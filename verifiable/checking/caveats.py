"""What a verdict does not rest on: one list for the command line, JSON, reports and the page docs/verify.html.

Ids are stable, as reason codes are; sentences may change. spec/reason-codes.md explains each.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CAVEATS = {
    "model-not-run": "That the model really said it: `verifiable audit` runs the model again",
    "request-not-given": "Whether this was your request: you gave no copy of what you sent to compare with",
    "times-not-given": "That the session was opened when you asked: you gave no times of your request",
    "answer-time-not-shown": "That the answer was made when you asked: its receipt was signed long after you had it",
    "text-not-given": "That the text you have is the text that was committed: you gave none",
    "receipt-not-given": "That a client was given this same log: no receipt was compared",
    "log-not-shown": "That the session stands in the provider's public log",
    "key-revoked-later": "That it was signed when it says: a key was revoked later, and whoever has it can date back",
    "turns-not-opened": "not opened by the evidence",
    "turns-not-recomputed": "opened, but not recomputed",
    "no-tokens": "no token was generated, so there was nothing to recompute",
    "records-not-shown": "That each token follows from its record: the evidence shows no records",
    "records-not-replayed": "not every token's draw was replayed: what the rest depend on is not all here",
    "provider-nonce": "the request has no nonce and no seed, so the draws could have been shopped for",
    "manifest-not-pinned": "the request pins no manifest, so one could have been chosen after the request was seen",
    "ending-unexplained": "ended as cancelled or by an error; why is the provider's word",
    "turn-interrupted": "begun and never ended: the provider stopped in it, or crashed",
    "session-open": "What may follow: the session is still open",
    "not-raw-logits": "An exact audit is impossible: this provider reports log-probabilities of another engine",
    "not-invariant": "An exact audit is impossible: the provider's results depend on how requests are batched",
    "bits-not-compared": "Bits: on this machine records could be compared within rounding only",
    "tokens-not-compared": "Logits of all tokens",
    "near-ties": "That near ties were not chosen between: two tokens closer to being drawn than rounding moves logits",
    "deviations-not-told": "Whether it was one of the deviations that can't be told from honest rounding",
    "copy-differs": "That a client's copy is what was committed: it is not, which rests on the client's word alone",
    "list-not-compared": "That the list from which sessions were drawn has all that stand in the provider's log",
    "sessions-too-young": "Sessions whose heads say that they are younger than the beacon's round: they were left out",
    "heads-ahead": "That the provider's times are right: heads that say they were signed after this machine's clock",
    "list-cut": "Sessions older than those that the list was read for",
    "heads-not-checked": "Sessions whose heads could not be checked before the draw: no chance is about them",
    "seed-given": "That nobody knew what would be drawn: the seed was given to this audit, not drawn by it",
    "beacon-before": "That the sessions stood before the beacon's round: their times are the provider's word",
    "beacon-not-checked": "That the round is the beacon's: its signature was not checked; the extra `beacon` does",
    "other-signer": "That sessions are this provider's own: another of the trusted keys signed them",
    "sessions-interrupted": "Sessions whose logs stop in the middle of an answer: they were not checked",
    "sessions-not-drawn": "Sessions not drawn",
    "sessions-undecided": "Sessions that could not be decided; they do not count as passed",
}
"""Id -> the sentence; one that begins in lower case is said of turns, which are named before it."""


class About(enum.Enum):
    """What a caveat is about. A later check may answer those about one thing, and take their place."""

    SESSION = enum.auto()
    LOG = enum.auto()
    TURNS = enum.auto()
    ROUNDING = enum.auto()


_ABOUT = {
    "log-not-shown": About.LOG,
    **dict.fromkeys(("provider-nonce", "manifest-not-pinned", "ending-unexplained"), About.TURNS),
    **dict.fromkeys(("bits-not-compared", "near-ties", "tokens-not-compared", "deviations-not-told"), About.ROUNDING),
}


@dataclass(frozen=True, slots=True)
class Caveat:
    """What a reader might take for shown and is not: the id of a sentence of `CAVEATS`, details of it, and of which
    turns it is said (none: of all that was checked); or, over many sessions, of how many of how many.
    """

    id: str
    detail: str = ""
    turns: tuple[int, ...] = ()
    sessions: tuple[int, int] | None = None

    @property
    def what(self) -> str:
        """The sentence, without turns and sessions."""
        return f"{CAVEATS[self.id]}: {self.detail}" if self.detail else CAVEATS[self.id]

    @property
    def about(self) -> About:
        return _ABOUT.get(self.id, About.SESSION)

    def __str__(self) -> str:
        if self.sessions is not None:
            number, total = self.sessions
            return f"{self.what[:1].upper()}{self.what[1:]} ({number} of {total} sessions)"
        return f"{name_turns(self.turns)}: {self.what}" if self.turns else self.what

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "what": str(self)}


def name_turns(numbers: Sequence[int]) -> str:
    """Turns as people name them, of many the first."""
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"Turn{'s' if len(numbers) != 1 else ''} {shown or 'none'}"
