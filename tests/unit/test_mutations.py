"""The table of checks that `benchmarks.mutations` takes out fits the code, the spec and the tests.

Reads the repository's own files. Whether a test fails without each check is what the benchmark finds.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import _mutations as shared, mutations as benchmark
from benchmarks._mutations import Mutation, mutations
from tests.needs import ROOT, missing_program

TABLE = mutations()
CLAIMS = {claim for mutation in TABLE for claim in mutation.claims}

REASONS: dict[str, str] = {
    "shows an old keys file again": "Nothing stops it: a test shows that what it verifies rests on the file at hand.",
}
"""Steps, rows and items for which nothing is taken out, and why."""


def steps() -> set[str]:
    """The numbered steps of §10 of the protocol, by section and number; and what has rules without numbers."""
    found, section = {"10.4", "10.5", "11"}, ""
    for line in (ROOT / "spec/protocol.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            section = line.split()[1].rstrip(".")
        elif re.match(r"10\.\d", section) and (number := re.match(r"\d+(?=\. )", line)):
            found.add(f"{section}.{number[0]}")
    return found


def rows() -> list[str]:
    """What a provider may try, and the items of what others may, as the threat model has them."""
    text = (ROOT / "spec/threat-model.md").read_text(encoding="utf-8")
    provider, _, rest = text.partition("## What a provider may try")[2].partition("## What a client")
    table = [line.split("|")[1].strip() for line in provider.splitlines() if line.startswith("| ")]
    return table[1:] + re.findall(r"^- \*(.+?)\.?\*", rest.partition("\n## ")[0], re.MULTILINE)


def test_every_step_of_the_protocol_has_a_check_that_is_taken_out() -> None:
    assert len(steps()) == 3 + 11 + 9 + 2 + 7 + 6 + 4
    assert steps() - CLAIMS - REASONS.keys() == set()


def test_every_row_of_the_threat_model_has_a_check_that_is_taken_out() -> None:
    assert len(rows()) > 30
    known = CLAIMS | REASONS.keys()
    assert [row for row in rows() if not any(row.startswith(claim) for claim in known)] == []


def stands(claim: str) -> bool:
    """Whether a claim is of a step, of one row or item, or stands in the file that it names."""
    file, colon, words = claim.partition(": ")
    if colon and file.endswith(".md"):
        return words in " ".join((ROOT / file).read_text(encoding="utf-8").split())
    return claim in steps() or sum(row.startswith(claim) for row in rows()) == 1


def test_claims_stand_where_they_are_said_to_stand() -> None:
    assert [claim for claim in sorted(CLAIMS | REASONS.keys()) if not stands(claim)] == []
    assert CLAIMS & REASONS.keys() == set()


def test_each_check_stands_in_its_file_once_and_its_tests_exist() -> None:
    """Where the code was changed, change the table with it: what stands for the check now?"""
    assert [name for name, count in Counter(mutation.name for mutation in TABLE).items() if count > 1] == []
    for mutation in TABLE:
        mutation.applied((ROOT / mutation.file).read_text(encoding="utf-8"))
        assert mutation.tests, mutation.name
        for test in mutation.ids:
            path, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}" in (ROOT / path).read_text(encoding="utf-8"), mutation.name


def made(name: str = "name", old: str = "a", new: str = "b", test: str = "test_all.py") -> Mutation:
    return Mutation(name, "code_under.py", (), old, new, (test,))


def test_what_does_not_stand_there_once_is_refused() -> None:
    assert made().applied("xax") == "xbx"
    for mutation, text in ((made(), "xx"), (made(), "axa"), (made(new="a"), "xax")):
        with pytest.raises(ValueError, match="expected once in code_under"):
            mutation.applied(text)


CODE = """
def check(value):
    if value < 0:
        raise ValueError
    return value
"""
TEST = """
import pytest
from code_under import check

def test_good():
    assert check(1) == 1

def test_bad():
    with pytest.raises(ValueError):
        check(-1)
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one module and its test, in the place of this one."""
    if shutil.which("git") is None:
        missing_program("no git: install the system package git")
    (tmp_path / "tests").mkdir()
    (tmp_path / "code_under.py").write_text(CODE)
    plugins = ("langsmith_plugin", "schemathesis", "hypothesispytest", "timeout", "anyio")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {' '.join(f'-p no:{name}' for name in plugins)}\n")
    (tmp_path / "tests" / "test_all.py").write_text(TEST)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(shared, "ROOT", tmp_path)
    return tmp_path


def test_a_check_that_no_test_misses_is_told_from_one_that_is_missed(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missed, kept = made("missed", "value < 0", "False"), made("kept", "return value", "return 1")
    found = benchmark.run([missed, kept])
    assert found == {"missed": "tests/test_all.py::test_bad", "kept": None}
    assert (tree / "code_under.py").read_text() == CODE
    monkeypatch.setattr(benchmark, "mutations", lambda: [missed, kept])
    monkeypatch.setattr(benchmark, "run", lambda table: {each.name: found[each.name] for each in table})
    assert benchmark.command(["--only", "missed"]) == 0
    assert benchmark.command([]) == 1
    assert "no test misses" in capsys.readouterr().out
    assert benchmark.command(["--only", "nothing"]) == 4


def test_tests_that_fail_as_it_is_or_are_none_show_nothing(tree: Path) -> None:
    with pytest.raises(ValueError, match="not run"):
        benchmark.run([made(old="value < 0", new="False", test="test_all.py::test_none")])
    (tree / "code_under.py").write_text(CODE.replace("value < 0", "False"))
    with pytest.raises(ValueError, match="fails as it is"):
        benchmark.run([made(old="if False", new="if True")])
