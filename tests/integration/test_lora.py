"""LoRA adapters from the command line to the verdict: what is declared is served, and what is not is not verified."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine.engine import Engine, EngineSettings
from fixtures.adapters import write_lora
from tests.decoding import computed
from verifiable.checking.verdict import Status, Verdict
from verifiable.errors import MalformedError
from verifiable.llama.gguf.lora import Adapter, inspect_adapters
from verifiable.llama.gguf.metadata import inspect, inspect_adapter
from verifiable.llama.probe.probe import probe
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.manifest import verify_manifest
from verifiable.session.evidence import Evidence, Kind
from verifiable.wire.keys import PublicKey
from verifier.auditing.session import audit
from verifier.model.worker import Worker
from verifier.tolerant.calibrate import calibrate
from verifier.tolerant.calibration import files_of

SETTINGS = RuntimeSettings(n_ctx=64, n_seq_max=1)


@pytest.fixture(scope="module")
def base(tiny_models: dict[str, Path]) -> Path:
    return tiny_models["llama"]


@pytest.fixture(scope="module")
def style(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lora(tmp_path_factory.mktemp("lora") / "style.gguf", base)


@pytest.fixture(scope="module")
def tone(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lora(tmp_path_factory.mktemp("lora") / "tone.gguf", base, seed=1)


def test_an_adapter_changes_what_is_computed_by_its_scale(base: Path, style: Path, tone: Path) -> None:
    plain, half, whole = (computed(base, *given) for given in ([], [Adapter(style, 0.5)], [Adapter(style)]))
    both = computed(base, Adapter(style), Adapter(tone))
    every = [plain, half, whole, both]
    assert all((one != other).any() for at, one in enumerate(every) for other in every[:at])
    assert np.abs(half - plain).max() < np.abs(whole - plain).max() < 10 * np.abs(half - plain).max()


SUM = """
import sys, hashlib
from pathlib import Path
from tests.decoding import Adapter, computed
base, *paths = map(Path, sys.argv[1:])
print(hashlib.sha256(computed(base, *map(Adapter, paths)).tobytes()).hexdigest())
"""


def test_two_adapters_sum_to_the_same_bits_in_every_process(base: Path, style: Path, tone: Path) -> None:
    """llama.cpp adds them up in an order that follows from addresses; of two it is always the same."""
    found = {
        subprocess.run(
            [sys.executable, "-c", SUM, base, style, tone], check=True, capture_output=True, text=True, timeout=120
        ).stdout
        for _ in range(5)
    }
    assert len(found) == 1


DECODE = """
import sys
from pathlib import Path
from tests.decoding import Adapter, computed
from verifiable.errors import EngineError
base, *paths = map(Path, sys.argv[1:])
for path in paths:
    print(path.name, flush=True)
    try:
        computed(base, Adapter(path))
    except EngineError:
        pass
