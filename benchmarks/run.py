"""Run the benchmarks, each in a process of its own, and print one table.

    python -m benchmarks.run                     # all of them
    python -m benchmarks.run token_cost          # some
    python -m benchmarks.run --json              # the same facts for a machine
    python -m benchmarks.run --strict            # exit status 1 when a goal is missed
    python -m benchmarks.run --page              # and write docs/benchmarks.md; what was not run keeps its figures

A process of its own, since llama.cpp reads settings when it loads, and since one benchmark's memory is not to slow
the next one. Exit status: 0 measured; 1 a goal was missed (with --strict); 2 the call is wrong; 4 a benchmark failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._tables import PAGE, show, updated
from benchmarks.measure import SCHEMA, machine

HERE = Path(__file__).resolve().parent
NOT_BENCHMARKS = {"__init__", "measure", "run"}
SECONDS = 3600
"""Longest that one benchmark may take."""


def benchmarks() -> list[str]:
    """Names of the benchmark files; a leading underscore marks a file that they share."""
    names = (path.stem for path in HERE.glob("*.py"))
    return sorted(name for name in names if name not in NOT_BENCHMARKS and not name.startswith("_"))


def run(name: str) -> dict[str, Any]:
    """Run one benchmark; a failure comes back as a result with an ``error``."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--json"],
            cwd=HERE.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return failed(name, f"took more than {SECONDS} s")
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["nothing on standard error"]
        return failed(name, f"exit status {done.returncode}: {last[0]}")
    try:
        result = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        return failed(name, f"did not print JSON: {error}")
    return result if isinstance(result, dict) else failed(name, "did not print a JSON object")


def failed(name: str, reason: str) -> dict[str, Any]:
    return {"schema": SCHEMA, "benchmark": name, "claim": "", "figures": [], "error": reason}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status that the module's docstring lists."""
    known = benchmarks()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="BENCHMARK", help=f"any of {', '.join(known)}; all by default")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a goal is missed")
    parser.add_argument("--page", action="store_true", help="write the figures into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"unknown benchmark {unknown[0]!r}; known: {', '.join(known)}")
    results = []
    for name in options.names or known:
        print(f"{name} …", end="", file=sys.stderr, flush=True)
        start = time.perf_counter()
        results.append(run(name))
        print(f" {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    if options.page:
        PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    if options.json:
        print(json.dumps({"schema": SCHEMA, "machine": machine(), "results": results}, ensure_ascii=False, indent=1))
    else:
        show(results, machine())
    if any("error" in result for result in results):
        return 4
    missed = any(figure["met"] is False for result in results for figure in result["figures"])
    return 1 if missed and options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
