"""A fleet on a real local Ray cluster of two auditors, one of which is killed in mid-run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.local_fleet import Local
from tests.made_up_model import MadeUpModel
from tests.sessions import TRUST, Recording, ask, made_up, manifest
from verifiable.errors import MalformedError
from verifier.fleet.fleet import question, read_jobs, run_fleet

pytest.importorskip("pyarrow", reason="the extra `fleet` is not installed")

from verifier.fleet.results import ParquetResults

SESSIONS = 40
ASKED = question(TRUST, manifest().model)


class Slow(MadeUpModel):
    """Takes its time, so that there is a middle to be killed in, and leaves word of which process it is in."""

    folder = ""

    def identity(self) -> Any:
        time.sleep(0.05)
        return super().identity()


class Maker:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, model: str) -> Slow:
        (Path(self.folder) / str(os.getpid())).touch()
        return Slow()


def sessions(folder: Path, count: int) -> list[Path]:
    found = []
    for number in range(count):
        made = Recording(session=number.to_bytes(16, "big"))
        made.turn(ask(max_tokens=5), range(1, 8), made_up)
        found.append(folder / f"{number:04d}.evidence")
        found[-1].write_bytes(made.evidence().encode())
    return found


@pytest.mark.timeout(300)
def test_nothing_is_lost_and_nothing_counted_twice_when_an_auditor_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `fleet` is not installed")
    from verifier.fleet.ray_cluster import RayPool

    pids, evidence = tmp_path / "pids", tmp_path / "evidence"
    pids.mkdir()
    evidence.mkdir()
    jobs, bad = read_jobs(sessions(evidence, SESSIONS), ASKED)
    results = ParquetResults(tmp_path / "results")
    killed: list[int] = []

    def tell(done: int, total: int) -> None:
        running = sorted(int(path.name) for path in pids.iterdir())
        if done >= 8 and len(running) >= 2 and not killed:
            killed.append(running[0])
            os.kill(running[0], signal.SIGKILL)

    with RayPool("local", 2, Maker(str(pids)), TRUST) as pool:
        assert run_fleet(jobs, pool, results, flush=7, tell=tell) == SESSIONS
    rows = results.rows()
    assert killed
    assert len(list(pids.iterdir())) == 3  # two, and the one that took the dead one's place
    assert not bad
    assert sorted(row["session"] for row in rows) == sorted(job.session for job in jobs)
    assert {row["status"] for row in rows} == {"verified-exact"}
    assert sum(row["tokens_checked"] for row in rows) == 5 * SESSIONS
    assert sum(row["tries"] - 1 for row in rows) == 1
    assert len(list((tmp_path / "results").glob("*.parquet"))) == 6


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    jobs, _ = read_jobs(sessions(tmp_path, 10), ASKED)
    folder = tmp_path / "results"
    run_fleet(jobs[:4], Local(), ParquetResults(folder))
    (folder / ".part-000001.parquet.99").write_bytes(b"half a file of a driver that died")
    assert run_fleet(jobs, Local(), ParquetResults(folder)) == 6
    rows = ParquetResults(folder).rows()
    assert sorted(row["session"] for row in rows) == [job.session for job in jobs]
    assert rows[0]["code"] is None


def test_damaged_results_are_an_error_and_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "part-000000.parquet").write_bytes(b"no parquet")
    with pytest.raises(MalformedError, match="part-000000"):
        ParquetResults(tmp_path).done()
