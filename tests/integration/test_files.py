"""Files on disk: bounded reads, files made new, and files replaced whole and durably."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from verifiable import files
from verifiable.errors import MalformedError, PolicyError
from verifiable.wire.key_file import read_public
from verifiable.wire.keys import PrivateKey


def test_no_more_is_read_than_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read(path, 5) == b"12345"
    with pytest.raises(MalformedError, match="at most 4 bytes"):
        files.read(path, 4)
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "none", 4)


def test_a_new_file_is_for_whom_it_is_meant_and_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    files.write_new(path, b"one", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        files.write_new(path, b"two")
    assert path.read_bytes() == b"one"


def test_a_replaced_file_has_the_new_bytes_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.replace(path, b"one")
    files.replace(path, b"two", 0o600)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_file_and_folder_are_synced_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        calls.append("sync")
        sync(handle)

    def replace(old: Path, new: Path) -> None:
        calls.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    files.replace(tmp_path / "file", b"data")
    assert calls == ["sync", "rename", "sync"]


def test_a_replacement_that_fails_leaves_the_old_bytes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.replace(path, b"old")

    def refuse(handle: int) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="no space"):
        files.replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_verifier_keys_come_as_they_are_or_in_a_file_with_comments(tmp_path: Path) -> None:
    one, other = (PrivateKey.generate(name, bytes(32)).public for name in ("one", "other"))
    path = tmp_path / "keys"
    path.write_text(f"# the provider's\n{one.vkey()}\n\n  {other.vkey()}\n")
    assert read_public(str(path)) == [one, other]
    assert read_public(one.vkey()) == [one]
    path.write_text("# none\n")
    for text, words in ((str(path), "holds no key"), (str(tmp_path / "none"), "no such key file")):
        with pytest.raises(PolicyError, match=words):
            read_public(text)
    with pytest.raises(MalformedError):
        read_public(one.vkey()[:-2] + "AA")
