"""Whatever a file holds, reading it ends in a description or in MalformedError, soon and with little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings, strategies as st

from tests.gguf_files import Entry, File, Tensor, small
from verifiable.errors import MalformedError
from verifiable.llama.gguf.metadata import inspect, inspect_adapter
from verifiable.llama.gguf.types import ARRAY, BLOCKS, STRING, GGUFInfo

SOUND = small().build()
NUMBERS = st.sampled_from([0, 1, 2, 31, 32, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1])


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], GGUFInfo | None]:
    path = tmp_path_factory.mktemp("fuzz") / "model.gguf"

    def run(data: bytes) -> GGUFInfo | None:
        path.write_bytes(data)
        try:
            info = inspect(path, arrays=True)
        except MalformedError:
            return None
        check_sound(info, len(data))
        return info

    return run


def check_sound(info: GGUFInfo, size: int) -> None:
    """What follows from acceptance: nothing lies outside the file or over something else."""
    assert info.size == size
    ends = 0
    for tensor in info.tensors:
        assert tensor.elements > 0
        assert tensor.offset >= ends
        ends = tensor.offset + tensor.size
        assert info.data_offset + ends <= size
    for field in info.fields.values():
        assert 0 < field.offset < field.offset + field.size <= size


def adapter() -> bytes:
    """The smallest file that is taken for a LoRA adapter."""
    entries = [("general.architecture", "llama"), ("general.type", "adapter"), ("adapter.type", "lora")]
    pair = [Tensor(f"blk.0.attn_q.weight.lora_{end}", (4, 4), 0, bytes(64)) for end in "ab"]
    return File([Entry(key, STRING, value) for key, value in entries], pair).build()


ADAPTER = adapter()


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(ADAPTER) - 1), st.integers(0, 255)), max_size=4), st.binary(max_size=16))
def test_changed_bytes_of_an_adapter(tmp_path_factory, changes, more):
    data = bytearray(ADAPTER)
    for at, value in changes:
        data[at] = value
    path = tmp_path_factory.getbasetemp() / "adapter.gguf"
    path.write_bytes(bytes(data) + more)
    try:
        info = inspect_adapter(path)
    except MalformedError:
        assert changes
        return
    check_sound(info, len(data) + len(more))
    assert {tensor.name[-7:] for tensor in info.tensors} >= {".lora_a", ".lora_b"}


@given(st.binary(max_size=400))
@example(b"GGUF")
@example(b"GGUF\3\0\0\0" + b"\xff" * 16)
def test_random_bytes(read, data):
    read(data)


@given(st.binary(max_size=300))
def test_random_bytes_behind_a_sound_start(read, data):
    read(SOUND[:24] + data)


@given(st.integers(0, len(SOUND) - 1))
def test_truncations_are_refused(read, length):
    assert read(SOUND[:length]) is None


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes(read, changes):
    data = bytearray(SOUND)
    for at, value in changes:
        data[at] = value
    read(bytes(data))


@settings(max_examples=400)
@given(st.integers(0, len(SOUND) - 8), NUMBERS, st.sampled_from([4, 8]))
def test_changed_numbers(read, at, value, width):
    data = bytearray(SOUND)
    data[at : at + width] = (value & (2 ** (8 * width) - 1)).to_bytes(width, "little")
    read(bytes(data))


@given(st.integers(0, len(SOUND)), st.integers(0, 64), st.binary(max_size=64))
def test_cut_out_and_put_in(read, at, length, data):
    read(SOUND[:at] + data + SOUND[at + length :])


@given(
    st.lists(st.one_of(NUMBERS, st.integers(0, 1000)), max_size=6),
    st.one_of(st.sampled_from(sorted(BLOCKS)), st.integers(0, 2**32 - 1)),
    st.one_of(st.none(), NUMBERS),
)
def test_any_description_of_a_tensor(read, dims, kind, offset):
    file = small()
    file.tensors.append(Tensor("x", tuple(dims), kind, bytes(64), offset))
    read(file.build())


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), NUMBERS, st.binary(max_size=32))
def test_any_array(read, kind, element, count, data):
    raw = element.to_bytes(4, "little") + count.to_bytes(8, "little") + data
    file = small()
    file.entries.append(Entry("x", ARRAY if kind % 2 else kind, None, raw=raw))
    read(file.build())


@pytest.mark.parametrize("count", [2**20, 2**40, 2**63])
def test_a_small_file_that_promises_much_takes_little_memory(read, count):
    file = small()
    file.entries.append(Entry("x", ARRAY, None, raw=(8).to_bytes(4, "little") + count.to_bytes(8, "little")))
    data = file.build()
    tracemalloc.start()
    assert read(data) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21
