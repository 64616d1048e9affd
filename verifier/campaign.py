"""Auditing a provider over HTTP: fetch its list, draw sessions, audit each, and put the verdicts together.

Order matters: the list of signed heads is fetched first, the seed is drawn after it. What is then audited has to be
what the list promised.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from verifiable.challenge import draw_sessions, draw_turns
from verifiable.checks import check_evidence, check_receipt
from verifiable.cose import peek1
from verifiable.errors import VerifiableError, VerificationError
from verifiable.evidence import Evidence
from verifiable.head import Head, verify_head
from verifiable.keys import PublicKey
from verifiable.receipt import Receipt
from verifiable.verdict import Status, Verdict
from verifier.calibration import Calibration
from verifier.client import Client, Listed
from verifier.fault import Fault
from verifier.frauds import SELF_PROVING, of_token
from verifier.outcome import Draw
from verifier.plan import ChallengePlan, Clocked, plan
from verifier.reexecute import Reexecutor
from verifier.remember import Contradiction, Memory, check_growth, check_log
from verifier.session import audit

MAX_SESSIONS = 100_000
"""The newest sessions of a provider that the lottery is held over."""


@dataclass(slots=True)
class Auditor:
    """What one run of the auditor uses throughout.

    `folder` takes the evidence of sessions that failed, and with `keep_all` that of every session; `saved` names the
    files written so far.
    """

    worker: Reexecutor
    trust: Sequence[PublicKey]
    folder: Path
    keep_all: bool = False
    saved: list[str] = field(default_factory=list)
    calibration: Calibration | None = None
    memory: Memory | None = None

    def keep(self, name: str, data: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        path.write_bytes(data)
        self.saved.append(str(path))


def audit_session(
    auditor: Auditor,
    client: Client,
    session: bytes,
    *,
    listed: Listed | None = None,
    receipt: Receipt | None = None,
    size: int | None = None,
    text: str | None = None,
    turns: Sequence[int] | None = None,
) -> Verdict:
    """Fetch a session's evidence and audit it. A failed session's evidence is kept; see `Auditor.save`."""
    size = listed.size if listed is not None else size
    full: dict[int, bytes] = {}
    try:
        data = client.evidence(session, "tokens", turns, size)
        if listed is not None:
            check_promise(Evidence.parse(data), auditor.trust, listed)
        if auditor.memory is not None:
            check_growth(auditor.memory, client, Evidence.parse(data), auditor.trust, newest=listed is not None)
    except VerifiableError as error:
        if isinstance(error, Contradiction) and error.fraud is not None:
            auditor.keep(f"{session.hex()[:12]}.fraud", error.fraud.encode())
        return Fault.of(error).verdict(session=session.hex())

    def fetch_full(turn: int) -> bytes:
        full[turn] = client.evidence(session, "full", [turn], size)
        return full[turn]

    verdict = audit(
        data,
        auditor.worker,
        auditor.trust,
        receipt=receipt,
        text=text,
        fetch_full=fetch_full,
        calibration=auditor.calibration,
    )
    if verdict.status is Status.FAILED or auditor.keep_all:
        # With all records when they were needed: those show the difference by themselves.
        name = session.hex()[:12]
        auditor.keep(f"{name}.evidence", data)
        if verdict.code in SELF_PROVING and verdict.turn is not None and verdict.token is not None:
            keep_fraud(auditor, fetch_full, name, verdict.turn, verdict.token)
        for turn, records in full.items():
            auditor.keep(f"{name}-turn{turn}-full.evidence", records)
    return replace(verdict, session=verdict.session or session.hex())


def keep_fraud(auditor: Auditor, fetch_full: Callable[[int], bytes], name: str, turn: int, token: int) -> None:
    """Write the file that proves a departing token; nothing where the provider does not show its record."""
    with contextlib.suppress(VerifiableError):
        made = of_token(Evidence.parse(fetch_full(turn)), auditor.trust, turn, token)
        if made is not None:
            auditor.keep(f"{name}.fraud", made.encode())


def check_promise(evidence: Evidence, trust: Sequence[PublicKey], listed: Listed) -> None:
    """Raise VerificationError unless the evidence stands under the very head that the provider's list showed."""
    opened, _ = check_evidence(evidence, trust)
    promised = verify_head(listed.head, opened.manifest.session_keys)
    given = (opened.head.session, opened.head.size)
    if given != (listed.session, listed.size) or (promised.session, promised.size) != given:
        raise VerificationError(
            "the provider's list, its head and its evidence do not belong together",
            code="list-differs",
            expected=f"session {listed.session.hex()}, {listed.size} leaves",
            found=f"head of {promised.session.hex()}, {promised.size}; evidence of {given[0].hex()}, {given[1]}",
        )
    if opened.head.root != promised.root:
        raise VerificationError(
            "the provider signed two histories of one session: in its list and in its evidence",
            code="two-histories",
            expected=promised.root.hex(),
            found=opened.head.root.hex(),
        )


def audit_provider(
    auditor: Auditor,
    client: Client,
    count: int,
    seed: Callable[[], bytes],
    turns: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
    *,
    rate: float | None = None,
    budget: float | None = None,
    before: int | None = None,
    announce: Callable[[ChallengePlan], None] = lambda plan: None,
) -> tuple[list[Verdict], Draw]:
    """Draw `count` of the provider's sessions and audit them, with at most `turns` turns of each.

    Args:
        seed: called once, after the list was fetched; gives the challenge's seed.
        report: told how many sessions are done.
        rate: the share of the sessions to draw, instead of `count`.
        budget: seconds after which no further session is begun; the plan and the draw say what that comes to.
        before: draw only sessions whose heads say that they were signed before that time (ms), a beacon's round.
        announce: told the plan before the first session is fetched.

    Raises:
        PolicyError: the rate is out of range.
        VerificationError: the list cannot be had (`unreachable`).
        MalformedError: the list is not well formed.
    """
    if auditor.memory is not None:
        try:
            check_log(auditor.memory, client)
        except Contradiction as error:
            if error.fraud is not None:
                auditor.keep("log.fraud", error.fraud.encode())
            raise
    listed = {entry.session: entry for entry in client.sessions(MAX_SESSIONS)}
    if before is not None:
        listed = {session: entry for session, entry in listed.items() if signed_at(entry) < before}
    planned = plan(len(listed), count, rate, budget)
    announce(planned)
    drawn_with = seed()
    chosen = draw_sessions(drawn_with, listed, planned.sessions)
    clocked = Clocked(budget, time.monotonic)
    verdicts: list[Verdict] = []
    for done, session in enumerate(chosen):
        report(done, len(chosen))
        if not clocked.allows(done):
            break
        try:
            picked = None if turns is None else pick_turns(auditor, client, listed[session], drawn_with, turns)
        except VerifiableError as error:
            verdicts.append(Fault.of(error).verdict(session=session.hex()))
            continue
        verdicts.append(audit_session(auditor, client, session, listed=listed[session], turns=picked))
    report(len(chosen), len(chosen))
    return verdicts, Draw(drawn_with, len(listed), len(verdicts), turns, planned)


def signed_at(listed: Listed) -> int:
    """When a listed head says that it was signed (ms). Raises MalformedError."""
    return Head.parse(peek1(listed.head).payload).time


def pick_turns(auditor: Auditor, client: Client, listed: Listed, seed: bytes, count: int) -> list[int]:
    """Draw `count` turns of a session; its receipt tells how many there are."""
    receipt = Receipt.parse(client.receipt(listed.session, listed.size))
    return draw_turns(seed, listed.session, len(check_receipt(receipt, auditor.trust).spans), count)
