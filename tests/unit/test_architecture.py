"""The rules of the house that a machine can hold: who may import whom, and what an import may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from verifiable.cli import OPTIONAL

ROOT = Path(__file__).resolve().parents[2]


def imported_by(statement: str) -> set[str]:
    """Names of the modules that are loaded after *statement* in a fresh interpreter."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_import_contracts() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_llama_cpp_is_not_imported_by_name_elsewhere_either() -> None:
    """The contracts see import statements; this sees the calls that import."""
    rooms = [path for package in ("verifiable", "engine", "verifier") for path in (ROOT / package).rglob("*.py")]
    outside = [path for path in rooms if not path.is_relative_to(ROOT / "verifiable" / "llama")]
    assert outside
    for path in outside:
        for node in ast.walk(ast.parse(path.read_bytes())):
            match node:
                case ast.Call(
                    func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    assert name.partition(".")[0] != "llama_cpp", f"{path}:{node.lineno}"


def test_importing_verifiable_loads_nothing_but_itself() -> None:
    loaded = imported_by("import verifiable")
    assert not {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} - {"verifiable"}


@pytest.mark.parametrize("package", ["verifiable", "engine", "verifier"])
def test_importing_a_package_loads_no_optional_dependency(package: str) -> None:
    assert not imported_by(f"import {package}") & set(OPTIONAL)


def test_every_public_name_of_verifiable_exists() -> None:
    import verifiable

    for name in verifiable.__all__:
        assert getattr(verifiable, name) is not None
        assert name in dir(verifiable)
    with pytest.raises(AttributeError, match="'nonsense'"):
        _ = verifiable.nonsense


def test_public_names_do_not_load_what_they_do_not_need() -> None:
    loaded = imported_by("from verifiable import MalformedError")
    assert "verifiable.errors" in loaded
    assert not loaded & {"numpy", "cbor2", "nacl"}
