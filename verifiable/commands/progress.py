"""Progress of long work on standard error: one bar for each stage, and none where nobody looks."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_MANY = 1 << 24
"""From here on numbers are bytes, and too large to read: they are shown in MiB."""


class Bars:
    """Call it with a stage, what is done and the total; use it in a `with` statement."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        unit = 1 << 20 if total >= _MANY else 1
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total // unit)
        self._progress.update(self._tasks[stage], completed=done // unit, total=total // unit)
