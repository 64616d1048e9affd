"""GGUF files: what is read from a sound one, and how each malformed one is refused."""

from __future__ import annotations

import copy
import struct
import time
from itertools import pairwise

import pytest

from tests.gguf_files import Entry, File, Tensor, packed_string, small, write
from verifiable.errors import EngineError, MalformedError
from verifiable.llama.gguf.metadata import inspect
from verifiable.llama.gguf.types import (
    ARRAY,
    BLOCKS,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    ArrayPlace,
)


def test_a_sound_file_is_described(tmp_path):
    info = inspect(write(tmp_path, small()))
    assert (info.version, info.alignment) == (3, 32)
    assert info.metadata["general.architecture"] == "llama"
    assert info.metadata["test.flag"] is True
    assert info.metadata["test.numbers"] == (1, -2, 3)
    assert info.metadata["tokenizer.ggml.tokens"] == ("a", "b", "<s>")
    embedding, norm = info.tensors
    assert (embedding.name, embedding.dims, embedding.type_name) == ("token_embd.weight", (32, 3), "Q8_0")
    assert (embedding.offset, embedding.elements, embedding.size) == (0, 96, 102)
    assert (norm.offset, norm.size) == (128, 128)
    assert info.data_offset % 32 == 0
    assert info.size == info.data_offset + 256


def test_every_scalar_type_is_read(tmp_path):
    values = {U8: 255, I8: -128, U16: 65535, I16: -32768, U32: 2**32 - 1, I32: -(2**31), U64: 2**64 - 1, I64: -(2**63)}
    file = small()
    file.entries += [Entry(f"x.{kind}", kind, value) for kind, value in values.items()]
    file.entries += [
        Entry("x.f32", F32, 0.5),
        Entry("x.f64", F64, -1e300),
        Entry("x.s", STRING, "é"),
        Entry("x.b", BOOL, 0),
    ]
    metadata = inspect(write(tmp_path, file)).metadata
    assert {kind: metadata[f"x.{kind}"] for kind in values} == values
    assert (metadata["x.f32"], metadata["x.f64"], metadata["x.s"], metadata["x.b"]) == (0.5, -1e300, "é", False)


def test_long_arrays_are_kept_only_when_asked_for(tmp_path):
    file = small()
    file.entries.append(Entry("x.long", ARRAY, list(range(5000)), U32))
    file.entries.append(Entry("x.after", U32, 7))
    path = write(tmp_path, file)
    info = inspect(path)
    place = info.metadata["x.long"]
    assert isinstance(place, ArrayPlace)
    assert (place.kind, place.count, place.size) == (U32, 5000, 20_000)
    assert path.read_bytes()[place.offset :][: place.size] == struct.pack("<5000I", *range(5000))
    assert info.metadata["x.after"] == 7
    assert inspect(path, arrays=True).metadata["x.long"] == tuple(range(5000))


def test_a_file_is_read_again_when_it_may_have_changed(tmp_path, monkeypatch):
    file = small()
    path = write(tmp_path, file)
    assert inspect(path) is not inspect(path)  # written just now: a change need not show in its times
    later = time.time_ns() + 10**10
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: later)
        first = inspect(path)
        assert inspect(path) is first
        assert isinstance(inspect(path, arrays=True).metadata["tokenizer.ggml.tokens"], tuple)
        file.entries.append(Entry("x.after", U32, 7))
        assert "x.after" in inspect(write(tmp_path, file)).metadata
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(MalformedError):
            inspect(path)
        path.unlink()
        with pytest.raises(EngineError):
            inspect(path)


def test_a_field_knows_its_bytes(tmp_path):
    path = write(tmp_path, small())
    for key, field in inspect(path).fields.items():
        assert path.read_bytes()[field.offset :].startswith(packed_string(key))
    fields = list(inspect(path).fields.values())
    assert all(a.offset + a.size == b.offset for a, b in pairwise(fields))


def test_tokens_need_not_be_text(tmp_path):
    file = small()
    file.entry("tokenizer.ggml.tokens").value = ["a", b"\xff\xfe", "c"]
    tokens = inspect(write(tmp_path, file)).metadata["tokenizer.ggml.tokens"]
    assert tokens == ("a", "\udcff\udcfe", "c")


def test_version_2_is_read_too(tmp_path):
    file = small()
    file.version = 2
    assert inspect(write(tmp_path, file)).version == 2


