"""Distances between records, and the ratio that calibrates itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from verifiable.sampling.logits import Entries
from verifier.tolerant.statistics import FARTHEST, Distances, distance, measure, score


def entries(pairs: dict[int, float]) -> Entries:
    ordered = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
    return Entries(np.array([i for i, _ in ordered], np.uint32), np.array([v for _, v in ordered], np.float32))


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

    replays = [rounded(0.1, 60) for _ in range(3)]
    honest, other = score(measure(rounded(0.1, 40), replays)), score(measure(rounded(1.0, 40), replays))
    assert abs(honest.mean) < 0.1
    assert abs(honest.tail) < 0.15
    # Variances add: sqrt((1.0^2 + 0.1^2) / (2 * 0.1^2)), less what centring and hidden ids take.
    assert other.mean == pytest.approx(math.log(math.sqrt(1.01 / 0.02)), abs=0.15)


def test_a_few_bad_positions_show_in_the_tail_before_they_show_in_the_mean():
    quiet = Distances(np.full(100, 0.1), np.full(100, 0.1))
    bad = quiet.claim.copy()
    bad[40:50] = 0.3
    found = score(Distances(bad, quiet.replays))
    assert found.mean < 0.35
    assert found.tail > 0.85


def test_nothing_is_infinite():
    silent = Distances(np.full(8, 1e9), np.zeros(8))
    assert score(silent).mean == FARTHEST
    assert score(Distances(np.zeros(8), np.zeros(8))).mean == 0.0


def test_turns_of_a_conversation_join_in_order():
    parts = [Distances(np.full(n, float(n)), np.full(n, 1.0)) for n in (2, 3)]
    assert Distances.joined(parts).claim.tolist() == [2.0, 2.0, 3.0, 3.0, 3.0]
    assert len(Distances.joined([])) == 0
