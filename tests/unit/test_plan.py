"""Plans say what they can reach; beacons come after what they challenge; whoever has the report can repeat the draw."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from verifiable.errors import MalformedError, PolicyError, VerificationError
from verifiable.session.challenge import draw_sessions, session_lot, weight_of
from verifier.campaign.beacon import DEFAULT, QUICKNET, FileBeacon, Round
from verifier.campaign.plan import Clocked, at_least, caught, parse_time, plan

QUICK: dict[str, Any] = {
    "round": 1000,
    "randomness": "fe290beca10872ef2fb164d2aa4442de4566183ec51c56ff3cd603d930e54fdd",
    "signature": "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39",
}
CHAINED: dict[str, Any] = {
    "round": 3311596,
    "previous_signature": (
        "8ed588f2a7716fb1349e2d9803da5db0005e98a83783c353d4a08f183236a9ad91d70ddb01266f4b7c576983db464b43"
        "0e65680b9e0098552758afd6c1e6afcb77e3f62fe1b93d42d1cb63abbb2205512fe12fbf74ea9c5ac3b8f5c1e283a1d8"
    ),
    "signature": (
        "a696b9409ababce45749c3a4ec369074453dd4a79967734e1390d969c8ad8d98897d217b9121e92c8ddebbddda8d92f9"
        "00e3bd6bf9deb166863b1a19390d743f82774001487594c5c09e581db7365f02b70a2c8cc41ce32446ef08e4890c4754"
    ),
    "randomness": "647c07b2abbf7ff2afb4d670214f565e5cd9f9c91bfdcecb59a21f3c78d73920",
}
"""Rounds of drand's public networks."""


def parse(value: object) -> Round:
    return Round.parse(json.dumps(value).encode())


def equal(population: int) -> list[int]:
    return [9] * population


@pytest.mark.parametrize(("population", "drawn", "bad"), [(10, 3, 2), (50, 20, 5), (8, 8, 1), (8, 0, 3)])
def test_the_chance_is_that_of_a_draw_without_replacement(population, drawn, bad):
    expected = 1.0 - math.comb(population - bad, drawn) / math.comb(population, drawn)
    assert caught(equal(population), drawn, bad / population) == pytest.approx(expected)


def test_the_chance_is_what_the_lottery_gives():
    weights = {bytes([at]) * 16: 9 for at in range(12)}
    bad = set(list(weights)[:3])
    met = sum(bool(bad & set(draw_sessions(at.to_bytes(32, "big"), weights, 4))) for at in range(4000))
    assert met / 4000 == pytest.approx(caught(equal(12), 4, 0.25), abs=0.03)


def test_sessions_are_drawn_in_proportion_to_their_weight():
    weights = {bytes([at]) * 16: weight for at, weight in enumerate((1, 2, 3, 10))}
    first = [draw_sessions(at.to_bytes(32, "big"), weights, 1)[0] for at in range(6000)]
    for session, weight in weights.items():
        assert first.count(session) / 6000 == pytest.approx(weight / 16, abs=0.02)
    # One session of ten tokens is met as often as ten of one: cutting a conversation up hides nothing.
    many = {bytes([at]) * 16: 1 for at in range(16)}
    tenth = [draw_sessions(at.to_bytes(32, "big"), many, 1)[0][0] >= 6 for at in range(6000)]
    assert sum(tenth) / 6000 == pytest.approx(10 / 16, abs=0.02)


def test_no_session_is_too_light_or_too_heavy_to_be_drawn():
    assert [weight_of(size) for size in (0, 1, 3, 4, 5, 2**63 - 1)] == [1, 1, 1, 1, 2, 2**63 - 4]
    lots = [session_lot(bytes([at]) * 32, b"s" * 16, 1) for at in range(200)]
    assert min(lots) > 0
    assert len(set(lots)) == 200
    assert draw_sessions(b"s" * 32, {b"a" * 16: 2**63 - 4, b"b" * 16: 1}, 5)[0] == b"a" * 16


