"""Whatever the clock does, nothing is signed outside the validity of its manifest, and what can go on goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from engine.sessions.dates import ClockError
from engine.sessions.manifests import Manifests, OtherManifestError
from engine.sessions.recorder import BusySessionError
from fixtures.synthetic import SyntheticProvider
from tests.hand_clock import DAY, Clock, good
from verifiable import Receipt, limits
from verifiable.checking.checks import check_head
from verifiable.errors import EngineError
from verifiable.request.request import COMPLETION, parse_body
from verifiable.session.head import Head
from verifiable.tlog.entry import HEAD, kind_of

VALIDITY = 365 * DAY


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def provider(tmp_path: Path, clock: Clock) -> Iterator[SyntheticProvider]:
    made = SyntheticProvider(tmp_path / "data", clock=clock)
    yield made
    made.close()


def test_a_manifest_is_renewed_while_it_serves(provider: SyntheticProvider, clock: Clock) -> None:
    first = provider.manifests.in_force()
    good(provider, provider.answer())
    clock.time += VALIDITY // 2
    assert provider.manifests.in_force() is first
    clock.time += 1
    second = provider.manifests.in_force()
    assert second.digest != first.digest
    assert replace(second.manifest, valid_from=0, valid_to=0) == replace(first.manifest, valid_from=0, valid_to=0)
    assert provider.store.manifests()[0] == second.envelope
    assert good(provider, provider.answer()).manifest == second.envelope
    clock.time += 10 * VALIDITY
    good(provider, provider.answer())


def test_a_clock_that_is_set_back_ends_nothing(provider: SyntheticProvider, clock: Clock) -> None:
    first = provider.manifests.in_force()
    clock.time -= limits.CLOCK_SKEW
    assert good(provider, provider.answer()).manifest == first.envelope
    clock.time -= 1
    assert good(provider, provider.answer()).manifest != first.envelope
    held = good(provider, provider.answer(session="new"))
    clock.time -= DAY - limits.CLOCK_SKEW - 1
    good(provider, provider.answer())
    clock.time -= 30 * DAY
    with pytest.raises(ClockError, match="behind what was signed"):
        provider.answer()
    clock.time += 30 * DAY
    session = check_head(held.manifest, held.head, [provider.keys.provider.public]).head.session.hex()
    with pytest.raises(BusySessionError, match="another manifest"):
        provider.answer(session=session, capability=provider.owner(held))


def test_a_session_goes_on_under_its_own_manifest_until_that_is_nearly_over(
    provider: SyntheticProvider, clock: Clock, tmp_path: Path
) -> None:
    held = good(provider, provider.answer(session="new"))
    session = check_head(held.manifest, held.head, [provider.keys.provider.public]).head.session.hex()
    clock.time += VALIDITY - DAY
    assert provider.manifests.in_force().envelope != held.manifest
    again = good(provider, provider.answer(session=session, capability=provider.owner(held)))
    assert (again.manifest, again.turn) == (held.manifest, 1)
    provider.close()
    restarted = SyntheticProvider(tmp_path / "data", clock=clock)
    third = good(restarted, restarted.answer(session=session, capability=restarted.owner(held)))
    assert (third.manifest, third.turn) == (held.manifest, 2)
    clock.time += 1
    with pytest.raises(BusySessionError, match="nearly over"):
        restarted.answer(session=session, capability=restarted.owner(held))
    restarted.close()


def test_a_turn_that_outlasts_its_manifest_is_not_signed(provider: SyntheticProvider, clock: Clock) -> None:
    turn = provider.begin("x", 3)
    clock.time += 2 * VALIDITY  # a clock that leaps
    turn.run()
    with pytest.raises(EngineError, match="ended at a time that can't be signed"):
        turn.wait()
    assert provider.store.head(bytes.fromhex(turn.session)) is None


@pytest.mark.parametrize("late", [0, 2 * VALIDITY])
def test_a_crash_is_signed_in_time_or_not_at_all(
    late: int, provider: SyntheticProvider, clock: Clock, tmp_path: Path
) -> None:
    turn = provider.begin("x", 3)
    turn.step(0)
    provider.store.flush()
    provider.close()
    clock.time += late
    again = SyntheticProvider(tmp_path / "data", clock=clock)
    found = again.store.head(bytes.fromhex(turn.session))
    assert again.recovered == (0 if late else 1)
    if late:
        assert found is None
    else:
        assert found is not None
        signed = again.store.manifests()[0]
        head = check_head(signed, found[1], [again.keys.provider.public]).head
        assert head.time <= clock.time
    again.close()


def test_a_pinned_manifest_that_differs_in_dates_alone_is_honoured(provider: SyntheticProvider, clock: Clock) -> None:
    first = provider.manifests.in_force()
    clock.time += VALIDITY // 2 + 1
    current = provider.manifests.in_force()
    for pinned in (first, current):
        body = b'{"prompt": "x", "seed": 7, "verifiable": {"manifest": "%s"}}' % pinned.digest.hex().encode()
        recorder = provider.sessions.recorder(parse_body(COMPLETION, body), None)
        assert recorder.row.manifest_digest == pinned.digest
        recorder.abandon()
    assert provider.manifests.pinned(None) is current
    for stranger in (bytes(32), replace(current.manifest, k=3).digest()):
        with pytest.raises(OtherManifestError):
            provider.manifests.pinned(stranger)
    held = good(provider, provider.answer(session="new"))
    session = check_head(held.manifest, held.head, [provider.keys.provider.public]).head.session.hex()
    body = b'{"prompt": "x", "verifiable": {"session": "%s", "manifest": "%s"}}' % (session.encode(), b"00" * 32)
    with pytest.raises(OtherManifestError):
        provider.sessions.recorder(parse_body(COMPLETION, body), provider.owner(held))
    clock.time += VALIDITY // 2 - DAY + limits.CLOCK_SKEW
    with pytest.raises(OtherManifestError):
        provider.manifests.pinned(first.digest)


def test_what_else_is_stated_makes_another_manifest(provider: SyntheticProvider, clock: Clock) -> None:
    first = provider.manifests.in_force()
    same = Manifests(provider.store, provider.keys, first.manifest, clock)
    assert same.in_force().digest == first.digest
    other = Manifests(provider.store, provider.keys, replace(first.manifest, k=7), clock)
    assert other.in_force().manifest.k == 7
    assert other.going_on(first.digest) is None
    keys = replace(provider.keys, provider=provider.keys.session, providers=(provider.keys.session.public,))
    stranger = Manifests(provider.store, keys, first.manifest, clock)
    assert stranger.in_force().digest != first.digest


def test_a_clock_that_wanders_for_years_signs_nothing_false(provider: SyntheticProvider, clock: Clock) -> None:
    choose = np.random.default_rng(12)
    held: list[Receipt] = []
    trust = [provider.keys.provider.public]
    answered = refused = 0
    for _ in range(200):
        clock.time += (
            int(choose.integers(-DAY, 10 * DAY)) if choose.random() < 0.9 else int(choose.integers(-60, 60)) * DAY
        )
        if refused % 5 == 4:  # somebody looks at the log and mends it
            clock.time, refused = max(clock.time, provider.store.newest_head()), 0
        session, capability = "new", None
        if held and choose.random() < 0.7:
            last = held[int(choose.integers(len(held)))]
            session = check_head(last.manifest, last.head, trust).head.session.hex()
            capability = provider.owner(last)
        turn = None
        try:
            turn = provider.begin("x", 2, session, capability)
            clock.time += int(choose.integers(-2000, 600_000))
            turn.run()
            held.append(good(provider, turn.wait()))
            answered += 1
        except BusySessionError:
            assert turn is None
        except ClockError:
            assert turn is None
            refused += 1
    assert answered > 100
    times = [Head.peek(entry).time for entry in logged(provider)]
    assert all(time > latest - limits.MERGE_DELAY for time, latest in zip(times, accumulate(times, max), strict=True))


def logged(provider: SyntheticProvider) -> list[bytes]:
    """The heads in its log."""
    provider.publish()
    size = provider.store.log_size()
    return [entry for entry in provider.store.entries(0, size) if kind_of(entry) == HEAD]
