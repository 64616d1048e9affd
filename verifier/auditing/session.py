"""The audit of one session's evidence: every check of spec/protocol.md in its order, cheapest first, to one verdict.

`audit` is a function of its arguments: evidence, model and keys in, verdict out. What the evidence says never raises:
whatever is wrong with it, or with running the model over it, is in the verdict.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike

from verifiable.checking.checks import OpenedSession, OpenedTurn, check_evidence, check_receipt, check_text
from verifiable.checking.verdict import Check, Status, Verdict
from verifiable.errors import PolicyError, VerifiableError, VerificationError
from verifiable.llama.gguf.lora import Adapter
from verifiable.manifest.manifest import RAW_LOGITS, AdapterFile, Manifest, ModelIdentity
from verifiable.session.challenge import SEED_BYTES, window_lot
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.receipt import Receipt
from verifiable.wire.keys import PublicKey
from verifier.auditing.marks import COMPARED, UNCHECKED
from verifier.auditing.scope import describe, not_shown
from verifier.auditing.turn import TurnResult, check_words, recompute
from verifier.model.reexecute import Progress, Reexecutor, Worker
from verifier.offline.fault import Fault
from verifier.offline.rebuild import Bound, check_same_history
from verifier.offline.replay import replay_records, replayable
from verifier.tolerant.calibration import Calibration
from verifier.tolerant.tolerant import KEY, TOLERABLE, details, measure_turns, settle

FetchFull = Callable[[int], bytes]
"""Gets the evidence of kind `full` of a turn from the provider, encoded; raises a VerifiableError where it can't."""


def audit(
    evidence: Evidence | bytes,
    model: str | PathLike[str] | Reexecutor,
    trust: Sequence[PublicKey],
    *,
    receipt: Receipt | None = None,
    text: str | None = None,
    fetch_full: FetchFull | None = None,
    calibration: Calibration | None = None,
    seed: bytes | None = None,
    progress: Progress | None = None,
    threads: int = 1,
    adapters: Sequence[Adapter] = (),
) -> Verdict:
    """Re-execute a session's opened turns and compare every bit with what the provider committed to.

    Args:
        evidence: what the provider, or the holder of a receipt, handed over.
        model: the GGUF file, or a `Worker` that has it (to audit many sessions with one load), or another Reexecutor.
        trust: the provider keys that may have signed the manifest; never taken from the evidence.
        receipt: the client's receipt of the same session: its head must tell the same history.
        text: the answer as the client has it, to the receipt's turn or, without a receipt, to the last turn opened.
        fetch_full: asks for all records after a difference was found, so that the verdict can name the first.
        calibration: for the tolerant comparison, where the bits of this machine are not the provider's.
        seed: of the challenge, from which that comparison draws which tokens it compares; drawn here where None.
        progress, threads, adapters: for the worker, when `model` is a path.

    Raises:
        PolicyError: no key to trust.
        ModuleNotFoundError: the extra `llama` is not installed.
    """
    if not trust:
        raise PolicyError("no key to trust", hint="Get the provider's public key over a channel that you trust.")
    with ExitStack() as stack:
        if isinstance(model, (str, PathLike)):
            model = stack.enter_context(Worker(model, threads=threads, progress=progress, adapters=adapters))
        drawn = os.urandom(SEED_BYTES) if seed is None else seed
        return _Audit(model, tuple(trust), receipt, text, fetch_full, calibration, drawn).run(evidence)


