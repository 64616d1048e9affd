"""The tolerant tier on a made-up model whose rounding depends on the settings: from records to a verdict."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import TRUST, K, Recording, Row, ask, made_up, manifest, runtime
from tests.simulator import Provider, serve
from verifiable.checking.verdict import Status, Verdict
from verifiable.errors import MalformedError, PolicyError
from verifiable.manifest.manifest import LOG_PROBABILITIES, Runtime
from verifiable.sampling.logits import Candidates, Entries, Ids, Ranked
from verifiable.sampling.processors import Processor
from verifiable.sampling.sampler import SamplingParams, choose
from verifiable.session.challenge import place_window, window_lot
from verifiable.session.evidence import Kind
from verifiable.session.records import Token, parse
from verifier.auditing.rounding import decide_sessions
from verifier.auditing.scope import audited
from verifier.auditing.session import audit
from verifier.campaign.fetched import Auditor, Fetched, audit_session
from verifier.campaign.outcome import Outcome
from verifier.model.reexecute import Probed
from verifier.provider.client import Client
from verifier.report import report, show
from verifier.tolerant import eprocess, tolerant
from verifier.tolerant.calibrate import honest_classes, known_deviations, powers, replay_settings
from verifier.tolerant.calibration import Calibration, Origin, Sample, settings_of
from verifier.tolerant.margin import Draw
from verifier.tolerant.statistics import Distances, Ground
from verifier.tolerant.steering import one_in, steer
from verifier.tolerant.tolerant import Comparison, choose_length, decide

ROUNDING = 0.05
TOKENS = 16
ENDING = 100
"""Ids below end an answer, where a request says that none may."""
KEPT = b"\1" * 32
"""A client's capability."""
ELSEWHERE = Probed(True, b"e" * 32, ("b1",))
"""A machine with another fingerprint than the manifest's."""


def rounded(name: str, size: float = ROUNDING, deviation: float = 0.0):
    """The made-up model under a rounding of its own, and perhaps with a deviation that is the same at each rounding."""

    def row(ids: Sequence[int]) -> Entries:
        entries = made_up(ids)
        text = np.array(ids, "<u4").tobytes()

        def noise(what: str) -> np.ndarray:
            seed = np.frombuffer(hashlib.sha256(what.encode() + text).digest(), "<u4")
            return np.random.default_rng(seed).normal(size=len(entries.ids))

        moved = entries.logits + size * noise(name) + deviation * noise("deviation")
        logits = moved.astype(np.float32)
        order = np.lexsort((entries.ids, -logits))
        return Entries(entries.ids[order], logits[order])

    return row


@dataclass
class Rounding(MadeUpModel):
    """Every setting rounds in its own way."""

    size: float = ROUNDING
    settings: str = ""
    vocabulary: bool = True

    def load(self, runtime: Runtime, kv_type: str | None = None) -> None:
        self.settings = repr(settings_of(runtime))
        super().load(runtime, kv_type)

    def score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, *, as_generated: bool = False
    ) -> list[Entries]:
        row = rounded(self.settings, self.size)
        ids = [*prompt, *tokens]
        return [row(ids[: len(prompt) + index]) for index in range(len(tokens))]

    def score_processed(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        k: int,
        params: SamplingParams,
        constraint: bytes,
        *,
        as_generated: bool = False,
        skip: int = 0,
    ) -> tuple[list[Entries], list[bytes]]:
        records = self.score([*prompt, *tokens[:skip]], tokens[skip:], k)
        return records, self._masks([record.ids for record in records], params)

    def masks(
        self, tokens: Sequence[int], ids: Sequence[Ids], params: SamplingParams, constraint: bytes
    ) -> list[bytes]:
        if not self.vocabulary:
            return super().masks(tokens, ids, params, constraint)
        return self._masks(ids, params)

    def _masks(self, ids: Sequence[Ids], params: SamplingParams) -> list[bytes]:
        least = ENDING if params.ignore_eos else 0
        return [(each >= least).astype("u1").tobytes() for each in ids]


def talk(number: int, row, tokens: int = TOKENS, **how: Any) -> Recording:
    made = Recording(session=number.to_bytes(16, "big"), **how)
    made.turn(ask(max_tokens=tokens, verifiable={"nonce": f"{number:020x}"}), PROMPT, row, ends=frozenset())
    return made


