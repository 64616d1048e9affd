"""The environment that `make` prepares: the pinned llama.cpp, built for the portable numerics class."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from fixtures import models

ROOT = Path(__file__).resolve().parents[2]


def test_the_installed_bindings_are_the_pinned_ones() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pinned = re.search(r"^llama-cpp-python==(\S+)", lock, re.MULTILINE)
    assert pinned is not None
    assert version("llama-cpp-python") == pinned[1]
    assert f'"llama-cpp-python=={pinned[1]}"' in (ROOT / "pyproject.toml").read_text()


def test_the_lock_file_names_no_place_to_download_from() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert "--index" not in lock
    assert all(" --hash=sha256:" in block for block in re.split(r"\n(?=\S+==)", lock)[1:])


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="instruction sets of x86-64")
def test_the_build_is_of_the_portable_class() -> None:
    """A build tuned to this machine would use what most machines lack, and its bits would be its own."""
    code = "import llama_cpp; print(llama_cpp.llama_print_system_info().decode())"
    info = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "AVX2 = 1" in info
    for beyond in ("AVX512", "AVX_VNNI", "AMX"):
        assert beyond not in info


def test_the_models_are_the_pinned_files(smollm2: Path, gemma3: Path) -> None:
    for name, path in (("smollm2", smollm2), ("gemma3", gemma3)):
        assert models.digest_of(path) == models.MODELS[name].sha256
