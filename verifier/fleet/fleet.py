"""Many audits on many machines: each session once, whatever dies on the way.

A fleet is a pool of auditors that each hold one model. The driver hands out jobs, takes verdicts back and writes them
down; an auditor that dies takes only the job with it that it had, and that job is handed out again. What is written
down is not done again: a run that was stopped goes on where it was (`Results.done`). A row answers one question, the
session's evidence under these keys and with this model, and is taken for no other. The pool itself is behind a
Protocol; `verifier.fleet.ray_cluster` is one on Ray.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from verifiable import __version__, files, limits
from verifiable.errors import EngineError, MalformedError, VerifiableError
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import Manifest, ModelIdentity
from verifiable.session.evidence import Evidence
from verifiable.session.head import Head
from verifiable.wire.keys import PublicKey
from verifier.auditing.session import audit
from verifier.campaign.crew import prompt_key
from verifier.model.reexecute import Reexecutor
from verifier.offline.fault import Fault

MOST_TRIES = 3
"""How often a job may take its auditor down with it before it is called undecidable here."""


@dataclass(frozen=True, slots=True)
class Job:
    """One session to audit: its id (hex), the file of its evidence, and the SHA-256 (hex) of its model's first file.

    `evidence` is the SHA-256 (hex) of that file, `key` names the question that a row answers.
    """

    session: str
    path: str
    model: str
    evidence: str
    key: str


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a job: a row of the results."""

    session: str
    status: str
    code: str | None
    turn: int | None
    token: int | None
    position: int | None
    tokens_checked: int
    tokens_total: int
    seconds: float
    tries: int
    model: str
    evidence: str
    key: str
    verdict: Mapping[str, Any]

    @classmethod
    def of(cls, job: Job, verdict: Mapping[str, Any], seconds: float, tries: int) -> Row:
        return cls(
            job.session,
            str(verdict["status"]),
            verdict.get("code"),
            verdict.get("turn"),
            verdict.get("token"),
            verdict.get("position"),
            int(verdict.get("tokens_checked", 0)),
            int(verdict.get("tokens_total", 0)),
            seconds,
            tries,
            job.model,
            job.evidence,
            job.key,
            verdict,
        )


class LostError(Exception):
    """The auditor that had a job is gone."""


class Pool(Protocol):
    """Auditors that work at the same time, each on one job."""

    def free(self, model: str) -> bool:
        """Whether an auditor with that model, or room for one, is idle."""

    def submit(self, job: Job) -> None:
        """Give a job to an idle auditor; call only where `free`."""

    def wait(self) -> tuple[Job, Mapping[str, Any] | LostError]:
        """The next job that came to an end, with its verdict as JSON values or the loss of its auditor."""


class Results(Protocol):
    """Where rows are kept."""

    def done(self) -> set[str]:
        """The keys of the jobs that have a row."""

    def add(self, rows: Sequence[Row]) -> None:
        """Keep rows, durably when this returns."""


def question(trust: Sequence[PublicKey], model: ModelIdentity) -> bytes:
    """What all jobs of a run are asked, as a digest: the trusted keys and all that is known of what became of them, the
    SHA-256 of the model's files and of its adapters with their scales, and the verifier's version.
    """
    chain = Chain.of(trust)
    said = sorted(hashlib.sha256(statement).hexdigest() for statement in chain.statements)
    added = [f"{each.sha256.hex()} {each.scale!r}" for each in model.adapters]
    parts = [__version__, *sorted(key.vkey() for key in chain.trusted), "", *said, ""]
    parts += [*(file.sha256.hex() for file in model.files), "", *added]
    return hashlib.sha256("\n".join(["fleet", *parts]).encode()).digest()