def distances(number: int, claim, tokens: int = TOKENS) -> Distances:
    """A conversation's measurement, as an audit makes it."""
    rng = np.random.default_rng(number)
    ids = [*PROMPT, *map(int, rng.integers(1, 400, tokens))]
    prefixes = [ids[: len(PROMPT) + at] for at in range(tokens)]
    settings = [repr(settings_of(item)) for item in replay_settings(runtime())]
    params = SamplingParams(1.0, K, 1.0, 0.0, tokens)
    draws = [Draw(params, number.to_bytes(32, "big"), len(PROMPT) + at) for at in range(tokens)]
    ground = Ground.of([list(map(rounded(name), prefixes)) for name in settings], draws, [K] * tokens)
    records = list(map(claim, prefixes))
    drawn = [choose(record, params, draw.key, draw.position) for record, draw in zip(records, draws, strict=True)]
    return ground.measure(records, drawn)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    honest = Sample("other-machine", "", tuple(distances(1000 + at, rounded("other")) for at in range(40)))
    cheats = [
        Sample(name, "", tuple(distances(2000 + at, rounded("other", deviation=size)) for at in range(20)))
        for name, size in (("coarse", 0.5), ("hidden", 0.004))
    ]
    made = Calibration(
        (manifest().model.files[0].sha256.hex(),),
        settings_of(runtime()),
        ("b1",),
        K,
        "00" * 32,
        Origin(1_700_000_000_000, "the tests", "2.0.0", {"made-up.gguf": "ab" * 32}, "cd" * 32),
        (honest,),
        tuple(cheats),
        {},
    )
    return replace(made, power=powers(made, most=24, runs=200))


def check(
    made: Recording,
    calibration: Calibration | None,
    kind: Kind = Kind.FULL,
    positions: Sequence[int] = (),
    **options: Any,
) -> Verdict:
    options.setdefault("model", Rounding(probed=ELSEWHERE))
    return audit(made.evidence(kind, None, positions).encode(), trust=TRUST, calibration=calibration, **options)


def comparison(verdict: Verdict) -> Comparison:
    made = audited(verdict).comparison
    assert made is not None
    return made


def several(count: int, row, calibration: Calibration, start: int = 0) -> list[Verdict]:
    return [check(talk(start + at, row), calibration) for at in range(count)]


def test_without_a_calibration_it_stays_undecided():
    verdict = check(talk(1, rounded("provider")), None)
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "fingerprint-differs")


def test_honest_conversations_of_another_machine_are_verified_with_what_that_is_worth(calibration):
    verdicts, decision = decide_sessions(calibration, several(8, rounded("provider"), calibration))
    assert decision is not None
    assert {verdict.status for verdict in verdicts} == {Status.STATISTICAL}
    assert all(verdict.exit_code == 0 and verdict.tokens_checked == TOKENS for verdict in verdicts)
    assert decision.caught == ["coarse"]
    assert 0.95 <= decision.power["coarse"] < 1.0
    assert re.search(r"would have been caught with probability 0\.9[5-9][0-9]? or more", verdicts[0].summary)
    assert "alpha 1e-06" in verdicts[0].summary
    assert any("hidden" in note for note in verdicts[0].not_shown)  # what can't be told is said
    assert len(decision.path.logs) == 8
    assert decision.to_json()["cannot_tell"] == ["hidden"]


def test_reports_of_a_pass_within_rounding_call_it_that(calibration):
    """Terminal and page: verified, and no word of bits that agree or of evidence that does not hold."""
    verdicts, decision = decide_sessions(calibration, several(8, rounded("provider"), calibration))
    outcome = Outcome("folder", tuple(verdicts), decision=decision, calibration=calibration)
    assert "VERIFIED, within rounding." in "\n".join(show.audit(outcome))
    page = " ".join(re.sub("<[^>]+>", " ", report.render(outcome).partition("</style>")[2]).split())
    assert page.startswith("Verified, within rounding")
    assert page.count("Verified, within rounding") == 1
    assert "8 of 8 sessions verified within rounding" in page
    assert f"{8 * TOKENS} of {8 * TOKENS} tokens computed again" in page
    assert "compared within rounding, not bit for bit" in page
    assert f"{TOKENS} tokens, {TOKENS} compared within rounding" in page
    wrong = (
        "Inconclusive",
        "does not hold",
        "no pass",
        "tokens agree",
        "compared bit for bit",
        "same bits",
        "not recomputed",
    )
    assert not [said for said in wrong if said in page]
    assert outcome.tokens_within == outcome.tokens_compared == 8 * TOKENS


