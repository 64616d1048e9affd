"""What every benchmark shares: figures with goals, fair timing, and the command line of a benchmark file.

A benchmark is a module whose docstring starts with its claim and that has a function ``measure`` which returns
figures. Ratios are formed within one run, with the alternatives taken in turn, so that a machine that is busy slows
both sides; a number from one run is never set against a number from another.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from benchmarks._tables import show

SCHEMA = 1
"""Version of the JSON that a benchmark prints."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number, and the bound that it is claimed to keep, if there is one.

    Args:
        name: what was measured, short enough for a table.
        value: the number.
        unit: its unit; ``×`` for a ratio.
        at_least: the claim, where more is better.
        at_most: the claim, where less is better.
        note: what a reader has to know to judge the number.
    """

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the number keeps its bound; None when it has none."""
        if self.at_least is None and self.at_most is None:
            return None
        low = -float("inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return low <= self.value <= high

    @property
    def goal(self) -> str:
        parts = [f"≥ {self.at_least:g}"] if self.at_least is not None else []
        parts += [f"≤ {self.at_most:g}"] if self.at_most is not None else []
        return " and ".join(parts)


def seconds_per_call(
    calls: dict[str, Callable[[], object]],
    rounds: int = 7,
    each: float = 0.05,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds that one call of each function takes, by *clock*: `time.thread_time` leaves out the time in which
    a busy machine ran something else.

    Every round runs each function for about *each* seconds, one after the other, so that drift of the machine
    meets all of them alike.
    """
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        call()  # warm: caches, lazy imports
        start = clock()
        call()
        once = max(clock() - start, 1e-7)
        repeats[name] = max(1, int(each / once))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            count = repeats[name]
            start = clock()
            for _ in range(count):
                call()
            samples[name].append((clock() - start) / count)
    return {name: statistics.median(taken) for name, taken in samples.items()}


def in_turn(calls: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """What each call gave in each round. They take turns, backwards in every other round, so that drift of the machine
    meets all of them alike.
    """
    given: dict[str, list[T]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in list(calls)[:: -1 if number % 2 else 1]:
            given[name].append(calls[name]())
    return given


def paired(name: str, over: Sequence[float], under: Sequence[float], at_least: float | None = None) -> Figure:
    """The median ratio of rounds that were taken in pairs, with the interval of the sign test in its note: whatever the
    ratios' distribution is, its median lies between these two of the sorted ratios in nine cases of ten.
    """
    ratios = sorted(a / b for a, b in zip(over, under, strict=True))
    count, rank = len(ratios), 0
    while sum(math.comb(count, index) for index in range(rank + 1)) <= 0.05 * 2**count:
        rank += 1
    if rank == 0:
        raise ValueError("five pairs of rounds are the least that an interval can be had from")
    low, high = ratios[rank - 1], ratios[count - rank]
    note = f"between {low:.3f} and {high:.3f} in nine cases of ten, by {count} pairs of rounds"
    return Figure(name, statistics.median(ratios), "×", at_least=at_least, note=note)


def machine() -> dict[str, Any]:
    """What the numbers depend on, as far as the system tells."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            processor = next(names, processor)
    except OSError:
        pass
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "load": load,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def report(name: str, claim: str, figures: Iterable[Figure], seconds: float) -> dict[str, Any]:
    """The JSON form of one benchmark's result."""
    return {
        "schema": SCHEMA,
        "benchmark": name,
        "claim": claim,
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(seconds, 3),
        "machine": machine(),
        "figures": [{**asdict(figure), "goal": figure.goal, "met": figure.met} for figure in figures],
    }


def claim_of(doc: str | None) -> str:
    """The first line of a benchmark's docstring."""
    return (doc or "").strip().split("\n")[0]


def main(
    measure: Callable[..., Sequence[Figure]],
    name: str,
    doc: str | None,
    arguments: Sequence[str] | None = None,
    options: argparse.ArgumentParser | None = None,
) -> int:
    """Command line of the benchmark file *name*: run it, print a table, or with ``--json`` the same as JSON.

    Args:
        measure: takes the figures; gets the values of *options* by name.
        name: the file's name, without its suffix.
        doc: the file's docstring.
        arguments: the command line, `sys.argv` where None.
        options: a parser of the benchmark's own options, made with ``add_help=False``.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=claim_of(doc), parents=[options] if options else []
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    chosen = vars(parser.parse_args(arguments))
    as_json = chosen.pop("json")
    start = time.perf_counter()
    result = report(name, claim_of(doc), measure(**chosen), time.perf_counter() - start)
    if as_json:
        print(json.dumps(result, ensure_ascii=False, indent=1))
    else:
        show([result], result["machine"])
    return 0
