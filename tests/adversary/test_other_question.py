"""Providers that answer an audit with evidence for another question: sound, signed, and not what was asked for.

Turn 1 of their session was computed by another model than they promise. Nothing of what they show has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_files import small, write
from tests.made_up_model import PROMPT, MadeUpProcess
from tests.sessions import PROVIDER, Recording, ask
from tests.simulator import KEY, Provider, honest, other_model, serve
from verifiable.checking.caveats import CAVEATS
from verifiable.cli import main
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.receipt import Receipt
from verifier.commands import run

CHEATED = 1


@dataclass
class World:
    """A provider whose session has a cheated turn 1, and what was given for it before and after that turn."""

    folder: Path
    made: Recording
    receipt: Receipt
    older: Evidence
    older_receipt: Receipt
    provider: Provider = field(init=False)

    def __post_init__(self) -> None:
        self.provider = Provider([self.made])

    def answers(self, evidence: Callable[[Kind], Evidence | None], receipt: Receipt | None = None) -> None:
        """What the provider shows from now on, by the kind of evidence that is asked for; None for what it should."""

        def change(path: str, body: bytes) -> bytes:
            if path.endswith("/evidence"):
                other = evidence(Evidence.parse(body).kind)
                return body if other is None else other.encode()
            return receipt.encode() if receipt is not None and path.endswith("/receipt") else body

        self.provider.change = change

    def audit(self, target: str | None, *more: str) -> int:
        """`verifiable audit` of a file, or of the provider's sessions."""
        with serve(self.provider) as url:
            options = ["--model", str(self.folder / "model.gguf"), "--trust", PROVIDER.public.vkey()]
            if target is None:
                return main(["audit", url, *options, "--auditor-key", KEY, *more])
            return main(["audit", str(self.folder / target), *options, "--provider", url, *more])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(run, "Worker", MadeUpProcess)
    monkeypatch.chdir(tmp_path)
    made = Recording()
    made.turn(ask(max_tokens=5), PROMPT)
    older, older_receipt = made.evidence(), made.receipt()
    made.turn(ask(max_tokens=5), PROMPT, other_model)
    made.turn(ask(max_tokens=5), PROMPT)
    receipt = made.receipt(CHEATED)
    write(tmp_path, small())
    (tmp_path / "turn1.receipt").write_bytes(receipt.encode())
    (tmp_path / "turn0.receipt").write_bytes(made.receipt(0).encode())
    return World(tmp_path, made, receipt, older, older_receipt)


def only(*turns: int) -> Callable[[World], Callable[[Kind], Evidence]]:
    return lambda world: lambda kind: world.made.evidence(kind, turns)


def one_record(world: World) -> Callable[[Kind], Evidence]:
    return lambda kind: world.made.evidence(Kind.RECORDS, [CHEATED], [len(PROMPT)])


def all_records_of_another_turn(world: World) -> Callable[[Kind], Evidence]:
    return lambda kind: world.made.evidence(Kind.FULL, [0])


def other_session(world: World) -> Callable[[Kind], Evidence]:
    return lambda kind: honest(9, turns=3).evidence(kind)


def older_head(world: World) -> Callable[[Kind], Evidence]:
    return lambda kind: world.older


SWAPS: dict[str, Callable[[World], Callable[[Kind], Evidence]]] = {
    "another turn": only(0),
    "all turns but one": only(0, 2),
    "no turn": only(),
    "one record of it": one_record,
    "all records of another turn": all_records_of_another_turn,
    "another session": other_session,
    "an older head": older_head,
}