def test_one_conversation_is_too_little_for_a_pass(calibration):
    verdict = check(talk(1, rounded("provider")), calibration)
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "too-little-evidence")
    assert audited(verdict).turns[0].strip == "~" * TOKENS


@pytest.mark.parametrize(("simulated", "said"), [(1.0, "0.997"), (0.9999, "0.997"), (0.9609, "0.96")])
def test_what_a_simulation_never_missed_is_not_called_certain(simulated: float, said: str):
    power = {"coarse": tolerant._power([0.1, simulated], 8)}
    path = eprocess.Path((0.0,), None, 0.0, 0.0, dict.fromkeys(("mean", "tail", "margin"), 0.0))
    assert f"caught with probability {said} or more" in tolerant._judge(path, power, 16, 8, 1e-6)[2]


@pytest.mark.parametrize(("highest", "code"), [(99.0, None), (101.0, "too-little-evidence")])
def test_what_is_doubtful_is_no_pass(highest: float, code: str | None):
    path = eprocess.Path((math.log(highest),), None, 0.0, 0.0, dict.fromkeys(("mean", "tail", "margin"), 0.0))
    status, found, _ = tolerant._judge(path, {"coarse": 1.0}, 16, 1, 1e-6)
    assert (status, found) == (Status.STATISTICAL if code is None else Status.INCONCLUSIVE, code)


def test_a_coarse_model_fails_after_a_few_conversations(calibration):
    verdicts, decision = decide_sessions(calibration, several(5, rounded("provider", deviation=0.5), calibration))
    assert decision is not None
    assert decision.path.crossed is not None
    assert {(verdict.status, verdict.code) for verdict in verdicts} == {(Status.FAILED, "distribution-differs")}
    assert verdicts[0].exit_code == 1
    assert verdicts[0].found is not None
    json.dumps([verdict.to_json() for verdict in verdicts])


def test_only_as_many_tokens_are_computed_as_the_calibration_compares(calibration):
    starts = set()
    for number in range(8):
        seed = bytes([number]) * 32
        verdict = check(talk(1, rounded("provider"), tokens=24), calibration, seed=seed)
        window = comparison(verdict).to_json()["window"]
        start = place_window(window_lot(seed, bytes.fromhex(verdict.session or "")), 24, 16)
        assert window == {"seed": seed.hex(), "lot": window["lot"], "start": start, "tokens": 24}
        assert audited(verdict).turns[0].strip == "." * start + "~" * 16 + "." * (8 - start)
        assert len(audited(verdict).turns[0].differences) == start + 16
        starts.add(start)
    assert len(starts) > 3
    verdicts, _ = decide_sessions(
        calibration, [check(talk(at, rounded("provider"), tokens=24), calibration) for at in range(8)]
    )
    assert {verdict.status for verdict in verdicts} == {Status.STATISTICAL}
    assert verdicts[0].tokens_checked == 16
    assert any("outside of a window of 16" in note for note in verdicts[0].not_shown)


def test_without_a_seed_each_audit_draws_its_own(calibration):
    made = talk(1, rounded("provider"), tokens=200)
    windows = [comparison(check(made, calibration)).seed for _ in range(2)]
    assert windows[0] != windows[1]


def test_a_window_that_spans_turns_is_computed_in_each_of_them(calibration):
    """Its measurement is that of the same tokens in one piece, whatever turns it falls into."""
    made = Recording(session=bytes(16))
    for turn, tokens in enumerate((7, 1, 30, 3, 9)):
        body: dict[str, Any] = {"max_tokens": tokens, "verifiable": {"nonce": f"{turn:020x}"}}
        made.turn(ask(**body), PROMPT, rounded("provider"), ends=frozenset())
    whole: dict[int, float] = {}
    for number in range(40):
        seed = bytes([number]) * 32
        verdict = check(made, calibration, seed=seed)
        measured = comparison(verdict).distances
        assert (measured.total, len(measured)) == (50, 16)
        strip = "".join(turn.strip for turn in audited(verdict).turns)
        assert strip == "." * measured.start + "~" * 16 + "." * (34 - measured.start)
        for at, value in enumerate(measured.claim, measured.start):
            assert whole.setdefault(at, value) == value
    assert len(whole) > 40


