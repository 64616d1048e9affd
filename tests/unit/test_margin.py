"""By how much a drawn token loses under the auditor's own logits, and what rounding makes of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.sessions import made_up
from verifiable.errors import VerificationError
from verifiable.sampling.logits import Candidates, Entries
from verifiable.sampling.sampler import SamplingParams, choose, gumbel
from verifiable.sampling.seen import ranked
from verifier.tolerant.calibrate import Class, further, grounds_of, sample
from verifier.tolerant.eprocess import MARGIN
from verifier.tolerant.margin import REACH, Draw, Losses, Odds
from verifier.tolerant.statistics import Distances, score
from verifier.tolerant.steering import one_in, steer

KEY = b"k" * 32
PLAIN = SamplingParams(0.7, 40, 1.0, 0.0, 1)
ROUNDING = 0.1


def record(*logits: float) -> Entries:
    return Entries(np.arange(10, 10 + len(logits), dtype=np.uint32), np.array(logits, np.float32))


def losses(mine: Entries, params: SamplingParams, rounding: float = ROUNDING) -> dict[int, float]:
    made = Losses.of(mine, Draw(params, KEY, 5), rounding)
    return dict(zip(made.ids.tolist(), made.lost.tolist(), strict=True))


def scores(mine: Entries, temperature: float) -> dict[int, float]:
    values = mine.logits.astype(np.float64) + temperature * gumbel(KEY, 5, mine.ids)
    return dict(zip(mine.ids.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("temperature", [0.0, 0.01, 0.7, 3.0])
def test_the_token_that_is_drawn_loses_by_nothing_and_another_by_the_difference_of_scores_in_logits(temperature):
    params = replace(PLAIN, temperature=temperature)
    for number in range(50):
        mine = made_up([number])  # of 40 ids, so that top_k is no edge
        lost = losses(mine, replace(params, top_k=41))
        drawn = choose(mine, params, KEY, 5)
        assert lost[drawn] == 0.0
        best = scores(mine, temperature)
        for token, value in lost.items():
            assert value == pytest.approx(best[drawn] - best[token], abs=1e-9)


def test_at_the_edge_of_a_filter_an_id_counts_as_in_or_out_as_is_better_for_it():
    far = replace(PLAIN, temperature=0.01)  # the noise is of no account
    mine = record(9.0, 8.0, 7.9, 4.0, 1.0)
    assert losses(mine, replace(far, top_k=2))[12] == pytest.approx(1.1, abs=0.1)  # as if it were in
    # An id far outside loses by its distance to what is in, though the noise were for it.
    hot = replace(PLAIN, temperature=100.0)
    out = {token: value for token, value in losses(mine, replace(hot, top_k=2), 0.001).items() if token > 12}
    assert all(value >= 4.0 - 1e-6 for value in out.values())
    # Where the best is near the edge itself, the next one may have been the best: it loses by nothing.
    gentle = replace(hot, min_p=math.exp(-1.0))
    for number in range(64):
        draw = Draw(gentle, number.to_bytes(32, "big"), 5)
        near = Losses.of(record(9.0, 8.0 + 1e-4), draw, ROUNDING)
        assert near.lost[0] == 0.0
        apart = Losses.of(record(9.0, 8.9), draw, 0.001)
        assert min(apart.lost) == 0.0
    assert REACH * ROUNDING > 1e-4


def test_where_fewer_ids_may_come_than_top_k_takes_there_is_no_edge():
    """Of two ids that a grammar allows none may be left out, or the other could be had at will."""
    hot = replace(PLAIN, temperature=50.0)
    for number in range(32):
        made = Losses.of(record(9.0, 1.0), Draw(hot, number.to_bytes(32, "big"), 5), ROUNDING)
        assert sorted(made.lost.tolist())[1] > 0.0


def test_the_edge_of_top_p_is_as_wide_as_rounding_moves_it():
    params = replace(PLAIN, temperature=50.0, top_p=0.7)
    mine = record(2.0, 2.0, 2.0, 2.0, 2.0, -9.0)  # a fifth each: the edge is after the fourth
    wide = [Losses.of(mine, Draw(params, number.to_bytes(32, "big"), 5), 2.0) for number in range(64)]
    narrow = [Losses.of(mine, Draw(params, number.to_bytes(32, "big"), 5), 0.001) for number in range(64)]
    assert all((a.lost[:4] <= b.lost[:4] + 1e-9).all() for a, b in zip(wide, narrow, strict=True))
    assert any((a.lost[:4] < b.lost[:4] - 1.0).any() for a, b in zip(wide, narrow, strict=True))


def test_an_id_that_the_record_does_not_name_loses_as_one_that_is_no_better_than_its_last():
    mine = record(*np.linspace(9.0, 1.0, 40))
    draw = Draw(PLAIN, KEY, 5)
    made = Losses.of(mine, draw, ROUNDING)
    noise = PLAIN.temperature * float(gumbel(KEY, 5, np.array([777], np.uint32))[0])
    assert made.of_token(777, draw) == pytest.approx(max(scores(mine, 0.7).values()) - 1.0 - noise, abs=1e-6)


def test_of_several_records_the_least_counts_and_rounding_makes_near_ties_likely():
    draw = Draw(replace(PLAIN, temperature=0.0), KEY, 5)
    near, far = record(9.0, 8.9), record(9.0, 4.0)
    odds = Odds.of([near, far], draw, ROUNDING)
    assert odds.lost(11) == pytest.approx(0.1, abs=1e-6)
    assert Odds.of([far], draw, ROUNDING).mean < 1e-12 < odds.mean
    once = Odds.of([near], draw, ROUNDING)
    assert once.mean == pytest.approx(0.1 * 0.5 * math.exp(-0.25), rel=1e-4)
    assert once.variance == pytest.approx(0.01 * 0.5 * math.exp(-0.25), rel=1e-4)
    assert Odds.of([Candidates(np.array([], np.uint32), np.array([]))], draw, ROUNDING).lost(3) == 0.0


def test_rounding_draws_no_more_often_than_is_likely():
    """Gaussian rounding of the size that was measured: the sum of margins is about what was expected, or less."""
    rng = np.random.default_rng(4)
    lost, mean, variance = 0.0, 0.0, 0.0
    for number in range(3000):
        mine = made_up([number])
        draw = Draw(replace(PLAIN, temperature=1.0), number.to_bytes(32, "big"), 5)
        moved = (mine.logits + rng.normal(0.0, 0.2, len(mine.ids))).astype(np.float32)
        order = np.lexsort((mine.ids, -moved))
        odds = Odds.of([mine], draw, 0.2)
        lost += odds.lost(choose(Entries(mine.ids[order], moved[order]), draw.params, draw.key, draw.position))
        mean += odds.mean
        variance += odds.variance
    assert 0.3 * mean < lost < mean + 4.0 * math.sqrt(variance)


def test_where_nothing_is_nearly_drawn_one_token_is_no_more_than_its_roundings():
    apart, lost, none = np.full(16, ROUNDING), np.zeros(16), np.zeros(16)
    lost[3] = 2.0 * ROUNDING
    assert score(Distances(apart, apart, lost, none, none)).margin == pytest.approx(2.0)


def test_a_calibrations_tokens_are_drawn_from_records_further_away_by_the_margin():
    mine, claim = record(9.0, 8.0, 7.0), record(9.0, 8.5, 6.0)
    moved = further(claim, mine)
    assert moved.logits.tolist() == pytest.approx([9.0, 8.0 + 0.5 * math.exp(MARGIN), 7.0 - math.exp(MARGIN)])
    # A claim whose first id leads by so little that it does not, a tenth further from the auditor's.
    own = [[[record(9.0, 8.0)] * 16]] * 2
    near = [[record(8.55, 8.5)] * 16]
    item = Class("near", "", None)  # type: ignore[arg-type]
    grounds = grounds_of(own, 2, b"seed", temperature=0.0)
    (plain,), (noisier,) = (sample(item, near, grounds, noisier=how).conversations for how in (False, True))
    assert (plain.lost == 0.0).all()
    assert (noisier.lost == 1.0).all()
    assert (plain.claim == noisier.claim).all()


def test_steering_moves_a_record_no_further_than_its_budget_and_only_where_it_gains():
    unwanted, moved, kept = one_in(2), 0, 0
    for number in range(300):
        mine = made_up([number])
        draw = Draw(PLAIN, number.to_bytes(32, "big"), 5)
        made = steer(mine, draw, 0.25, unwanted)
        drawn = choose(made, draw.params, draw.key, draw.position)
        if made is mine:
            kept += 1
            continue
        moved += 1
        assert unwanted(choose(mine, draw.params, draw.key, draw.position))
        assert not unwanted(drawn)
        place = dict(zip(mine.ids.tolist(), mine.logits.tolist(), strict=True))
        apart = np.array([value - place[token] for token, value in zip(made.ids.tolist(), made.logits, strict=True)])
        assert math.sqrt(float(np.mean(apart**2))) <= 0.25 + 1e-6
        assert Odds.of([mine], draw, ROUNDING).lost(drawn) > 0.0
    assert moved > 60
    assert kept > 120


def test_what_draws_saw_of_a_turns_end_is_what_they_saw_of_the_whole():
    params = replace(PLAIN, frequency_penalty=1.5, presence_penalty=0.5)
    records = [made_up([number]) for number in range(12)]
    tokens = [int(one.ids[2]) for one in records]
    whole = ranked(records, tokens, params, ())
    ending = ranked(records[7:], tokens[7:], params, (), before=tokens[:7])
    for one, other in zip(whole[7:], ending, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.logits.tolist() == other.logits.tolist()
    repeated = ranked([records[0]] * 2, [int(records[0].ids[0])] * 2, params, ())
    assert repeated[0].logits.tolist() != repeated[1].logits.tolist()
    again = ranked([records[0]], [1], params, (), before=[int(records[0].ids[0])])
    assert again[0].logits.tolist() == repeated[1].logits.tolist()


def test_without_masks_nothing_is_said_of_draws_that_depend_on_the_vocabulary():
    with pytest.raises(VerificationError, match="masked") as caught:
        ranked([made_up([1])], [3], replace(PLAIN, ignore_eos=True), ())
    assert caught.value.code == "not-replayed"
