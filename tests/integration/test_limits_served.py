"""What the engine serves, every reader reads: random requests up to every limit, to providers with small and large
manifests, through HTTP; their receipts and evidence in Python, in an audit, and in the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.any_request import World, ask, page_runner, play, world
from tests.integration.chromium import browse, find
from tests.needs import missing_program
from verifiable import limits
from verifiable.errors import MalformedError, PolicyError
from verifiable.request.request import COMPLETION, parse_body
from verifiable.session.evidence import PackedTokens
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.wire.encoding import encode

CASES = 50


@pytest.fixture(scope="module")
def providers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("limits")) as made:
        yield made


def test_what_is_served_is_read(providers: World) -> None:
    play(providers, CASES)
    assert providers.served > CASES
    assert len(providers.refused) < providers.served / 4


def test_and_the_page_reads_it_too(providers: World) -> None:
    program = find()
    if program is None:
        missing_program("no Chromium: install the system package chromium")
    with browse(program) as page:
        assert providers.shown(page_runner(page)) > 2 * CASES


def test_both_readers_refuse_what_is_longer() -> None:
    """What is too long for a file of vectors."""
    count = limits.ANSWER_TOKENS
    packed = [PackedTokens(n, 1, bytes(n), b"\x88" * (n // 2) + b"\x08" * (n % 2)) for n in (count, count + 1)]
    inputs = [{"name": str(each.count), "input": encode(each.to_cbor()).hex()} for each in packed]
    texts = ['{"prompt":"' + "x" * (limits.REQUEST_BYTES - shorter) + '"}' for shorter in (60, 40)]
    bodies = [{"name": str(len(each)), "path": COMPLETION, "text": each} for each in texts]
    assert PackedTokens.from_cbor(packed[0].to_cbor()) == packed[0]
    with pytest.raises(MalformedError, match="packed token count"):
        PackedTokens.from_cbor(packed[1].to_cbor())
    parse_body(COMPLETION, texts[0].encode())
    with pytest.raises(PolicyError, match="too long"):
        parse_body(COMPLETION, texts[1].encode())
    program = find()
    if program is None:
        missing_program("no Chromium: install the system package chromium")
    with browse(program) as page:
        run = page_runner(page)
        for operation, cases, code in (("packed", inputs, "malformed"), ("body", bodies, "policy")):
            fits, over = (found["outcome"] for found in run(operation, cases))
            assert "ok" in fits, fits
            assert over == {"error": code}
        longest = 4 * limits.RECEIPT_BYTES // 3 // 4 * 4  # characters of a receipt in an exchange
        assert page.evaluate(f"verifiableInference.fromBase64('A'.repeat({longest})).length") == longest // 4 * 3


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("name", "value", "most"),
    [
        ("SESSION_TURNS", 3, 3),
        ("SESSION_LEAVES", 18, 4),
        ("SESSION_SHOWN_BYTES", 3 * limits.LEAF_BYTES + 1500, 4),
        ("SESSION_CONTENT_BYTES", 10_000, 2),
    ],
)
def test_a_session_that_is_full_takes_no_turn(
    name: str, value: int, most: int, restarted: bool, providers: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a restart: what it holds is counted again."""
    monkeypatch.setattr(limits, name, value)
    url, engine = providers.urls[1], providers.engines[1]
    body: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True, "user": "u" * 3000}
    session, capability = "new", b""
    for _ in range(most):
        answer = ask(url, COMPLETION, {**body, "verifiable": {"session": session}}, capability)
        assert not isinstance(answer, str), answer
        receipt = Receipt.parse(answer[1])
        session, capability = Head.peek(receipt.head).session.hex(), answer[2]
        if restarted:
            engine.sessions._live.clear()
    said = ask(url, COMPLETION, {**body, "verifiable": {"session": session}}, capability)
    assert "This session is full: open a new one." in said
    assert not isinstance(ask(url, COMPLETION, {**body, "verifiable": {"session": "new"}}, b""), str)