def cheat_after(tokens: int, row: Row) -> Row:
    """Honest for so many tokens of an answer, and then a coarse model."""
    honest = rounded("provider")

    def late(ids: Sequence[int]) -> Entries:
        chosen = row if len(ids) - len(PROMPT) >= tokens else honest
        return chosen(ids)

    return late


def test_a_provider_that_cheats_after_the_tokens_that_are_compared_first_is_caught(calibration, monkeypatch):
    coarse = cheat_after(TOKENS, rounded("provider", deviation=0.5))
    sessions = [talk(at, coarse, tokens=96) for at in range(12)]
    verdicts, decision = decide_sessions(calibration, [check(made, calibration, seed=b"s" * 32) for made in sessions])
    assert decision is not None
    assert decision.path.crossed is not None
    assert "distribution-differs" in {verdict.code for verdict in verdicts}
    # Were it known beforehand that the first tokens count, it would pass.
    monkeypatch.setattr("verifier.auditing.rounding.window_lot", lambda seed, session: 0)
    verdicts, decision = decide_sessions(calibration, [check(made, calibration, seed=b"s" * 32) for made in sessions])
    assert {verdict.status for verdict in verdicts} == {Status.STATISTICAL}


def test_honest_long_answers_are_not_accused(calibration):
    sessions = [talk(at, rounded("provider"), tokens=96) for at in range(24)]
    verdicts, decision = decide_sessions(calibration, [check(made, calibration, seed=b"s" * 32) for made in sessions])
    assert decision is not None
    assert decision.path.highest < 3.0
    assert {verdict.status for verdict in verdicts} == {Status.STATISTICAL}


@pytest.mark.parametrize("total", [1, 2, 15, 16, 17, 100, 5000])
def test_shorter_windows_lie_within_longer_ones(total):
    lengths = (1, 2, 8, 16, 32, 64, 5000)
    for number in range(200):
        lot = window_lot(b"seed", number.to_bytes(16, "big"))
        for shorter, longer in itertools.pairwise(lengths):
            inner, outer = place_window(lot, total, shorter), place_window(lot, total, longer)
            assert outer <= inner
            assert inner + min(shorter, total) <= outer + min(longer, total) <= total
    extremes = {place_window(lot, total, 8) for lot in (0, 2**64 - 1)}
    assert extremes == {0, max(total - 8, 0)}


def test_every_place_is_as_likely_as_another():
    places = [place_window(window_lot(b"s", at.to_bytes(16, "big")), 20, 10) for at in range(11_000)]
    assert all(850 < places.count(place) < 1150 for place in range(11))  # 1000 each, five sigma
    assert window_lot(b"t", bytes(16)) != window_lot(b"s", bytes(16))


def test_where_a_provider_lies_sometimes_the_other_sessions_are_left_undecided(calibration):
    lies = several(5, rounded("provider", deviation=0.5), calibration)
    verdicts, _ = decide_sessions(calibration, [*several(3, rounded("provider"), calibration, 50), *lies])
    assert [verdict.status for verdict in verdicts] == [Status.INCONCLUSIVE] * 3 + [Status.FAILED] * 5


def test_what_the_numbers_cannot_tell_is_never_passed_in_silence(calibration):
    verdicts, decision = decide_sessions(calibration, several(8, rounded("provider", deviation=0.004), calibration))
    assert decision is not None
    assert {verdict.status for verdict in verdicts} == {Status.STATISTICAL}
    assert all("hidden" in " ".join(verdict.not_shown) for verdict in verdicts)
    only = replace(calibration, power={"hidden": calibration.power["hidden"]})
    undecided, _ = decide_sessions(only, several(8, rounded("provider"), calibration))
    assert {verdict.code for verdict in undecided} == {"too-little-evidence"}


