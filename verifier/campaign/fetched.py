"""One session of a provider: fetch what it shows, audit that, look for its head in the log, keep what proves itself.

The walk of one session's evidence: `Client.evidence` gives its bytes; `Received.parse` and `check_head` what they say
and who signed that; `Memory.head` compares with what was seen before; `check_evidence_under` opens it; `Question.check`
holds it against what was asked for, `check_promise` against the list and `check_growth` against the session as it was;
`audit` gives the verdict; `conclude` adds the log. Each is made once.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from pathlib import Path

from verifiable import files
from verifiable.checking.caveats import About, Caveat
from verifiable.checking.checks import (
    OpenedEvidence,
    OpenedReceipt,
    SignedHead,
    check_evidence_under,
    check_head,
    check_receipt,
)
from verifiable.checking.fraud import Fraud
from verifiable.checking.revoked import with_keys
from verifiable.checking.verdict import APART, Check, Status, Step, Verdict, from_error
from verifiable.errors import UnknownHostError, VerifiableError, VerificationError
from verifiable.limits import MERGE_DELAY
from verifiable.request.exchange import NOTHING, Asked
from verifiable.session import records
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.receipt import Receipt
from verifiable.session.records import Turn
from verifiable.tlog.cosignature import NOBODY, Quorum
from verifiable.wire.keys import PublicKey
from verifier.auditing.scope import audited
from verifier.auditing.session import audit
from verifier.model.reexecute import Reexecutor
from verifier.offline import frauds
from verifier.offline.question import Question, check_answers
from verifier.offline.rebuild import Bound, check_same_history
from verifier.provider.client import Client, Listed, read_answer
from verifier.provider.continued import check_continued, check_growth
from verifier.provider.listing import check_promise, listed_head
from verifier.provider.logged import Logged, LogReader
from verifier.provider.remember import Contradiction, Memory
from verifier.tolerant.calibration import Calibration

NOT_GIVEN = ("no-evidence", "unreachable")
TOO_LONG = "The log is longer than a fraud file holds: anyone who reads all of it finds the same."


@dataclass(slots=True)
class Auditor:
    """What one run of the auditor uses throughout.

    `folder` takes the evidence of sessions that failed, and with `keep_all` that of every session; `saved` names the
    files written so far. `delay` is the time (ms) within which a head has to be in the provider's log, `quorum` names
    the witnesses who must have cosigned that.
    `seed` is the challenge's, once it is drawn.
    """

    worker: Reexecutor
    trust: Sequence[PublicKey]
    folder: Path
    keep_all: bool = False
    saved: list[str] = field(default_factory=list)
    calibration: Calibration | None = None
    memory: Memory | None = None
    delay: int = MERGE_DELAY
    quorum: Quorum = NOBODY
    seed: bytes | None = None

    def keep(self, name: str, data: bytes) -> None:
        """Keep a file for the auditor alone: evidence holds people's prompts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        files.replace(path, data, 0o600)
        self.saved.append(str(path))


@dataclass(slots=True)
class Received:
    """Evidence as it came, and how far it held: parsed, signed under a trusted manifest, opened."""

    data: bytes
    evidence: Evidence | None = None
    signed: SignedHead | None = None
    opened: OpenedEvidence | None = None

    def parse(self, trust: Sequence[PublicKey]) -> tuple[Evidence, SignedHead]:
        """What it says, and its head. Raises a VerifiableError."""
        self.evidence = read_answer(Evidence.parse, self.data)
        self.signed = check_head(self.evidence.manifest, self.evidence.head, trust)
        return self.evidence, self.signed

    def open(self, evidence: Evidence, signed: SignedHead) -> OpenedEvidence:
        """What `parse` gave, checked. Raises a VerifiableError."""
        self.opened = check_evidence_under(signed, evidence)
        return self.opened


