"""One run of `verifiable audit`: from what was asked on the command line to an outcome."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from verifiable.checking.checks import check_receipt
from verifiable.checking.membership import with_log
from verifiable.checking.offline import receipt_of
from verifiable.checking.verdict import Status, Verdict
from verifiable.commands.progress import Bars
from verifiable.errors import PolicyError, VerifiableError
from verifiable.limits import MERGE_DELAY
from verifiable.llama.gguf.lora import Adapter
from verifiable.manifest.chain import Chain
from verifiable.request.exchange import Asked, Exchange
from verifiable.session.challenge import SEED_BYTES, draw_turns
from verifiable.session.evidence import Evidence
from verifiable.session.receipt import Receipt
from verifiable.tlog.cosignature import NOBODY, Quorum
from verifiable.wire.keys import PublicKey
from verifier.auditing.rounding import decide_sessions
from verifier.auditing.scope import audited
from verifier.auditing.session import audit
from verifier.campaign.beacon import FileBeacon
from verifier.campaign.campaign import audit_provider
from verifier.campaign.crew import Member, check_cores
from verifier.campaign.fetched import Auditor, Fetched, audit_session
from verifier.campaign.outcome import Challenge, Outcome
from verifier.campaign.plan import ChallengePlan
from verifier.campaign.weigh import Disputed, Held, check_signer, hold
from verifier.commands.files import Copies, read_clients, read_copies, read_target
from verifier.commands.options import CopyOptions, DrawOptions, MachineOptions, ProviderOptions
from verifier.model.worker import Worker
from verifier.offline.fault import Fault
from verifier.provider.chain import fetch_chain
from verifier.provider.client import Client
from verifier.provider.remember import Memory
from verifier.tolerant.calibration import Calibration


@dataclass(frozen=True, slots=True)
class Plan:
    """What `verifiable audit` was asked to do: its options, and what was read and parsed of them.

    `folder` takes the evidence of sessions that failed, and with `keep_all` that of every session. `merge_delay` and
    `budget` are in seconds. `trust_names` are what the command line named. `seed` is that of an earlier challenge;
    `beacon` gives one that nobody chose. Without either, it is fresh randomness of this machine.
    """

    target: str
    model: Path
    trust: Sequence[PublicKey]
    trust_names: Sequence[str]
    folder: Path
    provider: ProviderOptions
    draw: DrawOptions
    machine: MachineOptions
    copy: CopyOptions
    keep_all: bool = False
    adapters: tuple[Adapter, ...] = ()
    auditor_key: str | None = None
    merge_delay: float = MERGE_DELAY / 1000
    quorum: Quorum = NOBODY
    budget: float | None = None
    seed: bytes | None = None
    beacon: FileBeacon | None = None
    calibration: Calibration | None = None

    @property
    def is_url(self) -> bool:
        return self.target.startswith(("http://", "https://"))

    def command(self, seed: bytes | None) -> str:
        """The command that repeats the audit; an auditor's key is not written into it."""
        words = ["verifiable", "audit", self.target, "--model", str(self.model)]
        for adapter in self.adapters:
            words += ["--lora", str(adapter)]
        for name in self.trust_names:
            words += ["--trust", name]
        for path in self.provider.keys or ():
            words += ["--keys", str(path)]
        copy = {"--text": self.copy.text, "--request": self.copy.request, "--nonce": self.copy.nonce}
        for option, value in copy.items():
            words += [] if value is None else [option, str(value)]
        if self.provider.provider is not None:
            words += ["--provider", self.provider.provider]
        if self.is_url:
            rate = self.draw.rate
            words += ["--sessions", str(self.draw.sessions)] if rate is None else ["--rate", f"{rate:g}"]
        if self.draw.receipts is not None:
            words += ["--receipts", str(self.draw.receipts)]
        if self.draw.turns is not None:
            words += ["--turns", str(self.draw.turns)]
        if self.merge_delay != MERGE_DELAY / 1000:
            words += ["--merge-delay", f"{self.merge_delay:g}s"]
        for witness in self.quorum.witnesses:
            words += ["--witness", witness.vkey()]
        if self.quorum.witnesses:
            words += ["--quorum", str(self.quorum.needed)]
        if self.calibration is not None:
            words += ["--calibration", str(self.machine.calibration)]
        if self.beacon is not None:
            words += ["--beacon", str(self.draw.beacon), "--chain", self.draw.chain]
        elif seed is not None:
            words += ["--seed", seed.hex()]
        return shlex.join(words)

    def draw_seed(self) -> bytes:
        """The challenge's seed."""
        if self.beacon is not None:
            keys = b"".join(sorted(key.raw for key in Chain.of(self.trust).trusted))
            return self.beacon.round.seed(self.beacon.chain, hashlib.sha256(keys).digest())
        return os.urandom(SEED_BYTES) if self.seed is None else self.seed


