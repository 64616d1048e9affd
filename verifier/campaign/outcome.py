"""The outcome of an audit: one verdict for each session, and what they come to together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from verifiable.checking.caveats import Caveat
from verifiable.checking.checks import OpenedSession, SignedHead
from verifiable.checking.verdict import APART, Status, Verdict, from_error
from verifiable.errors import VerificationError
from verifiable.wire.keys import PublicKey
from verifier.auditing.marks import COMPARED, compared
from verifier.auditing.scope import audited
from verifier.campaign.beacon import FileBeacon
from verifier.campaign.plan import ChallengePlan, at_least, caught, floored
from verifier.campaign.weigh import Disputed
from verifier.provider.listing import Listing
from verifier.tolerant.calibration import Calibration
from verifier.tolerant.tolerant import Decision

COUNTED = ("verified", "verified_statistical", "failed", "inconclusive", *sorted(APART.values()))
"""What a report counts its sessions as; see `counted_as`. The last are apart: they decide nothing."""
_NAMES = {
    Status.EXACT: "verified",
    Status.STATISTICAL: "verified_statistical",
    Status.FAILED: "failed",
    Status.INCONCLUSIVE: "inconclusive",
}
SHARE = 0.1
"""The share of tokens for which reports state the chance of catching a provider that cheats in them."""


def counted_as(status: Status, code: str | None) -> str:
    """What of `COUNTED` a session is, by its verdict's status and reason code."""
    return (APART.get(code or "") if status is Status.INCONCLUSIVE else None) or _NAMES.get(status, "inconclusive")


_PARTLY = {"turn-interrupted", "turns-not-opened", "turns-not-recomputed"}
"""Caveats of sessions of which a part was not checked."""


@dataclass(frozen=True, slots=True)
class Chance:
    """The least probability that a provider which cheats in `SHARE` of the tokens that can be checked was caught, where
    the list's room holds as many of them as the room of the sessions that were drawn.

    Args:
        sessions: sessions of the list of which everything was checked, and that held something to check.
        tokens: those that were checked in them.
        room: what all sessions that were drawn from the list have room for, by their signed sizes.
    """

    chance: float
    sessions: int
    tokens: int
    room: int

    def __str__(self) -> str:
        return (
            f"The sessions drawn have room for {self.room:,} tokens by their signed sizes; {self.tokens:,} were "
            f"checked, in {self.sessions:,} whole sessions. If the rest of the list is alike, a provider that cheats "
            f"in {SHARE:.0%} of the tokens that can be checked would have been caught with a probability of at least "
            f"{at_least(self.chance)}."
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "share": SHARE,
            "chance": floored(self.chance, 10**6),
            "sessions": self.sessions,
            "tokens": self.tokens,
            "room": self.room,
        }


@dataclass(frozen=True, slots=True)
class Challenge:
    """How the sessions were chosen: as planned, by a seed drawn after the list was fetched.

    Args:
        drawn: sessions of the list that were audited, after `receipts` of clients that the auditor knows.
        weights: the weights of the sessions drawn, by their ids; those without a signed size have none.
        of_list: which of these were drawn from the list.
        listing: the provider's list, as it was held against its log.
        signer: the key by which the signer of the manifest that the provider serves is trusted.
        disputed: what clients handed over and does not fit. It rests on their word, and decides nothing.
    """

    seed: bytes
    plan: ChallengePlan
    drawn: int
    turns: int | None = None
    receipts: int = 0
    weights: Mapping[str, int] = field(default_factory=dict)
    of_list: frozenset[str] = frozenset()
    listing: Listing = field(default_factory=Listing)
    signer: PublicKey | None = None
    disputed: tuple[Disputed, ...] = ()

    @property
    def population(self) -> int:
        return self.plan.population

    def caveats(self) -> list[Caveat]:
        """What the draw does not rest on."""
        made = self.listing.caveats() + [Caveat("copy-differs", str(each)) for each in self.disputed]
        unproven = self.plan.unproven.population
        made += [Caveat("heads-not-checked", f"{unproven:,} of {self.population:,}")] if unproven else []
        made += [Caveat("sessions-too-young", f"{self.plan.excluded:,}")] if self.plan.excluded else []
        return made + ([Caveat("heads-ahead", f"{self.plan.ahead:,}")] if self.plan.ahead else [])

    def is_of(self, verdict: Verdict) -> bool:
        """Whether no other provider's key signed the session than that of the manifest in force, as far as is known."""
        session = audited(verdict).session
        return session is None or self.signer is None or session.signed.provider.kid == self.signer.kid

    def to_json(self, chance: Chance | None) -> dict[str, Any]:
        return {
            "seed": self.seed.hex(),
            "seed_given": self.plan.given,
            "population": self.population,
            "drawn": self.drawn,
            "receipts": self.receipts,
            "turns": self.turns,
            "plan": self.plan.to_json(self.drawn, None if chance is None else chance.sessions, self.receipts),
            "chance_at_share": None if chance is None else chance.to_json(),
            "no_chance": self.plan.silent,
            "list": self.listing.to_json(),
            "disputed": [each.to_json() for each in self.disputed],
            "about": None if self.signer is None else self.signer.vkey(),
        }