def test_the_draw_is_still_replayed_exactly(calibration):
    def hotter(entries: Entries, params: SamplingParams, key: bytes, position: int) -> int:
        return choose(entries, replace(params, temperature=2.0), key, position)

    verdict = check(talk(1, rounded("provider"), draws=hotter), calibration)
    assert (verdict.status, verdict.code) == (Status.FAILED, "temperature-differs")


def without_ends(entries: Ranked) -> Candidates:
    kept = entries.ids >= ENDING
    return Candidates(entries.ids[kept], entries.logits[kept].astype(np.float64))


def ignoring(entries: Entries, params: SamplingParams, key: bytes, position: int) -> int:
    """An honest draw where no token may end the answer."""
    return choose(without_ends(entries), params, key, position)


def eighth_best(entries: Entries, params: SamplingParams, key: bytes, position: int) -> int:
    return int(without_ends(entries).ids[7])


def masked(number: int, draws: Any) -> Recording:
    made = Recording(session=number.to_bytes(16, "big"), draws=draws)
    body: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True, "verifiable": {"nonce": f"{number:020x}"}}
    made.turn(ask(**body), PROMPT, rounded("provider"), ends=frozenset())
    return made


def opened_tokens(made: Recording) -> list[Token]:
    return [leaf for leaf in map(parse, made.leaves) if isinstance(leaf, Token)]


def test_draws_that_depend_on_the_vocabulary_are_replayed_with_the_models_masks(calibration):
    honest, decision = decide_sessions(calibration, [check(masked(at, ignoring), calibration) for at in range(8)])
    assert {verdict.status for verdict in honest} == {Status.STATISTICAL}
    assert decision is not None
    verdict = check(masked(1, eighth_best), calibration)
    assert (verdict.status, verdict.code) == (Status.FAILED, "text-not-sampled")
    assert audited(verdict).comparison is None
    # One that draws what may not be drawn, too: its own record says that it was the best.
    ending = [at for at in range(8) if min(token.token for token in opened_tokens(masked(at, choose))) < ENDING]
    assert len(ending) > 3
    assert {check(masked(at, choose), calibration).status for at in ending} == {Status.FAILED}


def test_where_the_masks_are_not_known_nothing_passes(calibration):
    verdicts = [
        check(masked(at, ignoring), calibration, model=Rounding(probed=ELSEWHERE, vocabulary=False)) for at in range(8)
    ]
    assert {(verdict.status, verdict.code) for verdict in verdicts} == {(Status.INCONCLUSIVE, "not-replayed")}
    assert all(audited(verdict).comparison is None for verdict in verdicts)


def test_a_turn_of_which_records_alone_are_shown_never_passes(calibration):
    made = talk(1, rounded("provider"))
    made.turn(ask(max_tokens=TOKENS, verifiable={"nonce": "77" * 10}), PROMPT, rounded("provider"), ends=frozenset())
    position = len(PROMPT)
    verdict = check(made, calibration, Kind.RECORDS, positions=[position])
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "no-evidence")


def test_of_a_long_turn_with_processors_the_window_alone_is_computed(calibration):
    """Its state at the window's start is that of all tokens before."""
    verdicts = []
    for number in range(8):
        made = Recording(session=number.to_bytes(16, "big"), draws=penalised())
        body: dict[str, Any] = {"frequency_penalty": 2.0, "temperature": 0.01}
        made.turn(ask(max_tokens=48, verifiable={"nonce": f"{number:020x}"}, **body), PROMPT, narrow, ends=frozenset())
        verdicts.append(check(made, calibration, seed=b"w" * 32, model=Narrow(probed=ELSEWHERE)))
    assert max(comparison(verdict).distances.start for verdict in verdicts) > 8
    settled, _ = decide_sessions(calibration, verdicts)
    assert {verdict.status for verdict in settled} == {Status.STATISTICAL}
    lost = [comparison(verdict).distances.lost.max() for verdict in verdicts]
    assert max(lost) < 1.0  # the auditor's own candidates have the penalties of the tokens before the window


def narrow(ids: Sequence[int]) -> Entries:
    """Like the provider's rounding of a model that repeats itself: the same few ids all the time."""
    same = rounded("provider")(ids[:1])
    moved = (same.logits + 0.05 * rounded("provider")(ids).logits).astype(np.float32)
    order = np.lexsort((same.ids, -moved))
    return Entries(same.ids[order], moved[order])