def test_every_tensor_type_has_the_size_that_its_blocks_say(tmp_path):
    for kind, (name, block, width) in BLOCKS.items():
        if name in ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"):
            continue
        file = small()
        file.tensors[0] = Tensor("token_embd.weight", (block, 5), kind, bytes(5 * width))
        assert inspect(write(tmp_path, file)).tensors[0].size == 5 * width


# Case A10 of the public reports: sixty-five bytes that end llama.cpp with a division by zero, and their kin.


def test_a_zero_dimension_is_refused(tmp_path):
    file = File([], [Tensor("t", (4, 0), 0, b"")])
    data = file.build()
    assert len(data) < 128
    with pytest.raises(MalformedError, match=r"tensor 't' has no or too many elements.*4 × 0"):
        inspect(write(tmp_path, data))


def test_alignment_as_a_string_is_refused(tmp_path):
    file = small()
    file.entry("general.alignment").kind = STRING
    file.entry("general.alignment").value = "32"
    with pytest.raises(MalformedError, match=r"general\.alignment has the wrong type: expected u32, found string"):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize("alignment", [0, 1, 8, 16, 33, 48, 96, 2**32 - 1])
def test_an_alignment_that_cannot_be_used_is_refused(tmp_path, alignment):
    file = small()
    file.entry("general.alignment").value = alignment
    with pytest.raises(MalformedError, match=r"general\.alignment cannot be used"):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize("alignment", [64, 4096])
def test_a_larger_alignment_is_fine(tmp_path, alignment):
    file = small()
    file.alignment = file.entry("general.alignment").value = alignment
    info = inspect(write(tmp_path, file))
    assert info.data_offset % alignment == 0
    assert info.tensors[1].offset == max(alignment, 128)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ((0,), "no or too many elements"),
        ((2**63, 2), "no or too many elements"),
        ((2**64 - 1,), "no or too many elements"),  # minus one
        ((2**32, 2**32), "no or too many elements"),  # 2**64 wraps to zero
        ((2**21, 2**21, 2**21), "no or too many elements"),
        ((32, 1, 1, 1, 1), "too many dimensions"),
        ((2**62,), "ends at byte"),
        ((33, 2), "no whole blocks of Q8_0"),
        ((1,), "no whole blocks of Q8_0"),
    ],
)
def test_dimensions_that_cannot_be_are_refused(tmp_path, dims, message):
    file = small()
    file.tensors = [Tensor("token_embd.weight", dims, 8, bytes(256))]
    with pytest.raises(MalformedError, match=message):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize("kind", [4, 5, 31, 36, 38, 43, 100, 2**31, 2**32 - 1])
def test_an_unknown_tensor_type_is_refused(tmp_path, kind):
    file = small()
    file.tensors[0].kind = kind
    with pytest.raises(MalformedError, match="has an unknown type"):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (1, "is not aligned"),
        (96, "overlaps the one before"),
        (0, "overlaps the one before"),
        (160, "leaves a gap"),
        (2**63, "leaves a gap"),
        (2**64 - 32, "leaves a gap"),
    ],
)
def test_a_tensor_in_the_wrong_place_is_refused(tmp_path, offset, message):
    file = small()
    file.tensors[1].offset = offset
    with pytest.raises(MalformedError, match=message):
        inspect(write(tmp_path, file))


def test_a_cut_file_is_refused_with_the_byte_at_which_it_ends(tmp_path):
    data = small().build()
    message = f"tensor 'output_norm.weight' ends at byte {len(data)}, the file has {len(data) - 1}"
    with pytest.raises(MalformedError, match=message) as caught:
        inspect(write(tmp_path, data[:-1]))
    assert "Fetch it again" in str(caught.value)


def test_every_truncation_is_refused(tmp_path):
    data = small().build()
    for length in range(len(data)):
        with pytest.raises(MalformedError):
            inspect(write(tmp_path, data[:length]))


