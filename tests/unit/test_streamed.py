"""Streamed commitments, held against the receipt of the whole answer: spec/streamed-commitments.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.made_up_model import PROMPT
from tests.sessions import PROVIDER, SESSION, TIME, TRUST, Recording, ask
from verifiable.checking.checks import check_receipt
from verifiable.cli import main
from verifiable.errors import MalformedError, VerificationError
from verifiable.session.head import Head
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.wire.keys import PrivateKey
from verifiable.wire.text import write_base64url
from verifier.offline.streamed import Chunk, check_chunks, read_chunks

TURN = 1


def recorded(seed: int = 5) -> Recording:
    """Turn 1 is streamed; the tokens of the turn before are hidden in its receipt."""
    made = Recording()
    for turn, tokens in enumerate((7, 6, 3)):
        made.turn(ask(max_tokens=tokens, seed=seed + turn, verifiable={}), PROMPT)
    return made


def head(made: Recording, size: int, key: PrivateKey = SESSION, **changes: Any) -> bytes:
    root = Tree.from_leaves(map(leaf_hash, made.leaves[:size])).root()
    return replace(Head(made.session, size, root, made.manifest.digest(), TIME + 100), **changes).sign(key)


def streamed(made: Recording, steps: tuple[int, ...] = (1, 2, 1, 2)) -> list[Chunk]:
    """What came with the answer, in decode steps of so many tokens."""
    at, chunks = check_receipt(MADE.receipt(TURN), TRUST).session.spans[TURN].first, []
    for tokens in steps:
        hashes = tuple(map(leaf_hash, made.leaves[at : at + tokens]))
        chunks.append(Chunk(made.session, TURN, at, hashes, head(made, at + tokens)))
        at += tokens
    return chunks


def body(chunks: list[Chunk], *more: dict[str, Any]) -> bytes:
    """The event stream that they came in."""
    values = [
        {
            "session": each.session.hex(),
            "turn": each.turn,
            "first": each.first,
            "leaves": [value.hex() for value in each.leaves],
            "head": write_base64url(each.head),
        }
        for each in chunks
    ]
    events = [{"choices": []}, *({"choices": [], "verifiable": value} for value in (*values, *more))]
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


MADE = recorded()
CHUNKS = streamed(MADE)
OTHER = recorded(seed=50)
FOREIGN = PrivateKey.generate("acme/session", b"x" * 32)

Change = Callable[[list[Chunk]], list[Chunk]]


def at(number: int, **changes: Any) -> Change:
    return lambda given: [*given[:number], replace(given[number], **changes), *given[number + 1 :]]


SIZE = CHUNKS[1].first + 2
WRONG: list[dict[str, Any]] = [
    {"leaves": []},
    {"leaves": "00" * 32},
    {"leaves": ["00"]},
    {"session": "07"},
    {"turn": -1},
    {"first": True},
    {"first": None},
    {"head": 5},
    {"head": "***"},
]


def test_what_was_streamed_is_what_the_receipt_says() -> None:
    for made, steps in ((MADE, (1, 2, 1, 2)), (MADE, (6,)), (OTHER, (1,) * 6)):
        held = check_receipt(made.receipt(TURN), TRUST)
        assert check_chunks(held, streamed(made, steps)) == 6
        assert read_chunks(body(streamed(made, steps), {"receipt": "…"})) == streamed(made, steps)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda given: [], "incomplete"),
        (at(1, head=head(MADE, SIZE, FOREIGN)), "untrusted-key"),
        (at(1, head=head(MADE, SIZE, session=bytes(16))), "session-differs"),
        (at(1, session=bytes(16)), "session-differs"),
        (at(1, turn=0), "session-differs"),
        (at(1, head=head(MADE, SIZE - 1)), "counts-differ"),
        (lambda given: given[1:], "sequence-broken"),
        (lambda given: given[:-1], "sequence-broken"),
        (lambda given: [given[0], *given[2:]], "sequence-broken"),
        (lambda given: [given[0], *given], "sequence-broken"),
        (at(1, leaves=(CHUNKS[1].leaves[0], bytes(32))), "root-differs"),
        (at(1, head=head(MADE, SIZE, root=bytes(32))), "root-differs"),
    ],
)
def test_each_step_can_fail(change: Change, code: str) -> None:
    with pytest.raises(VerificationError) as caught:
        check_chunks(check_receipt(MADE.receipt(TURN), TRUST), change(CHUNKS))
    assert caught.value.code == code


def test_other_tokens_streamed_than_in_the_receipt_are_two_histories() -> None:
    """The provider signed one answer while it was read, and another afterwards; all before it is the same."""
    told = recorded()
    first = CHUNKS[0].first
    told.leaves[first + 4] = OTHER.leaves[first + 4]
    with pytest.raises(VerificationError) as caught:
        check_chunks(check_receipt(MADE.receipt(TURN), TRUST), streamed(told))
    assert caught.value.code == "two-histories"


@pytest.mark.parametrize(
    "stream",
    [
        b"data: {\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        *(
            body(CHUNKS, {"session": "07" * 16, "turn": 1, "first": 5, "leaves": ["00" * 32], "head": "", **wrong})
            for wrong in WRONG
        ),
    ],
)
def test_a_stream_that_is_none_is_malformed(stream: bytes) -> None:
    with pytest.raises(MalformedError):
        read_chunks(stream)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    receipt, stream = tmp_path / "a.receipt", tmp_path / "answer.events"
    receipt.write_bytes(MADE.receipt(TURN).encode())
    trust = ["--trust", PROVIDER.public.vkey()]
    for chunks, code, said in (
        (CHUNKS, 0, "4 heads, signed while 6 tokens came"),
        (CHUNKS[1:], 1, "sequence-broken"),
        (streamed(OTHER), 1, "root-differs"),
    ):
        stream.write_bytes(body(chunks))
        assert main(["verify", str(receipt), "--stream", str(stream), *trust]) == code
        assert said in capsys.readouterr().out
    stream.write_bytes(b"data: {")
    assert main(["verify", str(receipt), "--stream", str(stream), *trust]) == 2
    assert main(["verify", "--fraud", str(receipt), "--stream", str(stream), *trust]) == 2
