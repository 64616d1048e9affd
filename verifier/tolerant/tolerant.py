"""The tolerant tier: what an audit says where this machine rounds otherwise than the provider's.

One conversation is measured at a time (`measure_turns`); a decision is about a provider, over all its conversations
in the order in which they were drawn (`decide`), and rules what each of their verdicts says (`Decision.ruling`). A pass
names the deviations that would have been caught and those that would not: what the numbers can't tell is never passed
over in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from verifiable import limits
from verifiable.checking.caveats import Caveat
from verifiable.checking.checks import OpenedTurn
from verifiable.checking.verdict import Status
from verifiable.manifest.manifest import Manifest
from verifiable.sampling.logits import Entries, Ranked
from verifiable.sampling.seen import ranked
from verifiable.session.challenge import place_window
from verifier.model.reexecute import Reexecutor
from verifier.tolerant.calibrate import Scored, different, replay_settings
from verifier.tolerant.calibration import Calibration, Origin
from verifier.tolerant.eprocess import ALPHA, RUNS, Path, run, table
from verifier.tolerant.margin import Draw
from verifier.tolerant.statistics import Distances, Ground, Score, score

COVERED = 0.8
"""Share of the conversations that must be long enough for the length at which they are compared."""
CAUGHT = 0.95
"""Probability from which a deviation is said to be one that would have been caught."""
SHOWN = 1.0 - 3.0 / RUNS
"""The most that a simulation shows: had it `RUNS` audits and missed in none, that is the least at 95% confidence."""
LN10 = math.log(10.0)
DOUBTFUL = 100.0
"""E-value from which nothing is verified any more, though nothing is proven yet."""


def measure_turns(
    turns: Sequence[OpenedTurn],
    prompts: Mapping[int, Sequence[int]],
    masks: Mapping[int, Sequence[bytes]],
    worker: Reexecutor,
    manifest: Manifest,
    most: int,
    lot: int,
) -> tuple[Distances, list[range]]:
    """The distances of a conversation, and which of each turn's tokens they are of.

    Args:
        turns: in order, with all their records shown; every draw follows from them.
        prompts: turn -> the ids of its prompt.
        masks: turn -> the masks of its records, where its draws depend on the model's vocabulary.
        most: the longest window that anything compares.
        lot: where in all the turns' tokens the window lies; drawn after they were committed to, so that a provider
            can't know which of them count.

    Raises PolicyError where this machine's own replays do not differ to the last bit, so that there is no scale.
    """
    counts = [turn.count for turn in turns]
    total = sum(counts)
    parts = window_parts(counts, place_window(lot, total, most), most)
    shown = [_Shown(turn, part, prompts[turn.number]) for turn, part in zip(turns, parts, strict=True)]
    k = min(manifest.k, manifest.model.vocabulary)
    scored: list[Scored] = []
    seen: list[list[list[Ranked]]] = []
    for settings in replay_settings(manifest.runtime):
        worker.load(settings)
        replayed = [turn.replay(worker, k) for turn in shown]
        scored.append([records for records, _ in replayed])
        seen.append([candidates for _, candidates in replayed])
    hint = "Audit on a machine with the provider's fingerprint."
    usable = different(scored, lambda one, other: _bits(one) != _bits(other), manifest.runtime, hint)
    kept = [sight for one, sight in zip(scored, seen, strict=True) if any(one is other for other in usable)]
    measured = [
        turn.measure([one[at] for one in kept], masks.get(turn.turn.number, ())) for at, turn in enumerate(shown)
    ]
    return Distances.joined(measured, lot, total), parts


class _Shown:
    """A turn with its records, of which a part is compared."""

    def __init__(self, turn: OpenedTurn, part: range, prompt: Sequence[int]) -> None:
        self.turn, self._part, self._prompt = turn, part, prompt
        self._entries = [token.entries for token in turn.records]
        self._tokens = [token.token for token in turn.records]

    def replay(self, worker: Reexecutor, k: int) -> tuple[list[Entries], list[Ranked]]:
        """The auditor's records of the part, and what a draw sees of them.

        With processors they have `k` entries as the claim's have: ids that come first in one may come last in another.
        """
        turn, part, tokens = self.turn, self._part, self._tokens[: self._part.stop]
        before, drawn = tokens[: part.start], tokens[part.start :]
        params, masks = turn.leaf.params, list[bytes]()
        if not part:
            return [], []
        if params.processed:
            constraint = turn.request.constraint
            records, masks = worker.score_processed(self._prompt, tokens, k, params, constraint, skip=part.start)
        else:
            records = worker.score([*self._prompt, *before], drawn, limits.ENTRIES)
        return records, ranked(records, drawn, params, masks, turn.suppressed, before)

    def measure(self, replays: Sequence[Sequence[Ranked]], masks: Sequence[bytes]) -> Distances:
        """The distances of the part; `masks` are those of all the turn's records, or none."""
        turn, leaf, part = self.turn, self.turn.leaf, self._part
        stop = part.stop
        seen = ranked(self._entries[:stop], self._tokens[:stop], leaf.params, masks[:stop], turn.suppressed)[
            part.start :
        ]
        draws = [Draw(leaf.params, leaf.key(), leaf.prompt_count + at) for at in part]
        ground = Ground.of(replays, draws, [len(record.ids) for record in seen])
        return ground.measure(seen, self._tokens[part.start : stop])


