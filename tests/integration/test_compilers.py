"""Who shares a numerics class: the same sources and flags by other compilers (`python -m fixtures.compilers`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.compilers import COMPILERS, folder
from tests.needs import ROOT, missing_program


def probe(model: Path, cache: Path, *arguments: str, compiler: str | None = None) -> tuple[int, dict[str, Any]]:
    """Exit status and report of `verifiable probe`, with llama.cpp by that compiler or as it is installed."""
    env = os.environ | {"XDG_CACHE_HOME": str(cache)}
    if compiler is not None:
        env["LLAMA_CPP_LIB_PATH"] = str(folder(compiler))
    command = [sys.executable, "-m", "verifiable", "probe", "--json", "--model", str(model), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode in (0, 3), done.stderr
    return done.returncode, json.loads(done.stdout)


def is_gcc_11(probed: dict[str, Any]) -> bool:
    said = probed["build"]["compiler"]
    return ") 11." in said and "clang" not in said


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probes")


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_build_by_another_compiler_is_compared(compiler: str, smollm2: Path, kept: Path) -> None:
    if not folder(compiler).is_dir():
        reason = f"no llama.cpp by {compiler}: python -m fixtures.compilers {compiler}"
        # Some systems have no gcc 11 any more.
        missing_program(reason) if compiler == "clang++" else pytest.skip(reason)
    status, there = probe(smollm2, kept, compiler=compiler)
    assert (status, there["invariant"]) == (0, True)
    (kept / "other.json").write_text(json.dumps(there))
    status, here = probe(smollm2, kept, "--compare", str(kept / "other.json"))
    found = here["comparison"]
    said = found["stated"].keys() - {"system"}  # clang may lack OpenMP
    assert said == {"compiler", "libggml-cpu"}  # what llama.cpp says of itself is the same
    if is_gcc_11(there) == is_gcc_11(here):
        assert there["fingerprint"] == here["fingerprint"]
        assert (status, found["same"], found["differing"]) == (0, True, 0)
    else:
        assert there["fingerprint"] != here["fingerprint"]
        assert (status, found["same"], found["operation"]) == (3, False, "200 rows: FLASH_ATTN_EXT")
        assert 0 < found["differing"] < found["operations"]


@pytest.mark.parametrize(("says", "warned"), [("11 __clang__", True), ("12 __clang__", False), ("4 1", False)])
def test_make_warns_of_a_compiler_out_of_the_class(tmp_path: Path, says: str, warned: bool) -> None:
    if shutil.which("make") is None:
        missing_program("no make")
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\necho '{says}'\n")
    compiler.chmod(0o755)
    command = ["make", "--silent", "compiler", f"CXX={compiler}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    assert ("gcc 11" in done.stderr) == warned