class _Audit:
    """One audit on its way: what was checked so far, and the verdict that follows when something ends it."""

    def __init__(
        self,
        worker: Reexecutor,
        trust: tuple[PublicKey, ...],
        receipt: Receipt | None,
        text: str | None,
        fetch_full: FetchFull | None,
        calibration: Calibration | None,
        seed: bytes,
    ) -> None:
        self.calibration = calibration
        self.seed = seed
        self.worker = worker
        self.trust = trust
        self.receipt = receipt
        self.text = text
        self.fetch_full = fetch_full
        self.checks: list[Check] = []
        self.session: OpenedSession | None = None
        self.turns: tuple[OpenedTurn, ...] = ()
        self.prompts: dict[int, list[int]] = {}
        self.results: list[TurnResult] = []
        self.doing = "Evidence file"

    def run(self, evidence: Evidence | bytes) -> Verdict:
        try:
            parsed = Evidence.parse(evidence) if isinstance(evidence, bytes) else evidence
            self.doing = "Signatures, log and structure"
            session, turns = check_evidence(parsed, self.trust)
            self.session, self.turns = session, turns
            self._passed(
                f"signed by {session.manifest.provider}; {session.head.size} leaves give the signed root; requests, "
                "parameters and nonces are what was asked"
            )
            bounds = [Bound.of(parsed.opening, session.head.size, session.head.root), *self._other_bounds(session)]
            if self.receipt is not None:
                check_same_history(bounds[0], bounds[1])
                self._passed(f"the client's receipt ({bounds[1].size} leaves) tells the same history")
            self._check_text(session)
            fault = (
                self._replay_shown()
                or self._check_model(session.manifest)
                or self._check_words(session)
                or self._check_numerics(session.manifest)
            )
            if fault is not None and self.calibration is not None and fault.code in TOLERABLE:
                return self._tolerate(session, bounds[0], self.calibration, fault)
            return self._verdict(fault or self._reexecute(session, bounds))
        except VerifiableError as error:
            return self._verdict(Fault.of(error))

    def _other_bounds(self, session: OpenedSession) -> list[Bound]:
        if self.receipt is None:
            return []
        self.doing = "Receipt"
        held = check_receipt(self.receipt, self.trust)
        if held.head.session != session.head.session:
            raise VerificationError(
                "the receipt is of another session",
                code="session-differs",
                expected=session.head.session.hex(),
                found=held.head.session.hex(),
                hint="Audit the evidence of the receipt's own session.",
            )
        return [Bound.of(self.receipt.opening, held.head.size, held.head.root)]

    def _check_text(self, session: OpenedSession) -> None:
        if self.text is None:
            return
        self.doing = "Text as received"
        opened = [turn.span.turn.turn for turn in self.turns]
        number = self.receipt.turn if self.receipt is not None else max(opened, default=0)
        check_text(session, number, self.text)
        self._passed(f"the text you have is the text that was committed in turn {number}")

    def _replay_shown(self) -> Fault | None:
        """The draws of the records that the evidence shows: cheaper than the model, so before it."""
        shown = sum(map(replayable, self.turns))
        if not shown:
            return None
        self.doing = "Sampler replay of the records shown"
        for turn in self.turns:
            fault = replay_records(turn)
            if fault is not None:
                self._keep(turn, fault)
                return fault
        self._passed(f"{shown} tokens follow from their records and the turn's key")
        return None

    def _check_model(self, manifest: Manifest) -> Fault | None:
        """Whether the auditor's file is the model that the provider committed to."""
        self.doing = "Model file"
        identity = self.worker.identity()
        fault = _compare_models(manifest.model, identity)
        if fault is None:
            added = "".join(f", with {file.name} × {file.scale:g}" for file in identity.adapters)
            self._passed(f"{identity.files[0].name}{added} has the committed hash, tokenizer and template")
        return fault

    def _check_words(self, session: OpenedSession) -> Fault | None:
        """Prompts, texts and endings: they need the tokenizer alone, so they fail also where numerics differ."""
        self.doing = "Prompt and text"
        _, ends = self.worker.load(session.manifest.runtime)
        for turn in self.turns:
            prompt, fault = check_words(turn, self.worker, ends, session.opened.time)
            if fault is not None:
                self._keep(turn, fault)
                return fault
            self.prompts[turn.span.turn.turn] = prompt
        if self.turns:
            self._passed("the model was given what the client asked, and the text is that of the tokens")
        return None

    def _check_numerics(self, manifest: Manifest) -> Fault | None:
        """Whether this machine gives the provider's bits."""
        self.doing = "Numerics"
        runtime = manifest.runtime
        if manifest.value_kind != RAW_LOGITS:
            return Fault(
                "not-raw-logits",
                "the provider commits to log-probabilities, which can't be compared bit for bit",
                expected="raw logits",
                found="log-probabilities",
                hint="Such sessions need the statistical audit.",
            )
        if not runtime.invariant:
            return Fault(
                "not-invariant",
                "the manifest says that the provider's logits depend on how requests are batched",
                expected="a manifest whose numerics probe found batch invariance",
                found=f"KV {runtime.type_k}/{runtime.type_v}, repack {runtime.repack}, tiled {runtime.tiled}",
                hint="Exact audit is impossible; ask the provider for batch-invariant settings.",
            )
        probed = self.worker.probe(runtime)
        if not probed.invariant:
            return Fault(
                "not-invariant",
                "on this machine the logits depend on how the work is batched",
                expected="a numerics probe that finds invariance, as the provider's did",
                found=f"build {probed.build[0]}" if probed.build else "another build",
                hint="Audit on a machine with the provider's build of llama.cpp.",
            )
        if probed.fingerprint != runtime.fingerprint:
            return Fault(
                "fingerprint-differs",
                "this machine computes other bits than the provider's, also for an honest provider",
                expected=f"{runtime.fingerprint.hex()} ({runtime.build})",
                found=f"{probed.fingerprint.hex()} ({probed.build[0] if probed.build else 'unknown build'})",
                hint="Audit on the same class of machine and the same build of llama.cpp, or statistically.",
            )
        self._passed(f"this machine's fingerprint {probed.fingerprint.hex()[:16]}… is the provider's: exact audit")
        return None

    def _reexecute(self, session: OpenedSession, bounds: list[Bound]) -> Fault | None:
        self.doing = "Re-execution"
        self.worker.load(session.manifest.runtime)
        show = None if self.fetch_full is None else self._fetch(self.fetch_full, session, bounds[0])
        for turn in self.turns:
            if not turn.whole:
                continue
            result = recompute(session, turn, self.prompts[turn.span.turn.turn], bounds, self.worker, show)
            self.results.append(result)
            if result.fault is not None:
                return result.fault
        done = [result for result in self.results if result.checked]
        if not done:
            return None
        tokens = sum(result.checked for result in done)
        turns = f"{len(done)} turn{'s' if len(done) != 1 else ''}"
        self._passed(f"{tokens} tokens of {turns}: every committed logit has the same bits here")
        self.checks.append(Check("Sampler replay", True, f"{tokens} tokens follow from their records and the nonce"))
        return None

    def _tolerate(self, session: OpenedSession, bound: Bound, calibration: Calibration, fault: Fault) -> Verdict:
        """Compare within rounding, since the bits can't be compared; the draws are replayed from the records."""
        self.checks.append(Check(self.doing, None, fault.what))
        self.doing = "Comparison within rounding"
        calibration.check_fits(
            self.worker.identity(), session.manifest, self.worker.probe(session.manifest.runtime).build
        )
        turns = [turn for turn in self.turns if turn.whole and turn.span.end.completion_count]
        if self.fetch_full is not None:
            show = self._fetch(self.fetch_full, session, bound)
            turns = [turn if turn.shown else show(turn.span.turn.turn) for turn in turns]
        if not turns or not all(turn.shown for turn in turns):
            return self._verdict(replace(fault, hint="A comparison within rounding needs evidence of kind full."))
        for turn in turns:
            departed = replay_records(turn)
            if departed is not None:
                self._keep(turn, departed)
                return self._verdict(departed)
        lot = window_lot(self.seed, session.head.session)
        found, parts = measure_turns(
            turns, self.prompts, self.worker, session.manifest.runtime, calibration.lengths()[-1], lot
        )
        claims = iter(map(float, found.claim))
        for turn, part in zip(turns, parts, strict=True):
            leaf, count = turn.span.turn, turn.span.end.completion_count
            differences = (*[0.0] * part.start, *itertools.islice(claims, len(part)))
            strip = (UNCHECKED * part.start + COMPARED * len(part)).ljust(count, UNCHECKED)
            self.results.append(TurnResult(leaf.turn, leaf.prompt_count, count, 0, strip, differences=differences))
        self._passed(f"{len(found)} tokens from token {found.start} on, compared with this machine's own rounding")
        undecided = self._verdict(Fault("too-little-evidence", "measured, but not yet decided"))
        kept = {**undecided.details, KEY: details(found, self.seed)}
        verdict = replace(undecided, checks=tuple(self.checks[:-1]), details=kept)
        return settle(calibration, [verdict])[0][0]

    def _fetch(self, fetch_full: FetchFull, session: OpenedSession, bound: Bound) -> Callable[[int], OpenedTurn]:
        def show(number: int) -> OpenedTurn:
            evidence = Evidence.parse(fetch_full(number))
            found, turns = check_evidence(evidence, self.trust)
            turn = next((turn for turn in turns if turn.span.turn.turn == number), None)
            if evidence.kind is not Kind.FULL or turn is None or found.head.session != session.head.session:
                raise VerificationError("the provider sent other evidence than was asked for", code="no-evidence")
            check_same_history(bound, Bound.of(evidence.opening, found.head.size, found.head.root))
            return turn

        return show

    def _passed(self, detail: str) -> None:
        self.checks.append(Check(self.doing, True, detail))

    def _keep(self, turn: OpenedTurn, fault: Fault) -> None:
        leaf, count = turn.span.turn, turn.span.end.completion_count
        self.results.append(TurnResult(leaf.turn, leaf.prompt_count, count, 0, UNCHECKED * count, fault))

    def _verdict(self, fault: Fault | None) -> Verdict:
        checked = sum(result.checked for result in self.results)
        total = 0 if self.session is None else sum(turn.span.end.completion_count for turn in self.turns)
        session = None if self.session is None else self.session.head.session.hex()
        if fault is None and not checked:
            fault = Fault(
                "nothing-checked",
                "no token was recomputed",
                expected="a whole turn with at least one token",
                found="records without the tokens before them" if total else "no tokens",
                hint="Ask for evidence of kind tokens or full.",
            )
        notes = () if self.session is None else not_shown(self.session, self.turns, self.results, self.receipt)
        if fault is None:
            return Verdict(
                Status.EXACT,
                f"{checked} of {total} tokens recomputed: every committed logit has the same bits here, and every "
                "token is the one that its record and the nonce give",
                session=session,
                checks=tuple(self.checks),
                not_shown=notes,
                tokens_checked=checked,
                tokens_total=total,
                details=describe(self.session, self.turns, self.results),
            )
        self.checks.append(Check(self.doing, False if fault.proven else None, fault.what))
        failed = next((result.turn for result in self.results if result.fault is not None), None)
        return fault.verdict(
            failed,
            session=session,
            checks=tuple(self.checks),
            not_shown=notes,
            tokens_checked=checked,
            tokens_total=total,
            details={**describe(self.session, self.turns, self.results), "fault": fault.details},
        )


