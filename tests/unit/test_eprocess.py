"""The sequential test: it may be looked at after every conversation, and still accuses no more often than it says."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from verifiable.errors import PolicyError
from verifier.tolerant.eprocess import Bets, EProcess, needed, power, run, student4, table
from verifier.tolerant.statistics import Score

CALIBRATIONS, AUDITED = 50, 10
"""Calibrations that are drawn, and honest providers that are audited with each."""
Draw = Callable[[np.random.Generator, int], np.ndarray]


def normal(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.normal(0.02, 0.05, count)


def student(rng: np.random.Generator, count: int) -> np.ndarray:
    return 0.05 * rng.standard_t(4, count)


def cauchy(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.standard_cauchy(count)


def two_kinds(rng: np.random.Generator, count: int) -> np.ndarray:
    """One conversation in eight is of a noisier kind."""
    return np.where(rng.random(count) < 0.125, rng.normal(0.3, 0.05, count), rng.normal(0.0, 0.02, count))


def tied(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.round(rng.normal(0.0, 1.0, count))


def crossings(draw: Draw, alpha: float, kind: str, looks: int = 25) -> tuple[float, float]:
    """Share of honest providers ever accused in so many looks, and the mean e-value at the last."""
    accused, final = 0, []
    for trial in range(CALIBRATIONS):
        rng = np.random.default_rng([trial, looks])
        bets = Bets(draw(rng, 30), runs=AUDITED)
        crossed = np.zeros(AUDITED, bool)
        for _ in range(looks):
            bets.add(draw(rng, AUDITED))
            values = bets.rank() if kind == "rank" else bets.far()
            crossed |= values >= -math.log(alpha)
        accused += int(crossed.sum())
        final += np.exp(values).tolist()
    return accused / (CALIBRATIONS * AUDITED), float(np.mean(final))


@pytest.mark.parametrize("draw", [normal, student, cauchy, two_kinds, tied])
def test_bets_on_ranks_accuse_no_more_often_than_alpha_whatever_the_distribution(draw):
    share, _ = crossings(draw, 0.05, "rank")
    assert share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize("draw", [normal, student])
def test_bets_on_the_far_tail_accuse_no_more_often_than_alpha_where_tails_are_no_heavier_than_assumed(draw):
    share, mean = crossings(draw, 0.05, "far")
    assert share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    assert mean < 1.5


def test_one_bet_on_ranks_has_expectation_at_most_one():
    # Given the other thirty, a new conversation takes each of 31 ranks with the same probability.
    known = np.sort(np.random.default_rng(3).normal(size=30))
    places = np.concatenate([[known[0] - 1], (known[:-1] + known[1:]) / 2, [known[-1] + 1]])
    values = []
    for place in places:
        bets = Bets(known)
        bets.add(np.array([place]))
        values.append(math.exp(float(bets.rank()[0])))
    assert np.mean(values) <= 1.0 + 1e-12
    assert max(values) > 7.0


def test_the_tail_is_that_of_student_t_with_four_degrees_of_freedom():
    grid = np.linspace(-60.0, 60.0, 240_001)
    density = 3.0 / 8.0 * (1.0 + grid**2 / 4.0) ** -2.5
    for at in (-2.0, 0.0, 1.0, 2.776, 8.61):
        numeric = float(np.trapezoid(density[grid >= at], grid[grid >= at]))
        assert float(student4(np.array([at]))[0]) == pytest.approx(numeric, abs=2e-5)
    assert float(student4(np.array([2.776445]))[0]) == pytest.approx(0.025, abs=1e-6)  # from the tables
    assert 0.0 < float(student4(np.array([1e6]))[0]) < 1e-22


def scores(rng: np.random.Generator, count: int, shift: float = 0.0) -> list[Score]:
    """Scores whose log ratios are shifted; margins are honest."""
    rows = rng.normal((shift, shift, -1.0), (0.05, 0.05, 0.4), (count, 3))
    return [Score(*row) for row in rows.tolist()]


def steered(rng: np.random.Generator, count: int, shift: float) -> list[Score]:
    """Scores of records that are as near as honest ones, and whose draws are shifted."""
    rows = rng.normal((0.0, 0.0, -1.0 + shift), (0.05, 0.05, 0.4), (count, 3))
    return [Score(*row) for row in rows.tolist()]


def test_the_whole_test_accuses_no_more_often_than_alpha():
    accused = 0
    for trial in range(CALIBRATIONS):
        rng = np.random.default_rng(trial)
        classes = {"a": scores(rng, 20)}
        audited = np.array([table(scores(rng, 25)) for _ in range(AUDITED)])
        process = EProcess(classes, AUDITED)
        logs = []
        for at in range(25):
            process.add(audited[:, at])
            logs.append(process.logs())
        accused += int((np.array(logs) >= math.log(100.0)).any(axis=0).sum())
    assert accused <= 5 + 3 * math.sqrt(5)
    first = run(classes, [Score(*row) for row in audited[0].tolist()], alpha=0.01)
    assert first.logs == pytest.approx([float(each[0]) for each in logs])


def test_another_model_is_caught_at_once_and_a_small_shift_after_some_conversations():
    rng = np.random.default_rng(5)
    classes = {"a": scores(rng, 60), "b": scores(rng, 60)}
    far = run(classes, scores(rng, 10, 3.0))
    near = run(classes, scores(rng, 60, 0.25))
    assert far.crossed is not None
    assert far.crossed <= 2
    assert near.crossed is not None
    assert 2 < near.crossed < 25
    assert far.highest > near.logs[far.crossed]


def test_steered_draws_are_caught_by_their_margins_alone():
    rng = np.random.default_rng(11)
    classes = {"a": scores(rng, 60), "b": scores(rng, 60)}
    path = run(classes, steered(rng, 30, 8.0))
    assert path.crossed is not None
    assert path.crossed < 12
    assert path.statistics["margin"] > math.log(1e6) > 1.0 > path.statistics["mean"]
    assert run(classes, steered(rng, 100, 0.0)).highest < math.log(100.0)


def test_a_calibration_without_a_single_lost_draw_does_not_accuse_at_the_first():
    rng = np.random.default_rng(12)
    classes = {"a": [Score(one.mean, one.tail, -1.0) for one in scores(rng, 20)]}
    provider = [Score(one.mean, one.tail, 0.5 if at % 5 == 0 else -1.0) for at, one in enumerate(scores(rng, 40))]
    assert run(classes, provider).highest < math.log(100.0)


def test_a_provider_that_fits_one_honest_class_is_not_accused_by_the_others():
    rng = np.random.default_rng(6)
    classes = {"near": scores(rng, 40), "further": scores(rng, 40, 1.0)}
    assert run(classes, scores(rng, 40, 1.0)).highest < math.log(100.0)
    provider = scores(rng, 10, 1.0)
    near, further = (run({name: rows}, provider).logs[-1] for name, rows in classes.items())
    assert near > math.log(1e6) > further


def test_honest_in_nine_of_ten_is_caught_in_the_tenth():
    rng = np.random.default_rng(7)
    classes = {"a": scores(rng, 80)}
    curve = power(classes, scores(rng, 40, 2.2), share=0.1, honest=scores(rng, 80), most=120, runs=200)
    count = needed(curve, 0.95)
    assert count is not None
    assert 20 < count < 120
    assert needed(power(classes, scores(rng, 40), most=60, runs=200), 0.01) is None


def test_looking_after_every_conversation_is_what_the_power_curve_does():
    rng = np.random.default_rng(8)
    curve = power({"a": scores(rng, 30)}, scores(rng, 30, 1.0), most=20, runs=100)
    assert (np.diff(curve) >= 0.0).all()
    assert curve[-1] == 1.0


def test_too_few_conversations_calibrate_nothing():
    rng = np.random.default_rng(9)
    with pytest.raises(PolicyError, match="too few"):
        EProcess({"a": scores(rng, 11)})
    with pytest.raises(PolicyError, match="without an honest class"):
        EProcess({})
