"""What a model's own metadata asks for: ids that it bars from every answer, and sampling where a request is silent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine, EngineSettings
from tests.gguf_files import Entry, read
from verifiable.checking.checks import check_evidence
from verifiable.checking.verdict import Status
from verifiable.errors import MalformedError
from verifiable.llama.gguf.identity import SUPPRESS, identify
from verifiable.llama.gguf.types import ARRAY, F32, I32, U32
from verifiable.llama.model import Model
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.manifest import Manifest
from verifiable.sampling.sampler import SamplingDefaults
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.records import Token, parse
from verifiable.wire.keys import PublicKey
from verifier.auditing.session import audit
from verifier.model.worker import Worker

QUESTION = [{"role": "user", "content": "And then?"}]


def with_metadata(base: Path, path: Path, *entries: Entry) -> Path:
    file = read(base)
    file.entries += entries
    path.write_bytes(file.build())
    return path


def barring(*ids: int) -> Entry:
    return Entry(SUPPRESS, ARRAY, list(ids), I32)


@dataclass
class Turn:
    """One answer, and what is left of it."""

    kind: type[Engine]
    model: Path
    folder: Path
    asks: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        runtime = RuntimeSettings(n_ctx=256)
        settings = EngineSettings(
            runtime, defaults=self.defaults, cache=self.folder / "cache", drafter="ngram", self_audit=1.0
        )
        with self.kind(self.model, self.folder, settings) as provider:
            self.left_out = provider.left_out
            provider.chat(QUESTION, **{"max_tokens": 20, "nonce": b"12345678", **self.asks})
            row = provider.store.sessions(1)[0][1]
            leaves = list(map(parse, provider.store.leaves(row.session)))
            self.tokens = [leaf for leaf in leaves if isinstance(leaf, Token)]
            self.evidence: Evidence = provider.evidence.evidence(row, Kind.FULL)
            self.packed: Evidence = provider.evidence.evidence(row, Kind.TOKENS)
            self.trust: list[PublicKey] = [provider.keys.provider.public]
            self.manifest: Manifest = provider.manifest
            while provider.self_audit.pending():
                pass
            self.differences = provider.self_audit.differences

    def drawn(self) -> list[int]:
        return [token.token for token in self.tokens]


@pytest.fixture(scope="module")
def base(tiny_models: dict[str, Path]) -> Path:
    return tiny_models["llama"]


def test_the_list_is_read_as_llama_cpp_reads_it(base: Path, tmp_path: Path) -> None:
    path = with_metadata(base, tmp_path / "m.gguf", barring(300, 7, -1, 384, 7, 2**31 - 1, 0))
    with Model.load(path) as model:
        assert model.suppressed == identify(path).suppressed == (0, 7, 300)
    assert identify(base).suppressed == ()


def test_a_long_list_is_read_from_the_file(base: Path, tmp_path: Path) -> None:
    path = with_metadata(base, tmp_path / "m.gguf", barring(*range(20, 380), *range(20, 380), *range(20, 380)))
    assert identify(path).suppressed == tuple(range(20, 380))


@pytest.mark.parametrize(
    "entry", [Entry(SUPPRESS, ARRAY, [1], U32), Entry(SUPPRESS, I32, 1), barring(*range(384))], ids=repr
)
def test_a_list_that_cant_be_used_is_refused(base: Path, tmp_path: Path, entry: Entry) -> None:
    path = with_metadata(base, tmp_path / "m.gguf", entry)
    with pytest.raises(MalformedError, match="suppress_tokens"):
        identify(path)


ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0},
    {"repeat_penalty": 1.3, "logit_bias": {"40": 3}},
    {"ignore_eos": True},
    {"grammar": "root ::= [a-z ]+"},
)


@pytest.mark.parametrize("asks", ASKED, ids=repr)
def test_suppressed_ids_are_never_drawn_and_the_answer_verifies(
    asks: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    plain = Turn(Engine, base, tmp_path / "plain", asks)
    barred = sorted(set(plain.drawn()))[: max(len(set(plain.drawn())) // 2, 1)]
    path = with_metadata(base, tmp_path / "m.gguf", barring(*barred))
    turn = Turn(Engine, path, tmp_path / "barred", asks)
    assert turn.manifest.model.suppressed == tuple(barred)
    assert not set(turn.drawn()) & set(barred)
    assert all(not set(token.entries.ids.tolist()) & set(barred) for token in turn.tokens)
    assert turn.differences == 0
    with Worker(path, cache=tmp_path / "barred" / "cache") as worker:
        for evidence in (turn.evidence, turn.packed):
            verdict = audit(evidence, worker, turn.trust)
            assert verdict.status is Status.EXACT, verdict


class Deaf(Engine):
    """Draws from all ids, whatever its model bars."""

    def _load(self) -> Model:
        model = super()._load()
        model.suppressed = ()
        return model


def test_a_provider_that_ignores_the_list_fails_where_it_first_does(base: Path, tmp_path: Path) -> None:
    plain = Turn(Engine, base, tmp_path / "plain")
    barred = plain.drawn()[3]
    first = next(at for at, token in enumerate(plain.tokens) if barred in token.entries.ids)
    path = with_metadata(base, tmp_path / "m.gguf", barring(barred))
    turn = Turn(Deaf, path, tmp_path / "deaf")
    assert turn.drawn() == plain.drawn()
    with Worker(path, cache=tmp_path / "deaf" / "cache") as worker:
        packed, full = (audit(evidence, worker, turn.trust) for evidence in (turn.packed, turn.evidence))
    assert packed.status is full.status is Status.FAILED
    assert (full.code, full.token) == ("token-not-sampled", turn.drawn().index(barred))  # by its records alone
    assert packed.code == "records-differ"
    assert packed.token is not None
    assert packed.token <= first


def test_a_manifest_that_states_another_list_contradicts_its_model(base: Path, tmp_path: Path) -> None:
    class Liar(Deaf):
        def _stated(self, identity: Any, probed: Any) -> Any:
            return super()._stated(replace(identity, suppressed=()), probed)

    path = with_metadata(base, tmp_path / "m.gguf", barring(40))
    turn = Turn(Liar, path, tmp_path / "liar")
    with Worker(path, cache=tmp_path / "liar" / "cache") as worker:
        verdict = audit(turn.evidence, worker, turn.trust)
    assert (verdict.status, verdict.code) == (Status.FAILED, "identity-differs")
    assert "suppressed" in str(verdict)


SAMPLING = (
    Entry("general.sampling.temp", F32, 0.5),
    Entry("general.sampling.top_k", I32, 64),
    Entry("general.sampling.top_p", F32, 0.75),
    Entry("general.sampling.penalty_repeat", F32, 1.25),
    Entry("general.sampling.penalty_last_n", I32, 16),
    Entry("general.sampling.mirostat", I32, 2),
)


def test_the_models_sampling_is_the_default_and_verifies(base: Path, tmp_path: Path) -> None:
    path = with_metadata(base, tmp_path / "m.gguf", *SAMPLING)
    turn = Turn(Engine, path, tmp_path / "own")
    assert turn.manifest.defaults == SamplingDefaults(0.5, 40, 0.75, 0.0, 1.25, 16)
    assert turn.left_out == ("mirostat 2",)
    (opened,) = check_evidence(turn.evidence, turn.trust).turns
    params = opened.leaf.params
    assert (params.temperature, params.top_k, params.top_p, params.repeat_penalty, params.repeat_last_n) == (
        *(0.5, 40, 0.75),
        *(1.25, 16),
    )
    with Worker(path, cache=tmp_path / "own" / "cache") as worker:
        assert audit(turn.evidence, worker, turn.trust).status is Status.EXACT


def test_an_operator_overrides_the_model(base: Path, tmp_path: Path) -> None:
    path = with_metadata(base, tmp_path / "m.gguf", *SAMPLING)
    given = {"temperature": 0.9, "repeat_penalty": 1.0}
    turn = Turn(Engine, path, tmp_path / "given", defaults=given)
    assert turn.manifest.defaults == SamplingDefaults(0.9, 40, 0.75, 0.0)
