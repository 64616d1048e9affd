"""The fuzzer of benchmarks/fuzz.py: a short run finds nothing, and it does find what is there to be found."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from benchmarks import fuzz
from benchmarks._fuzz_targets import TARGETS, Target
from verifiable.errors import MalformedError

SHORT = 300
"""Inputs for each target in the tests; the benchmark runs millions."""


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_short_run_finds_nothing(target: Target) -> None:
    seeds = len(target.inputs())
    tally = fuzz.fuzz(target, seeds + SHORT, Random(target.name))
    assert tally.tried == seeds + SHORT
    assert tally.accepted > 0
    assert not tally.faults


def crashing(data: bytes) -> bytes:
    if data[3] == 0:  # an IndexError on short input
        raise MalformedError("zero")
    return data


def test_a_foreign_error_is_found() -> None:
    tally = fuzz.fuzz(Target("crashing", crashing, seeds=(b"abcdef",)), 2000, Random(1))
    assert tally.broken > 0
    assert tally.faults[0][1].startswith("IndexError")
    assert len(tally.faults) <= fuzz.SHOWN


def test_a_second_spelling_is_found() -> None:
    lenient = Target("lenient", lambda data: data.strip(), seeds=(b"abc",))
    tally = fuzz.fuzz(lenient, 5000, Random(1))
    assert "written back as something else" in tally.faults[0][1]


def test_the_same_seed_gives_the_same_inputs() -> None:
    seeds = [b"one", b"another one"]
    assert [fuzz.mutate(seeds, Random(5)) for _ in range(3)] == [fuzz.mutate(seeds, Random(5))] * 3
    first, second = Random(5), Random(6)
    assert [fuzz.mutate(seeds, first) for _ in range(20)] != [fuzz.mutate(seeds, second) for _ in range(20)]


def test_inputs_stay_short() -> None:
    chance = Random(2)
    assert all(len(fuzz.mutate([bytes(fuzz.LONGEST)], chance)) <= fuzz.LONGEST for _ in range(200))


def test_the_command_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.command(["--count", "300", "--only", "cbor", "--only", "head", "--json"]) == 0
    figures = {figure["name"]: figure for figure in json.loads(capsys.readouterr().out)["figures"]}
    assert figures["hostile inputs"]["value"] == 300
    assert figures["other errors, or other bytes back"]["met"]


def test_what_breaks_is_kept_and_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target("crashing", crashing, seeds=(b"abcdef",))
    monkeypatch.setattr(fuzz, "by_name", lambda names: iter([target]))
    assert fuzz.command(["--count", "2000", "--keep", str(tmp_path), "--json"]) == 1
    kept = list((tmp_path / "crashing").iterdir())
    assert kept
    with pytest.raises(IndexError):
        crashing(kept[0].read_bytes())
    assert "IndexError" in capsys.readouterr().err
