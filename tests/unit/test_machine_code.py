"""What the files that compute say of themselves, and where two machines' probes part."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.sessions import identity
from verifiable.errors import EngineError, MalformedError, PolicyError
from verifiable.llama import machine_code
from verifiable.llama.library import BuildInfo
from verifiable.llama.probe.compare import OtherProbe, compare, model_json
from verifiable.llama.probe.result import Pieces, ProbeResult
from verifiable.llama.settings import RuntimeSettings, as_dict
from verifiable.manifest.libraries import Library


def elf(comment: bytes, name: bytes = b".comment") -> bytes:
    """The least of an ELF file that has sections: names, and one section."""
    names = b"\0" + name + b"\0.names\0"
    body = names + comment
    header = struct.pack("<16s2HI3QI6H", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 2, 0)
    table = struct.pack("<2I4Q2I2Q", 2 + len(name), 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    return header + body + table + struct.pack("<2I4Q2I2Q", 1, 1, 0, 0, 64 + len(names), len(comment), 0, 0, 1, 0)


def test_a_compiler_is_read_from_an_elf_file() -> None:
    assert machine_code.comment(elf(b"GCC: (Debian 12.2.0-14) 12.2.0\0")) == "GCC: (Debian 12.2.0-14) 12.2.0"
    assert machine_code.comment(elf(b"GCC 12\0clang 16\0GCC 12\0")) == "GCC 12; clang 16"
    assert machine_code.comment(elf(b"a\x1b[2J\xff\n\0")) == "a[2J"
    assert len(machine_code.comment(elf(b"x" * 9000))) == 256
    assert machine_code.comment(elf(b"GCC\0", b".nothing")) == ""
    for other in (b"", b"MZ", b"\xcf\xfa\xed\xfe", b"\x7fELF\x01\x01" + bytes(100), b"\x7fELF\x02\x02" + bytes(100)):
        assert machine_code.comment(other) == ""


def test_a_damaged_elf_file_says_nothing(tmp_path: Path) -> None:
    sound = elf(b"GCC: 12\0")
    for size in range(6, len(sound)):
        (tmp_path / "libggml-cpu.so").write_bytes(sound[:size])
        assert machine_code.compiler(tmp_path) in ("", "GCC: 12")
    (tmp_path / "libggml-cpu.so").write_bytes(sound)
    assert machine_code.compiler(tmp_path) == "GCC: 12"
    assert machine_code.compiler(tmp_path / "nowhere") == ""


def test_files_are_known_by_their_names_without_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("libggml-cpu.so.0.25", "libllama.so", "libggml-base.so", "libmtmd.so", "libm.so.6", "libm-2.31.so"):
        (tmp_path / name).write_bytes(name.encode())
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("libggml-cpu.so.0.25", "libllama.so", "libggml-base.so", "libmtmd.so"):
        (tmp_path / name).rename(folder / name)
    monkeypatch.setattr(machine_code, "_MAPPED", tmp_path / "maps")
    assert [each.name for each in machine_code.in_use(folder)] == ["libggml-base", "libggml-cpu", "libllama"]
    mapped = [folder / "libggml-cpu.so.0.25", folder / "libmtmd.so", tmp_path / "libm-2.31.so", "[heap]"]
    mapped.append(folder / "libggml-gone.so")
    lines = [f"7f00-7f10 r-xp 00000000 08:01 42   {path}" for path in mapped]
    (tmp_path / "maps").write_text("\n".join([*lines, *lines, "7f00-7f10 rw-p 00000000 00:00 0", ""]))
    assert [each.name for each in machine_code.in_use(folder)] == ["libggml-cpu", "libm"]
    if sys.platform == "linux":
        monkeypatch.undo()
        assert machine_code.in_use(folder) == tuple(
            each for each in machine_code.in_use(tmp_path) if each.name.startswith(("libm", "ld-musl"))
        )


BUILD = BuildInfo("b1", "p1", "AVX2 = 1", (Library("libggml-cpu", b"a" * 32), Library("libm", b"m" * 32)), "GCC 12")
PIECES = Pieces(
    ((0, "0" * 16), (5, "5" * 16)),
    (("200 rows: embd", "a" * 16), ("200 rows: FLASH", "b" * 16), ("1 rows: embd", "c" * 16)),
)
HERE = ProbeResult(True, b"f" * 32, (), BUILD, 1.0, PIECES)
SETTINGS = RuntimeSettings()


def told(**changes: Any) -> dict[str, Any]:
    """What `verifiable probe --json` says, as far as it is compared."""
    files, adapters = model_json(identity())
    build = {**BUILD._asdict(), "libraries": {each.name: each.sha256.hex() for each in BUILD.libraries}}
    facts = {"files": files, "adapters": adapters, "settings": as_dict(SETTINGS), "build": build}
    return {**facts, "fingerprint": "ff" * 32, "pieces": asdict(PIECES), **changes}


def other(tmp_path: Path, **changes: Any) -> OtherProbe:
    (tmp_path / "other.json").write_text(json.dumps(told(**changes)))
    return OtherProbe.load(tmp_path / "other.json")


def test_the_first_operation_and_position_that_differ_are_named(tmp_path: Path) -> None:
    same = compare(identity(), replace(SETTINGS, n_ctx=99, n_threads=2), HERE, other(tmp_path))
    assert same.same
    assert (same.positions, same.differing, same.operations, same.stated) == ((0, 2), 0, 3, {})
    operations = [list(each) for each in PIECES.operations]
    operations[1][1] = operations[2][1] = "e" * 16
    pieces = {"logits": [[0, "0" * 16], [5, "6" * 16]], "operations": operations}
    changes = {"compiler": "GCC 11", "system": "FMA = 1 | AVX2 = 1", "libraries": {"libggml-cpu": "ab" * 32}}
    build = {**told()["build"], **changes}
    found = compare(identity(), SETTINGS, HERE, other(tmp_path, pieces=pieces, build=build))
    assert not found.same
    assert (found.operation, found.place, found.differing, found.operations) == ("200 rows: FLASH", 1, 2, 3)
    assert (found.position, found.positions) == (5, (1, 2))
    assert found.stated["compiler"] == ("GCC 11", "GCC 12")
    assert found.stated["libm"] == ("", "6d" * 8)
    assert found.stated["system"] == ("FMA = 1", "")
    assert found.stated.keys() == {"compiler", "libggml-cpu", "libm", "system"}
    fewer = {**pieces, "operations": operations[:1]}
    shorter = compare(identity(), SETTINGS, HERE, other(tmp_path, pieces=fewer))
    assert shorter.operation == "200 rows: FLASH here, nothing there"


def test_only_probes_of_one_model_and_settings_are_compared(tmp_path: Path) -> None:
    files = [{**told()["files"][0], "name": "renamed.gguf"}]
    assert compare(identity(), SETTINGS, HERE, other(tmp_path, files=files)).same
    with pytest.raises(PolicyError, match="model"):
        compare(identity(), SETTINGS, HERE, other(tmp_path, files=[{**files[0], "sha256": "00" * 32}]))
    with pytest.raises(PolicyError, match="settings"):
        compare(identity(), replace(SETTINGS, type_k="q8_0"), HERE, other(tmp_path))


@pytest.mark.parametrize(
    "changes",
    [
        {"pieces": None},
        {"pieces": {"logits": [[0, "00"]], "operations": []}},
        {"pieces": {"logits": [["0", "0" * 16]], "operations": []}},
        {"pieces": {"logits": [[0]], "operations": []}},
        {"pieces": {"logits": []}},
        {"build": {}},
        {"build": {**told()["build"], "libraries": {"libm": "zz"}}},
        {"fingerprint": 5},
        {"settings": 5},
    ],
)
def test_what_is_no_probe_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match=r"other machine's probe|pieces of a probe"):
        other(tmp_path, **changes)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot read"):
        OtherProbe.load(tmp_path / "nothing.json")
    for data in (b"", b"[]", b"[" * 100_000, b"\xff"):
        (tmp_path / "other.json").write_bytes(data)
        with pytest.raises(MalformedError):
            OtherProbe.load(tmp_path / "other.json")
