"""Honest sessions of every shape verify exactly, and the tools of the protocol agree with their plain definitions."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import TRUST, Recording, ask, made_up
from verifiable.checking.checks import check_evidence
from verifiable.checking.verdict import Status
from verifiable.errors import MalformedError, PolicyError
from verifiable.request.request import CHAT, COMPLETION, parse_body, parse_canonical
from verifiable.sampling.logits import TopK
from verifiable.sampling.sampler import acceptable, choose, sampling_key
from verifiable.session import records
from verifiable.session.challenge import draw_sessions, draw_turns
from verifiable.session.delivery import TextStream, deliver
from verifiable.session.evidence import Evidence, Kind
from verifiable.tlog.merkle import leaf_hash
from verifier.auditing.session import audit
from verifier.campaign.plan import caught
from verifier.offline.rebuild import Bound, check_same_history
from verifier.offline.replay import departures, explain_temperature

TEMPERATURE = st.one_of(st.just(0), st.floats(0.01, 3.0).map(lambda value: round(value, 2)))
BODY = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 12), "temperature": TEMPERATURE},
    optional={
        "top_k": st.integers(-1, 200),
        "top_p": st.floats(0.0, 1.0).map(lambda value: round(value, 3)),
        "min_p": st.floats(0.0, 1.0).map(lambda value: round(value, 3)),
        "seed": st.integers(-(2**53) + 1, 2**53 - 1),
        "stop": st.lists(st.sampled_from([" w1", "2 ", "99", " w"]), min_size=1, max_size=3),
        "verifiable": st.sampled_from([{}, {"nonce": "ab" * 8}, {"nonce": "cd" * 64}]),
    },
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(BODY, st.integers(1, 5)), min_size=1, max_size=4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_honest_sessions_verify(turns: list[tuple[dict[str, Any], int]], close: bool) -> None:
    recording = Recording()
    for body, burst in turns:
        recording.turn(ask(**body), PROMPT, burst=burst)
    early = recording.receipt()
    if close:
        recording.close()
    for kind in (Kind.TOKENS, Kind.FULL):
        data = recording.evidence(kind).encode()
        verdict = audit(Evidence.parse(data), MadeUpModel(), TRUST, receipt=early, text=recording.texts[-1])
        assert (verdict.status, verdict.code) == (Status.EXACT, None)
        assert verdict.tokens_checked == verdict.tokens_total


@given(BODY, st.integers(0, 2**31 - 1), st.integers(0, 1000))
@settings(deadline=None)
def test_what_was_drawn_is_accepted(body: dict[str, Any], position: int, salt: int) -> None:
    request = ask(**body)
    params = request.params(Recording().manifest.defaults, 40, 256, 7)
    key = sampling_key(records.NonceSource.CLIENT, b"a nonce", request.digest())
    entries = made_up([salt])
    assert choose(entries, params, key, position) in acceptable(entries, params, key, position)


@given(st.floats(0.05, 3.0), st.floats(0.05, 3.0), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_the_temperature_that_was_used_lies_in_the_interval(asked: float, used: float, salt: int) -> None:
    request = ask(temperature=round(asked, 2), max_tokens=100)
    params = request.params(Recording().manifest.defaults, 40, 256, 7)
    key = sampling_key(records.NonceSource.CLIENT, salt.to_bytes(8, "big"), request.digest())
    rows = [made_up([salt, index]) for index in range(25)]
    hot = replace(params, temperature=used)
    tokens = [choose(row, hot, key, 7 + index) for index, row in enumerate(rows)]
    assert departures(rows, tokens, hot, key, 7) == []
    found = explain_temperature(rows, tokens, params, key, 7)
    assert found is not None
    assert found.low - 1e-6 <= used <= found.high + 1e-6
    assert departures(rows, tokens, replace(params, temperature=found.shown), key, 7) == []


@given(st.lists(st.binary(max_size=5), max_size=12), st.lists(st.text("abé€", min_size=1, max_size=4), max_size=3))
def test_a_stream_and_a_whole_answer_are_the_same_text(pieces: list[bytes], stops: list[str]) -> None:
    text, index = deliver(pieces, tuple(stops))
    stream = TextStream(tuple(stops))
    given: list[str] = []
    for at, part in enumerate(pieces):
        given.append(stream.feed(part))
        if stream.stopped:
            assert at == index
            break
    else:
        given.append(stream.finish())
        assert index is None
    assert "".join(given) == text
    assert stream.digest() == hashlib.sha256(text.encode()).digest()
    assert not any(stop in text for stop in stops)


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=6))
def test_without_stops_the_cut_into_tokens_does_not_matter(pieces: list[bytes]) -> None:
    assert deliver(pieces) == deliver([b"".join(pieces)])


@given(
    st.lists(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=60), min_size=1, max_size=4),
    st.integers(1, 128),
)
def test_top_k_is_the_front_of_the_sorted_row(rows: list[list[float]], k: int) -> None:
    topk = TopK(k)
    for values in rows:
        row = np.array(values, np.float32)
        found = topk(row)
        expected = sorted(range(len(row)), key=lambda index: (-row[index], index))[:k]
        assert found.ids.tolist() == expected
        assert found.logits.tolist() == row[expected].tolist()


@given(JSON, st.sampled_from([CHAT, COMPLETION]))
@settings(max_examples=300)
def test_any_json_is_a_request_or_one_of_our_errors(value: object, path: str) -> None:
    with contextlib.suppress(MalformedError, PolicyError):
        request = parse_body(path, json.dumps(value).encode())
        assert parse_canonical(request.canonical) == request


@given(st.dictionaries(st.sampled_from([*ask().__slots__, "messages", "stop", "n", "verifiable"]), JSON, max_size=4))
@settings(max_examples=300)
def test_requests_with_odd_values_are_refused_or_canonical(body: dict[str, object]) -> None:
    with contextlib.suppress(MalformedError, PolicyError):
        request = parse_body(CHAT, json.dumps({"messages": [{"role": "user", "content": "x"}], **body}).encode())
        assert parse_canonical(request.canonical) == request
        assert request.params(Recording().manifest.defaults, 40, 100, 50).max_tokens <= 50


@given(st.binary(max_size=200))
def test_any_bytes_are_a_leaf_or_malformed(data: bytes) -> None:
    with contextlib.suppress(MalformedError):
        assert records.parse(data).encode() == data


@given(st.binary(max_size=100))
def test_any_bytes_are_a_canonical_request_or_malformed(data: bytes) -> None:
    with contextlib.suppress(MalformedError):
        assert parse_canonical(data).canonical == data


WEIGHTS = st.dictionaries(st.binary(min_size=16, max_size=16), st.integers(1, 2**63 - 1), max_size=30)


@given(WEIGHTS, st.integers(0, 40), st.binary(max_size=32))
def test_a_larger_draw_contains_a_smaller(weights: dict[bytes, int], count: int, seed: bytes) -> None:
    drawn = draw_sessions(seed, weights, count)
    assert len(drawn) == len(set(drawn)) == min(count, len(weights))
    assert draw_sessions(seed, dict(reversed(weights.items())), count + 3)[: len(drawn)] == drawn
    later = draw_sessions(seed, {b"later-than-others"[:16]: 5, **weights}, count)
    assert len(set(drawn) - set(later)) <= 1
    turns = draw_turns(seed, b"s" * 16, 20, count)
    assert turns == sorted(set(turns))
    assert set(draw_turns(seed, b"s" * 16, 20, max(count - 2, 0))) <= set(turns)


def test_chances_in_a_long_list_are_those_of_the_binomial() -> None:
    assert caught([7] * 10**5, 20, 0.1) == pytest.approx(1.0 - 0.9**20, rel=1e-3)
    assert caught([7] * 100, 20, 0.1) > 1.0 - 0.9**20
    assert caught([7] * 100, 0, 0.1) == 0.0


@given(st.integers(1, 4), st.integers(0, 3))
@settings(deadline=None)
def test_states_of_one_log_tell_one_history(before: int, after: int) -> None:
    recording = Recording()
    for _ in range(before):
        recording.turn(ask(max_tokens=3), PROMPT)
    receipt = recording.receipt()
    first = Bound.of(receipt.opening, recording.log.head(0))
    for _ in range(after):
        recording.turn(ask(max_tokens=2), PROMPT)
    for kind in (Kind.TOKENS, Kind.FULL):
        evidence = recording.evidence(kind)
        opened = check_evidence(evidence, TRUST)
        second = Bound.of(evidence.opening, opened.session.head)
        check_same_history(first, second)
        check_same_history(second, first)
        for turn in opened.turns[:before]:
            leaves = recording.leaves[turn.first : turn.end.seq]
            hashes = [leaf_hash(leaf) for leaf in leaves]
            assert first.first_difference(turn.first, hashes) is None
            wrong = [*hashes[:-1], b"\0" * 32]
            where = first.first_difference(turn.first, wrong)
            assert where is not None
            assert where[0] <= turn.end.seq - 1 < where[1]
