"""Progress of an audit on standard error: one bar for each stage, and nothing at all where nobody looks."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_UNITS = {"hashing": 1 << 20}
"""Stages whose numbers are too large to read, and what they are divided by (bytes to MiB)."""


class Bars:
    """Implements `reexecute.Progress`; use it in a `with` statement."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        unit = _UNITS.get(stage, 1)
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total // unit)
        self._bars.update(self._tasks[stage], completed=done // unit, total=total // unit)

    def sessions(self, done: int, total: int) -> None:
        """How many sessions are done."""
        self("sessions", done, total)
