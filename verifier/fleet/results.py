"""A fleet's results as Parquet: a folder of part files, each written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from verifiable import files
from verifiable.errors import MalformedError
from verifier.fleet.fleet import Row

_COLUMNS = {
    "session": "string",
    "status": "string",
    "code": "string",
    "turn": "int64",
    "token": "int64",
    "position": "int64",
    "tokens_checked": "int64",
    "tokens_total": "int64",
    "seconds": "float64",
    "tries": "int64",
    "model": "string",
    "evidence": "string",
    "key": "string",
    "verdict": "string",
}
"""Name -> Arrow type; `verdict` is the whole verdict as JSON."""


class ParquetResults:
    """Implements `Results` in a folder. Raises ModuleNotFoundError where pyarrow (the extra `fleet`) is missing."""

    def __init__(self, folder: Path) -> None:
        self._arrow: Any = import_module("pyarrow")
        self._parquet: Any = import_module("pyarrow.parquet")
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def done(self) -> set[str]:
        return {key for path in self._parts() for key in self._read(path, ["key"])["key"]}

    def rows(self) -> list[dict[str, Any]]:
        """Every row, in the order in which they were written."""
        rows: list[dict[str, Any]] = []
        for path in self._parts():
            columns = self._read(path, list(_COLUMNS))
            rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return rows

    def add(self, rows: Sequence[Row]) -> None:
        schema = self._arrow.schema([(name, getattr(self._arrow, kind)()) for name, kind in _COLUMNS.items()])
        values = [{**asdict(row), "verdict": json.dumps(row.verdict, sort_keys=True)} for row in rows]
        table = self._arrow.Table.from_pylist(values, schema=schema)
        numbers = [int(path.stem.removeprefix("part-")) for path in self._parts()]
        target = self._folder / f"part-{max(numbers, default=-1) + 1:06d}.parquet"
        scratch = self._folder / f".{target.name}.{os.getpid()}"
        self._parquet.write_table(table, scratch)
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        files.rename(scratch, target)

    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob("part-*.parquet"))

    def _read(self, path: Path, columns: list[str]) -> dict[str, list[Any]]:
        try:
            columns_read: dict[str, list[Any]] = self._parquet.read_table(path, columns=columns).to_pydict()
        except (OSError, ValueError, KeyError) as error:
            raise MalformedError(
                f"results {path}", expected="a Parquet file that a fleet wrote", found=str(error)[:200]
            ) from None
        return columns_read
