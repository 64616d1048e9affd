"""The audit of a session, on a made-up model: every honest case passes, every deviation has its reason code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import END_TOKEN, SESSION, TRUST, K, Recording, ask, identity, made_up, manifest, runtime
from verifiable.checking.verdict import Status, Verdict
from verifiable.errors import EngineError, PolicyError, VerificationError
from verifiable.manifest.manifest import LOG_PROBABILITIES, AdapterFile, Library, ModelIdentity
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingParams, choose
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.records import Finish
from verifiable.wire.keys import PrivateKey
from verifier.auditing.scope import audited
from verifier.auditing.session import audit
from verifier.model.reexecute import Probed


def recorded(tokens: int = 12, *, row: Any = made_up, body: dict[str, Any] | None = None, **how: Any) -> Recording:
    """A session of one turn; `how` goes to the turn, `draws` and `manifest` to the recording."""
    made = Recording(**{name: how.pop(name) for name in ("draws", "manifest") if name in how})
    made.turn(ask(max_tokens=tokens, **(body or {})), how.pop("prompt", PROMPT), row, **how)
    return made


def check(made: Recording, kind: Kind = Kind.TOKENS, model: MadeUpModel | None = None, **options: Any) -> Verdict:
    return audit(made.evidence(kind).encode(), model or MadeUpModel(), TRUST, **options)


def near(step: float, start: int = 0) -> Callable[[Sequence[int]], Entries]:
    """A model nearly like the made-up one: every logit moved by `step` from the position `start` on."""

    def row(ids: Sequence[int]) -> Entries:
        entries = made_up(ids)
        return entries if len(ids) < start else Entries(entries.ids, (entries.logits + np.float32(step)))

    return row


@pytest.mark.parametrize("kind", [Kind.TOKENS, Kind.FULL])
@pytest.mark.parametrize("burst", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_honest_sessions_verify_exactly(kind: Kind, burst: int, temperature: float) -> None:
    made = recorded(body={"temperature": temperature}, burst=burst)
    verdict = check(made, kind, receipt=made.receipt(), text=made.texts[0])
    assert (verdict.status, verdict.code) == (Status.EXACT, None)
    assert verdict.tokens_checked == verdict.tokens_total == 12
    assert audited(verdict).turns[0].strip == "=" * 12
    assert all(item.passed for item in verdict.checks)
    assert verdict.exit_code == 0


def test_all_turns_of_a_long_session_verify() -> None:
    made = Recording()
    for number in range(4):
        made.turn(ask(max_tokens=3 + number), PROMPT)
    made.close()
    verdict = check(made)
    assert verdict.status is Status.EXACT
    assert verdict.tokens_checked == 3 + 4 + 5 + 6
    assert not any("still open" in note for note in verdict.not_shown)


def test_a_turn_that_is_not_opened_is_named() -> None:
    made = Recording()
    for _ in range(3):
        made.turn(ask(max_tokens=4), PROMPT)
    verdict = audit(made.evidence(turns=[1]), MadeUpModel(), TRUST)
    assert verdict.status is Status.EXACT
    assert verdict.tokens_checked == 4
    assert any(note.startswith("Turns 0, 2") for note in verdict.not_shown)
    assert ("manifest-not-pinned", (1,)) in [(note.id, note.turns) for note in verdict.notes]
    failed = audit(made.evidence(), MadeUpModel(prompt=lambda request: []), TRUST)
    assert ("turns-not-recomputed", (1, 2)) in [(note.id, note.turns) for note in failed.notes]
    assert any("still open" in note for note in verdict.not_shown)


@pytest.mark.parametrize(
    ("body", "said"),
    [({"verifiable": {}}, True), ({"verifiable": {}, "seed": 5}, False), ({}, False)],
    ids=["the provider's", "the request's seed", "the client's"],
)
def test_a_nonce_of_the_providers_is_told(body: dict[str, Any], said: bool) -> None:
    verdict = check(recorded(body=body))
    assert verdict.status is Status.EXACT
    assert any("shopped for" in note for note in verdict.not_shown) is said


@pytest.mark.parametrize("finish", [Finish.CANCELLED, Finish.ERROR])
def test_cancelled_answers_are_audited(finish: Finish) -> None:
    verdict = check(recorded(6, finish=finish, cut=4))
    assert verdict.status is Status.EXACT
    assert any("provider's word" in note for note in verdict.not_shown)


def test_stop_strings_and_end_tokens_verify() -> None:
    text = recorded(12).texts[0]
    stop = text[len(text) // 2 :][:4]
    made = recorded(12, body={"stop": [stop]})
    assert stop not in made.texts[0]
    assert check(made, text=made.texts[0]).status is Status.EXACT

    def ending(ids: Sequence[int]) -> Entries:
        entries = made_up(ids)
        return Entries(np.r_[np.uint32(END_TOKEN), entries.ids[1:]], entries.logits) if len(ids) == 10 else entries

    made = recorded(12, row=ending, body={"temperature": 0})
    verdict = check(made, model=MadeUpModel(rows={None: ending}))
    assert (verdict.status, verdict.tokens_checked) == (Status.EXACT, 4)


def test_an_answer_without_tokens_is_no_pass() -> None:
    made = Recording()
    request = ask(max_tokens=4)
    made.turn(request, PROMPT)
    leaves = made.evidence(Kind.RECORDS, positions=[len(PROMPT)])
    verdict = audit(leaves, MadeUpModel(), TRUST)
    assert (verdict.status, verdict.code, verdict.exit_code) == (Status.INCONCLUSIVE, "no-evidence", 3)
    verdict = audit(made.evidence(turns=[]), MadeUpModel(), TRUST)
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "nothing-checked")


# Deviations of the provider.


@pytest.mark.parametrize("step", [0.25, -3.0])
def test_another_model_is_found_at_the_first_token(step: float) -> None:
    made = recorded(row=near(step))
    verdict = check(made)
    assert (verdict.status, verdict.code, verdict.exit_code) == (Status.FAILED, "records-differ", 1)
    full = made.evidence(Kind.FULL).encode()
    for verdict in (check(made, fetch_full=lambda turn: full), check(made, Kind.FULL)):
        assert (verdict.code, verdict.turn, verdict.token, verdict.position) == ("logits-differ", 0, 0, len(PROMPT))
        assert verdict.guess is not None
        assert verdict.expected is not None
        assert verdict.found is not None
        honest, committed = made_up(PROMPT), near(step)(PROMPT)
        assert verdict.expected == f"id {honest.ids[0]}, logit {honest.logits[0]:.9g}"
        assert verdict.found == f"id {committed.ids[0]}, logit {committed.logits[0]:.9g}"
        assert audited(verdict).turns[0].strip == "!" * 12
        assert audited(verdict).turns[0].differences == pytest.approx([abs(step)] * 12, rel=1e-3)


@pytest.mark.parametrize("start", range(8))
def test_a_switch_in_the_middle_is_found_where_it_happens(start: int) -> None:
    made = recorded(8, row=near(0.5, len(PROMPT) + start))
    full = made.evidence(Kind.FULL).encode()
    verdict = check(made, fetch_full=lambda turn: full)
    assert (verdict.code, verdict.token) == ("logits-differ", start)
    assert audited(verdict).turns[0].strip == "=" * start + "!" * (8 - start)
    coarse = check(made)
    assert coarse.code == "records-differ"
    assert coarse.token is not None
    low, high = coarse.to_json()["details"]["fault"]["leaves"]
    assert low <= 2 + start < high


def test_one_bit_of_one_logit_is_found() -> None:
    def one_bit(ids: Sequence[int]) -> Entries:
        entries = made_up(ids)
        if len(ids) == len(PROMPT) + 5:
            logits = entries.logits.copy()
            logits[-1] = np.nextafter(logits[-1], np.float32(-1e9))
            return Entries(entries.ids, logits)
        return entries

    verdict = check(recorded(row=one_bit), Kind.FULL)
    assert (verdict.code, verdict.token, verdict.to_json()["details"]["fault"]["rank"]) == ("logits-differ", 5, K - 1)
    assert audited(verdict).turns[0].strip == "=====!======"


def test_a_cache_of_another_type_is_proven() -> None:
    coarse = near(0.125)
    model = MadeUpModel(rows={None: made_up, "q8_0": near(0.0625), "q4_0": coarse})
    made = recorded(row=coarse)
    full = made.evidence(Kind.FULL).encode()
    for verdict in (
        check(made, model=model, fetch_full=lambda turn: full),
        check(made, Kind.FULL, model=model),
        check(made, model=model),
    ):
        assert (verdict.status, verdict.code, verdict.token) == (Status.FAILED, "kv-cache-differs", 0)
        assert verdict.found is not None
        assert "q4_0" in verdict.found
        assert verdict.guess is None


def test_a_cache_type_that_fits_only_in_part_is_not_claimed() -> None:
    model = MadeUpModel(rows={None: made_up, "q8_0": near(0.125)})
    made = recorded(row=lambda ids: near(0.125 if len(ids) < len(PROMPT) + 9 else 0.25)(ids))
    assert check(made, Kind.FULL, model=model).code == "logits-differ"
    assert check(made, model=model).code == "records-differ"


def test_a_hidden_prompt_is_found_before_anything_runs() -> None:
    model = MadeUpModel()
    verdict = check(recorded(prompt=[9, 9, *PROMPT]), model=model)
    assert (verdict.code, verdict.turn, verdict.position) == ("prompt-differs", 0, 0)
    assert model.scored == 0
    shorter = check(recorded(prompt=PROMPT[1:]))
    assert shorter.code == "prompt-differs"
    # It says that it used the right prompt, and did not.
    made = recorded(prompt=[9, 9, *PROMPT], committed_prompt=PROMPT)
    assert check(made, Kind.FULL).code == "logits-differ"


def test_a_request_that_the_model_refuses_was_not_answered_honestly() -> None:
    def refuse(request: Any) -> list[int]:
        raise PolicyError("the model has no chat template")

    verdict = check(recorded(), model=MadeUpModel(prompt=refuse))
    assert (verdict.status, verdict.code) == (Status.FAILED, "prompt-differs")


@pytest.mark.parametrize("kind", [Kind.TOKENS, Kind.FULL])
def test_another_temperature_is_proven_with_its_interval(kind: Kind) -> None:
    def hotter(entries: Entries, params: SamplingParams, key: bytes, position: int) -> int:
        return choose(entries, replace(params, temperature=1.4), key, position)

    verdict = check(recorded(60, draws=hotter, body={"temperature": 0.7}), kind)
    assert (verdict.status, verdict.code) == (Status.FAILED, "temperature-differs")
    low, high = verdict.to_json()["details"]["fault"]["temperature"]
    assert low <= 1.4 <= high
    assert high - low < 0.3
    assert verdict.guess is None


@pytest.mark.parametrize("kind", [Kind.TOKENS, Kind.FULL])
@pytest.mark.parametrize("at", [0, 5, 11])
def test_a_changed_token_is_found_where_it_is(kind: Kind, at: int) -> None:
    def changed(entries: Entries, params: SamplingParams, key: bytes, position: int) -> int:
        drawn = choose(entries, params, key, position)
        return drawn if position != len(PROMPT) + at else int(next(i for i in entries.ids[::-1] if i != drawn))

    verdict = check(recorded(draws=changed), kind)
    assert (verdict.code, verdict.token, verdict.position) == ("token-not-sampled", at, len(PROMPT) + at)
    if kind is Kind.TOKENS:
        assert audited(verdict).turns[0].strip == "=" * at + "s" + "=" * (11 - at)


def test_records_that_are_shown_are_replayed_whatever_model_the_auditor_has() -> None:
    def last(entries: Entries, params: SamplingParams, key: bytes, position: int) -> int:
        return int(entries.ids[-1])

    other = MadeUpModel(who=identity(files=(replace(identity().files[0], sha256=b"x" * 32),)))
    assert check(recorded(draws=last), Kind.FULL, other).code == "text-not-sampled"
    assert check(recorded(draws=last), Kind.TOKENS, other).code == "model-differs"


@pytest.mark.parametrize("kind", [Kind.TOKENS, Kind.FULL])
def test_forged_text_is_no_draw(kind: Kind) -> None:
    def forged(entries: Entries, params: SamplingParams, key: bytes, position: int) -> int:
        return int(entries.ids[position % 7])

    verdict = check(recorded(30, draws=forged), kind)
    assert (verdict.status, verdict.code) == (Status.FAILED, "text-not-sampled")


def test_changed_text_and_changed_endings_are_found() -> None:
    assert check(recorded(text="something nicer")).code == "text-differs"
    assert check(recorded(finish=Finish.STOP)).code == "finish-differs"

    def ending(ids: Sequence[int]) -> Entries:
        entries = made_up(ids)
        return Entries(np.r_[np.uint32(END_TOKEN), entries.ids[1:]], entries.logits) if len(ids) == 10 else entries

    # It goes on after the end token, and it calls an answer cancelled that ended by itself.
    model = MadeUpModel(rows={None: ending})
    beyond = recorded(12, row=ending, body={"temperature": 0}, ends=frozenset())
    verdict = check(beyond, model=model)
    assert (verdict.code, verdict.token) == ("finish-differs", 3)
    cancelled = recorded(12, row=ending, body={"temperature": 0}, finish=Finish.CANCELLED)
    assert check(cancelled, model=model).code == "finish-differs"


def test_an_answer_does_not_go_on_after_a_stop_string() -> None:
    word = recorded(12).texts[0].split()[3]
    made = Recording()
    request = ask(max_tokens=12, stop=[f" {word}"])
    made.turn(request, PROMPT, pieces=lambda token: b" ")  # what is delivered never shows the stop string
    verdict = check(made)
    assert (verdict.status, verdict.code, verdict.token) == (Status.FAILED, "finish-differs", 3)


def test_settings_that_nobody_can_run_are_the_providers_fault() -> None:
    verdict = check(recorded(manifest=manifest(runtime=runtime(n_batch=0))))
    assert (verdict.status, verdict.code) == (Status.FAILED, "runtime-impossible")


def test_the_text_that_a_client_has_is_compared() -> None:
    made = recorded()
    verdict = check(made, text=made.texts[0] + "!")
    assert (verdict.status, verdict.code) == (Status.FAILED, "text-differs")


# What is not the provider's fault, or not shown to be.


ADAPTER = AdapterFile("style.gguf", b"a" * 32, 100, 0.5)


@pytest.mark.parametrize(
    ("model", "made", "code"),
    [
        (MadeUpModel(who=identity(files=(replace(identity().files[0], sha256=b"x" * 32),))), {}, "model-differs"),
        (MadeUpModel(), {"manifest": manifest(model=identity(adapters=(ADAPTER,)))}, "model-differs"),
        (
            MadeUpModel(who=identity(adapters=(replace(ADAPTER, scale=0.25),))),
            {"manifest": manifest(model=identity(adapters=(ADAPTER,)))},
            "model-differs",
        ),
        (MadeUpModel(probed=Probed(True, b"y" * 32, ("b2",))), {}, "fingerprint-differs"),
        (MadeUpModel(probed=Probed(False, b"n" * 32, ("b1",))), {}, "not-invariant"),
        (MadeUpModel(), {"manifest": manifest(runtime=runtime(invariant=False))}, "not-invariant"),
        (MadeUpModel(), {"manifest": manifest(value_kind=LOG_PROBABILITIES)}, "not-raw-logits"),
    ],
)
def test_what_cannot_be_decided_here_is_inconclusive(model: MadeUpModel, made: dict[str, Any], code: str) -> None:
    # Even where the logits are another model's: nothing is proven without the same numbers.
    verdict = check(recorded(row=near(1.0), **made), model=model)
    assert (verdict.status, verdict.code, verdict.exit_code) == (Status.INCONCLUSIVE, code, 3)
    assert verdict.expected
    assert verdict.found
    assert model.scored == 0


def test_another_fingerprint_says_what_to_build_or_that_nothing_explains_it() -> None:
    files = (Library("libggml-cpu", b"a" * 32), Library("libm", b"m" * 32))
    here = Probed(True, b"y" * 32, ("b1", "0", "none"), files, "GCC 12", True)
    own: dict[str, Any] = {"libraries": files, "compiler": "GCC 12"}

    def audited(stated: dict[str, Any], there: Probed = here) -> Verdict:
        made = recorded(manifest=manifest(runtime=runtime(**stated)))
        verdict = check(made, model=MadeUpModel(probed=there))
        assert verdict.status is Status.INCONCLUSIVE
        return verdict

    same = audited(own)
    assert (same.code, same.found) == ("fingerprint-unexplained", runtime().fingerprint.hex())
    for there in (here, replace(here, libraries=())):
        assert audited({}, there).code == "fingerprint-differs"  # nothing is said about files
    gpu = audited({**own, "device": "CUDA0"}, replace(here, processor_only=False))
    assert gpu.code == "fingerprint-differs"  # which GPU it was is not known
    assert "the same kind of machine" in (gpu.hint or "")
    others = {**own, "libraries": (replace(files[0], sha256=b"b" * 32), files[1])}
    for stated, said in (
        ({}, "your build and compiler, but other files: libggml-cpu"),
        ({"compiler": "GCC 11"}, "compiled by GCC 11, not GCC 12"),
        ({"system": "AVX512 = 1"}, "with AVX512 = 1"),
        ({"build": "b2"}, "0 (b2)"),
    ):
        verdict = audited({**others, **stated})
        assert verdict.code == "fingerprint-differs"
        assert said in (verdict.hint or "")


def test_settings_that_nobody_can_run_are_the_providers() -> None:
    for stated in ({"type_k": "q1_9"}, {"n_ubatch": 0}, {"type_v": "q4_0", "flash_attn": False}):
        for more in ({}, {"invariant": False}):
            verdict = check(recorded(manifest=manifest(runtime=runtime(**stated, **more))))
            assert (verdict.status, verdict.code) == (Status.FAILED, "runtime-impossible")


def test_a_manifest_that_contradicts_its_file_fails() -> None:
    """Whatever of it reports repeat: all but the files, which are compared by their hashes."""
    other = {bytes: b"z" * 32, str: "another", int: 3, tuple: (7,)}
    stated = {field.name: getattr(identity(), field.name) for field in fields(ModelIdentity)}
    names = [name for name in stated if name not in ("files", "adapters", "vocabulary")]
    assert len(names) == 6
    for name in names:
        made = recorded(manifest=manifest(model=identity(**{name: other[type(stated[name])]})))
        assert check(made).code == "identity-differs", name


def test_an_auditors_crash_is_a_verdict() -> None:
    class Crashes(MadeUpModel):
        def score(self, *args: Any, **options: Any) -> list[Entries]:
            raise VerificationError("the worker process ended", code="auditor-crashed")

    class Fails(MadeUpModel):
        def load(self, *args: Any) -> None:
            raise EngineError("no memory")

    assert check(recorded(), model=Crashes()).code == "auditor-crashed"
    assert check(recorded(), model=Crashes()).status is Status.INCONCLUSIVE
    assert check(recorded(), model=Fails()).status is Status.INCONCLUSIVE


def test_keys_that_are_not_trusted_prove_nothing() -> None:
    verdict = audit(recorded().evidence(), MadeUpModel(), [PrivateKey.generate("other", b"o" * 32).public])
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "untrusted-key")
    with pytest.raises(PolicyError):
        audit(recorded().evidence(), MadeUpModel(), [])


# Receipts and further evidence.


def test_a_receipt_of_an_earlier_state_is_bound() -> None:
    made = Recording()
    made.turn(ask(max_tokens=5), PROMPT)
    early = made.receipt()
    made.turn(ask(max_tokens=5), PROMPT)
    verdict = check(made, receipt=early)
    assert verdict.status is Status.EXACT
    assert any("receipt" in item.detail for item in verdict.checks)


def test_two_histories_are_found() -> None:
    told, other = recorded(), recorded(row=near(0.5))
    verdict = check(told, receipt=other.receipt())
    assert (verdict.status, verdict.code) == (Status.FAILED, "two-histories")
    # The same landmarks, other records, and another size: only the recomputed records can tell.
    longer = Recording()
    longer.turn(ask(max_tokens=12), PROMPT)
    other = Recording()
    other.turn(ask(max_tokens=12), PROMPT, near(1e-6))
    assert longer.texts == other.texts
    longer.turn(ask(max_tokens=2), PROMPT)
    verdict = check(longer, receipt=other.receipt())
    assert (verdict.status, verdict.code) == (Status.FAILED, "two-histories")


def test_a_receipt_of_another_end_is_another_history() -> None:
    """The same tokens and records: only what both heads show can tell."""
    verdict = check(recorded(), receipt=recorded(text="something nicer").receipt())
    assert (verdict.status, verdict.code) == (Status.FAILED, "two-histories")


def test_a_receipt_of_another_session_is_refused() -> None:
    other = Recording(session=b"\x08" * 16)
    other.turn(ask(max_tokens=3), PROMPT)
    verdict = check(recorded(), receipt=other.receipt())
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "no-evidence")
    # Of another session nothing else is looked at, so it accuses nobody.
    damaged = replace(recorded().evidence(), opening=other.evidence().opening)
    verdict = audit(damaged, MadeUpModel(), TRUST, receipt=other.receipt())
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "no-evidence")


def test_evidence_answers_for_the_receipt_or_shows_nothing() -> None:
    made = Recording()
    for _ in range(2):
        made.turn(ask(max_tokens=3), PROMPT)
    assert audit(made.evidence(turns=[1]), MadeUpModel(), TRUST, receipt=made.receipt(1)).status is Status.EXACT
    verdict = audit(made.evidence(turns=[0]), MadeUpModel(), TRUST, receipt=made.receipt(1))
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "no-evidence")
    # Another provider's, which has a session of the same id.
    other = PrivateKey.generate("other", b"o" * 32)
    borrowed = replace(made.receipt(1), manifest=made.manifest.sign(other))
    verdict = audit(made.evidence(turns=[1]), MadeUpModel(), [*TRUST, other.public], receipt=borrowed)
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "no-evidence")


def test_a_forged_receipt_is_no_receipt() -> None:
    made = recorded()
    good = made.receipt()
    forged = made.log.head(1_800_000_005_000).sign(PrivateKey.generate("acme/session", b"x" * 32))
    assert check(made, receipt=replace(good, head=forged)).code == "untrusted-key"
    assert check(made, receipt=replace(good, head=good.head[:-1] + bytes([good.head[-1] ^ 1]))).code == "bad-signature"


def test_full_evidence_must_tell_the_same_history() -> None:
    made = recorded(row=near(0.5))
    lie = recorded(row=near(0.75)).evidence(Kind.FULL).encode()
    assert check(made, fetch_full=lambda turn: lie).code == "two-histories"
    tokens = made.evidence().encode()
    verdict = check(made, fetch_full=lambda turn: tokens)
    assert verdict.code == "records-differ"
    assert verdict.hint is not None
    assert "did not show" in verdict.hint

    def refuse(turn: int) -> bytes:
        raise VerificationError("gone", code="no-evidence")

    assert check(made, fetch_full=refuse).code == "records-differ"


def test_a_later_head_may_show_the_records() -> None:
    made = recorded(row=near(0.5))
    evidence = made.evidence().encode()
    made.close()
    full = made.evidence(Kind.FULL).encode()
    verdict = audit(evidence, MadeUpModel(), TRUST, fetch_full=lambda turn: full)
    assert (verdict.code, verdict.token) == ("logits-differ", 0)


def test_changed_token_ids_accuse_nobody() -> None:
    """Whoever passes evidence on could change its ids; the turn's end says which were committed."""
    evidence = recorded().evidence()
    part = evidence.turns[0]
    assert part.tokens is not None
    ids = bytes([part.tokens.ids[0] ^ 1]) + part.tokens.ids[1:]
    changed = replace(evidence, turns=(replace(part, tokens=replace(part.tokens, ids=ids)),))
    verdict = audit(changed, MadeUpModel(), TRUST)
    assert verdict.code == "evidence-differs"
    assert verdict.hint is not None
    assert verdict.status is Status.INCONCLUSIVE
    assert "nobody knows by whom" in verdict.hint