@dataclass(slots=True)
class Fetched:
    """A session as the provider showed it.

    Args:
        session: its id.
        listed: its place in the provider's list, which its evidence must keep to.
        receipt: a client's receipt of it, the newest.
        beside: the list's place of a session that is audited by a client's receipt: another head, maybe.
        size: leaves of the head that evidence is asked for; the newest where None.
        asked: the client's own copy of the receipt's turn.
        turns: those to open, all where None.
        evidence: what came.
        promised: the list's head, under the manifest that came with the evidence.
        stopped: the turn in which its log stops, where those before it are what is audited.
        error: why nothing came, or why it is not to be believed.
        full: turn -> its evidence of kind full, where that was asked for.
        others: older receipts of it, whose turns have to be opened too.
    """

    session: bytes
    listed: Listed | None = None
    receipt: OpenedReceipt | None = None
    beside: Listed | None = None
    size: int | None = None
    asked: Asked = NOTHING
    turns: Sequence[int] | None = None
    evidence: Received | None = None
    promised: SignedHead | None = None
    stopped: int | None = None
    error: VerifiableError | None = None
    full: dict[int, Received] = field(default_factory=dict)
    others: tuple[OpenedReceipt, ...] = ()

    @property
    def receipts(self) -> tuple[OpenedReceipt, ...]:
        """All receipts of it, the newest first."""
        return self.others if self.receipt is None else (self.receipt, *self.others)

    def with_own(self, drawn: Sequence[int], most: int) -> list[int]:
        """At most `most` turns of those drawn, the receipts' own among them, however many these are."""
        own = {each.receipt.turn for each in self.receipts}
        return sorted([*own, *[turn for turn in drawn if turn not in own][: max(0, most - len(own))]])

    @property
    def name(self) -> str:
        """How its files begin."""
        return self.session.hex()[:12]

    @property
    def question(self) -> Question:
        """What the provider is asked for."""
        held = None if self.receipt is None else self.receipt.receipt.turn
        return Question(self.session, self.size, None if self.turns is None else tuple(self.turns), held=held)

    def bound(self) -> Bound | None:
        """What the first of `heads` opens, where that is known."""
        if self.receipt is not None:
            return Bound.of(self.receipt.receipt.opening, self.receipt.session.head)
        opened = None if self.evidence is None else self.evidence.opened
        return None if opened is None else Bound.of(opened.evidence.opening, opened.session.head)

    def heads(self) -> list[SignedHead]:
        """Every head of it that was shown and that is the provider's, a client's own first."""
        received = [each.signed for each in (self.evidence, *self.full.values()) if each is not None]
        own = [each.session.signed for each in self.receipts]
        shown = [signed for signed in (*own, *received, self.promised) if signed is not None]
        return [signed for signed in shown if signed.head.session == self.session]


def fetch(auditor: Auditor, client: Client, wanted: Fetched) -> Fetched:
    """Get a session's evidence, and hold it against the question, the list, its receipts and what was seen before."""
    try:
        if auditor.memory is not None:
            for receipt in wanted.receipts:
                auditor.memory.head(receipt.session.signed)
        for one, other in pairwise(map(_bound, wanted.receipts)):
            check_same_history(one, other)
        received = wanted.evidence = Received(client.evidence(wanted.session, "tokens", wanted.turns, wanted.size))
        _, signed = received.parse(auditor.trust)
        if auditor.memory is not None:
            auditor.memory.head(signed)
        Question(wanted.session).check_head(signed.head)
        if wanted.listed is not None:
            wanted.promised = listed_head(signed, wanted.listed)
        # Before it is opened: else an old head could pass for an interrupted session.
        Question(wanted.session, wanted.size).check_head(signed.head)
        if wanted.promised is not None:
            check_promise(signed.head, wanted.promised.head)
            if auditor.memory is not None:
                auditor.memory.check_listed(signed)
        opened = _open(auditor, client, wanted, received)
        wanted.question.check(opened)
        own = [receipt.session.signed for receipt in wanted.receipts]
        check_growth(client, opened, [each for each in own if each.head.size < opened.session.head.size])
        for receipt in wanted.others:
            check_answers(opened, receipt)
            check_same_history(Bound.of(opened.evidence.opening, opened.session.head), _bound(receipt))
        if auditor.memory is not None:
            check_growth(client, opened, auditor.memory.head(opened.session.signed))
        if wanted.beside is not None:
            check_growth(client, opened, [listed_head(opened.session.signed, wanted.beside)])
    except UnknownHostError:
        raise  # a misspelt address, not what a provider did
    except VerifiableError as error:
        wanted.error = error if isinstance(error, Contradiction) else _forked(client, wanted) or error
    return wanted


