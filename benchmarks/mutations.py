"""Every check can be missed: with each taken out of the code in turn, some test fails.

    python -m benchmarks.mutations                       # all of mutations.toml
    python -m benchmarks.mutations --only "the signed root" --only 10.2.14 --only spec/browser

Works on a copy of the tree. For each check it names the first test that failed without it. Exit status 1 when a check
was taken out and no test failed; 4 when the tests fail as it is, or the table does not fit the code.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks._mutations import Copy, Mutation, mutations
from benchmarks.measure import Figure, main


def chosen(only: Sequence[str] | None) -> list[Mutation]:
    """Those with one of these names, claims or beginnings of a file's name; all of them by default."""
    table = mutations()
    if not only:
        return table
    for word in only:
        if not any(_named(mutation, word) for mutation in table):
            raise ValueError(f"no check has the name, claim or file {word!r}")
    return [mutation for mutation in table if any(_named(mutation, word) for word in only)]


def _named(mutation: Mutation, word: str) -> bool:
    return mutation.name == word or word in mutation.claims or mutation.file.startswith(word)


def run(table: Sequence[Mutation]) -> dict[str, str | None]:
    """Name -> the first test that failed without the check, None where none did.

    Raises ValueError where the table does not fit the code, or a test fails although nothing was taken out.
    """
    found: dict[str, str | None] = {}
    with TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        texts = {mutation.file: (copy.folder / mutation.file).read_text(encoding="utf-8") for mutation in table}
        without = [(mutation, mutation.applied(texts[mutation.file])) for mutation in table]
        red = copy.first_red(sorted({test for mutation in table for test in mutation.ids}))
        if red is not None:
            raise ValueError(f"{red} fails as it is: nothing taken out")
        for number, (mutation, text) in enumerate(without, 1):
            start = time.perf_counter()
            copy.write(mutation.file, text)
            red = found[mutation.name] = copy.first_red(mutation.ids)
            copy.write(mutation.file, texts[mutation.file])
            took = f"{time.perf_counter() - start:.0f} s"
            what = f"{number}/{len(table)} {mutation.file}: {mutation.name}"
            print(f"{what}: {'NO TEST FAILED' if red is None else red} ({took})", file=sys.stderr, flush=True)
    return found


def figures(table: Sequence[Mutation], found: dict[str, str | None]) -> list[Figure]:
    survived = [name for name, red in found.items() if red is None]
    page = sum(mutation.file.startswith("spec/browser/") for mutation in table)
    claims = len({claim for mutation in table for claim in mutation.claims})
    return [
        Figure("checks taken out", len(found), "checks", note=f"{page} of them of the page's"),
        Figure("claims that they stand for", claims, "claims", note="steps, rows of the threat model, sentences"),
        Figure("checks that no test misses", len(survived), "checks", at_most=0, note=", ".join(survived)),
    ]


def command(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--only", action="append", metavar="NAME", help="a check's name, a claim, or a file")
    missed: list[str] = []

    def measure(only: Sequence[str] | None) -> Sequence[Figure]:
        table = chosen(only)
        found = run(table)
        missed.extend(name for name, red in found.items() if red is None)
        return figures(table, found)

    try:
        status = main(measure, "mutations", __doc__, arguments, options)
    except ValueError as error:
        print(f"mutations: {error}", file=sys.stderr)
        return 4
    return 1 if missed else status


if __name__ == "__main__":
    sys.exit(command())
