"""The driver of a fleet: every job once, whatever dies, and a run that was stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.local_fleet import Local
from tests.sessions import PROVIDER, TRUST, Recording, ask, made_up, manifest
from verifiable.errors import MalformedError
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import AdapterFile
from verifiable.manifest.statements import Revocation, Role
from verifiable.wire.keys import PrivateKey
from verifier.commands.fleet import caveats
from verifier.fleet.fleet import Job, Row, question, read_jobs, run_fleet

MODEL = manifest().model
ASKED = question(TRUST, MODEL)


def session(folder: Path, number: int, tokens: int = 6) -> Path:
    made = Recording(session=number.to_bytes(16, "big"))
    made.turn(ask(max_tokens=tokens), range(1, 8), made_up)
    path = folder / f"{number:04d}.evidence"
    path.write_bytes(made.evidence().encode())
    return path


class Kept:
    """Results in memory."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def done(self) -> set[str]:
        return {row.key for row in self.rows}

    def add(self, rows: Sequence[Row]) -> None:
        self.rows += rows


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    found, bad = read_jobs([session(tmp_path, number) for number in range(8)], ASKED)
    assert not bad
    return found


def test_every_session_is_audited_once(jobs):
    kept = Kept()
    assert run_fleet(jobs, Local(), kept) == 8
    assert [row.status for row in kept.rows] == ["verified-exact"] * 8
    assert all(row.tokens_checked == row.tokens_total == 6 for row in kept.rows)


def test_a_job_whose_auditor_died_is_done_again_and_counted_once(jobs):
    kept = Kept()
    run_fleet(jobs, Local(dies=(2, 5, 6)), kept)
    assert sorted(row.session for row in kept.rows) == sorted(job.session for job in jobs)
    assert sum(row.tries > 1 for row in kept.rows) in (2, 3)
    assert {row.status for row in kept.rows} == {"verified-exact"}


def test_a_session_that_kills_every_auditor_ends_undecided(jobs):
    kept = Kept()
    run_fleet(jobs, Local(always=jobs[3].session), kept)
    undecided = [row for row in kept.rows if row.status == "inconclusive"]
    assert [(row.session, row.code, row.tries) for row in undecided] == [(jobs[3].session, "auditor-crashed", 3)]
    assert len(kept.rows) == 8


def test_what_is_written_down_is_not_done_again(jobs):
    kept = Kept()
    run_fleet(jobs[:5], Local(), kept)
    assert run_fleet(jobs, Local(), kept) == 3
    assert run_fleet(jobs, Local(), kept) == 0
    assert len({row.session for row in kept.rows}) == len(kept.rows) == 8


def test_rows_are_written_in_groups(jobs):
    sizes = []

    class Counting(Kept):
        def add(self, rows: Sequence[Row]) -> None:
            sizes.append(len(rows))
            super().add(rows)

    told = []
    run_fleet(jobs, Local(), Counting(), flush=3, tell=lambda done, total: told.append((done, total)))
    assert sizes == [3, 3, 2]
    assert told == [(at, 8) for at in range(1, 9)]


def test_files_that_are_no_evidence_have_a_row_and_doubles_a_name_of_their_own(tmp_path: Path):
    good, again = session(tmp_path, 1), tmp_path / "copy.evidence"
    again.write_bytes(good.read_bytes())
    broken = tmp_path / "broken.evidence"
    broken.write_bytes(good.read_bytes()[:-40])
    jobs, bad = read_jobs([good, again, broken], ASKED)
    assert [job.session for job in jobs] == [f"{1:032x}", f"{1:032x}/copy.evidence"]
    assert [(row.session, row.status, row.code) for row in bad] == [("broken.evidence", "inconclusive", "malformed")]
    with pytest.raises(MalformedError, match="jobs"):
        run_fleet([jobs[0], jobs[0]], Local(), Kept())


def test_evidence_that_vanished_is_a_row_too(jobs):
    Path(jobs[0].path).unlink()
    kept = Kept()
    run_fleet(jobs, Local(), kept)
    assert [row.code for row in kept.rows if row.status == "inconclusive"] == ["environment"]


def test_a_row_of_another_question_is_never_taken(tmp_path: Path):
    """Other keys, another model or other evidence of the same session in the same folder of results: audited anew."""
    kept, paths = Kept(), [session(tmp_path, number) for number in range(2)]
    other = PrivateKey.generate("other", b"o" * 32).public
    revoked = Revocation(Role.SESSION, other, 1, "stolen").sign(PROVIDER)
    file = replace(MODEL.files[0], sha256=b"m" * 32)
    adapters = [
        AdapterFile("a.gguf", bytes([digest]) * 32, 7, scale) for digest, scale in ((1, 0.5), (2, 0.5), (1, 1.0))
    ]
    asked = [ASKED, question([*TRUST, other], MODEL), question(Chain.follow(TRUST, [revoked]), MODEL)]
    asked += [question(TRUST, replace(MODEL, files=(file,)))]
    asked += [question(TRUST, replace(MODEL, adapters=(adapter,))) for adapter in adapters]
    assert question([*TRUST, other], MODEL) == question([other, *TRUST], MODEL)
    for each in asked:
        assert run_fleet(read_jobs(paths, each)[0], Local(), kept) == 2
    assert run_fleet(read_jobs(paths, ASKED)[0], Local(), kept) == 0
    session(tmp_path, 1, tokens=7)
    assert run_fleet(read_jobs(paths, ASKED)[0], Local(), kept) == 1
    assert len({row.key for row in kept.rows}) == len(kept.rows) == 2 * len(asked) + 1


def test_evidence_that_changed_under_way_is_not_audited(tmp_path: Path):
    jobs, _ = read_jobs([session(tmp_path, 1)], ASKED)
    session(tmp_path, 1, tokens=7)
    kept = Kept()
    run_fleet(jobs, Local(), kept)
    assert [(row.status, row.code) for row in kept.rows] == [("inconclusive", "environment")]


def test_what_verdicts_do_not_rest_on_is_said_with_counts(tmp_path: Path):
    kept, (jobs, _) = Kept(), read_jobs([session(tmp_path, number) for number in range(3)], ASKED)
    run_fleet(jobs, Local(), kept)
    said = {note.id: str(note) for note in caveats([row.verdict for row in kept.rows])}
    assert said["request-not-given"].endswith("(3 of 3 sessions)")
    assert {"receipt-not-given", "log-not-shown"} <= said.keys()
