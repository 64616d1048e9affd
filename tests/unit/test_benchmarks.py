"""The benchmark runner: goals are kept or missed by the number alone, and a failure is never a pass."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _steps, _tables, measure, run
from benchmarks.measure import Figure


@pytest.mark.parametrize(
    ("figure", "met", "goal"),
    [
        (Figure("speed", 0.99, "×", at_least=0.99), True, "≥ 0.99"),
        (Figure("speed", 0.9899, "×", at_least=0.99), False, "≥ 0.99"),
        (Figure("cost", 80.0, "µs", at_most=80), True, "≤ 80"),
        (Figure("cost", 80.1, "µs", at_most=80), False, "≤ 80"),
        (Figure("size", 3.0, "bytes", at_least=2, at_most=4), True, "≥ 2 and ≤ 4"),
        (Figure("size", float("nan"), "bytes", at_most=4), False, "≤ 4"),
        (Figure("size", 3.0, "bytes"), None, ""),
    ],
)
def test_goals(figure: Figure, met: bool | None, goal: str) -> None:
    assert figure.met is met
    assert figure.goal == goal


@pytest.mark.parametrize(
    ("value", "shown"), [(0.9944, "0.994"), (12.345, "12.35"), (159.96, "160.0"), (49152, "49,152"), (0.0123, "0.0123")]
)
def test_numbers(value: float, shown: str) -> None:
    assert _tables.number(value) == shown


def test_alternatives_are_timed_in_turn() -> None:
    order: list[str] = []
    durations = {"a": 0.5, "b": 2.0}
    calls: dict[str, Callable[[], object]] = {name: functools.partial(order.append, name) for name in durations}
    taken = measure.seconds_per_call(calls, rounds=3, each=1e-7, clock=lambda: sum(durations[name] for name in order))
    assert taken == durations
    assert order[-6:] == ["a", "b"] * 3


def test_rounds_go_back_and_forth() -> None:
    order: list[str] = []

    def note(name: str) -> int:
        order.append(name)
        return len(order)

    given = measure.in_turn({"a": lambda: note("a"), "b": lambda: note("b")}, rounds=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert given == {"a": [1, 4, 5], "b": [2, 3, 6]}


@pytest.mark.parametrize(
    ("ratios", "low", "high"),
    [
        ([1.0, 3.0, 2.0, 5.0, 4.0], 1.0, 5.0),
        # The sign test's ranks for 11 and 15: third and fourth from each end, as tables have them.
        ([float(number) for number in range(11)], 2.0, 8.0),
        ([float(number) for number in range(15)], 3.0, 11.0),
    ],
)
def test_a_ratio_comes_with_its_interval(ratios: list[float], low: float, high: float) -> None:
    figure = measure.paired("speed", [2 * ratio for ratio in ratios], [2.0] * len(ratios), at_least=0.5)
    assert figure.value == sorted(ratios)[len(ratios) // 2]
    assert figure.at_least == 0.5
    assert f"between {low:.3f} and {high:.3f}" in figure.note
    assert f"{len(ratios)} pairs" in figure.note


def test_too_few_rounds_have_no_interval() -> None:
    with pytest.raises(ValueError, match="five"):
        measure.paired("speed", [1.0] * 4, [1.0] * 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of benchmarks of our own, run by the real runner."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.setattr(run, "HERE", folder)
    return folder


def test_a_missed_goal_counts_only_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = {"name": "n", "value": 1.0, "unit": "×", "note": "", "goal": "≥ 2", "met": False}
    result = {"schema": 1, "benchmark": "slow", "claim": "", "figures": [figure]}
    (folder / "slow.py").write_text(f"import json; print(json.dumps({result!r}))")
    assert run.benchmarks() == ["slow"]
    assert run.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == [result]
    assert run.main(["--strict"]) == 1
    assert "missed" in capsys.readouterr().out


@pytest.mark.parametrize("source", ["raise ValueError()", "print('not json')", "print([1])", "import sys; sys.exit(3)"])
def test_a_benchmark_that_fails_fails_the_run(folder: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "broken.py").write_text(source)
    assert run.main([]) == 4
    assert "failed" in capsys.readouterr().out


@pytest.mark.parametrize("fields", [{}, {"verifiable": {"commitments": "none"}}, {"frequency_penalty": 0.5}])
def test_steps_without_a_model_take_time(fields: dict[str, Any]) -> None:
    assert 0.0 < _steps.python_in_a_step(2, 3, {"temperature": 0.8, **fields}) < 1.0


def result(name: str, value: float, note: str = "") -> dict[str, Any]:
    return measure.report(name, "It is fast.", [Figure("speed", value, "×", at_least=1, note=note)], 3.0)


def test_the_page_keeps_what_was_not_measured_again() -> None:
    page = f"# Figures\n\n{_tables.BEGIN}\n\n{_tables.END}\n\n## By hand\n"
    page = _tables.updated(page, [result("tree", 1.5), result("audit", 0.5, "on one core")])
    assert page.startswith("# Figures\n")
    assert page.endswith(f"{_tables.END}\n\n## By hand\n")
    assert list(_tables.sections(page)) == ["audit", "tree"]
    assert "| speed [1] | 0.500 | × | ≥ 1 | missed |" in page
    assert "[1] on one core" in page
    again = _tables.updated(page, [result("audit", 2.0), run.failed("tree", "no model")])
    before, after = _tables.sections(page), _tables.sections(again)
    assert "| speed | 2.000 | × | ≥ 1 | met |" in after["audit"]
    assert after["tree"] == before["tree"]
    assert again.endswith("## By hand\n")


def test_the_run_writes_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = folder / "page.md"
    page.write_text(f"{_tables.BEGIN}\n\n{_tables.END}\n")
    monkeypatch.setattr(run, "PAGE", page)
    measured = result("quick", 2.0)
    (folder / "quick.py").write_text(f"import json; print(json.dumps({measured!r}))")
    assert run.main([]) == 0
    assert "quick" not in page.read_text()
    assert run.main(["--page"]) == 0
    assert measured["date"] in _tables.sections(page.read_text())["quick"]


def test_the_page_shows_benchmarks_that_exist_with_their_own_claims() -> None:
    for name, text in _tables.sections(_tables.PAGE.read_text()).items():
        source = ast.parse((run.HERE / f"{name}.py").read_text())
        assert text.split("\n")[2] == measure.claim_of(ast.get_docstring(source))