@dataclass
class Narrow(Rounding):
    """The model of `narrow`, under a rounding of its own."""

    def score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, *, as_generated: bool = False
    ) -> list[Entries]:
        ids, rows = [*prompt, *tokens], []
        own = rounded(self.settings, self.size)
        for index in range(len(tokens)):
            prefix = ids[: len(prompt) + index]
            record = narrow(prefix)
            noise = own(prefix).logits - made_up(prefix).logits
            moved = (record.logits + noise).astype(np.float32)
            order = np.lexsort((record.ids, -moved))
            rows.append(Entries(record.ids[order], moved[order]))
        return rows


def penalised():
    """Honest draws of a turn with penalties, whose state is kept from token to token."""
    state: dict[str, Processor] = {}

    def draw(entries: Entries, params: SamplingParams, key: bytes, position: int) -> int:
        processor = state.setdefault("turn", Processor(params, K))
        token = choose(processor.candidates(entries), params, key, position)
        processor.accept(token)
        return token

    return draw


def test_a_conversation_with_nothing_to_choose_from_is_not_counted(calibration):
    quiet = [distances(at, rounded("provider")) for at in range(8)]
    forced = [replace(one, replays=np.where(np.arange(len(one)) < 9, 0.0, one.replays)) for one in quiet]
    assert len(decide(calibration, quiet).used) == 8
    decision = decide(calibration, [*forced, *quiet])
    assert decision.used == tuple(range(8, 16))
    ruling = decision.ruling(0, TOKENS)
    assert (ruling.status, ruling.code) == (Status.INCONCLUSIVE, "too-little-evidence")


def steering(number: int, budget: float) -> Recording:
    """A provider that knows each draw's noise and moves its records by no more than the budget."""
    seen: list[tuple[SamplingParams, bytes]] = []

    def spy(entries: Entries, params: SamplingParams, key: bytes, position: int) -> int:
        seen.append((params, key))
        return choose(entries, params, key, position)

    talk(number, rounded("provider"), draws=spy)
    params, key = seen[0]
    honest = rounded("provider")
    unwanted = one_in(2)

    def steered(ids: Sequence[int]) -> Entries:
        return steer(honest(ids), Draw(params, key, len(ids)), budget, unwanted)

    return talk(number, steered)


def test_records_that_are_moved_to_choose_tokens_fail_though_they_are_as_near_as_honest_ones(calibration):
    verdicts, decision = decide_sessions(calibration, [check(steering(at, 0.25), calibration) for at in range(12)])
    assert decision is not None
    assert decision.path.crossed is not None
    assert {verdict.code for verdict in verdicts} <= {"draws-differ", "too-little-evidence"}
    assert "draws-differ" in {verdict.code for verdict in verdicts}
    assert decision.path.statistics["margin"] > decision.path.statistics["mean"]
    json.dumps([decision.to_json(), *(verdict.to_json() for verdict in verdicts)])


def test_records_are_asked_for_where_only_tokens_were_given(calibration):
    made = talk(1, rounded("provider"))
    verdict = check(made, calibration, Kind.TOKENS)
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "fingerprint-differs")
    assert "full" in (verdict.hint or "")
    asked = []

    def fetch(turn: int) -> bytes:
        asked.append(turn)
        return made.evidence(Kind.FULL).encode()

    verdict = check(made, calibration, Kind.TOKENS, fetch_full=fetch)
    assert asked == [0]
    assert audited(verdict).comparison is not None


def test_settings_that_are_not_invariant_lead_here_too(calibration):
    stated = manifest(runtime=runtime(invariant=False))
    verdict = check(talk(1, rounded("provider"), manifest=stated), calibration)
    assert audited(verdict).comparison is not None