def carry_out(plan: Plan) -> Outcome:
    """Carry an audit out. Raises our errors where the call or a file is wrong; the rest is in the verdicts."""
    started, clock = time.time_ns() // 1_000_000, time.monotonic()
    check_cores(plan.machine.processes, plan.machine.threads)
    target = None if plan.is_url else read_target(Path(plan.target))
    copies = _copies(plan, target)
    if isinstance(target, Exchange):
        target = receipt_of(target)
    clients = _clients(plan)
    chain = _chain(plan)
    plan = replace(plan, trust=chain)
    if target is not None:
        check_signer(target.manifest, plan.trust)
    if isinstance(target, Receipt):
        _check_opens(target, plan)
    known = _known(plan, clients)
    with ExitStack() as stack:
        bars = stack.enter_context(Bars())
        worker = Worker(plan.model, threads=plan.machine.threads, progress=bars, adapters=plan.adapters)
        stack.enter_context(worker)
        auditor = Auditor(worker, plan.trust, plan.folder, plan.keep_all, calibration=plan.calibration)
        auditor.delay, auditor.quorum = round(1000 * plan.merge_delay), plan.quorum
        if plan.provider.state is not None:
            auditor.memory = Memory(plan.provider.state, plan.trust)
        challenge: Challenge | None = None
        seed: bytes | None = None
        if target is not None and (plan.calibration is not None or plan.draw.turns is not None):
            seed = auditor.seed = plan.draw_seed()
        if isinstance(target, Evidence):
            verdict = audit(
                target,
                worker,
                plan.trust,
                receipt=copies.receipt,
                asked=copies.asked,
                calibration=plan.calibration,
                seed=seed,
            )
            digest = hashlib.sha256(target.encode()).digest()
            verdict = replace(verdict, details=replace(audited(verdict), evidence_digest=digest))
            verdicts = [_with_receipts_log(verdict, copies, plan)]
        elif isinstance(target, Receipt):
            verdicts = [audit_receipt(auditor, _client(stack, plan, target.capability), target, plan, copies, seed)]
        else:
            client = _client(stack, plan, clients=known.capabilities)
            try:
                verdicts, challenge = audit_provider(
                    auditor,
                    client,
                    plan.draw.sessions,
                    plan.draw_seed,
                    plan.draw.turns,
                    partial(bars, "sessions"),
                    rate=plan.draw.rate,
                    budget=plan.budget,
                    before=None if plan.beacon is None else plan.beacon.time,
                    announce=_announce,
                    crew=_crew(stack, plan, worker, client, known.capabilities),
                    known=known.held,
                    given=plan.seed is not None,
                )
                challenge = replace(challenge, disputed=known.disputed)
                seed = challenge.seed
            except PolicyError:
                raise  # of the call: another provider's key, a host that nobody knows
            except VerifiableError as error:  # the provider's list: unreachable, or no list
                verdicts = [Fault.of(error).verdict()]
    decision = None
    if plan.calibration is not None:
        verdicts, decision = decide_sessions(plan.calibration, verdicts)
    return Outcome(
        source=plan.target,
        verdicts=tuple(verdicts),
        challenge=challenge,
        command=plan.command(seed),
        started=started,
        seconds=time.monotonic() - clock,
        model_file=plan.model.name,
        trusted=tuple(key.vkey() for key in chain.trusted),
        followed=tuple(key.vkey() for key in chain if key not in chain.trusted),
        providers=_providers(chain),
        saved=tuple(auditor.saved),
        beacon=plan.beacon,
        decision=decision,
        calibration=plan.calibration,
        seed_given=plan.seed is not None and seed is not None,
    )


def _chain(plan: Plan) -> Chain:
    """What follows from the trusted keys; asks the provider, where one is named."""
    url, chain = plan.target if plan.is_url else plan.provider.provider, Chain.of(plan.trust)
    if url is None:
        return chain
    with Client(url) as client:
        return fetch_chain(client, chain.trusted, chain.statements)


def _providers(chain: Chain) -> tuple[tuple[str, ...], ...]:
    roots = {root.kid: root for root in map(chain.root_of, chain) if root is not None}
    return tuple(
        (root.vkey(), *(key.vkey() for key in chain.related(root) if key.kid != root.kid)) for root in roots.values()
    )