def overall(sessions: Iterable[tuple[Status, str | None]]) -> Status:
    """What sessions come to, by the status and reason code of each.

    Failed when any session failed, else inconclusive when any could not be decided or nothing was checked, else the
    weaker pass. Sessions that had nothing to check, or were interrupted, are left out.
    """
    given = {counted_as(*session) for session in sessions}
    for status in (Status.FAILED, Status.INCONCLUSIVE, Status.STATISTICAL, Status.EXACT):
        if _NAMES[status] in given:
            return status
    return Status.INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `verifiable audit` found. `source` is what was audited, `command` how to repeat it.

    `trusted` are the keys that the user trusts, `followed` those to which they lead, `providers` the keys of each
    provider, the trusted one first.
    `seed_given` says that what was drawn, if only turns or tokens, was drawn with a seed that was given.
    `decision` is what the sessions came to that were compared within rounding, under `calibration`.
    """

    source: str
    verdicts: tuple[Verdict, ...]
    challenge: Challenge | None = None
    command: str = ""
    started: int = 0
    seconds: float = 0.0
    model_file: str = ""
    trusted: tuple[str, ...] = ()
    followed: tuple[str, ...] = ()
    providers: tuple[tuple[str, ...], ...] = ()
    saved: tuple[str, ...] = ()
    beacon: FileBeacon | None = None
    decision: Decision | None = None
    calibration: Calibration | None = None
    seed_given: bool = False

    @property
    def status(self) -> Status:
        """What the sessions come to together; see `overall`."""
        return overall((verdict.status, verdict.code) for verdict in self._deciding)

    @property
    def _deciding(self) -> tuple[Verdict, ...]:
        """The sessions' verdicts, and what is to be said of the list that they were drawn from."""
        return (*self.verdicts, *self.beside)

    @property
    def beside(self) -> tuple[Verdict, ...]:
        """Decides beside the sessions' verdicts: a list that leaves some out, passes that are all another signer's."""
        found = [] if self.challenge is None else [self.challenge.listing.finding, self._only_others()]
        return tuple(verdict for verdict in found if verdict is not None)

    def _only_others(self) -> Verdict | None:
        passed = [each for each in self.verdicts if each.status in (Status.EXACT, Status.STATISTICAL)]
        if not passed or self.challenge is None or any(map(self.challenge.is_of, passed)):
            return None
        error = VerificationError(
            "all sessions that were verified were signed by another of the trusted keys than this provider's",
            code="other-signer",
            expected=str(self.challenge.signer and self.challenge.signer.label),
            found=", ".join(dict.fromkeys(each.signed.by for each in _sessions(passed))),
            hint="Nothing is shown about this provider. Audit the other where it is, and trust one key here.",
        )
        return from_error(error)

    def about(self, verdict: Verdict) -> str | None:
        """The trusted key of the provider that a verdict is about: who signed the session; where none was opened, whose
        list it is of, or the only provider there is. None where nobody can tell.
        """
        session, drawn = audited(verdict).session, self.challenge
        if session is not None:
            return session.signed.provider.vkey()
        if drawn is not None and drawn.signer is not None and verdict.session in {None, *drawn.of_list}:
            return drawn.signer.vkey()
        return self.providers[0][0] if len(self.providers) == 1 else None

    def _told(self, verdict: Verdict) -> dict[str, Any]:
        return {**verdict.to_json(), "about": self.about(verdict)}

    @property
    def worst(self) -> Verdict | None:
        """The verdict that decides the status: the first failed one, else the first inconclusive one."""
        deciding = [verdict for verdict in self._deciding if verdict.status is self.status]
        return next((verdict for verdict in deciding if verdict.code not in APART), deciding[0] if deciding else None)

    @property
    def signed(self) -> SignedHead | None:
        """The first session's head and manifest, as far as one was opened."""
        return next((session.signed for session in _sessions(self.verdicts)), None)

    @property
    def manifests(self) -> list[tuple[SignedHead, int]]:
        """Each signed manifest that sessions were made under, by the first's head, and how many sessions those are."""
        signed = [session.signed for session in _sessions(self.verdicts)]
        counts = Counter((each.key.kid, each.manifest.digest()) for each in signed)
        first = {(each.key.kid, each.manifest.digest()): each for each in reversed(signed)}
        return [(first[name], number) for name, number in counts.items()]

    @property
    def tokens_checked(self) -> int:
        return sum(verdict.tokens_checked for verdict in self.verdicts)

    @property
    def tokens_total(self) -> int:
        return sum(verdict.tokens_total for verdict in self.verdicts)

    @property
    def tokens_compared(self) -> int:
        """Tokens that were recomputed and compared, whatever came out; `tokens_checked` counts those that agree."""
        return sum(compared(turn.strip) for verdict in self.verdicts for turn in audited(verdict).turns)

    @property
    def tokens_within(self) -> int:
        """Those of `tokens_compared` that were compared within rounding, not bit for bit."""
        return sum(turn.strip.count(COMPARED) for verdict in self.verdicts for turn in audited(verdict).turns)

    def counts(self) -> dict[str, int]:
        """How many sessions are what, by the names of `COUNTED`."""
        found = Counter(counted_as(verdict.status, verdict.code) for verdict in self.verdicts)
        return {name: found[name] for name in COUNTED}

    def count(self, status: Status) -> int:
        return self.counts()[_NAMES[status]]

    @property
    def decided(self) -> int:
        """Sessions in which there was something to check."""
        return len(self.verdicts) - sum(verdict.code in APART for verdict in self.verdicts)

    def undecided(self) -> dict[str, int]:
        """Why sessions could not be checked: reason code -> how many, the most frequent first."""
        codes = Counter(
            str(verdict.code)
            for verdict in self.verdicts
            if counted_as(verdict.status, verdict.code) == _NAMES[Status.INCONCLUSIVE]
        )
        return dict(codes.most_common())

    def share(self, name: str) -> float | None:
        """The share of the audited sessions' weight that is counted as `name`; None where they were not drawn."""
        weights = {} if self.challenge is None else self.challenge.weights
        audits = [each for each in self.verdicts if each.session in weights]
        total = sum(weights[str(each.session)] for each in audits)
        some = sum(weights[str(each.session)] for each in audits if counted_as(each.status, each.code) == name)
        return some / total if total else None

    @property
    def others(self) -> list[Verdict]:
        """Those of sessions that another key signed than that of the provider's own manifest."""
        return [each for each in self.verdicts if self.challenge is not None and not self.challenge.is_of(each)]

    def of_others(self) -> list[str]:
        """What is to be said of these beside a pass."""
        count = len(self.others)
        signed = "was signed by another of the trusted keys" if count == 1 else "were signed by other trusted keys"
        return [f"{count} of these sessions {signed} than this provider's: no word about it."] if count else []

    @property
    def room(self) -> int:
        """Tokens for which the audited sessions have room by their signed sizes, as far as they were drawn by these."""
        weights = {} if self.challenge is None else self.challenge.weights
        return sum(weights.get(session, 0) for session in {str(each.session) for each in self.verdicts})

    @property
    def chance(self) -> Chance | None:
        """What the draw would have caught, of which all was verified bit for bit; None where nothing can be said."""
        drawn = self.challenge
        if drawn is None or drawn.plan.silent is not None or self.status is not Status.EXACT:
            return None
        audits = [each for each in self.verdicts if each.session in drawn.of_list]
        room = sum(drawn.weights[session] for session in {str(each.session) for each in audits})
        partly = {each.session for each in audits if not self._whole(each)}
        whole = {str(each.session): each.tokens_checked for each in audits if each.session not in partly}
        tokens, sessions = sum(whole.values()), len(whole)
        weights = drawn.plan.listed.weights
        chance = caught(weights, sessions, SHARE * tokens / room) if room else 0.0
        return Chance(chance, sessions, tokens, room)

    def chances(self) -> list[str]:
        """What is to be said of chances beside a pass: at most a sentence."""
        drawn = self.challenge
        if drawn is None or self.status is not Status.EXACT or drawn.population < 2:
            return []
        if self.chance is None:
            return [drawn.plan.silent] if drawn.plan.silent is not None else []
        round_of = "" if self.beacon is None else " That is said of sessions that stood before the beacon's round."
        return [f"{self.chance}{round_of}"]

    def _whole(self, verdict: Verdict) -> bool:
        """Whether every token of a session was recomputed, and the provider itself signed it."""
        ours = self.challenge is None or self.challenge.is_of(verdict)
        return verdict.status is Status.EXACT and ours and not {note.id for note in verdict.notes} & _PARTLY

    def tally(self) -> list[str]:
        """What the sessions come to, a sentence each: how many are what, and why some could not be checked."""
        total = len(self.verdicts)
        if total < 2:
            return []
        counts = self.counts()
        known = ("verified", "verified exactly"), ("verified_statistical", "verified within rounding")
        parts = [f"{counts[name]} {words}" for name, words in known if counts[name] or name == "verified"]
        parts += [f"{counts['failed']} failed", f"{counts['inconclusive']} inconclusive"]
        said = [f"{', '.join(parts)}, of {total:,} sessions."]
        if counts["inconclusive"]:
            why = ", ".join(f"{number} {code}" for code, number in self.undecided().items())
            said.append(f"Could not be checked: {why}. A provider that always is, is not audited.")
        if self.challenge is not None and self.challenge.disputed:
            codes = ", ".join(sorted({each.code for each in self.challenge.disputed}))
            said.append(
                f"Not what the provider signed, of what clients handed over: {len(self.challenge.disputed)} ({codes}). "
                "That rests on the clients' word alone: ask them. It is not counted."
            )
        if counts["nothing_to_check"]:
            said.append(f"{counts['nothing_to_check']} had no token, so there was nothing to check.")
        if counts["interrupted"]:
            share = self.share("interrupted")
            part = "" if share is None else f", with {share:.0%} of the room drawn"
            said.append(
                f"{counts['interrupted']} stop in the middle of an answer{part}, after a crash, or so the provider "
                "says. They were not checked."
            )
        return said

    def findings(self) -> list[list[Verdict]]:
        """The verdicts that are no pass, failed ones first, those of one reason code together."""
        groups: dict[tuple[bool, str], list[Verdict]] = {}
        for verdict in self._deciding:
            apart = verdict.code in APART and self.status is not Status.INCONCLUSIVE
            if verdict.status not in (Status.EXACT, Status.STATISTICAL) and not apart:
                groups.setdefault((verdict.status is not Status.FAILED, str(verdict.code)), []).append(verdict)
        return [group for _, group in sorted(groups.items(), key=lambda item: item[0][0])]

    def caveats(self) -> list[Caveat]:
        """What the audit does not show, each once, with the number of sessions that it holds for."""
        notes = [Caveat("seed-given")] if self.seed_given else []
        notes += [] if self.challenge is None else self.challenge.caveats()
        if self.challenge is not None and self.challenge.drawn < self.challenge.population:
            rest = self.challenge.population - self.challenge.drawn
            notes.append(Caveat("sessions-not-drawn", f"{rest} of {self.challenge.population}"))
        counts = self.counts()
        undecided = counts["inconclusive"]
        if counts["interrupted"] and self.challenge is not None:
            share = self.share("interrupted")
            part = "" if share is None else f", with {share:.0%} of the room drawn"
            notes.append(Caveat("sessions-interrupted", f"{counts['interrupted']}{part}"))
        if self.others:
            names = ", ".join(dict.fromkeys(each.signed.by for each in _sessions(self.others)))
            notes.append(Caveat("other-signer", f"{len(self.others)} of {len(self.verdicts)}, by {names}"))
        notes += [] if self.beacon is None else self.beacon.caveats()
        if undecided and self.challenge is not None:
            notes.append(Caveat("sessions-undecided", str(undecided)))
        return [*notes, *merge([verdict.notes for verdict in self.verdicts])]

    def limits(self) -> list[str]:
        """What the audit does not show, a sentence each."""
        return list(map(str, self.caveats()))

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON values; the same facts as on the terminal."""
        facts: dict[str, Any] = {
            "status": self.status.value,
            "exit_code": self.status.exit_code,
            "source": self.source,
            "sessions": len(self.verdicts),
            **self.counts(),
            "undecided": self.undecided(),
            "interrupted_share": self.share("interrupted"),
            "tokens_checked": self.tokens_checked,
            "tokens_total": self.tokens_total,
            "not_shown": [caveat.to_json() for caveat in self.caveats()],
            "verdicts": [self._told(verdict) for verdict in self.verdicts],
            "beside": [self._told(verdict) for verdict in self.beside],
            "trusted": list(self.trusted),
            "followed": list(self.followed),
            "providers": [list(keys) for keys in self.providers],
            "session_keys": sorted(
                {key.vkey() for each in _sessions(self.verdicts) for key in each.manifest.session_keys}
            ),
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "command": self.command,
            "saved": list(self.saved),
        }
        if self.beacon is not None:
            facts["beacon"] = self.beacon.to_json()
        if self.decision is not None and self.calibration is not None:
            facts["tolerant"] = {**self.decision.to_json(), "claimed": self.calibration.claimed()}
        if self.challenge is not None:
            facts["challenge"] = self.challenge.to_json(self.chance)
        return facts


def _sessions(verdicts: Iterable[Verdict]) -> list[OpenedSession]:
    """The sessions that verdicts opened."""
    opened = (audited(verdict).session for verdict in verdicts)
    return [session for session in opened if session is not None]


def merge(notes: Sequence[Sequence[Caveat]]) -> list[Caveat]:
    """Caveats of many sessions, each once and with the number of sessions; of which turns it is said is left out."""
    if len(notes) == 1:
        return list(notes[0])
    counts = Counter(each for of_session in notes for each in {replace(note, turns=()): None for note in of_session})
    return [replace(each, sessions=(number, len(notes))) for each, number in counts.items()]