@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(0, 7), st.floats(0.01, 0.9))
def test_the_chance_is_a_lower_bound_whoever_cheats(weights, drawn, share):
    """Against the exact chance of every set of sessions with that share of the tokens or more."""
    ordered, total = sorted(weights), sum(weights)

    def missed(good: tuple[int, ...], left: int, rest: int) -> float:
        if not left or not good:
            return 1.0 if not left or rest == 0 else 0.0
        takes = ((at, weight) for at, weight in enumerate(good))
        return sum(w / rest * missed(good[:at] + good[at + 1 :], left - 1, rest - w) for at, w in takes)

    for bad in itertools.product((False, True), repeat=len(ordered)):
        heavy = sum(itertools.compress(ordered, bad))
        if heavy and heavy >= share * total:
            good = tuple(weight for weight, cheats in zip(ordered, bad, strict=True) if not cheats)
            left = min(drawn, len(ordered))
            exact = 1.0 - missed(good, left, total)
            assert caught(ordered, drawn, share) <= exact + 1e-9


def test_fillers_do_not_hide_four_clients():
    """396 sessions of one token beside 4 of 200: by sessions a draw of 20 met one of the four with 19%."""
    fillers, real = [weight_of(5)] * 396, [weight_of(204)] * 4
    chances = plan(fillers + real, 20).listed.chances(20)
    assert chances[0.25] > 0.99
    weights = {at.to_bytes(16, "big"): weight for at, weight in enumerate(fillers + real)}
    four = set(list(weights)[396:])
    met = sum(bool(four & set(draw_sessions(at.to_bytes(32, "big"), weights, 20))) for at in range(200))
    assert met / 200 > 0.99


def test_nobody_cheats_in_less_than_one_session():
    assert caught(equal(10), 5, 0.01) == 0.5
    assert caught([], 5, 0.01) == 0.0


def test_each_further_session_raises_the_chance_until_it_is_certain():
    for population, share in itertools.product((20, 1000), (0.05, 0.2)):
        chances = [caught(equal(population), drawn, share) for drawn in range(population + 1)]
        certain = population - round(population * share) + 1
        assert all(one < other for one, other in itertools.pairwise(chances[: certain + 1]) if other < 1.0 - 1e-12)
        assert chances[0] == 0.0
        assert min(chances[certain:]) == pytest.approx(1.0)


def test_a_rate_is_a_share_of_all_and_at_least_one():
    assert plan(equal(1000), 20, 0.1).sessions == 100
    assert plan(equal(5), 20, 0.01).sessions == 1
    assert plan(equal(5), 20).sessions == 5
    assert plan(equal(0), 20, 0.5).sessions == 0
    for rate in (0.0, 1.5, -1.0, math.nan):
        with pytest.raises(PolicyError):
            plan(equal(10), 1, rate)


def test_a_plan_says_before_it_starts_what_it_can_reach_and_assumes():
    planned = plan(equal(1000), 50, budget=600.0, known=equal(4), unproven=3)
    lines = planned.lines()
    assert "53 of the 1,003 sessions" in lines[0]
    assert "4 of 4 receipts" in lines[0]
    assert "600 seconds" in lines[0]
    (row,) = (line.split() for line in lines if line.strip().startswith("5%"))
    assert row == ["5%", f"{caught(equal(1000), 50, 0.05):.1%}", "100.0%"]
    rest = " ".join(lines[6:])
    assert "9,000 tokens" in rest
    assert "3 sessions could not be checked: 3 of them are drawn apart" in rest
    assert "--receipts" not in rest
    assert "--receipts" in " ".join(plan(equal(9), 3).assumes())
    facts = planned.to_json(12, 10, 4)
    assert facts["chances"]["0.05"] == pytest.approx(caught(equal(1000), 10, 0.05), abs=1e-6)
    assert facts["receipts"]["chances"]["0.01"] == 1.0
    assert facts["assumes"] == planned.assumes()
    assert planned.to_json(12, None)["chances"] is None


@pytest.mark.parametrize("said", [{"turns": 2}, {"given": True}])
def test_a_plan_that_can_say_nothing_of_chances_says_why(said):
    """Of some turns a session may be met and its cheat not; a seed that was given may have been known."""
    planned = plan(equal(1000), 50, known=equal(4), **said)
    assert planned.table() == []
    assert "caught" not in " ".join(planned.lines())
    assert planned.silent is not None
    assert planned.silent in " ".join(planned.lines())


def test_sessions_without_a_signed_size_thin_out_no_others():
    """However many they are, the others' chances stay; as many of them are drawn apart."""
    alone, beside = plan([60] * 50, 20), plan([60] * 50, 20, unproven=100_000)
    assert alone.table() == beside.table()
    assert (beside.population, beside.sessions) == (100_050, 40)
    assert plan([60] * 50, 20, 0.1, unproven=100).unproven.sessions == 10