def window_parts(counts: Sequence[int], start: int, length: int) -> list[range]:
    """What of each turn's tokens lies in a window over all of them; an empty range where nothing does."""
    parts = []
    for count in counts:
        parts.append(range(min(max(start, 0), count), min(max(start + length, 0), count)))
        start -= count
    return parts


def _bits(scored: Sequence[Sequence[Entries]]) -> bytes:
    return b"".join(entry.logit_bytes() for turn in scored for entry in turn)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the conversations of one provider come to.

    Args:
        status: statistical, failed or inconclusive.
        code: the reason code, None for a pass.
        alpha: the bound on the false-positive rate.
        length: positions that conversations were compared over.
        used: indices of the conversations that were compared, in order.
        path: the e-value after each of them.
        power: deviation -> probability that it would have been caught with that many conversations.
        outliers: indices of conversations that lie outside every honest class.
        scores: the statistics of each conversation that was compared.
        honest: class -> the same of its calibration conversations.
        origin: where the calibration comes from.
    """

    status: Status
    code: str | None
    summary: str
    alpha: float
    length: int
    used: tuple[int, ...]
    path: Path
    power: Mapping[str, float]
    outliers: tuple[int, ...] = ()
    scores: tuple[Score, ...] = ()
    honest: Mapping[str, Sequence[Score]] = field(default_factory=dict)
    origin: Origin | None = None

    @property
    def caught(self) -> list[str]:
        return [name for name, value in self.power.items() if value >= CAUGHT]

    @property
    def missed(self) -> list[str]:
        return [name for name, value in self.power.items() if value < CAUGHT]

    @property
    def e_values(self) -> list[float]:
        """The e-value after each conversation, as powers of ten."""
        return [value / LN10 for value in self.path.logs]

    def ruling(self, number: int, tokens: int) -> Ruling:
        """What the decision means for conversation `number`, whose opened turns have so many tokens.

        Where the provider fails, the conversations outside every honest class fail with it; the rest are left
        undecided, since a provider caught lying is not to be believed elsewhere.
        """
        if number not in self.used and self.status is not Status.INCONCLUSIVE:
            short = (
                f"fewer than {self.length} of its tokens in a row could be compared, or most had one candidate alone"
            )
            return Ruling(Status.INCONCLUSIVE, "too-little-evidence", short)
        if self.status is Status.STATISTICAL:
            checked = min(self.length, tokens)
            return Ruling(self.status, None, self.summary, notes=tuple(self._notes()), tokens_checked=checked)
        if self.status is Status.FAILED and self.outliers and number not in self.outliers:
            lone = "this conversation alone is not outside honest rounding, but the provider's others are"
            return Ruling(Status.INCONCLUSIVE, "too-little-evidence", lone)
        if self.status is Status.FAILED:
            expected, found = f"an e-value below {1 / self.alpha:g}", f"10^{self.path.highest / LN10:.1f}"
            return Ruling(self.status, self.code, self.summary, expected, found)
        return Ruling(self.status, self.code, self.summary)

    def _notes(self) -> list[Caveat]:
        """What a pass does not show."""
        window = f"none outside of a window of {self.length} of each conversation, drawn after it was committed to"
        notes = [Caveat("tokens-not-compared", window), Caveat("bits-not-compared"), Caveat("near-ties")]
        if self.missed:
            told = f"{len(self.used)} conversations of {self.length} tokens"
            notes = [Caveat("deviations-not-told", f"by {told}: {', '.join(self.missed)}"), *notes]
        return notes

    def short_json(self) -> dict[str, Any]:
        """What each session's verdict tells of it."""
        return {
            "alpha": self.alpha,
            "length": self.length,
            "conversations": len(self.used),
            "e_value_log10": [round(value, 4) for value in self.e_values],
            "rank_log10": round(self.path.rank / LN10, 4),
            "far_log10": round(self.path.far / LN10, 4),
            "statistics_log10": {name: round(value / LN10, 4) for name, value in self.path.statistics.items()},
            "power": dict(self.power),
            "caught": self.caught,
            "cannot_tell": self.missed,
            "calibration": None if self.origin is None else self.origin.to_json(),
        }

    def to_json(self) -> dict[str, Any]:
        return {
            **self.short_json(),
            "scores": [_rounded(one) for one in self.scores],
            "honest": {name: [_rounded(one) for one in rows] for name, rows in self.honest.items()},
        }


