"""Models in several files, and what identifies a model."""

from __future__ import annotations

import hashlib

import pytest

from tests.gguf_files import Entry, File, Tensor, packed_string, small
from verifiable.errors import EngineError, MalformedError
from verifiable.llama.gguf.identity import identify
from verifiable.llama.gguf.parts import inspect_parts
from verifiable.llama.gguf.types import I32, STRING, U16, U32


def split(folder, count=3):
    """A model in *count* parts, one tensor in each; returns the paths and the parts."""
    files = []
    for number in range(count):
        file = small() if number == 0 else File()
        file.entries += [
            Entry("split.no", U16, number),
            Entry("split.count", U16, count),
            Entry("split.tensors.count", I32, count),
        ]
        file.tensors = [Tensor(f"blk.{number}.attn_norm.weight", (32,), 0, bytes([number]) * 128)]
        files.append(file)
    paths = [folder / f"m-{number + 1:05}-of-{count:05}.gguf" for number in range(count)]
    for path, file in zip(paths, files, strict=True):
        path.write_bytes(file.build())
    return paths, files


def test_one_file_is_one_part(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(small().build())
    ((found, info),) = inspect_parts(path)
    assert found == path
    assert len(info.tensors) == 2


def test_parts_are_found_beside_the_first(tmp_path):
    paths, _ = split(tmp_path)
    assert [path for path, _ in inspect_parts(paths[0])] == paths


def test_only_the_first_part_names_a_model(tmp_path):
    paths, _ = split(tmp_path)
    with pytest.raises(MalformedError, match="not the first part"):
        inspect_parts(paths[1])


def test_the_first_part_must_have_its_name(tmp_path):
    paths, _ = split(tmp_path)
    renamed = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(MalformedError, match=r"a name that ends in -00001-of-00003\.gguf"):
        inspect_parts(renamed)


def test_a_missing_part_is_named(tmp_path):
    paths, _ = split(tmp_path)
    paths[2].unlink()
    with pytest.raises(EngineError, match=r"m-00003-of-00003\.gguf"):
        inspect_parts(paths[0])


def test_a_part_in_the_place_of_another_is_refused(tmp_path):
    paths, files = split(tmp_path)
    paths[2].write_bytes(files[1].build())
    with pytest.raises(MalformedError, match="another part of the model: expected 2, found 1"):
        inspect_parts(paths[0])


def test_a_part_number_of_another_type_is_refused(tmp_path):
    paths, files = split(tmp_path)
    files[1].entry("split.no").kind = U32
    paths[1].write_bytes(files[1].build())
    with pytest.raises(MalformedError, match=r"split\.no has the wrong type: expected u16, found u32"):
        inspect_parts(paths[0])


def test_a_tensor_in_two_parts_is_refused(tmp_path):
    paths, files = split(tmp_path)
    files[2].tensors[0].name = files[1].tensors[0].name
    paths[2].write_bytes(files[2].build())
    with pytest.raises(MalformedError, match="is in another part too"):
        inspect_parts(paths[0])


def test_the_number_of_tensors_must_be_the_promised_one(tmp_path):
    paths, files = split(tmp_path)
    files[0].entry("split.tensors.count").value = 4
    paths[0].write_bytes(files[0].build())
    with pytest.raises(MalformedError, match="another number of tensors: expected 4, found 3"):
        inspect_parts(paths[0])


def test_too_many_parts_are_refused(tmp_path):
    paths, files = split(tmp_path)
    files[0].entry("split.count").value = 65_535
    paths[0].write_bytes(files[0].build())
    with pytest.raises(MalformedError, match="too many parts"):
        inspect_parts(paths[0])


def test_identity_names_every_file(tmp_path):
    paths, _ = split(tmp_path)
    seen: list[tuple[int, int]] = []
    identity = identify(paths[0], lambda done, total: seen.append((done, total)))
    assert [file.name for file in identity.files] == [path.name for path in paths]
    assert [file.sha256 for file in identity.files] == [hashlib.sha256(path.read_bytes()).digest() for path in paths]
    assert [file.size for file in identity.files] == [path.stat().st_size for path in paths]
    assert (identity.architecture, identity.parameters, identity.vocabulary) == ("llama", 96, 3)
    total = sum(path.stat().st_size for path in paths)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_identity_of_what_a_file_does_not_say(tmp_path):
    path = tmp_path / "m.gguf"
    file = small()
    path.write_bytes(file.build())
    identity = identify(path)
    assert identity.file_type == 1024  # LLAMA_FTYPE_GUESSED
    assert identity.template_digest == hashlib.sha256(b"").digest()
    file.entries += [Entry("general.file_type", U32, 7), Entry("tokenizer.chat_template", STRING, "{{ é }}")]
    path.write_bytes(file.build())
    identity = identify(path)
    assert identity.file_type == 7
    assert identity.template_digest == hashlib.sha256("{{ é }}".encode()).digest()


def test_the_tokenizer_digest_is_that_of_its_entries_in_the_order_of_their_keys(tmp_path):
    path = tmp_path / "m.gguf"
    file = small()
    tokens = file.entry("tokenizer.ggml.tokens")
    model = Entry("tokenizer.ggml.model", STRING, "gpt2")
    file.entries.append(model)
    path.write_bytes(file.build())
    expected = hashlib.sha256(model.build() + tokens.build()).digest()
    assert model.build().startswith(packed_string("tokenizer.ggml.model"))
    assert identify(path).tokenizer_digest == expected
    # Neither the order in the file, nor other entries, nor the template change it; the tokens do.
    file.entries = [
        *file.entries[::-1],
        Entry("tokenizer.chat_template", STRING, "x"),
        Entry("general.name", STRING, "y"),
    ]
    path.write_bytes(file.build())
    assert identify(path).tokenizer_digest == expected
    tokens.value = ["a", "b", "<S>"]
    path.write_bytes(file.build())
    assert identify(path).tokenizer_digest != expected


def test_a_template_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    file = small()
    file.entries.append(Entry("tokenizer.chat_template", U32, 1))
    path.write_bytes(file.build())
    with pytest.raises(MalformedError, match=r"tokenizer\.chat_template has the wrong type"):
        identify(path)