def test_a_least_probability_is_never_rounded_up():
    assert [at_least(chance) for chance in (0.996, 0.29, 1.0)] == ["99%", "29%", "100%"]
    assert at_least(0.98999, 1) == "98.9%"
    assert [at_least(math.nextafter(1.0, 0.0), digits) for digits in (0, 3)] == ["99%", "99.999%"]


def test_only_a_draw_that_cannot_miss_is_called_certain():
    sure, nearly = plan([10] * 100, 100), plan([10] * 5000, 4000)
    assert sure.to_json(100, 100)["chances"]["0.01"] == 1.0
    assert nearly.to_json(4000, 4000)["chances"]["0.01"] < 1.0
    assert "100%" not in "".join(nearly.table())


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_budgets(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "10 m", "-5m", "0m", "1e3s", "5d", "٣m", "99999999s"])
def test_budgets_that_are_none(text):
    with pytest.raises(MalformedError):
        parse_time(text)


def test_a_budget_ends_the_audit_before_the_session_that_would_not_fit():
    now = iter([0.0, 10.0, 20.0, 30.0, 41.0])
    clocked = Clocked(50.0, lambda: next(now))
    assert [clocked.allows(done) for done in range(5)] == [True, True, True, True, False]
    assert Clocked(None, lambda: 1e9).allows(1000)


def test_a_round_is_read_strictly():
    found = parse(QUICK)
    assert found.randomness == hashlib.sha256(found.signature).digest()
    assert parse({name: value for name, value in QUICK.items() if name != "randomness"}) == found
    for bad in (
        {**QUICK, "more": 1},
        {**QUICK, "round": 0},
        {**QUICK, "round": True},
        {**QUICK, "round": "1000"},
        {**QUICK, "signature": QUICK["signature"].upper()},
        {**QUICK, "signature": QUICK["signature"][:-2]},
        {**QUICK, "signature": 5},
        {"round": 1},
        [QUICK],
    ):
        with pytest.raises(MalformedError):
            parse(bad)
    with pytest.raises(VerificationError) as caught_error:
        parse({**QUICK, "randomness": "00" * 32})
    assert caught_error.value.code == "bad-signature"


def test_a_round_has_the_time_of_its_number(tmp_path: Path):
    """What was signed at that time or later is not drawn by it: `before` of `audit_provider`."""
    assert QUICKNET.time_of(1) == 1000 * QUICKNET.genesis
    assert QUICKNET.time_of(1000) == 1000 * (QUICKNET.genesis + 999 * QUICKNET.period)
    path = tmp_path / "round.json"
    path.write_text(json.dumps(QUICK))
    beacon = FileBeacon(path, QUICKNET)
    assert beacon.round == parse(QUICK)
    assert beacon.time == QUICKNET.time_of(1000)
    assert beacon.to_json()["signature_checked"] is False


def test_the_seed_is_bound_to_network_round_and_provider():
    found = parse(QUICK)
    seeds = {
        found.seed(QUICKNET, b"a" * 32),
        found.seed(QUICKNET, b"b" * 32),
        found.seed(DEFAULT, b"a" * 32),
        Round(1001, found.randomness, found.signature).seed(QUICKNET, b"a" * 32),
    }
    assert len(seeds) == 4
    parts = b"verifiable-inference/v2/challenge/beacon\n" + bytes.fromhex(QUICKNET.hash) + (1000).to_bytes(8, "big")
    assert hashlib.sha256(parts + found.randomness + b"a" * 32).digest() in seeds


def test_signatures_of_both_schemes_are_checked():
    if find_spec("py_ecc") is None:
        pytest.skip("the extra `beacon` is not installed")
    from verifier.campaign.bls import verify_round

    limit = sys.getrecursionlimit()
    verify_round(parse(QUICK), QUICKNET)
    assert sys.getrecursionlimit() == limit  # py_ecc raises it, and then nested JSON would crash the process
    verify_round(parse(CHAINED), DEFAULT)
    found = parse(QUICK)
    for bad in (
        Round(1001, found.randomness, found.signature),
        Round(1000, found.randomness, bytes.fromhex("c0") + bytes(47)),  # the point at infinity
        Round(1000, found.randomness, bytes([found.signature[0], found.signature[1] ^ 1]) + found.signature[2:]),
        Round(1000, found.randomness, bytes(48)),
    ):
        with pytest.raises(VerificationError) as error:
            verify_round(bad, QUICKNET)
        assert error.value.code == "bad-signature"
    with pytest.raises(VerificationError):
        verify_round(parse({**CHAINED, "round": 3311597}), DEFAULT)
