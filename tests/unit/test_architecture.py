"""The rules of the house that a machine can hold, beside the contracts of `make lint`: rooms, imports and their cost.

Reads the source files.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from verifiable.cli import OPTIONAL

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("verifiable", "engine", "verifier")
MOST_FILES = 15
"""Python files that a reader takes in at once."""
NETWORK = ("urllib.request", "http.client", "http.server", "http.cookiejar", "socket", "socketserver", "ssl", "ftplib")
"""Parts of the standard library that reach the network; the contracts see no more than a package's name."""


def imports(path: Path) -> set[str]:
    """What a file imports, each with the names taken from it: `urllib`, `urllib.request`, `urllib.request.urlopen`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Import(names=names):
                found |= {each.name for each in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{each.name}" for each in names)}
            case _:
                pass
    return found


def imported_by(statement: str) -> set[str]:
    """Names of the modules that are loaded after *statement* in a fresh interpreter."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_llama_cpp_is_not_imported_by_name_elsewhere_either() -> None:
    """The contracts see import statements; this sees the calls that import."""
    rooms = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
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


@pytest.mark.parametrize("package", PACKAGES)
def test_a_room_can_be_taken_in_at_once(package: str) -> None:
    rooms = Counter(path.parent for path in (ROOT / package).rglob("*.py"))
    assert {str(room): count for room, count in rooms.items() if count > MOST_FILES} == {}


def test_the_protocol_reaches_no_network() -> None:
    apart = [ROOT / "verifiable" / room for room in ("llama", "net")]
    files = [path for path in (ROOT / "verifiable").rglob("*.py") if not any(map(path.is_relative_to, apart))]
    assert files
    for path in files:
        reached = [name for name in imports(path) if any(f"{name}.".startswith(f"{each}.") for each in NETWORK)]
        assert not reached, path


def test_no_test_module_imports_another() -> None:
    """What they share lies in files of its own, such as `tests/simulator.py`; scripts for other processes count too."""
    taken = re.compile(r"(?:from|import) tests\.(?:\w+\.)*(?:test_|conftest)\w*")
    for path in (ROOT / "tests").rglob("*.py"):
        assert not taken.findall(path.read_text(encoding="utf-8")), path


def test_importing_verifiable_loads_nothing_but_itself() -> None:
    loaded = imported_by("import verifiable")
    assert not {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} - {"verifiable"}


@pytest.mark.parametrize("package", PACKAGES)
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


def test_every_public_name_of_verifier_exists() -> None:
    import verifier

    for name in verifier.__all__:
        assert getattr(verifier, name).__name__ == name