def read_jobs(paths: Iterable[Path], asked: bytes) -> tuple[list[Job], list[Row]]:
    """The jobs that evidence files are, by session, those of one model together; and rows for files that are none.

    Nothing is verified here. A session that occurs in two files is audited in each of them: its id tells it apart by
    the file's name. `asked` is the run's `question`.
    """
    jobs: dict[str, Job] = {}
    order: dict[str, tuple[str, str, str]] = {}
    bad: list[Row] = []
    for path in paths:
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()

        def job(name: str, model: str, path: Path = path, digest: str = digest) -> Job:
            key = hashlib.sha256(asked + f"{digest}/{name}".encode()).hexdigest()
            return Job(name, str(path), model, digest, key)

        try:
            evidence = Evidence.parse(data)
            session = Head.peek(evidence.head).session.hex()
            model = Manifest.peek(evidence.manifest).model.files[0].sha256.hex()
        except VerifiableError as error:
            bad.append(Row.of(job(path.name, ""), Fault.of(error).verdict().to_json(), 0.0, 1))
            continue
        name = session if session not in jobs else f"{session}/{path.name}"
        jobs[name] = job(name, model)
        order[name] = (model, prompt_key(evidence), name)
    return sorted(jobs.values(), key=lambda job: order[job.session]), bad


def carry_out(job: Job, worker: Reexecutor, trust: Sequence[PublicKey]) -> dict[str, Any]:
    """What an auditor does with a job: a pure function of the file, the model and the keys."""
    try:
        data = files.read(job.path, limits.EVIDENCE_BYTES)
        if hashlib.sha256(data).hexdigest() != job.evidence:
            raise EngineError("the evidence file is another than when the run began", found=job.path)
        return audit(data, worker, trust).to_json()
    except VerifiableError as error:
        fault = Fault.of(error)
    except OSError as error:
        fault = Fault.of(EngineError("the evidence can't be read", found=str(error)))
    return fault.verdict(session=job.session).to_json()


def run_fleet(
    jobs: Sequence[Job],
    pool: Pool,
    results: Results,
    *,
    flush: int = 64,
    tell: Callable[[int, int], None] = lambda done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Audit every job that has no row yet. Returns how many were done now.

    Args:
        flush: rows that are written down together; what was not yet written when the driver dies is done again.
        tell: told how many jobs are done, and how many there are.

    Raises:
        MalformedError: two jobs have one id.
    """
    if len({job.session for job in jobs}) != len(jobs):
        raise MalformedError("jobs", expected="each session once", found="one of them twice")
    known = results.done()
    waiting = deque(job for job in jobs if job.key not in known)
    total, already = len(jobs), len(jobs) - len(waiting)
    tries: dict[str, int] = {}
    started: dict[str, float] = {}
    rows: list[Row] = []
    finished = running = 0
    while waiting or running:
        # Jobs of one model stand together, so the first that fits keeps each auditor at its model.
        for _ in range(len(waiting)):
            job = waiting.popleft()
            if not pool.free(job.model):
                waiting.append(job)
                continue
            tries[job.session] = tries.get(job.session, 0) + 1
            started[job.session] = clock()
            pool.submit(job)
            running += 1
        job, outcome = pool.wait()
        running -= 1
        if isinstance(outcome, LostError):
            if tries[job.session] < MOST_TRIES:
                waiting.appendleft(job)
                continue
            outcome = lost(job, str(outcome))
        rows.append(Row.of(job, outcome, clock() - started[job.session], tries[job.session]))
        finished += 1
        if len(rows) >= flush:
            results.add(rows)
            rows = []
        tell(already + finished, total)
    if rows:
        results.add(rows)
    return finished


def lost(job: Job, why: str) -> dict[str, Any]:
    """The verdict on a job that took down every auditor that had it."""
    fault = Fault(
        "auditor-crashed",
        f"the auditor died {MOST_TRIES} times over this session",
        expected="a verdict",
        found=why[:300],
        hint="This says nothing about the provider. Audit it alone, with more memory.",
    )
    return fault.verdict(session=job.session).to_json()
