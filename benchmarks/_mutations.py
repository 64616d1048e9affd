"""The checks that `benchmarks.mutations` takes out: the table mutations.toml, and the copy of the tree to do it in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).resolve().with_name("mutations.toml")
SECONDS = 600
"""Longest that the tests of one mutation may take."""
SHORT = {
    "vectors": "conformance/test_spec_vectors.py::test_every_case",
    "page": "integration/test_browser_verifier.py::test_it_agrees_with_python_on_every_vector",
}
"""Tests that the table names by one word and a parameter."""
PASSED, FAILED = 0, 1
"""Exit statuses of pytest; others say that it could not run what it was told to."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A check that is taken out: `old`, which stands once in `file`, becomes `new`, and one of `tests` has to fail.

    `claims` are the places that say that it is checked: see the top of the table.
    """

    name: str
    file: str
    claims: tuple[str, ...]
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The file's text without the check. Raises ValueError where `old` does not stand in it exactly once."""
        if text.count(self.old) != 1 or self.old == self.new:
            found = f"found {text.count(self.old)} times"
            raise ValueError(f"{self.name}: expected once in {self.file}, {found}: {self.old!r}. Mend {TABLE.name}.")
        return text.replace(self.old, self.new)

    @property
    def ids(self) -> list[str]:
        """Its tests as pytest names them."""
        named = [re.sub(r"^[a-z]+(?=\[)", lambda word: SHORT[word[0]], test) for test in self.tests]
        return [f"tests/{test}" for test in named]


def mutations() -> list[Mutation]:
    """The table, in its order."""
    tables = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return [_mutation(file, **fields) for file, entries in tables.items() for fields in entries]


def _mutation(
    file: str, name: str, old: str, tests: Sequence[str], claims: Sequence[str] = (), new: str = ""
) -> Mutation:
    return Mutation(name, file, tuple(claims), old, new, tuple(tests))


class Copy:
    """The files of the working tree that git tracks or would, in another folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._steps = 0
        listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(listed, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"the files of the tree are not known: {done.stderr.strip()}")
        for name in done.stdout.split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        models = os.environ.get("VERIFIABLE_MODELS", str(ROOT / ".models"))
        self._environment: Mapping[str, str] = {**kept, "PYTHONPATH": str(folder), "VERIFIABLE_MODELS": models}

    def write(self, file: str, text: str) -> None:
        """Replace a file, and make what is made of it. Raises ValueError where it can't be made."""
        path = self.folder / file
        path.write_text(text, encoding="utf-8")
        self._steps += 1  # Python compiles a file again only where its size or its second differs
        os.utime(path, (time.time(), path.stat().st_mtime + 10 * self._steps))
        if file.startswith("spec/browser/"):
            built = self._run("-m", "spec.browser.build")
            if built.returncode:
                raise ValueError(f"the page can't be built with another {file}: {built.stdout[-500:]}")

    def first_red(self, tests: Sequence[str]) -> str | None:
        """The first of these tests that fails, None where all pass. Raises ValueError where they can't be run."""
        done = self._run("-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", *tests)
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        if done.returncode == FAILED and failed:
            return str(failed[0])
        if done.returncode != PASSED or " skipped" in done.stdout:
            raise ValueError(f"{', '.join(tests)}: not run, or not all of them: {done.stdout[-800:]}")
        return None

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
