"""A provider's clock: what it signs keeps the order of its log, and a leap is noticed before anything is signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.sessions.dates import SLACK, ClockError, Dates, steady
from engine.store import Store
from engine.store.sqlite import open_store
from fixtures.synthetic import SyntheticProvider
from tests.hand_clock import DAY, START, Clock, good
from verifiable import limits
from verifiable.errors import EngineError
from verifiable.session.head import Head


def test_the_latest_time_is_kept_across_starts_and_found_in_a_store_from_before(tmp_path: Path) -> None:
    clock = Clock()
    provider = SyntheticProvider(tmp_path, clock=clock)
    clock.time += 5 * DAY
    provider.answer()
    clock.time -= 5 * DAY
    provider.close()
    again = SyntheticProvider(tmp_path, clock=clock)
    assert again.store.newest_head() == START + 5 * DAY
    with pytest.raises(ClockError, match="behind"):
        again.answer()
    clock.time += 5 * DAY - SLACK - 1
    with pytest.raises(ClockError, match="behind"):
        again.answer()
    clock.time += 1
    good(again, again.answer())
    assert again.store.newest_head() == START + 5 * DAY
    again.close()
    store = open_store(tmp_path)
    with store._database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM meta WHERE name = 'newest head'")
    store.close()
    store = open_store(tmp_path)
    assert store.newest_head() == START + 5 * DAY
    store.close()


def test_a_turn_under_way_is_dated_when_it_began_where_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = Clock()
    provider = SyntheticProvider(tmp_path, clock=clock)
    turn = provider.begin("x", 3)
    clock.time -= 30 * DAY
    turn.run()
    assert Head.peek(good(provider, turn.wait()).head).time == START
    provider.close()


def test_a_turn_that_another_machines_head_leaves_behind_is_not_signed(tmp_path: Path) -> None:
    clock = Clock()
    provider = SyntheticProvider(tmp_path, clock=clock)
    turn = provider.begin("x", 3)
    clock.time += 30 * DAY
    good(provider, provider.answer())
    clock.time -= 30 * DAY
    turn.run()
    with pytest.raises(EngineError, match="can't be signed"):
        turn.wait()
    provider.close()


class _Store:
    def newest_head(self) -> int:
        return START


@pytest.mark.parametrize("leap", [SLACK, SLACK + 1])
def test_a_leap_ahead_while_it_serves_is_noticed(leap: int) -> None:
    clock, ticks = Clock(), Clock()
    store: Store = _Store()  # type: ignore[assignment]
    dates = Dates(store, clock, ticks)
    for _ in range(100):  # time passes, and the clock is set right little by little
        clock.time, ticks.time = clock.time + DAY + 60_000, ticks.time + DAY
        dates.check()
    clock.time += leap
    assert (dates.fault() is not None) is (leap > SLACK)
    if leap > SLACK:
        with pytest.raises(ClockError, match="went ahead"):
            dates.check()
        clock.time -= leap
        dates.check()


def test_what_may_follow_is_within_the_merge_delay() -> None:
    store: Store = _Store()  # type: ignore[assignment]
    dates = Dates(store, Clock())
    edge = START - limits.MERGE_DELAY + limits.CLOCK_SKEW
    assert (dates.keeps_order(edge), dates.keeps_order(edge + 1)) == (False, True)
    assert steady() > 0
