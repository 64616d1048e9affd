"""A minute of benchmarks/soak.py: every bound that it states has to hold."""

from __future__ import annotations

from pathlib import Path

from benchmarks.soak import soak


def test_a_minute_of_bad_company(smollm2: Path, tmp_path: Path) -> None:
    figures = soak(tmp_path, smollm2, seconds=60, audited=5)
    assert [figure for figure in figures if figure.met is False] == []
