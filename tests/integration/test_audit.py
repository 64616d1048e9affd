"""Auditing real models: one-by-one decoding and chunked re-execution give the same bits, and nothing else passes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.real_model import SETTINGS, HonestProvider, provider
from tests.sessions import TRUST, Recording, ask
from verifiable.checking.verdict import Status
from verifiable.errors import VerificationError
from verifiable.llama.settings import STOCK
from verifiable.manifest.manifest import Library, Manifest
from verifiable.request.request import COMPLETION, Request
from verifiable.session.evidence import Evidence, Kind
from verifier import Worker, audit
from verifier.auditing.scope import audited
from verifier.model.child import Child

STORY = "Tell me a story about a lighthouse."


def question(text: str = STORY, **body: Any) -> Request:
    return ask(messages=[{"role": "user", "content": text}], **body)


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[HonestProvider]:
    with provider(smollm2) as opened:
        yield opened


@pytest.fixture(scope="module")
def worker(smollm2: Path) -> Iterator[Worker]:
    with Worker(smollm2) as opened:
        yield opened


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_one_by_one_and_chunks_give_the_same_bits(smol: HonestProvider, worker: Worker, temperature: float) -> None:
    made = smol.answer(question(max_tokens=80, temperature=temperature))
    full = made.evidence(Kind.FULL).encode()
    for evidence in (made.evidence().encode(), full):
        verdict = audit(evidence, worker, TRUST, receipt=made.receipt(), text=made.texts[0])
        assert (verdict.status, verdict.code) == (Status.EXACT, None)
        assert verdict.tokens_checked == verdict.tokens_total > 0
    assert len(made.evidence().encode()) < 4 * verdict.tokens_total + 2560


def test_a_long_prompt_and_several_turns_verify(smol: HonestProvider, worker: Worker) -> None:
    long = "The sea was calm that day, and the keeper counted the ships. " * 45
    made = smol.answer(question(long, max_tokens=12, temperature=0.7))
    smol.answer(question("And then?", max_tokens=30, seed=3, verifiable={}), made)
    smol.answer(ask(COMPLETION, prompt=[3, 4, 5, 6], max_tokens=10), made)
    smol.answer(ask(COMPLETION, prompt="Once upon a time", max_tokens=20, stop=["the"]), made)
    smol.answer(question(max_tokens=5), made, cut=4)
    made.close()
    verdict = audit(made.evidence(), worker, TRUST, receipt=made.receipt())
    assert (verdict.status, verdict.code) == (Status.EXACT, None)
    assert [turn.prompt_tokens > 512 for turn in audited(verdict).turns] == [True, False, False, False, False]


def test_a_large_vocabulary_with_sliding_windows_verifies(gemma3: Path) -> None:
    with provider(gemma3) as opened:
        made = opened.answer(ask(COMPLETION, prompt="The lighthouse stood " * 40, max_tokens=150, temperature=0.9))
    # 300 rows of 262,144 logits are more than one call may leave in memory.
    verdict = audit(made.evidence(), gemma3, TRUST)
    assert (verdict.status, verdict.code) == (Status.EXACT, None)
    assert verdict.tokens_checked == verdict.tokens_total


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_a_quantised_cache_is_proven(smol: HonestProvider, worker: Worker, kv_type: str) -> None:
    served = replace(SETTINGS, type_k=kv_type, type_v=kv_type)
    cheat = HonestProvider(smol.model, smol.manifest, served)
    made = cheat.answer(question(max_tokens=24, temperature=0.7))
    cheat.close()
    full = made.evidence(Kind.FULL).encode()
    for verdict in (audit(made.evidence(), worker, TRUST), audit(full, worker, TRUST)):
        assert (verdict.status, verdict.code) == (Status.FAILED, "kv-cache-differs")
        assert verdict.found is not None
        assert kv_type in verdict.found
    # The worker goes back to the manifest's settings for the next session.
    honest = smol.answer(question(max_tokens=8))
    assert audit(honest.evidence(), worker, TRUST).status is Status.EXACT


def test_an_f16_cache_is_proven_by_the_schedule_of_generation(smol: HonestProvider, worker: Worker) -> None:
    cheat = HonestProvider(smol.model, smol.manifest, replace(SETTINGS, type_k="f16", type_v="f16"))
    made = cheat.answer(question(max_tokens=16, temperature=0.7))
    cheat.close()
    verdict = audit(made.evidence(Kind.FULL), worker, TRUST)
    assert verdict.code == "kv-cache-differs"
    assert verdict.found is not None
    assert "f16" in verdict.found


def test_another_quantisation_fails_at_the_first_token(
    smol: HonestProvider, worker: Worker, smollm2_variant: Callable[[str], Path]
) -> None:
    from verifiable.llama.model import Model

    with Model.load(smollm2_variant("Q8_0")) as other:
        cheat = HonestProvider(other, smol.manifest)
        made = cheat.answer(question(max_tokens=16, temperature=0.7))
        cheat.close()
    full = made.evidence(Kind.FULL).encode()
    verdict = audit(made.evidence(), worker, TRUST, fetch_full=lambda turn: full)
    assert (verdict.status, verdict.code, verdict.token) == (Status.FAILED, "logits-differ", 0)
    assert audit(made.evidence(), worker, TRUST).code == "records-differ"


def test_your_own_wrong_file_is_inconclusive(smol: HonestProvider, smollm2_variant: Callable[[str], Path]) -> None:
    verdict = audit(smol.answer(question(max_tokens=4)).evidence(), smollm2_variant("Q8_0"), TRUST)
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "model-differs")


def test_stock_settings_are_not_invariant_and_so_inconclusive(smol: HonestProvider, worker: Worker) -> None:
    """A provider that claims invariance for settings that have none is not believed."""
    runtime = replace(smol.manifest.runtime, type_k=STOCK.type_k, type_v=STOCK.type_v)
    made = HonestProvider(smol.model, replace(smol.manifest, runtime=runtime)).answer(question(max_tokens=4))
    verdict = audit(made.evidence(), worker, TRUST)
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "not-invariant")
    claimed = replace(smol.manifest, runtime=replace(runtime, invariant=False))
    made = HonestProvider(smol.model, claimed).answer(question(max_tokens=4))
    assert audit(made.evidence(), worker, TRUST).code == "not-invariant"


def test_another_fingerprint_is_inconclusive_and_says_both(smol: HonestProvider, worker: Worker) -> None:
    elsewhere = replace(smol.manifest.runtime, fingerprint=b"f" * 32, libraries=(Library("libggml", b"l" * 32),))
    other = replace(smol.manifest, runtime=elsewhere)
    made = HonestProvider(smol.model, other).answer(question(max_tokens=4))
    verdict = audit(made.evidence(), worker, TRUST)
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "fingerprint-differs")
    assert verdict.expected is not None
    assert verdict.found is not None
    assert (b"f" * 32).hex() in verdict.expected
    assert smol.manifest.runtime.fingerprint.hex() in verdict.found


def test_another_fingerprint_of_the_same_files_is_told_apart(smol: HonestProvider, worker: Worker) -> None:
    assert len(smol.manifest.runtime.libraries) > 3
    other = replace(smol.manifest, runtime=replace(smol.manifest.runtime, fingerprint=b"f" * 32))
    made = HonestProvider(smol.model, other).answer(question(max_tokens=4))
    verdict = audit(made.evidence(), worker, TRUST)
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "fingerprint-unexplained")
    assert verdict.found == (b"f" * 32).hex()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"n_ctx": 2**31 - 1}, "runtime-impossible"),
        ({"type_k": "f99"}, "runtime-impossible"),
        ({"n_batch": 0}, "runtime-impossible"),
        ({"device": "CUDA0"}, "runtime-impossible"),  # by the very files that compute here
        ({"device": "CUDA0", "libraries": ()}, "environment"),
        ({"n_ubatch": 2**31 - 1, "n_batch": 2**31 - 1}, None),
    ],
)
def test_absurd_settings_are_the_providers_and_do_no_harm(
    smol: HonestProvider, worker: Worker, changes: dict[str, Any], code: str | None
) -> None:
    manifest: Manifest = replace(smol.manifest, runtime=replace(smol.manifest.runtime, **changes))
    made = HonestProvider(smol.model, manifest).answer(question(max_tokens=4))
    assert audit(made.evidence(), worker, TRUST).code == code


def test_memory_is_needed_for_the_turns_and_not_for_the_context(smol: HonestProvider, smollm2: Path) -> None:
    """A context of 250,000 tokens takes 5.5 GiB; what it holds has the same bits as in one of 1,024."""
    manifest = replace(smol.manifest, runtime=replace(smol.manifest.runtime, n_ctx=250_000))
    made = HonestProvider(smol.model, manifest).answer(question(max_tokens=40))
    with Worker(smollm2) as alone:
        assert audit(made.evidence(), alone, TRUST).status is Status.EXACT
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{alone.pid}/status").read_text())
    assert peak is not None
    assert int(peak[1]) < 2 << 20


# The worker process.


def small(smol: HonestProvider) -> bytes:
    return smol.answer(question(max_tokens=6)).evidence().encode()


@pytest.mark.parametrize("damage", ["cut", "magic", "counts", "empty"])
def test_a_damaged_model_file_is_a_verdict(smol: HonestProvider, smollm2: Path, tmp_path: Path, damage: str) -> None:
    data = bytearray(smollm2.read_bytes()[: 1 << 20])
    if damage == "magic":
        data[0] ^= 0xFF
    if damage == "counts":
        data[8:16] = b"\xff" * 8
    path = tmp_path / "model.gguf"
    path.write_bytes(data if damage != "empty" else b"")
    verdict = audit(small(smol), path, TRUST)
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "auditor-crashed")
    assert "not usable" in verdict.summary


def test_a_crash_is_a_verdict_and_the_next_audit_works(smol: HonestProvider, smollm2: Path) -> None:
    data = small(smol)

    def kill(stage: str, done: int, total: int) -> None:
        if stage == "loading" and crashing and runs.pid is not None:
            os.kill(runs.pid, signal.SIGSEGV)

    crashing = True
    with Worker(smollm2, progress=kill) as runs:
        verdict = audit(data, runs, TRUST)
        assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "auditor-crashed")
        assert verdict.found is not None
        assert "signal 11" in verdict.found
        crashing = False
        assert audit(data, runs, TRUST).status is Status.EXACT


def test_a_hang_is_a_verdict(smol: HonestProvider, smollm2: Path) -> None:
    data = small(smol)

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "loading" and runs.pid is not None:
            os.kill(runs.pid, signal.SIGSTOP)

    with Worker(smollm2, progress=stop, stall=1.0) as runs:
        verdict = audit(data, runs, TRUST)
        assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "auditor-crashed")
        assert "hangs" in verdict.summary
        assert runs.pid is None


def test_the_process_ends_with_its_worker(smollm2: Path) -> None:
    with Worker(smollm2) as worker:
        worker.identity()
        process = worker.pid
        assert process is not None
        os.kill(process, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_command_that_the_process_does_not_know_ends_it(smollm2: Path) -> None:
    child = Child("verifier.model.process", 60.0)
    with pytest.raises(VerificationError) as caught:
        child.call(["nothing"], print)
    assert caught.value.code == "auditor-crashed"
    assert "do_nothing" in str(caught.value.found)
    assert child.pid is None


def test_evidence_of_another_model_is_told_by_its_hash(smol: HonestProvider, gemma3: Path) -> None:
    made: Recording = smol.answer(question(max_tokens=3))
    assert isinstance(made.evidence(), Evidence)
    assert audit(made.evidence(), gemma3, TRUST).code == "model-differs"