@pytest.mark.parametrize("swap", SWAPS)
def test_a_receipts_turn_is_not_verified_by_anything_else(
    world: World, swap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.answers(SWAPS[swap](world))
    for more in ((), ("--turns", "1", "--seed", "00" * 32)):
        assert world.audit("turn1.receipt", *more) == 3
        out = capsys.readouterr().out
        assert "INCONCLUSIVE  no-evidence" in out
        assert "another question than was asked" in out


def test_what_was_asked_for_shows_the_cheat(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.audit("turn1.receipt") == 1
    assert "FAILED  logits-differ" in capsys.readouterr().out
    assert world.audit(None) == 1
    assert "FAILED  logits-differ" in capsys.readouterr().out


@contextmanager
def drawn_turn(turn: int) -> Iterator[str]:
    """A seed under which the lottery draws this turn of the world's session."""
    from verifiable.session.challenge import draw_turns

    seeds = (bytes([number]) * 32 for number in range(256))
    yield next(seed.hex() for seed in seeds if draw_turns(seed, b"\x07" * 16, 3, 1) == [turn])


@pytest.mark.parametrize("swap", [*SWAPS, "fewer turns in the receipt", "another session's receipt"])
def test_a_drawn_turn_is_not_verified_by_anything_else(
    world: World, swap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steered = {"fewer turns in the receipt": world.older_receipt, "another session's receipt": honest(9).receipt()}
    world.answers(SWAPS.get(swap, only(0))(world), steered.get(swap))
    with drawn_turn(CHEATED) as seed:
        assert world.audit(None, "--turns", "1", "--seed", seed, "--json") == 3
    facts = json.loads(capsys.readouterr().out)
    assert [verdict["code"] for verdict in facts["verdicts"]] == ["no-evidence"]
    assert facts["verified"] == facts["tokens_checked"] == 0


def test_whole_sessions_are_asked_for_whole(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for swap in SWAPS.values():
        world.answers(swap(world))
        assert world.audit(None) == 3
        assert "no-evidence" in capsys.readouterr().out


def test_a_receipts_turn_is_among_those_drawn(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a receipt's session other turns may be drawn besides: never in its place."""
    with drawn_turn(2) as seed:
        assert world.audit("turn1.receipt", "--turns", "1", "--seed", seed) == 1
        assert "FAILED  logits-differ" in capsys.readouterr().out
        assert world.audit("turn0.receipt", "--turns", "1", "--seed", seed, "--json") == 0
    facts = json.loads(capsys.readouterr().out)["verdicts"][0]
    assert [turn["turn"] for turn in facts["details"]["turns"]] == [0, 2]
    assert {"id": "turns-not-opened", "what": f"Turn 1: {CAVEATS['turns-not-opened']}"} in facts["not_shown"]


def test_records_of_another_turn_do_not_stand_in(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """After a difference all records of that turn are asked for; those of another show nothing."""
    for turns in ([0], [0, CHEATED]):
        full = world.made.evidence(Kind.FULL, turns)
        world.answers({Kind.FULL: full}.get)
        assert world.audit("turn1.receipt") == 1
        out = capsys.readouterr().out
        assert "FAILED  records-differ" in out
        assert "did not show the records" in out


def test_another_kind_is_another_question(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.answers(lambda kind: world.made.evidence(Kind.FULL))
    assert world.audit("turn0.receipt") == 3
    assert "no-evidence" in capsys.readouterr().out


FILES: dict[str, tuple[Callable[[Recording], Evidence], int, str]] = {
    "one honest turn of three": (lambda made: made.evidence(turns=[0]), 0, "Turns 1, 2: not opened by the evidence"),
    "one record of the cheated turn": (
        lambda made: made.evidence(Kind.RECORDS, [CHEATED], [len(PROMPT)]),
        3,
        "no-evidence",
    ),
    "every record of an honest turn, as single ones": (
        lambda made: made.evidence(Kind.RECORDS, [0], range(len(PROMPT), len(PROMPT) + 5)),
        3,
        "no-evidence",
    ),
    "the cheated turn": (lambda made: made.evidence(turns=[CHEATED]), 1, "records-differ"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_evidence_is_asked_for_what_it_opens(
    world: World, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, status, said = FILES[name]
    (world.folder / "some.evidence").write_bytes(make(world.made).encode())
    assert world.audit("some.evidence") == status
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("swap", [name for name in SWAPS if name != "all turns but one"])
def test_verify_holds_evidence_against_the_receipt_too(
    world: World, swap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: Any = SWAPS[swap](world)(Kind.TOKENS)
    (world.folder / "other.evidence").write_bytes(shown.encode())
    arguments = [str(world.folder / "turn1.receipt"), "--evidence", str(world.folder / "other.evidence")]
    status = main(["verify", *arguments, "--trust", PROVIDER.public.vkey()])
    out = capsys.readouterr().out
    if swap == "one record of it":  # it opens the turn, and claims nothing about the rest
        assert status == 0
        assert f"Turn 1: {CAVEATS['records-not-replayed']}" in out
    else:
        assert status == 3
        assert "INCONCLUSIVE  no-evidence" in out