@pytest.mark.parametrize("count", [2**16, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("which", ["n_tensors", "n_entries"])
def test_counts_over_the_size_of_the_file_are_refused_at_once(tmp_path, which, count):
    file = small()
    setattr(file, which, 0)
    data = bytearray(file.build())
    at = 8 if which == "n_tensors" else 16
    data[at : at + 8] = struct.pack("<Q", count)
    with pytest.raises(MalformedError, match="do not fit into"):
        inspect(write(tmp_path, bytes(data)))


def test_a_count_one_too_high_or_too_low_is_refused(tmp_path):
    for which in ("n_tensors", "n_entries"):
        for change in (1, -1):
            file = small()
            setattr(file, which, len(file.tensors if which == "n_tensors" else file.entries) + change)
            if (which, change) == ("n_tensors", -1):
                file.build()  # one tensor fewer is a sound file: its bytes lie after the last one
                inspect(write(tmp_path, file))
            else:
                with pytest.raises(MalformedError):
                    inspect(write(tmp_path, file))


@pytest.mark.parametrize("magic", [b"GGUG", b"gguf", b"GGML", b"\0\0\0\0"])
def test_another_magic_number_is_refused(tmp_path, magic):
    file = small()
    file.magic = magic
    with pytest.raises(MalformedError, match="wrong magic number"):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize("version", [0, 1, 4, 2**32 - 1])
def test_another_version_is_refused(tmp_path, version):
    file = small()
    file.version = version
    with pytest.raises(MalformedError, match=r"unknown version: expected 2 or 3"):
        inspect(write(tmp_path, file))


def test_a_big_endian_file_is_named_as_such(tmp_path):
    file = small()
    file.version = 3 << 24
    with pytest.raises(MalformedError, match="big-endian"):
        inspect(write(tmp_path, file))


def test_duplicate_names_are_refused(tmp_path):
    file = small()
    file.entries.append(copy.copy(file.entries[3]))
    with pytest.raises(MalformedError, match=r"'test\.flag' appears twice"):
        inspect(write(tmp_path, file))
    file = small()
    file.tensors.append(copy.copy(file.tensors[0]))
    with pytest.raises(MalformedError, match=r"'token_embd\.weight' appears twice"):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize("key", ["", "a\0b", "é", "a\nb", "x" * 65_536])
def test_a_key_that_is_no_word_is_refused(tmp_path, key):
    file = small()
    file.entries.append(Entry(key, U32, 1))
    with pytest.raises(MalformedError, match=r"key of metadata entry 6"):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize("name", ["", "x" * 64, "a\0b", "a\nb", b"\xff"])
def test_a_tensor_name_that_is_no_word_is_refused(tmp_path, name):
    file = small()
    file.tensors[0].name = name
    with pytest.raises(MalformedError, match="name of tensor 0"):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize("kind", [13, 255, 2**31, 2**32 - 1])
def test_an_unknown_value_type_is_refused(tmp_path, kind):
    file = small()
    file.entries.append(Entry("x", kind, None, raw=bytes(8)))
    with pytest.raises(MalformedError, match="has an unknown type"):
        inspect(write(tmp_path, file))
    file.entries[-1] = Entry("x", ARRAY, None, raw=struct.pack("<IQ", kind, 0))
    with pytest.raises(MalformedError, match="unknown or nested type"):
        inspect(write(tmp_path, file))


def test_nested_arrays_are_refused(tmp_path):
    file = small()
    file.entries.append(Entry("x", ARRAY, None, raw=struct.pack("<IQIQ", ARRAY, 1, U8, 0)))
    with pytest.raises(MalformedError, match="unknown or nested type"):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize("element", [U8, U64, STRING])
@pytest.mark.parametrize("count", [10**6, 2**61, 2**64 - 1])
def test_an_array_longer_than_the_file_is_refused(tmp_path, element, count):
    file = small()
    file.entries.append(Entry("x", ARRAY, None, raw=struct.pack("<IQ", element, count)))
    with pytest.raises(MalformedError, match=r"needs .* bytes at byte .*, the file has"):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize("length", [1000, 2**40, 2**64 - 1])
def test_a_string_longer_than_the_file_is_refused(tmp_path, length):
    file = small()
    file.entries.append(Entry("x", STRING, None, raw=struct.pack("<Q", length)))
    with pytest.raises(MalformedError, match=r"needs|too long"):
        inspect(write(tmp_path, file))


def test_a_string_that_is_no_text_is_refused(tmp_path):
    file = small()
    file.entries.append(Entry("x", STRING, b"\xc3\x28"))
    with pytest.raises(MalformedError, match=r"metadata 'x' is no UTF-8 text"):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize("value", [2, 255])
def test_a_boolean_that_is_neither_is_refused(tmp_path, value):
    file = small()
    file.entry("test.flag").value = value
    with pytest.raises(MalformedError, match=r"'test\.flag' is no boolean: expected 0 or 1"):
        inspect(write(tmp_path, file))


def test_what_is_not_a_readable_file_is_an_error_of_the_environment(tmp_path):
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(EngineError):
            inspect(path)
    with pytest.raises(EngineError):
        inspect("a\0b")


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(MalformedError, match="the magic number needs 4 bytes at byte 0, the file has 0"):
        inspect(write(tmp_path, b""))
