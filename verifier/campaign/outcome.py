"""The outcome of an audit: one verdict for each session, and what they come to together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from verifiable.checking.caveats import Caveat
from verifiable.checking.verdict import Status, Verdict
from verifiable.manifest.manifest import Manifest
from verifier.auditing.marks import compared
from verifier.auditing.scope import audited
from verifier.campaign.beacon import FileBeacon
from verifier.campaign.plan import ChallengePlan, caught
from verifier.tolerant.calibration import Calibration
from verifier.tolerant.tolerant import Decision

COUNTED = {
    "verified": Status.EXACT,
    "verified_statistical": Status.STATISTICAL,
    "failed": Status.FAILED,
    "inconclusive": Status.INCONCLUSIVE,
}
"""What a report counts its sessions as."""
SHARE = 0.1
"""The share of sessions for which reports state the chance of catching a provider that cheats in them."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """How the sessions were chosen: as planned, by a seed drawn after the list was fetched."""

    seed: bytes
    plan: ChallengePlan
    drawn: int
    turns: int | None = None

    @property
    def population(self) -> int:
        return self.plan.population

    @property
    def chance(self) -> float:
        """Probability that a provider which cheats in `SHARE` of its sessions would have been caught."""
        return caught(self.population, self.drawn, SHARE)

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed.hex(),
            "population": self.population,
            "drawn": self.drawn,
            "turns": self.turns,
            "plan": self.plan.to_json(self.drawn),
            "chance_at_share": {"share": SHARE, "chance": round(self.chance, 6)},
        }


def overall(statuses: Iterable[Status]) -> Status:
    """Failed when any session failed, else inconclusive when any is or there is none, else the weaker pass."""
    given = set(statuses)
    if Status.FAILED in given:
        return Status.FAILED
    if not given or not given <= {Status.EXACT, Status.STATISTICAL}:
        return Status.INCONCLUSIVE
    return Status.STATISTICAL if Status.STATISTICAL in given else Status.EXACT


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `verifiable audit` found. `source` is what was audited, `command` how to repeat it.

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
    saved: tuple[str, ...] = ()
    beacon: FileBeacon | None = None
    decision: Decision | None = None
    calibration: Calibration | None = None

    @property
    def status(self) -> Status:
        """What the sessions come to together; see `overall`."""
        return overall(verdict.status for verdict in self.verdicts)

    @property
    def worst(self) -> Verdict | None:
        """The verdict that decides the status: the first failed one, else the first inconclusive one."""
        return next((verdict for verdict in self.verdicts if verdict.status is self.status), None)

    @property
    def manifest(self) -> Manifest | None:
        """The first manifest under which a session was opened."""
        sessions = (audited(verdict).session for verdict in self.verdicts)
        return next((session.manifest for session in sessions if session is not None), None)

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

    def count(self, status: Status) -> int:
        return sum(verdict.status is status for verdict in self.verdicts)

    def findings(self) -> list[list[Verdict]]:
        """The verdicts that are no pass, failed ones first, those of one reason code together."""
        groups: dict[tuple[bool, str], list[Verdict]] = {}
        for verdict in self.verdicts:
            if verdict.status not in (Status.EXACT, Status.STATISTICAL):
                groups.setdefault((verdict.status is not Status.FAILED, str(verdict.code)), []).append(verdict)
        return [group for _, group in sorted(groups.items(), key=lambda item: item[0][0])]

    def caveats(self) -> list[Caveat]:
        """What the audit does not show, each once, with the number of sessions that it holds for."""
        notes = []
        if self.challenge is not None and self.challenge.drawn < self.challenge.population:
            rest = self.challenge.population - self.challenge.drawn
            notes.append(Caveat("sessions-not-drawn", f"{rest} of {self.challenge.population}"))
        undecided = self.count(Status.INCONCLUSIVE)
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
            **{name: self.count(status) for name, status in COUNTED.items()},
            "tokens_checked": self.tokens_checked,
            "tokens_total": self.tokens_total,
            "not_shown": [caveat.to_json() for caveat in self.caveats()],
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "trusted": list(self.trusted),
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
            facts["challenge"] = self.challenge.to_json()
        return facts


def merge(notes: Sequence[Sequence[Caveat]]) -> list[Caveat]:
    """Caveats of many sessions, each once and with the number of sessions; of which turns it is said is left out."""
    if len(notes) == 1:
        return list(notes[0])
    counts = Counter(each for of_session in notes for each in {replace(note, turns=()): None for note in of_session})
    return [replace(each, sessions=(number, len(notes))) for each, number in counts.items()]