def test_heads_by_other_keys_and_bad_signatures_never_pass() -> None:
    made = recorded()
    evidence = made.evidence()
    other = PrivateKey.generate("acme/session", b"x" * 32)
    forged = replace(evidence, head=made.log.head(1_800_000_005_000).sign(other))
    assert audit(forged, MadeUpModel(), TRUST).code == "untrusted-key"
    cut = replace(evidence, head=evidence.head[:-1] + bytes([evidence.head[-1] ^ 1]))
    assert audit(cut, MadeUpModel(), TRUST).code == "bad-signature"
    smaller = replace(evidence, head=dataclasses.replace(made.log.head(1_800_000_005_000), size=5).sign(SESSION))
    assert audit(smaller, MadeUpModel(), TRUST).code == "root-differs"


def test_json_of_a_verdict_is_json() -> None:
    import json

    verdict = check(recorded(row=near(0.5)), Kind.FULL)
    again = json.loads(json.dumps(verdict.to_json()))
    assert again["status"] == "failed"
    assert again["code"] == "logits-differ"
    assert again["exit_code"] == 1


def test_evidence_is_small() -> None:
    made = Recording(manifest=manifest(runtime=runtime(n_ctx=4096)))
    made.turn(ask(max_tokens=2000), PROMPT)
    assert len(made.evidence().encode()) < 4 * 2000
    assert isinstance(Evidence.parse(made.evidence().encode()), Evidence)
