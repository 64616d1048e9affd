"""How results are shown: a table on the terminal, and the sections of docs/benchmarks.md.

A result is what `benchmarks.measure.report` makes. The page keeps a section for each benchmark, with the date and the
machine of its measurement. Sections of benchmarks that were not run again stay as they are, and so does all that stands
outside of the two marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
BEGIN = "<!-- figures: written by make bench -->"
END = "<!-- end of figures -->"
MARKS = {True: ("met", "green"), False: ("missed", "bold red"), None: ("", "")}


def number(value: float) -> str:
    """Three or four significant digits, with separators: 0.994, 12.35, 49,152."""
    magnitude = abs(value)
    if magnitude < 0.1:
        return f"{value:.3g}"
    decimals = 3 if magnitude < 10 else 2 if magnitude < 100 else 1 if magnitude < 1000 else 0
    return f"{value:,.{decimals}f}"


def noted(figures: Iterable[Mapping[str, Any]], notes: list[str]) -> list[tuple[str, ...]]:
    """The cells of each figure's row: name, value, unit, goal, and whether it is met. New notes are added to `notes`;
    the name refers to its note by number.
    """
    rows: list[tuple[str, ...]] = []
    for figure in figures:
        name, note = figure["name"], figure["note"]
        if note:
            if note not in notes:
                notes.append(note)
            name += f" [{notes.index(note) + 1}]"
        rows.append((name, number(figure["value"]), figure["unit"], figure["goal"], MARKS[figure["met"]][0]))
    return rows


def described(machine: Mapping[str, Any]) -> str:
    """The machine in a line."""
    load = "" if machine["load"] is None else f", load {machine['load']:.1f}"
    return f"{machine['processor']}, {machine['cores']} cores{load}, Python {machine['python']}"


def show(results: Sequence[Mapping[str, Any]], machine: Mapping[str, Any]) -> None:
    """Print one table to standard output, and under it the notes that its numbers need."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("benchmark", "measured", title="Measured claims", title_justify="left")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("goal", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    styles, notes = dict(MARKS.values()), list[str]()
    for result in results:
        name = Text(str(result["benchmark"]))
        if "error" in result:
            table.add_row(name, Text(str(result["error"])), "", "", "", Text("failed", style="bold red"))
        for *cells, met in noted(result["figures"], notes):
            table.add_row(name, *map(Text, cells), Text(met, styles[met]))
            name = Text("")
        table.add_section()
    console = Console()
    console.print(table)
    for index, note in enumerate(notes, 1):
        console.print(f"[{index}] {note}", markup=False, highlight=False)
    console.print(described(machine), highlight=False)


def section(result: Mapping[str, Any]) -> str:
    """The page's section of one result."""
    notes: list[str] = []
    rows = [f"| {' | '.join(cells)} |" for cells in noted(result["figures"], notes)]
    lines = [f"### {result['benchmark']}", "", result["claim"], ""]
    lines += ["| measured | value | unit | goal | |", "|---|---:|---|---:|---|", *rows, ""]
    lines += [f"[{index}] {note}\n" for index, note in enumerate(notes, 1)]
    lines.append(f"*Measured on {result['date']}: {described(result['machine'])}; it took {result['seconds']:.0f} s.*")
    return "\n".join(lines)


def sections(page: str) -> dict[str, str]:
    """The sections of a page by benchmark."""
    body = page.partition(BEGIN)[2].partition(END)[0]
    parts = re.split(r"^(?=### )", body, flags=re.MULTILINE)[1:]
    return {part.split("\n", 1)[0].removeprefix("### "): part.strip() for part in parts}


def updated(page: str, results: Iterable[Mapping[str, Any]]) -> str:
    """The page with new sections for these results; a benchmark that failed keeps its old one."""
    known = sections(page)
    known |= {result["benchmark"]: section(result) for result in results if "error" not in result}
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return "\n\n".join([before + BEGIN, *(known[name] for name in sorted(known)), END + after])
