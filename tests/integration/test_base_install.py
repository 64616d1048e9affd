"""The base install, as a client has it who only checks receipts: no compiler, no extras, light to import.

Builds the wheel of this checkout and installs it into an empty environment; the base requirements come through pip.
"""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.sessions import PROVIDER, recording
from verifiable.cli import OPTIONAL
from verifiable.session.evidence import Kind

ROOT = Path(__file__).resolve().parents[2]
IMPORT_SECONDS = 0.5


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run outside the checkout, so that nothing is imported from it by accident."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        env={**clean, **environment},
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    run(*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of an environment that holds the base install and nothing else."""
    home = tmp_path_factory.mktemp("base") / "venv"
    venv.create(home, with_pip=True, symlinks=True)
    bin_ = home / "bin"
    pip: list[str | Path] = [bin_ / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    # Only ready-made wheels, and compilers that fail: nothing may be built.
    run(*pip, "--only-binary=:all:", wheel, CC="false", CXX="false")
    return bin_


def test_the_wheel_holds_the_three_packages_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"verifiable", "engine", "verifier"}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert not [name for name in names if "test" in Path(name).name]


def test_the_wheel_says_what_it_is_and_its_licence(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (folder,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    licence = archive.read(f"{folder}/licenses/LICENSE").decode()
    assert licence == (ROOT / "LICENSE").read_text(encoding="utf-8")
    metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Description-Content-Type"] == "text/markdown"
    readme = str(metadata.get_payload())
    assert readme.startswith("# ")
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []  # it is read far from the files


def test_no_optional_package_comes_along(base: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {sorted(OPTIONAL)!r} if u.find_spec(n)])"
    assert run(base / "python", "-c", code).stdout == "[]\n"


def test_import_is_quick(base: Path) -> None:
    code = "import time; start = time.perf_counter(); import verifiable; print(time.perf_counter() - start)"
    taken = min(float(run(base / "python", "-c", code).stdout) for _ in range(3))
    assert taken < IMPORT_SECONDS


def test_the_command_lists_its_commands(base: Path) -> None:
    out = run(base / "verifiable", "--help").stdout
    assert "Usage: verifiable COMMAND" in out
    assert "\n  verify " in out


def test_serving_without_its_extra_says_what_to_install(base: Path) -> None:
    done = subprocess.run(
        [base / "verifiable", "serve", "--model", "m.gguf", "--data", "d"],
        cwd=base.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 4
    assert done.stdout == ""
    assert "verifiable-inference[" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_receipt_and_its_evidence_are_checked(base: Path, tmp_path: Path) -> None:
    session = recording()
    receipt, key, evidence = tmp_path / "answer.receipt", tmp_path / "provider.pub", tmp_path / "answer.evidence"
    receipt.write_bytes(session.receipt().encode())
    evidence.write_bytes(session.evidence(Kind.FULL).encode())
    key.write_text(PROVIDER.public.vkey() + "\n")
    command: list[str | Path] = [base / "verifiable", "verify", receipt, "--evidence", evidence, "--trust", key]
    assert "Signed by acme" in run(*command).stdout
    damaged = bytearray(receipt.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    receipt.write_bytes(damaged)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2)
    assert "checksum" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
