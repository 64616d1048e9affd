"""Other projects' test vectors; see docs/conformance.md for the counts and the exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.harness import Outcome, Vectors, locate
from tests.conformance.table import PAGE, SUITES, render, run

FOLDER = locate()
if FOLDER is None:
    pytest.skip(
        "other projects' test vectors are not here: set VERIFIABLE_VECTORS to their folder", allow_module_level=True
    )


@pytest.fixture(scope="module")
def theirs() -> Vectors:
    assert FOLDER is not None
    return Vectors(FOLDER)


@pytest.fixture(scope="module")
def results(theirs: Vectors) -> dict[str, list[Outcome]]:
    return run(theirs)


@pytest.mark.parametrize("name", SUITES)
def test_suite(name: str, results: dict[str, list[Outcome]]) -> None:
    outcomes = results[name]
    assert outcomes, "the suite found no vectors"
    failed = [f"{outcome.vector}: {outcome.detail}" for outcome in outcomes if outcome.failed]
    assert not failed, "\n".join(failed)


def test_every_file_was_read(theirs: Vectors, results: dict[str, list[Outcome]]) -> None:
    def is_vector(path: str) -> bool:
        # The .edn files are the .cbor ones in another notation.
        return Path(path).name not in ("README.md", "LICENSE") and not path.endswith(".edn")

    left = {name for name in theirs.names("**/*") if is_vector(name)} - theirs.used
    assert not left


def test_page_is_fresh(results: dict[str, list[Outcome]]) -> None:
    assert PAGE.read_text(encoding="utf-8") == render(results), "run python -m tests.conformance.table"