def _with_receipts_log(verdict: Verdict, copies: Copies, plan: Plan) -> Verdict:
    """Of evidence in a file: what the log proof of its receipt shows, where witnesses were named."""
    if not plan.quorum.witnesses or verdict.status in (Status.FAILED, Status.INCONCLUSIVE):
        return verdict
    try:
        logged = None if copies.receipt is None else check_receipt(copies.receipt, plan.trust).logged
        return with_log(verdict, logged, plan.quorum)
    except VerifiableError as error:
        return Fault.of(error).verdict(session=verdict.session, checks=verdict.checks, details=verdict.details)


@dataclass(frozen=True, slots=True)
class _Known:
    """What clients handed over: receipts that hold (None where none were named), and what does not."""

    held: list[Held] | None = None
    disputed: tuple[Disputed, ...] = ()
    capabilities: Mapping[bytes, bytes] = field(default_factory=dict)


def _clients(plan: Plan) -> list[tuple[Receipt, Asked]] | None:
    """What the folder of `--receipts` holds. Raises PolicyError where it is of no use here."""
    if plan.draw.receipts is None:
        return None
    if not plan.is_url:
        raise PolicyError(
            "--receipts goes with a provider's address", expected="http:// or https://", found=plan.target
        )
    return read_clients(plan.draw.receipts)


def _known(plan: Plan, clients: Sequence[tuple[Receipt, Asked]] | None) -> _Known:
    """The receipts of clients. Raises PolicyError where they are another provider's, or of no use here."""
    if clients is None:
        return _Known()
    found = []
    for receipt, asked in clients:
        check_signer(receipt.manifest, plan.trust)
        _check_opens(receipt, plan)
        found.append(hold(receipt, asked, plan.trust))
    held, disputed = [each for each, _ in found if each is not None], [each for _, each in found if each is not None]
    capabilities = {each.session: each.receipt.receipt.capability for each in held}
    return _Known(held, tuple(disputed), {session: own for session, own in capabilities.items() if own is not None})


def _check_opens(receipt: Receipt, plan: Plan) -> None:
    """Raise PolicyError where neither a receipt nor the auditor's key opens the session's evidence."""
    if receipt.capability is None and plan.auditor_key is None:
        raise PolicyError(
            "a receipt without capability does not open its session's evidence",
            expected="--auditor-key KEY",
            found="none",
            hint="Have a key of the operator's, or the receipt as it came with the answer, or a file of evidence.",
        )


def _announce(planned: ChallengePlan) -> None:
    print("\n".join(planned.lines()), file=sys.stderr, flush=True)


def _copies(plan: Plan, target: Receipt | Evidence | Exchange | None) -> Copies:
    """What a client kept of the target's turn. Raises PolicyError where there is no such turn."""
    if target is None and plan.copy.given:
        raise PolicyError(
            "--text, --request and --nonce are of one answer",
            expected="a receipt, an exchange or evidence as the target",
            found=plan.target,
        )
    return read_copies(plan.copy.text, plan.copy.request, plan.copy.nonce, target)


def audit_receipt(
    auditor: Auditor, client: Client, receipt: Receipt, plan: Plan, copies: Copies, seed: bytes | None
) -> Verdict:
    """Check a receipt, fetch the evidence of its turn under its own head, and audit that."""
    try:
        held = check_receipt(receipt, plan.trust, *copies.asked.texts)
    except VerifiableError as error:
        return Fault.of(error).verdict()
    head, turns = held.session.head, None
    if seed is not None and plan.draw.turns is not None:
        drawn = draw_turns(seed, head.session, len(held.session.spans), plan.draw.turns)
        turns = sorted({*drawn, receipt.turn})
    wanted = Fetched(head.session, receipt=held, size=head.size, asked=copies.asked, turns=turns)
    return audit_session(auditor, client, wanted)


def _crew(stack: ExitStack, plan: Plan, worker: Worker, client: Client, clients: Mapping[bytes, bytes]) -> list[Member]:
    """The processes that work side by side: the first, and its twins with a connection each."""
    more = [stack.enter_context(worker.twin()) for _ in range(plan.machine.processes - 1)]
    return [Member(worker, client), *[Member(twin, _client(stack, plan, clients=clients)) for twin in more]]


def _client(
    stack: ExitStack, plan: Plan, capability: bytes | None = None, clients: Mapping[bytes, bytes] | None = None
) -> Client:
    url = plan.target if plan.is_url else plan.provider.provider
    if url is None:
        raise PolicyError(
            "a receipt alone does not hold the tokens",
            expected="--provider URL",
            found="none",
            hint="Name the provider that gave the receipt, or audit a file of evidence.",
        )
    return stack.enter_context(Client(url, auditor_key=plan.auditor_key, capability=capability, clients=clients))
