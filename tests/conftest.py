"""What every layer of tests shares: one thread, markers by folder, and the models.

What a test needs of its machine is asked for through `tests.needs`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points, version
from pathlib import Path

# Before anything loads numpy or llama.cpp: their thread pools read these once.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import pytest
from hypothesis import settings

from fixtures import models
from tests.needs import ROOT, missing
from verifiable.cli import DISTRIBUTION, GROUP

settings.register_profile("untimed", deadline=None)  # how busy a machine is says nothing about the code
settings.load_profile("untimed")


def _commands_of_this_tree() -> None:
    """Let the command line find what this tree's pyproject.toml says, where another or an older one is installed."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    if stated == {entry.name: entry.value for entry in entry_points(group=GROUP)}:
        return
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, True)
    metadata = Path(folder, f"{DISTRIBUTION.replace('-', '_')}-{version(DISTRIBUTION)}.dist-info")
    metadata.mkdir()
    about = ["Metadata-Version: 2.1", f"Name: {DISTRIBUTION}", f"Version: {version(DISTRIBUTION)}", ""]
    (metadata / "METADATA").write_text("\n".join(about))
    lines = [f"{name} = {value}" for name, value in stated.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


_commands_of_this_tree()

LAYERS = ("unit", "property", "conformance", "integration", "adversary", "fault")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder and whether it writes files; put the slow ones last."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and (layer := item.path.relative_to(here).parts[0]) in LAYERS:
            item.add_marker(layer)
        if {"tmp_path", "tmp_path_factory"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("files")
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


def _model(name: str) -> Path:
    path = models.model_path(name)
    if not path.exists():
        missing(f"{path.name} is not there: run `make models`")
    return path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: a dense model with a chat template."""
    return _model("smollm2")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M, Q4_K_M: sliding-window attention and a vocabulary of 262,144."""
    return _model("gemma3")


@pytest.fixture(scope="session")
def smollm2_variant(smollm2: Path) -> Callable[[str], Path]:
    """Gives SmolLM2 in another quantisation (``"Q8_0"``, ``"Q2_K"`` …), made on first use."""
    from fixtures.quantise import variant

    return variant


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random models of a few hundred kilobytes: kind (``llama``, ``moe``, ``mamba``) -> path."""
    from fixtures.small_models import KINDS

    folder = tmp_path_factory.mktemp("tiny")
    return {kind: write(folder / f"tiny-{kind}.gguf") for kind, write in KINDS.items()}


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of this project's own test vectors, which any other implementation can run."""
    return ROOT / "spec" / "vectors"
