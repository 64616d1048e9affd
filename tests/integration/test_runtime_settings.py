"""RoPE and devices from the command line to the verdict: what is stated is applied by both sides, or nobody's."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engine import Engine, EngineSettings
from verifiable.checking.verdict import Status, Verdict
from verifiable.errors import EngineError, PolicyError
from verifiable.llama import devices
from verifiable.llama.context import Batch, Context
from verifiable.llama.library import BuildInfo
from verifiable.llama.model import Model
from verifiable.llama.probe.probe import probe
from verifiable.llama.probe.result import ProbeResult, describe
from verifiable.llama.settings import NO_DEVICE, RuntimeSettings, settings_of
from verifiable.manifest.manifest import ALL_LAYERS, Manifest
from verifiable.manifest.rope import Rope
from verifiable.session.evidence import Evidence, Kind
from verifier.auditing.session import audit
from verifier.model.worker import Worker
from verifier.tolerant.calibration import settings_of as arithmetic_of

SMALL = RuntimeSettings(n_ctx=64, n_seq_max=1)
BASE = Rope(freq_base=500_000.0)
YARN = Rope(freq_scale=0.5, scaling="yarn", yarn_orig_ctx=4096)
CHANGES = (
    Rope(),
    BASE,
    Rope(freq_scale=0.5),
    Rope(freq_scale=0.5, scaling="yarn"),
    YARN,
    replace(YARN, yarn_ext_factor=0.5),
    replace(YARN, yarn_ext_factor=0.0, yarn_attn_factor=0.5),
    replace(YARN, yarn_beta_fast=4.0),
    replace(YARN, yarn_beta_slow=8.0),
)


@pytest.fixture(scope="module")
def base(tiny_models: dict[str, Path]) -> Path:
    return tiny_models["llama"]


def logits(model: Model, rope: Rope) -> np.ndarray:
    with Context(model, replace(SMALL, rope=rope)) as context:
        batch = Batch(40)
        rows = [batch.add(0, at, 3 * at + 5, True) for at in range(40)]
        found = context.decode(batch)
        return np.stack([found[row] for row in rows])


def test_every_setting_reaches_llama_cpp(base: Path) -> None:
    with Model.load(base) as model:
        found = [logits(model, rope) for rope in CHANGES]
        again = logits(model, CHANGES[0])  # nothing of it stays with the model
    assert (again == found[0]).all()
    for at, one in enumerate(found):
        assert all((one != other).any() for other in found[:at]), CHANGES[at]
    with Model.load(base) as model:
        scaled = Rope(freq_scale=0.5)
        assert (logits(model, replace(scaled, scaling="linear")) == logits(model, scaled)).all()
        assert (logits(model, replace(scaled, scaling="none")) == found[0]).all()


def test_a_model_without_rope_takes_no_setting(tiny_models: dict[str, Path]) -> None:
    with Model.load(tiny_models["mamba"]) as model, pytest.raises(PolicyError, match="RoPE"):
        Context(model, replace(SMALL, rope=BASE))


@pytest.mark.parametrize("rope", [BASE, YARN], ids=str)
def test_the_probe_decides_what_may_be_claimed(base: Path, tmp_path: Path, rope: Rope) -> None:
    plain, found = (probe(base, settings, cache=tmp_path) for settings in (SMALL, replace(SMALL, rope=rope)))
    assert plain.fingerprint != found.fingerprint
    assert found.invariant
    assert len(list(tmp_path.iterdir())) == 2


class Served:
    """One answer of a provider, and its audit."""

    def __init__(self, kind: type[Engine], base: Path, runtime: RuntimeSettings, folder: Path) -> None:
        self.base, self.folder = base, folder
        with kind(base, folder, EngineSettings(runtime, cache=folder / "cache")) as provider:
            provider.chat([{"role": "user", "content": "And then?"}], max_tokens=12, nonce=b"12345678")
            row = provider.store.sessions(1)[0][1]
            self.evidence: Evidence = provider.evidence.evidence(row, Kind.FULL)
            self.trust = [provider.keys.provider.public]
            self.manifest: Manifest = provider.manifest

    def audit(self) -> Verdict:
        with Worker(self.base, cache=self.folder / "cache") as worker:
            return audit(self.evidence, worker, self.trust)


class Elsewhere(Engine):
    """Runs with another RoPE base than its manifest states."""

    served = BASE

    def _runtime(self) -> RuntimeSettings:
        return replace(self.settings.runtime, rope=self.served)


class Unscaled(Elsewhere):
    """States a RoPE setting and leaves it to the model."""

    served = Rope()


RUNTIME = RuntimeSettings(n_ctx=256)


@pytest.mark.parametrize("rope", [BASE, YARN], ids=str)
def test_what_is_stated_verifies_exactly(base: Path, tmp_path: Path, rope: Rope) -> None:
    served = Served(Engine, base, replace(RUNTIME, rope=rope, device=NO_DEVICE), tmp_path)
    assert (served.manifest.runtime.rope, served.manifest.runtime.device) == (rope, NO_DEVICE)
    verdict = served.audit()
    assert verdict.status is Status.EXACT, verdict
    assert verdict.to_json()["details"]["runtime"]["rope"] == rope.stated()


@pytest.mark.parametrize(("kind", "stated"), [(Elsewhere, Rope()), (Unscaled, BASE)])
def test_what_is_not_stated_fails(kind: type[Engine], stated: Rope, base: Path, tmp_path: Path) -> None:
    verdict = Served(kind, base, replace(RUNTIME, rope=stated), tmp_path).audit()
    assert (verdict.status, verdict.code) == (Status.FAILED, "logits-differ")
    assert verdict.token == 0


def test_manifest_and_settings_say_the_same() -> None:
    settings = RuntimeSettings(n_gpu_layers=7, device="CUDA0", rope=YARN)
    probed = ProbeResult(True, bytes(32), (), BuildInfo("b", "p", "s"), 0.0)
    stated = describe(settings, probed)
    assert settings_of(stated, n_threads=1, n_seq_max=settings.n_seq_max) == settings
    assert arithmetic_of(stated)["rope"] == YARN.stated()
    assert "rope" not in arithmetic_of(replace(stated, rope=Rope(), device=""))
    assert describe(replace(settings, n_gpu_layers=-1), probed).n_gpu_layers == ALL_LAYERS


def test_a_device_that_is_not_there(base: Path) -> None:
    assert "CPU" not in devices.names()
    for name in ("CPU", "CUDA99", "none,CPU"):
        with pytest.raises(EngineError, match="no device"):
            Model.load(base, device=name)
    with Model.load(base, device=NO_DEVICE) as model, pytest.raises(PolicyError, match="device"):
        Context(model, SMALL)


def test_an_auditor_without_the_device_decides_nothing(base: Path, tmp_path: Path) -> None:
    class Claims(Engine):
        def _stated(self, identity: Any, probed: Any) -> Any:
            runtime = replace(self.settings.runtime, device="CUDA99", n_gpu_layers=-1)
            self.settings = replace(self.settings, runtime=runtime)
            # With the files of this build named it would be impossible; of another build they are not known here.
            elsewhere = replace(probed, build=probed.build._replace(libraries=()))
            return super()._stated(identity, elsewhere)

        def _runtime(self) -> RuntimeSettings:
            return replace(self.settings.runtime, device="", n_gpu_layers=0)

        def _load(self) -> Model:
            return Model.load(self.path)

    verdict = Served(Claims, base, RUNTIME, tmp_path).audit()
    assert (verdict.status, verdict.code) == (Status.INCONCLUSIVE, "environment")
    assert "CUDA99" in str(verdict)


def test_the_commands_take_them(base: Path, tmp_path: Path) -> None:
    options = ["--rope-freq-base", "500000", "--rope-scaling", "linear", "--rope-freq-scale", "0.5", "--device", "none"]
    command = [sys.executable, "-m", "verifiable", "probe", "--model", str(base), "--json", "--fresh"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    settings = json.loads(done.stdout)["settings"]
    assert settings["rope"] == {"freq_base": 500_000.0, "freq_scale": 0.5, "scaling": "linear"}
    assert settings["device"] == "none"
    for wrong in (["--rope-scaling", "cubic"], ["--rope-freq-base", "0.1"], ["--yarn-orig-ctx", "-1"]):
        done = subprocess.run([*command, *wrong], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
    served = Served(Engine, base, replace(RUNTIME, rope=BASE), tmp_path)
    manifest, key = tmp_path / "manifest", tmp_path / "key"
    manifest.write_bytes(served.evidence.manifest)
    key.write_text(served.trust[0].vkey())
    calibrate = [sys.executable, "-m", "verifiable", "calibrate", "--model", str(base), "--manifest", str(manifest)]
    done = subprocess.run(
        [*calibrate, "--trust", str(key), *options], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "settings come from the manifest" in done.stderr
