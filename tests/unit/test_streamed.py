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
from verifiable import limits, verify
from verifiable.checking.checks import check_receipt
from verifiable.checking.verdict import Status, from_error
from verifiable.cli import main
from verifiable.errors import MalformedError, VerificationError
from verifiable.session.head import Head
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.wire.keys import PrivateKey
from verifiable.wire.text import write_base64url
from verifier.offline.offline import with_stream
from verifier.offline.streamed import Chunk, Stream, check_stream, read_stream

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
END = CHUNKS[3].first + len(CHUNKS[3].leaves)
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
        assert check_stream(held, Stream(tuple(streamed(made, steps)))) == 6
        assert read_stream(body(streamed(made, steps), {"receipt": "…"})).chunks == tuple(streamed(made, steps))


@pytest.mark.parametrize(
    ("change", "code", "what"),
    [
        (lambda given: [], "incomplete", "no commitments"),
        (lambda given: given[:-1], "incomplete", "breaks off"),
        (at(1, head=head(MADE, SIZE, FOREIGN)), "stream-differs", "a chunk's head:"),
        (at(1, head=head(MADE, SIZE)[:-1] + b"\0"), "stream-differs", "a chunk's head:"),
        (at(1, head=head(MADE, SIZE, session=bytes(16))), "stream-differs", "another session or turn"),
        (at(1, session=bytes(16)), "stream-differs", "another session or turn"),
        (at(1, turn=0), "stream-differs", "another session or turn"),
        (at(1, head=head(MADE, SIZE - 1)), "stream-differs", "another size"),
        (lambda given: given[1:], "stream-differs", "does not follow"),
        (lambda given: [given[0], *given[2:]], "stream-differs", "does not follow"),
        (lambda given: [given[0], *given], "stream-differs", "does not follow"),
        (
            lambda given: [*given, Chunk(MADE.session, TURN, END, (leaf_hash(MADE.leaves[END]),), head(MADE, END + 1))],
            "stream-differs",
            "do not end where",
        ),
        (at(1, leaves=(CHUNKS[1].leaves[0], bytes(32))), "stream-differs", "not those of its head"),
        (at(1, head=head(MADE, SIZE, root=bytes(32))), "stream-differs", "not those of its head"),
        (at(1, head=head(MADE, SIZE, manifest_digest=bytes(32))), "manifest-differs", "another manifest"),
        (at(1, head=head(MADE, SIZE, time=MADE.manifest.valid_to + 1)), "manifest-expired", "chunk's head"),
        (at(1, head=head(MADE, SIZE, time=TIME + 5000 + limits.CLOCK_SKEW + 1)), "time-reversed", "another time"),
    ],
)
def test_each_step_can_fail(change: Change, code: str, what: str) -> None:
    with pytest.raises(VerificationError, match=what) as caught:
        check_stream(check_receipt(MADE.receipt(TURN), TRUST), Stream(tuple(change(CHUNKS))))
    assert caught.value.code == code
    own = code in ("incomplete", "stream-differs")  # nobody signs a stream: it is the reader's copy, and no verdict
    assert from_error(caught.value).status is (Status.INCONCLUSIVE if own else Status.FAILED)
    assert ("your own copy" in str(caught.value.hint)) is own


@pytest.mark.parametrize("choice", [lambda text: {"delta": {"content": text}}, lambda text: {"text": text}])
def test_the_text_that_came_is_compared(choice: Callable[[str], dict[str, Any]]) -> None:
    held, text = check_receipt(MADE.receipt(TURN), TRUST), MADE.texts[TURN]
    for parts, code in (((text[:2], text[2:]), None), ((text, "no"), "text-differs")):
        events = [{"choices": [choice(part)]} for part in parts]
        stream = read_stream(b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + body(CHUNKS))
        assert stream.text == "".join(parts)
        verdict = with_stream(verify(MADE.receipt(TURN), trust=TRUST), MADE.receipt(TURN), TRUST, stream)
        assert verdict.code == code
        assert "text-not-given" not in {note.id for note in verdict.notes}
        assert held.session.head.session.hex() == verdict.session


def test_other_tokens_streamed_than_in_the_receipt_are_two_histories() -> None:
    """The provider signed one answer while it was read, and another afterwards; all before it is the same."""
    told = recorded()
    first = CHUNKS[0].first
    told.leaves[first + 4] = OTHER.leaves[first + 4]
    with pytest.raises(VerificationError) as caught:
        check_stream(check_receipt(MADE.receipt(TURN), TRUST), Stream(tuple(streamed(told))))
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
        read_stream(stream)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    receipt, stream = tmp_path / "a.receipt", tmp_path / "answer.events"
    receipt.write_bytes(MADE.receipt(TURN).encode())
    trust = ["--trust", PROVIDER.public.vkey()]
    for chunks, code, said in (
        (CHUNKS, 0, "4 heads that came with 6 tokens"),
        (CHUNKS[1:], 3, "stream-differs"),
        (streamed(OTHER), 3, "stream-differs"),
    ):
        stream.write_bytes(body(chunks))
        assert main(["verify", str(receipt), "--stream", str(stream), *trust]) == code
        assert said in capsys.readouterr().out
    stream.write_bytes(b"data: {")
    assert main(["verify", str(receipt), "--stream", str(stream), *trust]) == 2
    assert main(["verify", "--fraud", str(receipt), "--stream", str(stream), *trust]) == 2