"""


def test_a_changed_adapter_is_refused_or_does_no_harm(base: Path, style: Path, tmp_path: Path) -> None:
    """Bytes of its head are changed at random; what is taken all the same must not end llama.cpp's process."""
    sound, head = style.read_bytes(), inspect_adapter(style).data_offset
    random, parts, taken = Random(7), [inspect(base)], []
    for number in range(300):
        data = bytearray(sound)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(head)
            data[at] = random.choice([random.randrange(256), data[at] ^ 1, (data[at] + 64) % 256, 0])
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(data)
        try:
            inspect_adapters([Adapter(path)], parts)
            taken.append(path)
        except MalformedError:
            path.unlink()
    assert len(taken) < 100
    done = subprocess.run(
        [sys.executable, "-c", DECODE, base, *taken], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, (done.stdout[-100:], done.stderr[-500:])


def test_the_auditors_other_processes_have_them_too(base: Path, style: Path) -> None:
    with Worker(base, adapters=[Adapter(style, 0.5)]) as worker, worker.twin() as twin:
        assert twin.identity() == worker.identity()
        assert len(twin.identity().adapters) == 1


def test_the_probe_looks_at_the_model_with_its_adapters(base: Path, style: Path, tmp_path: Path) -> None:
    kept = tmp_path / "cache"
    plain = probe(base, SETTINGS, cache=kept)
    found = probe(base, SETTINGS, cache=kept, adapters=[Adapter(style)])
    other = probe(base, SETTINGS, cache=kept, adapters=[Adapter(style, 0.5)])
    assert len({plain.fingerprint, found.fingerprint, other.fingerprint}) == 3
    assert len(list(kept.iterdir())) == 3
    assert plain.invariant
    assert found.invariant
    assert probe(base, SETTINGS, cache=kept, adapters=[Adapter(style)]) == found


def test_an_adapter_in_floats_is_found_not_to_be_invariant(base: Path, tmp_path: Path) -> None:
    floats = write_lora(tmp_path / "floats.gguf", base, kind=GGMLQuantizationType.F32)
    assert not probe(base, SETTINGS, adapters=[Adapter(floats)]).invariant


class Served:
    """One answer of an honest provider with an adapter, and its audit."""

    def __init__(self, base: Path, adapters: tuple[Adapter, ...], folder: Path) -> None:
        self.base, self.folder = base, folder
        settings = EngineSettings(RuntimeSettings(n_ctx=256), adapters=adapters, cache=folder / "cache")
        with Engine(base, folder, settings) as provider:
            self.answer = provider.chat([{"role": "user", "content": "And then?"}], max_tokens=12, nonce=b"12345678")
            row = provider.store.sessions(1)[0][1]
            self.evidence: Evidence = provider.evidence.evidence(row, Kind.FULL)
            self.trust: list[PublicKey] = [provider.keys.provider.public]
        self.manifest = verify_manifest(self.evidence.manifest, self.trust)

    def audit(self, *adapters: Adapter) -> Verdict:
        with Worker(self.base, adapters=adapters, cache=self.folder / "cache") as worker:
            return audit(self.evidence, worker, self.trust)


@pytest.fixture(scope="module")
def served(base: Path, style: Path, tone: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(base, (Adapter(style, 0.5), Adapter(tone)), tmp_path_factory.mktemp("served"))


def test_what_is_declared_verifies_exactly(served: Served, style: Path, tone: Path) -> None:
    first, second = served.manifest.model.adapters
    assert (first.name, first.scale, second.name, second.scale) == ("style.gguf", 0.5, "tone.gguf", 1.0)
    assert first.size == style.stat().st_size
    verdict = served.audit(Adapter(style, 0.5), Adapter(tone))
    assert verdict.status is Status.EXACT
    assert verdict.to_json()["details"]["model"]["adapters"][0] == ["style.gguf", first.sha256.hex(), 0.5]


@pytest.mark.parametrize(
    "given",
    [
        lambda style, tone: [],
        lambda style, tone: [Adapter(style, 0.5)],
        lambda style, tone: [Adapter(style), Adapter(tone)],
        lambda style, tone: [Adapter(tone), Adapter(style, 0.5)],
        lambda style, tone: [Adapter(tone, 0.5), Adapter(style)],
    ],
    ids=["none", "one missing", "another scale", "another order", "each other's scale"],
)
def test_an_auditor_with_other_adapters_decides_nothing(
    served: Served, style: Path, tone: Path, given: Callable[[Path, Path], list[Adapter]]
) -> None:
    verdict = served.audit(*given(style, tone))
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "model-differs")
    assert "--lora style.gguf:0.5 --lora tone.gguf:1.0" in (verdict.hint or "")
    assert "style.gguf × 0.5" in (verdict.expected or "")


def test_an_auditor_with_an_adapter_too_many_decides_nothing(base: Path, style: Path, tmp_path: Path) -> None:
    verdict = Served(base, (), tmp_path).audit(Adapter(style))
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "model-differs")
    assert "no --lora" in (verdict.hint or "")


def test_a_damaged_adapter_is_the_auditors_own_trouble(served: Served, style: Path, tone: Path, tmp_path: Path) -> None:
    bad = tmp_path / "style.gguf"
    bad.write_bytes(style.read_bytes()[:-100])
    verdict = served.audit(Adapter(bad, 0.5), Adapter(tone))
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "auditor-crashed")
    assert "style.gguf" in str(verdict)


def test_other_adapters_need_another_manifest(served: Served, base: Path, style: Path) -> None:
    """A provider that starts again with another scale signs a new manifest."""
    settings = EngineSettings(
        RuntimeSettings(n_ctx=256), adapters=(Adapter(style, 0.25),), cache=served.folder / "cache"
    )
    with Engine(base, served.folder, settings) as provider:
        assert provider.manifest.digest() != served.manifest.digest()
        assert len(provider.store.manifests()) == 2


def test_the_commands_take_adapters(served: Served, base: Path, style: Path, tone: Path, tmp_path: Path) -> None:
    file, key = tmp_path / "session.evidence", tmp_path / "key"
    file.write_bytes(served.evidence.encode())
    key.write_text(served.trust[0].vkey())
    names = ["--model", str(base), "--trust", str(key), "--json"]
    command = [sys.executable, "-m", "verifiable", "audit", str(file), *names]
    adapters = ["--lora", f"{style}:0.5", "--lora", str(tone)]
    done = subprocess.run([*command, *adapters], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"--lora {style}:0.5 --lora {tone}:1.0" in json.loads(done.stdout)["command"]
    done = subprocess.run(
        [sys.executable, "-m", "verifiable", "probe", "--model", str(base), "--json", *adapters],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert [(each["name"], each["scale"]) for each in facts["adapters"]] == [("style.gguf", 0.5), ("tone.gguf", 1.0)]
    assert facts["fingerprint"] == served.manifest.runtime.fingerprint.hex()
    done = subprocess.run([*command, "--lora", "gone.gguf"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "no such adapter file" in done.stderr


def test_a_calibration_is_for_the_model_with_its_adapters(served: Served, base: Path, style: Path, tone: Path) -> None:
    adapters = (Adapter(style, 0.5), Adapter(tone))
    made = calibrate(base, replace(served.manifest.runtime, n_ctx=128), conversations=12, tokens=16, adapters=adapters)
    assert made.model == files_of(served.manifest.model)
    assert any(sample.name == "no-adapter" for sample in made.deviations)