def _compare_models(committed: ModelIdentity, mine: ModelIdentity) -> Fault | None:
    wanted = [(file.sha256, file.size) for file in committed.files]
    if wanted != [(file.sha256, file.size) for file in mine.files]:
        return Fault(
            "model-differs",
            "your model file is not the one that the provider committed to",
            expected=f"{committed.files[0].name}, sha256 {committed.files[0].sha256.hex()}",
            found=f"{mine.files[0].name}, sha256 {mine.files[0].sha256.hex()}",
            hint="Nothing is proven by this. Fetch the file with the committed hash, or ask why another was named.",
        )
    fault = _compare_adapters(committed.adapters, mine.adapters)
    if fault is not None:
        return fault
    for name in ("vocabulary", "tokenizer_digest", "template_digest", "suppressed"):
        theirs, here = getattr(committed, name), getattr(mine, name)
        if theirs != here:
            return Fault(
                "identity-differs",
                f"the manifest states another {name.replace('_', ' ')} than the file that it names has",
                expected=here.hex() if isinstance(here, bytes) else str(here),
                found=theirs.hex() if isinstance(theirs, bytes) else str(theirs),
                hint="The manifest contradicts its own model file.",
            )
    return None


def _compare_adapters(committed: tuple[AdapterFile, ...], mine: tuple[AdapterFile, ...]) -> Fault | None:
    wanted = [(file.sha256, file.size, file.scale) for file in committed]
    if wanted == [(file.sha256, file.size, file.scale) for file in mine]:
        return None
    options = " ".join(f"--lora {file.name}:{file.scale!r}" for file in committed)
    return Fault(
        "model-differs",
        "your adapters are not those that the provider committed to",
        expected=_adapters(committed),
        found=_adapters(mine),
        hint="Nothing is proven by this. Audit with " + (f"{options}, in that order." if options else "no --lora."),
    )


def _adapters(files: tuple[AdapterFile, ...]) -> str:
    return ", then ".join(f"{file.name} × {file.scale!r}, sha256 {file.sha256.hex()}" for file in files) or "no adapter"