def _forked(client: Client, wanted: Fetched) -> Contradiction | None:
    """What the list and a client's receipt contradict each other in, where evidence did not come to show it."""
    if wanted.receipt is not None and wanted.listed is not None:
        mine = wanted.receipt.session.signed
        try:
            check_continued(client, mine, listed_head(mine, wanted.listed), _bound(wanted.receipt))
        except Contradiction as error:
            return error
        except VerifiableError:  # not shown is what it is already
            pass
    return None


def _open(auditor: Auditor, client: Client, wanted: Fetched, received: Received) -> OpenedEvidence:
    """What was fetched, checked; of a log that stops within a turn, what stands before it, under the head of then.

    Else a turn that is begun and left would keep all before it from being audited.
    """
    evidence, signed = received.parse(auditor.trust)
    try:
        return received.open(evidence, signed)
    except VerificationError as error:
        leaves = map(records.parse, evidence.opening.leaves.values())
        stopped = max((leaf for leaf in leaves if isinstance(leaf, Turn)), key=lambda leaf: leaf.seq, default=None)
        if error.code != "interrupted":
            raise
        _check_stops(Bound.of(evidence.opening, signed.head), stopped, wanted)
        if stopped is None or not stopped.turn:
            raise
    before = Bound.of(evidence.opening, signed.head)
    wanted.size, wanted.stopped = stopped.seq, stopped.turn
    received = wanted.evidence = Received(client.evidence(wanted.session, "tokens", wanted.turns, wanted.size))
    evidence, signed = received.parse(auditor.trust)
    if auditor.memory is not None:
        auditor.memory.head(signed)
    Question(wanted.session, wanted.size).check_head(signed.head)
    opened = received.open(evidence, signed)
    check_same_history(before, Bound.of(evidence.opening, signed.head))
    return opened


def _check_stops(shown: Bound, stopped: Turn | None, wanted: Fetched) -> None:
    """Raise VerificationError where a client's receipt shows that the turn ended in which a log is said to stop."""
    for receipt in wanted.receipts:
        check_same_history(shown, _bound(receipt))
        ended = len(receipt.session.spans)
        if stopped is None or ended > stopped.turn:
            raise VerificationError(
                "the evidence stops within a turn that ended, by a client's receipt",
                code="no-evidence",
                expected=f"{ended} turns with their ends",
                found="a log that stops" if stopped is None else f"a log that stops in turn {stopped.turn}",
            )


def _bound(receipt: OpenedReceipt) -> Bound:
    return Bound.of(receipt.receipt.opening, receipt.session.head)