def _rounded(one: Score) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(one).items()}


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a decision about a provider means for the verdict on one of its conversations; fields as in `Verdict`."""

    status: Status
    code: str | None
    summary: str
    expected: str | None = None
    found: str | None = None
    notes: tuple[Caveat, ...] = ()
    tokens_checked: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A conversation that was compared within rounding: its distances, the seed that drew where, and the decision that
    it became part of.
    """

    distances: Distances
    seed: bytes
    decision: Decision

    def to_json(self) -> dict[str, Any]:
        measured = self.distances
        return {
            "claim": [float(f"{value:.6g}") for value in measured.claim],
            "replays": [float(f"{value:.6g}") for value in measured.replays],
            "margins": [float(f"{value:.6g}") for value in measured.lost],
            "likely": [float(f"{value:.6g}") for value in measured.likely],
            "window": {
                "seed": self.seed.hex(),
                "lot": f"{measured.lot:016x}",
                "start": measured.start,
                "tokens": measured.total,
            },
            "decision": self.decision.short_json(),
        }


def choose_length(calibration: Calibration, counts: Sequence[int]) -> int | None:
    """The length at which conversations of `counts` tokens are compared; from the counts alone, so it can't be tuned.

    The largest that most of them have; where none is that common, the smallest that any has.
    """
    lengths = calibration.lengths()
    for length in reversed(lengths):
        if counts and sum(count >= length for count in counts) >= COVERED * len(counts):
            return length
    return lengths[0] if any(count >= lengths[0] for count in counts) else None


def decide(calibration: Calibration, talks: Sequence[Distances], alpha: float = ALPHA) -> Decision:
    """Decide over a provider's conversations, in the order in which they were drawn."""
    length = choose_length(calibration, [len(talk) for talk in talks])
    if length is None:
        few = f"no conversation has the {calibration.lengths()[0]} tokens that the calibration compares"
        return Decision(Status.INCONCLUSIVE, "too-little-evidence", few, alpha, 0, (), Path((), None, 0.0, 0.0, {}), {})
    windows = {at: talk.window(length) for at, talk in enumerate(talks) if len(talk) >= length}
    used = tuple(at for at, window in windows.items() if window.informative * 2 >= length)
    scores = [score(windows[at]) for at in used]
    classes = calibration.classes(length)
    path = run(classes, scores, alpha)
    highest = [table(rows).max(axis=0) for rows in classes.values()]
    outliers = tuple(
        at for at, row in zip(used, table(scores), strict=True) if all((row > most).any() for most in highest)
    )
    power = {name: _power(table.get(str(length), ()), len(used)) for name, table in calibration.power.items()}
    status, code, summary = _judge(path, power, length, len(used), alpha)
    return Decision(
        status,
        code,
        summary,
        alpha,
        length,
        used,
        path,
        power,
        outliers,
        tuple(scores),
        classes,
        calibration.origin,
    )


def _judge(
    path: Path, power: Mapping[str, float], length: int, count: int, alpha: float
) -> tuple[Status, str | None, str]:
    most = path.highest / LN10
    size = f"{count} conversation{'s' if count != 1 else ''} of {length} tokens"
    steered = path.statistics["margin"] > max(path.statistics["mean"], path.statistics["tail"])
    if path.crossed is not None:
        what = (
            "the drawn tokens lose under this machine's own logits and the turns' noise by more than honest rounding"
            if steered
            else "the committed logits are further from the model than honest rounding"
        )
        return (
            Status.FAILED,
            "draws-differ" if steered else "distribution-differs",
            f"{what}: e-value 10^{most:.1f} after {path.crossed + 1} of {size}, where an honest provider ever reaches "
            f"10^{-math.log10(alpha):.0f} with probability {alpha:g}",
        )
    if path.highest >= math.log(DOUBTFUL):
        return (
            Status.INCONCLUSIVE,
            "too-little-evidence",
            f"the committed {'draws' if steered else 'logits'} look further from the model than honest rounding, but "
            f"not beyond doubt: e-value 10^{most:.1f} after {size}",
        )
    caught = [name for name, value in power.items() if value >= CAUGHT]
    if not caught:
        return (
            Status.INCONCLUSIVE,
            "too-little-evidence",
            f"{size} would not have shown any of the known deviations with certainty",
        )
    least = math.floor(1000 * min(power[name] for name in caught)) / 1000
    return (
        Status.STATISTICAL,
        None,
        f"{size}: the committed logits and the tokens drawn are as near to the model as honest rounding (alpha "
        f"{alpha:g}); {', '.join(caught)} would have been caught with probability {least:g} or more",
    )


def _power(curve: Sequence[float], count: int) -> float:
    return min(float(curve[min(count, len(curve)) - 1]), SHOWN) if count and len(curve) else 0.0
