"""Chains of keys under any statements in any order."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings, strategies as st

from verifiable.errors import VerifiableError
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import Revocation, Role, Succession
from verifiable.wire.keys import PrivateKey

KEYS = [PrivateKey("acme", bytes([number]) * 32) for number in range(6)]
PAIRS = st.permutations(range(len(KEYS))).map(lambda order: order[:2])
SUCCESSIONS = st.builds(
    lambda pair, role, time: Succession.sign(KEYS[pair[0]], KEYS[pair[1]], role, time),
    PAIRS,
    st.sampled_from([Role.PROVIDER, Role.LOG]),
    st.integers(0, 9),
)
REVOCATIONS = st.builds(
    lambda pair, own, role, time: Revocation(role, KEYS[pair[0]].public, time, "x").sign(KEYS[pair[0 if own else 1]]),
    PAIRS,
    st.booleans(),
    st.sampled_from(list(Role)),
    st.integers(0, 9),
)
STATEMENTS = st.lists(st.one_of(SUCCESSIONS, REVOCATIONS), max_size=12)
MALLORY = [PrivateKey("acme", bytes([number]) * 32) for number in (66, 67)]
FOREIGN = st.one_of(
    st.just(Succession.sign(MALLORY[0], MALLORY[1], Role.PROVIDER, 1)),
    st.builds(
        lambda key, role, time: Revocation(role, key.public, time, "x").sign(MALLORY[0]),
        st.sampled_from(KEYS),
        st.sampled_from(list(Role)),
        st.integers(0, 9),
    ),
)


def said(statements: Iterable[bytes]) -> object:
    """What a chain says."""
    made = Chain.follow([KEYS[0].public], statements)
    revoked = {
        (key.public.kid, role, under.kid): None if found is None else found.time
        for key in KEYS
        for role in Role
        for under in made.keys
        for found in [made.revoked(key.public, role, under)]
    }
    return {key.kid for key in made.keys}, revoked, [made.logs(key.public) for key in KEYS]


@settings(deadline=None, max_examples=200)
@given(STATEMENTS.flatmap(lambda made: st.tuples(st.just(made), st.permutations(made + made[:3]))))
def test_order_and_repetition_of_statements_change_nothing(both: tuple[list[bytes], list[bytes]]) -> None:
    assert said(both[0]) == said(both[1])


@settings(deadline=None, max_examples=200)
@given(STATEMENTS)
def test_every_key_is_reached_by_successions_each_the_only_one(statements: list[bytes]) -> None:
    made = Chain.follow([KEYS[0].public], statements)
    pairs = {(one.old.kid, one.new.kid) for one in made.followed if one.role is Role.PROVIDER}
    reached = {KEYS[0].public.kid}
    for _ in KEYS:
        reached |= {new for old, new in pairs if old in reached}
    assert {key.kid for key in made.keys} == reached
    signed = [said for said in map(_opened, statements) if said is not None and said.role is Role.PROVIDER]
    assert pairs <= {(each.old.kid, each.new.kid) for each in signed}
    assert len({old for old, _ in pairs}) == len(pairs)


@settings(deadline=None, max_examples=200)
@given(STATEMENTS, st.permutations(KEYS[:3]))
def test_the_order_in_which_keys_are_trusted_changes_nothing(statements: list[bytes], order: list[PrivateKey]) -> None:
    one, other = (Chain.follow([key.public for key in keys], statements) for keys in (KEYS[:3], order))
    for key in KEYS:
        assert one.root_of(key.public) == other.root_of(key.public)
        assert set(one.related(key.public)) == set(other.related(key.public))
    for said in one.followed:  # whoever follows is of the same provider
        if said.role is Role.PROVIDER:
            assert one.root_of(said.old) == one.root_of(said.new)
    assert set(one.whole().keys) >= set(one.keys)


@settings(deadline=None, max_examples=200)
@given(STATEMENTS, STATEMENTS)
def test_no_statement_takes_a_revocation_back(before: list[bytes], more: list[bytes]) -> None:
    """Whoever signed it: a thief of any of the keys signs what he likes."""
    one, both = (Chain.follow([KEYS[0].public], made) for made in (before, before + more))
    for under in both.keys:
        for role in Role:
            for key in KEYS:
                was = one.revoked(key.public, role, None if role is Role.PROVIDER else under)
                now = both.revoked(key.public, role, None if role is Role.PROVIDER else under)
                assert was is None or (now is not None and now.time <= was.time)


def _opened(data: bytes) -> Succession | None:
    try:
        return Succession.open(data)
    except VerifiableError:
        return None


@settings(deadline=None, max_examples=200)
@given(STATEMENTS, st.lists(FOREIGN, max_size=4))
def test_whoever_has_no_key_of_the_chain_changes_nothing(statements: list[bytes], foreign: list[bytes]) -> None:
    assert said([*foreign, *statements]) == said(statements)