def audit_fetched(auditor: Auditor, client: Client, worker: Reexecutor, fetched: Fetched) -> Verdict:
    """Audit what was fetched; asks the provider for all records where they are needed."""
    received = fetched.evidence
    promised = fetched.listed is not None or auditor.memory is not None
    error = fetched.error
    if received is None:
        error = error or VerificationError("no evidence was fetched", code="no-evidence")
        return from_error(error, session=fetched.session.hex())
    if error is not None and (promised or received.opened is not None or error.code in NOT_GIVEN):
        return from_error(error, session=fetched.session.hex())

    def fetch_full(turn: int) -> OpenedEvidence:
        size = fetched.size if received.signed is None else received.signed.head.size
        full = fetched.full[turn] = Received(client.evidence(fetched.session, "full", [turn], size))
        evidence, signed = full.parse(auditor.trust)
        Question(fetched.session, size).check_head(signed.head)  # before it is opened, as in `fetch`
        opened = full.open(evidence, signed)
        Question(fetched.session, size, (turn,), Kind.FULL).check(opened)
        return opened

    verdict = audit(
        received.opened or received.evidence or received.data,  # where it did not open, the audit says why
        worker,
        auditor.trust,
        receipt=fetched.receipt,
        asked=fetched.asked,
        fetch_full=fetch_full,
        calibration=auditor.calibration,
        seed=auditor.seed,
    )
    if verdict.code in frauds.SELF_PROVING and verdict.turn is not None and verdict.turn not in fetched.full:
        with contextlib.suppress(VerifiableError):
            fetch_full(verdict.turn)
    details = replace(audited(verdict), evidence_digest=hashlib.sha256(received.data).digest())
    stopped = [] if fetched.stopped is None else [Caveat("turn-interrupted", turns=(fetched.stopped,))]
    notes = (*verdict.notes, *stopped)
    return replace(verdict, session=verdict.session or fetched.session.hex(), details=details, notes=notes)


def conclude(auditor: Auditor, client: Client, log: LogReader, fetched: Fetched, verdict: Verdict) -> Verdict:
    """The verdict with what the log says about the session's head; files are written where there is something to show.

    What proves itself is written beside the evidence, with all records where they were needed: those show the
    difference by themselves.
    """
    if isinstance(fetched.error, Contradiction) and fetched.error.fraud is not None:
        auditor.keep(f"{fetched.name}.fraud", fetched.error.fraud.encode())
    heads = fetched.heads()
    if not heads and fetched.listed is not None:  # the list names no manifest: the current one is the only one known
        with contextlib.suppress(VerifiableError):
            heads = [check_head(client.manifest(), fetched.listed.head, auditor.trust)]
    contradiction = None if isinstance(fetched.error, Contradiction) else _two_heads(heads)
    if contradiction is not None:
        auditor.keep(f"{fetched.name}-heads.fraud", contradiction.encode())
        verdict = _failed(verdict, contradiction, auditor)
    own = None if fetched.receipt is None else fetched.receipt.logged
    logged = log.look_up(heads[0], own, fetched.bound()) if heads else None
    if logged is not None:
        verdict = _with_log(verdict, logged, auditor)
        if logged.proof is not None and logged.fits:
            auditor.keep(f"{fetched.name}-log.fraud", logged.proof.encode())
    for receipt in fetched.others:  # an older head is covered by the newer one; its log proof is of a log of its own
        theirs = None if receipt.logged is None else log.look_up(receipt.session.signed, receipt.logged)
        if theirs is not None and not theirs.logged:
            verdict = _with_log(verdict, theirs, auditor)
    if fetched.listed is not None and heads and (verdict.code in APART or fetched.stopped is not None):
        verdict = _not_later(verdict, heads, log)
    opened = audited(verdict).session
    if opened is not None:
        verdict = with_keys(verdict, replace(opened.signed, chain=log.chain), own, auditor.quorum)
    if fetched.evidence is not None and (verdict.status is Status.FAILED or auditor.keep_all):
        _keep_evidence(auditor, fetched, fetched.evidence.data, verdict)
    return verdict


def audit_session(auditor: Auditor, client: Client, wanted: Fetched) -> Verdict:
    """Fetch one session and audit it."""
    if auditor.memory is not None:
        auditor.memory.mark()
    log = LogReader(client, auditor.trust, auditor.delay, auditor.memory, auditor.quorum)
    fetched = fetch(auditor, client, wanted)
    verdict = audit_fetched(auditor, client, auditor.worker, fetched)
    return conclude(auditor, client, log, fetched, verdict)


