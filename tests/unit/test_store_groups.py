"""What one step brings to the store shares a transaction, and whoever waits for it is not kept waiting for more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.store import sql
from engine.store.sqlite import open_store


def test_the_rows_of_a_step_share_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "_LINGER", 3600.0)  # only a barrier can end the wait
    store = open_store(tmp_path)
    commits, writing = [], store._database.writing

    @contextmanager
    def counted(alone: bool = False) -> Iterator[Any]:
        with writing(alone) as connection:
            commits.append(alone)
            yield connection

    monkeypatch.setattr(store._database, "writing", counted)
    for step in range(3):
        for session in range(8):
            store.add_leaves(bytes([session]) * 16, step, [b"leaf"])
        store.flush()
        assert len(commits) == step + 1
    assert [len(store.leaves(bytes([session]) * 16)) for session in range(8)] == [3] * 8
    store.close()
