"""Nothing that a provider chooses once it has seen a request enters the draw: one request and prompt have one key."""

from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import given, settings, strategies as st

from tests.sessions import ask, manifest
from verifiable.request.request import Request
from verifiable.sampling.sampler import SamplingDefaults
from verifiable.session import records
from verifiable.session.log import SessionLog
from verifiable.session.records import Finish, Turn

BYTES = st.binary(min_size=16, max_size=16)
BROUGHT: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.binary(min_size=8, max_size=64).map(lambda nonce: {"verifiable": {"nonce": nonce.hex()}}),
    st.integers(-(2**53) + 1, 2**53 - 1).map(lambda seed: {"verifiable": {}, "seed": seed}),
)
"""What makes a draw the client's own."""
CHOSEN = st.fixed_dictionaries(
    {
        "session": BYTES,
        "secret": st.binary(min_size=32, max_size=32),
        "drawn": BYTES,
        "turns": st.integers(0, 9),
        "opened": st.integers(0, 2**63 - 1),
        "cached": st.integers(0, 3),
        "manifest": st.builds(
            manifest,
            provider=st.text(max_size=5),
            k=st.integers(1, 128),
            defaults=st.builds(SamplingDefaults, temperature=st.floats(0.01, 100.0), top_k=st.integers(1, 40)),
            drafters=st.sampled_from([(), ("ngram",)]),
        ),
    }
)
"""What a provider chooses for a request that it has seen."""
PROMPT = [5, 6, 7, 8]


def placed(request: Request, chosen: dict[str, Any]) -> Turn:
    """The turn leaf that a provider writes, as every verifier reads it."""
    stated = chosen["manifest"]
    log = SessionLog(chosen["session"], chosen["secret"], stated.digest())
    log.open(chosen["opened"])
    params = request.params(stated.defaults, stated.k, stated.runtime.n_ctx, len(PROMPT))
    facts = request.turn_facts(PROMPT, params, request.turn_nonce(chosen["drawn"]), chosen["cached"])
    for _ in range(chosen["turns"]):
        log.begin_turn(facts)
        log.end_turn(Finish.STOP, bytes(32))
    leaf = records.parse(log.begin_turn(facts))
    assert isinstance(leaf, Turn)
    assert leaf.turn == chosen["turns"]
    return leaf


@given(BROUGHT, st.lists(CHOSEN, min_size=2, max_size=4))
@settings(max_examples=60, deadline=None)
def test_one_request_and_prompt_have_one_key_whatever_the_provider_chooses(
    brought: dict[str, Any], choices: list[dict[str, Any]]
) -> None:
    request = ask(**brought)
    nonce = request.turn_nonce(b"")
    source = 0 if "nonce" in brought["verifiable"] else 1
    data = bytes([source]) + len(nonce).to_bytes(4, "big") + nonce + records.ids_digest(PROMPT)
    key = hashlib.sha256(b"verifiable-inference/v2/sampling-key\n" + data).digest()
    assert {placed(request, chosen).key() for chosen in choices} == {key}


@given(BROUGHT, CHOSEN)
@settings(max_examples=30, deadline=None)
def test_the_key_is_that_of_the_nonce_or_seed_whatever_else_the_request_says(
    brought: dict[str, Any], chosen: dict[str, Any]
) -> None:
    others: list[dict[str, Any]] = [
        {"stream": True},
        {"user": "u", "metadata": {"a": 1}},
        {"logprobs": True},
        {"max_tokens": 3},
        {"temperature": 0.5},
    ]
    keys = {placed(ask(**brought, **other), chosen).key() for other in [{}, *others]}
    assert len(keys) == 1