def count_turns(auditor: Auditor, client: Client, listed: Listed) -> int:
    """How many turns a listed session has, by its receipt under the list's own head. Raises a VerifiableError."""
    receipt = read_answer(Receipt.parse, client.receipt(listed.session, listed.size))
    session = check_receipt(receipt, auditor.trust).session
    Question(listed.session, listed.size).check_head(session.head)
    check_promise(session.head, listed_head(session.signed, listed).head)
    return len(session.spans)


def _keep_evidence(auditor: Auditor, fetched: Fetched, data: bytes, verdict: Verdict) -> None:
    auditor.keep(f"{fetched.name}.evidence", data)
    if verdict.code in frauds.SELF_PROVING and verdict.turn is not None and verdict.token is not None:
        full = fetched.full.get(verdict.turn)
        with contextlib.suppress(VerifiableError):
            if full is not None and full.opened is not None:
                made = frauds.of_token(full.opened, auditor.trust, verdict.turn, verdict.token)
                if made is not None:
                    auditor.keep(f"{fetched.name}.fraud", made.encode())
    for turn, received in fetched.full.items():
        auditor.keep(f"{fetched.name}-turn{turn}-full.evidence", received.data)


def _two_heads(heads: Sequence[SignedHead]) -> Fraud | None:
    made = (frauds.of_heads(one, other) for one, other in combinations(heads, 2))
    return next((fraud for fraud in made if fraud is not None), None)


def _with_log(verdict: Verdict, logged: Logged, auditor: Auditor) -> Verdict:
    verdict = replace(verdict, checks=(*verdict.checks, Check(Step.LOG, logged.logged, logged.detail)))
    if logged.proof is not None:
        failed = _failed(verdict, logged.proof, auditor)
        return failed if logged.fits or verdict.status is Status.FAILED else replace(failed, hint=TOO_LONG)
    notes = [note for note in verdict.notes if note.about is not About.LOG]
    if not logged.logged:
        notes.append(Caveat("log-not-shown", logged.detail))
    verdict = replace(verdict, notes=tuple(notes))
    return verdict if logged.error is None else _worse(verdict, from_error(logged.error))


def _not_later(verdict: Verdict, heads: Sequence[SignedHead], log: LogReader) -> Verdict:
    """The verdict on a session that is said to have stopped, or to have no token, unless the log has more of it.

    It is set apart only where the log that its manifest names was read: else any head from the middle would be.
    """
    if verdict.status is Status.FAILED:
        return verdict
    longest = max(heads, key=lambda each: each.head.size)
    try:
        later = log.later(longest)
    except VerificationError as why:
        unread = VerificationError(
            "whether the session goes on can't be found out: the provider's log can't be read",
            code="no-evidence",
            expected="a log without a later head of the session",
            found=why.statement,
            hint="A session counts as interrupted, or as empty, only where the log shows no more of it.",
        )
        return _instead(verdict, from_error(unread)) if verdict.code in APART else verdict
    if later is None:
        return verdict
    error = VerificationError(
        "the provider's log holds a later head of the session than the provider shows",
        code="no-evidence",
        expected=f"{later} leaves",
        found=f"{longest.head.size}",
        hint="The log was read before the list: what it holds of a session, the provider has to show.",
    )
    return _instead(verdict, from_error(error))


def _failed(verdict: Verdict, proof: Fraud, auditor: Auditor) -> Verdict:
    """The verdict with what a file proves, unless the session has failed already."""
    return _worse(verdict, frauds.verify(proof, auditor.trust, auditor.delay))


def _worse(verdict: Verdict, other: Verdict) -> Verdict:
    """The verdict with what another says of the same session, where that is worse."""
    order = (Status.FAILED, Status.INCONCLUSIVE)
    known = order.index(verdict.status) if verdict.status in order else len(order)
    return verdict if order.index(other.status) >= known else _instead(verdict, other)


def _instead(verdict: Verdict, other: Verdict) -> Verdict:
    """The verdict with what another says of the same session."""
    return replace(
        verdict,
        status=other.status,
        code=other.code,
        summary=other.summary,
        expected=other.expected,
        found=other.found,
        hint=other.hint,
    )
