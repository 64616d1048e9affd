"""Distances between records, and the ratio that calibrates itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from verifiable.sampling.logits import Candidates, Entries
from verifiable.sampling.sampler import SamplingParams
from verifier.tolerant.margin import Draw
from verifier.tolerant.statistics import FARTHEST, Distances, Ground, distance, score


def entries(pairs: dict[int, float]) -> Entries:
    ordered = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
    return Entries(np.array([i for i, _ in ordered], np.uint32), np.array([v for _, v in ordered], np.float32))


def quiet(claim: np.ndarray, replays: np.ndarray) -> Distances:
    """Distances of a conversation whose draws are those of the auditor."""
    none = np.zeros(len(replays))
    return Distances(claim, replays, none, none, none)


BASE = {7: 9.0, 3: 8.0, 5: 7.0, 11: 6.0}


def test_equal_records_have_no_distance():
    assert distance(entries(BASE), entries(BASE)) == 0.0


def test_a_shift_of_all_logits_is_no_distance():
    shifted = {token: value + 4.0 for token, value in BASE.items()}
    assert distance(entries(BASE), entries(shifted)) == pytest.approx(0.0, abs=1e-6)


def test_distance_is_the_root_mean_square_of_centred_differences():
    other = {**BASE, 7: 9.5}
    differences = np.array([-0.5, 0.0, 0.0, 0.0])
    assert distance(entries(BASE), entries(other)) == pytest.approx(float(differences.std()))


def test_more_entries_in_the_replay_change_nothing():
    more = {**BASE, 20: 5.0, 21: 4.0}
    assert distance(entries(BASE), entries(more)) == 0.0


def test_an_id_that_the_replay_lacks_counts_as_at_least_as_low_as_its_last():
    claimed = {7: 9.0, 3: 8.0, 5: 7.0, 99: 6.5}  # 99 is nowhere near the top here
    replay = {7: 9.0, 3: 8.0, 5: 7.0, 11: 2.0}
    assert distance(entries(claimed), entries(replay)) > 1.5


def test_an_id_that_the_claim_hides_counts():
    hiding = {3: 8.0, 5: 7.0, 11: 6.0, 20: 5.0}  # the best id is left out
    assert distance(entries(hiding), entries({**BASE, 20: 5.0})) > 1.0


def test_ratio_of_one_more_rounding_is_near_one_and_of_another_model_is_not():
    rng = np.random.default_rng(1)
    truth = [rng.normal(10.0, 3.0, 60) for _ in range(200)]

    def rounded(noise: float, keep: int) -> list[Entries]:
        found = []
        for row in truth:
            values = row + rng.normal(0.0, noise, len(row))
            found.append(entries(dict(enumerate(map(float, values)))))
        return [Entries(item.ids[:keep], item.logits[:keep]) for item in found]

    params = SamplingParams(0.0, 40, 1.0, 0.0, 1)
    draws = [Draw(params, b"", at) for at in range(200)]
    ground = Ground.of([rounded(0.1, 60) for _ in range(3)], draws, [40] * 200)

    def of(noise: float):
        claim = rounded(noise, 40)
        return score(ground.measure(claim, [int(record.ids[0]) for record in claim]))

    honest, other = of(0.1), of(1.0)
    assert honest.margin < 0.5
    assert other.margin > 10.0
    assert abs(honest.mean) < 0.1
    assert abs(honest.tail) < 0.15
    # Variances add: sqrt((1.0^2 + 0.1^2) / (2 * 0.1^2)), less what centring and hidden ids take.
    assert other.mean == pytest.approx(math.log(math.sqrt(1.01 / 0.02)), abs=0.15)


def test_a_few_bad_positions_show_in_the_tail_before_they_show_in_the_mean():
    bad = np.full(100, 0.1)
    bad[40:50] = 0.3
    found = score(quiet(bad, np.full(100, 0.1)))
    assert found.mean < 0.35
    assert found.tail > 0.85


def test_nothing_is_infinite():
    silent = quiet(np.full(8, 1e9), np.zeros(8))
    assert score(silent).mean == FARTHEST
    assert score(quiet(np.zeros(8), np.zeros(8))).mean == 0.0
    none = np.zeros(8)
    assert math.isfinite(score(Distances(none, none, np.ones(8), none, none)).margin)


def test_of_masked_records_what_a_draw_can_take_is_compared():
    one = Candidates(np.array([7], np.uint32), np.array([9.0]))
    none = Candidates(np.array([], np.uint32), np.array([]))
    assert distance(one, one) == distance(none, none) == 0.0
    assert distance(one, none) == distance(none, one) == FARTHEST


def test_turns_of_a_conversation_join_in_order():
    parts = [quiet(np.full(n, float(n)), np.full(n, 1.0)) for n in (2, 3)]
    assert Distances.joined(parts).claim.tolist() == [2.0, 2.0, 3.0, 3.0, 3.0]
    assert len(Distances.joined([])) == 0