@pytest.mark.parametrize(
    ("stated", "code"),
    [
        (manifest(runtime=runtime(n_batch=0)), "runtime-impossible"),
        (manifest(value_kind=LOG_PROBABILITIES), "not-raw-logits"),
    ],
)
def test_what_is_no_rounding_is_not_compared_within_rounding(calibration, stated, code):
    verdict = check(talk(1, rounded("provider"), manifest=stated), calibration)
    assert (verdict.code, audited(verdict).comparison) == (code, None)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"model": ("00" * 32,)}, "model"),
        ({"build": ("b2",)}, "build"),
        ({"k": 20}, "k"),
        ({"settings": settings_of(runtime(type_k="f16"))}, "settings"),
    ],
)
def test_a_calibration_for_something_else_is_refused(calibration, change, what):
    verdict = check(talk(1, rounded("provider")), replace(calibration, **change))
    assert verdict.status is Status.INCONCLUSIVE
    assert what in verdict.summary
    assert audited(verdict).comparison is None


def test_a_machine_without_rounding_of_its_own_has_no_scale(calibration):
    verdict = check(talk(1, rounded("provider")), calibration, model=Rounding(probed=ELSEWHERE, size=0.0))
    assert verdict.status is Status.INCONCLUSIVE
    assert "rounds differently" in verdict.summary


def test_the_length_follows_from_the_counts_alone(calibration):
    assert calibration.lengths() == [8, 16]
    assert choose_length(calibration, [40] * 10) == 16
    assert choose_length(calibration, [16] * 8 + [9] * 2) == 16
    assert choose_length(calibration, [16] * 5 + [9] * 5) == 8
    assert choose_length(calibration, [3, 4]) is None
    assert decide(calibration, [distances(1, rounded("x"), 4)]).code == "too-little-evidence"


def test_a_calibration_file_is_what_was_written(calibration, tmp_path: Path):
    path = tmp_path / "calibration.json"
    calibration.save(path)
    again = Calibration.load(path)
    assert (again.model, again.settings, again.k) == (calibration.model, calibration.settings, calibration.k)
    for one, other in zip(again.honest[0].scores(16), calibration.honest[0].scores(16), strict=True):
        assert (one.mean, one.margin) == pytest.approx((other.mean, other.margin), abs=1e-3)
    assert again.origin == calibration.origin
    assert again.power["coarse"]["16"] == list(calibration.power["coarse"]["16"])


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value.pop("k"),
        lambda value: value.update(more=1),
        lambda value: value.update(version=1),
        lambda value: value.update(version=3),
        lambda value: value["origin"].pop("by"),
        lambda value: value["origin"].update(made="today"),
        lambda value: value["origin"].update(made=-1),
        lambda value: value["honest"][0]["conversations"][0].pop("lost"),
        lambda value: value["honest"][0]["conversations"][0]["variance"].pop(),
        lambda value: value.update(version=True),
        lambda value: value.update(k=0),
        lambda value: value.update(honest=[]),
        lambda value: value["settings"].pop("repack"),
        lambda value: value["honest"][0]["conversations"][0]["claim"].pop(),
        lambda value: value["honest"][0]["conversations"][0]["claim"].__setitem__(0, -1.0),
        lambda value: value["honest"][0]["conversations"][0]["claim"].__setitem__(0, float("inf")),
        lambda value: value["honest"][0]["conversations"][0]["claim"].__setitem__(0, "1"),
        lambda value: value["honest"][0].update(conversations=value["honest"][0]["conversations"][:5]),
    ],
)
def test_a_damaged_calibration_is_refused(calibration, damage):
    value = json.loads(json.dumps(calibration.to_json()))
    damage(value)
    with pytest.raises(MalformedError):
        Calibration.parse(json.dumps(value).encode())
    with pytest.raises(MalformedError):
        Calibration.parse(b"{")


def test_replays_compute_the_same_function_and_classes_are_none_of_them():
    settings = replay_settings(runtime())
    assert settings[0] == runtime()
    assert all((item.n_ctx, item.repack) == (256, False) for item in settings)
    assert not {item.name for item in honest_classes(runtime())} & {"kv-q8_0"}
    assert [item.runtime.type_k for item in known_deviations(runtime(), {})][:2] == ["q8_0", "q4_0"]
    quantised = runtime(type_k="q8_0", type_v="q8_0")
    assert all(item.flash_attn for item in replay_settings(quantised))
    names = [item.name for item in known_deviations(quantised, {})]
    assert names == ["kv-q4_0", "hidden-prompt", "steered-0.1", "steered-0.25"]


