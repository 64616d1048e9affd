"""Power cuts, full disks and failing disks: what was acknowledged is never lost, and what was signed never changes.

The counts here fit a test run. The full ones: `VERIFIABLE_FULL=1` (200 kills, each fault at each operation).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FULL = os.environ.get("VERIFIABLE_FULL") == "1"


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes the system's calls fail, compiled."""
    compiler = next((name for name in ("cc", "gcc", "c++") if shutil.which(name)), None)
    assert compiler is not None, "a C compiler is needed: install gcc"
    built = tmp_path_factory.mktemp("shim") / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True, timeout=60)
    return built


def crash(*arguments: str, shim: Path | None = None) -> dict[str, Any]:
    environment = {**os.environ, **({"LD_PRELOAD": str(shim)} if shim else {})}
    command = [sys.executable, "-m", "tests.fault.crash", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=7200)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["wrong"] == [], done.stderr
    return found


@pytest.mark.timeout(7200 if FULL else 300)
def test_kill_at_random_moments_loses_nothing() -> None:
    count = 200 if FULL else 12
    found = crash("kills", "--count", str(count))
    assert found["kills"] == count
    assert found["receipts"] > count  # there was a load to lose
    assert found["checkpoints"] > 1


@pytest.mark.timeout(7200 if FULL else 300)
@pytest.mark.parametrize("kind", ["eio", "enospc", "short", "full", "kill-before", "kill-after"])
def test_faults_of_the_disk_lose_nothing(shim: Path, kind: str) -> None:
    found = crash("faults", "--kinds", kind, "--step", "1" if FULL else "101", shim=shim)
    assert found["operations"] > 100
    if kind in ("eio", "enospc", "full"):  # a fault that is not noticed is a lie
        assert found["refused"] > 0
    if kind.startswith("kill"):
        assert found["killed"] == found["cases"] - found["unreached"] > 0