def test_a_calibration_needs_conversations(tmp_path: Path):
    from verifier.tolerant.calibrate import calibrate

    with pytest.raises(PolicyError, match="too few"):
        calibrate(tmp_path / "no.gguf", runtime(), conversations=11)
    with pytest.raises(PolicyError, match="no such class"):
        calibrate(tmp_path / "no.gguf", runtime(), against=["mainframe"])


def test_the_report_shows_path_distribution_and_what_cannot_be_told(calibration):
    from verifier.campaign.outcome import Outcome
    from verifier.report.report import render

    for deviation, words in ((0.0, "Comparison within rounding"), (0.5, "distribution-differs")):
        verdicts, decision = decide_sessions(
            calibration, several(8, rounded("provider", deviation=deviation), calibration)
        )
        assert decision is not None
        page = render(Outcome("file", tuple(verdicts), decision=decision, calibration=calibration))
        assert words in page
        assert page.count("<polyline") == 1
        assert "made 2023-11-14 22:13 UTC by the tests" in page
        assert page.count("one tick a conversation") == 4  # two statistics, each in words for both kinds of reader
        assert "other-machine" in page
        assert "Can&#x27;t be told" in page or "Can't be told" in page
    exact = render(Outcome("file", ()))
    assert "Comparison within rounding" not in exact


def test_a_decision_over_the_provider_takes_the_place_of_the_one_about_a_session(calibration):
    weak = replace(calibration, power={"coarse": {length: [1.0] * 24 for length in calibration.power["coarse"]}})
    alone = several(8, rounded("provider"), weak)
    assert {verdict.status for verdict in alone} == {Status.STATISTICAL}  # so each has notes of its own
    short = check(talk(90, rounded("provider"), tokens=9), weak)
    assert (short.status, short.tokens_checked) == (Status.STATISTICAL, 8)
    verdicts, decision = decide_sessions(weak, [*alone, short])
    assert decision is not None
    assert decision.length == 16
    for verdict in verdicts[:-1]:
        assert len(set(verdict.not_shown)) == len(verdict.not_shown)
        assert sum("window of" in note for note in verdict.not_shown) == 1
    # Nothing stays of what was said about the short one alone.
    assert (verdicts[-1].status, verdicts[-1].tokens_checked) == (Status.INCONCLUSIVE, 0)
    assert not any("window of" in note for note in verdicts[-1].not_shown)


def test_a_proof_of_fraud_outlives_the_decision_over_the_provider(calibration):
    honest = several(8, rounded("provider"), calibration)
    proven = replace(honest[3], status=Status.FAILED, code="two-histories", summary="signed twice")
    verdicts, decision = decide_sessions(calibration, [*honest[:3], proven, *honest[4:]])
    assert decision is not None
    assert len(decision.used) == 8
    assert (verdicts[3].status, verdicts[3].code) == (Status.FAILED, "two-histories")
    assert {verdict.status for verdict in verdicts if verdict is not verdicts[3]} == {Status.STATISTICAL}


def test_a_session_is_one_conversation_however_many_verdicts_there_are_on_it(calibration):
    one, other = (check(talk(at, rounded("provider")), calibration) for at in (1, 2))
    settled, decision = decide_sessions(calibration, [one, other, *[one] * 8])
    assert decision is not None
    assert len(decision.e_values) == 2
    assert decision == decide_sessions(calibration, [one, other])[1]
    assert {(each.status, each.summary) for each in settled if each.session == one.session} == {
        (settled[0].status, settled[0].summary)
    }


def test_an_early_head_of_all_records_does_not_make_a_session_a_crash(calibration, tmp_path):
    """Within rounding all records are asked for after the tokens: an old head then is another answer than was asked."""
    made, early = talk(1, rounded("provider"), capability=KEPT), Recording(session=(1).to_bytes(16, "big"))
    early.crash(ask(max_tokens=60), PROMPT, 3)
    provider = Provider([made])
    provider.change = lambda path, body: early.evidence().encode() if "kind=full" in provider.asked[-1] else body
    auditor = Auditor(Rounding(probed=ELSEWHERE), TRUST, tmp_path, calibration=calibration)
    with serve(provider) as url, Client(url, capability=KEPT) as client:
        verdict = audit_session(auditor, client, Fetched(made.session, size=made.log.size))
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "no-evidence")
