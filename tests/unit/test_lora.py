"""LoRA adapters: what is written on the command line, and which files are refused before llama.cpp sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fixtures.adapters import write_lora
from fixtures.small_models import Shape, write_llama
from tests.gguf_files import Entry, File, Tensor, read
from verifiable.errors import EngineError, MalformedError, PolicyError
from verifiable.llama.gguf.identity import identify
from verifiable.llama.gguf.lora import (
    Adapter,
    adapters_from_cbor,
    adapters_to_cbor,
    inspect_adapters,
    parse_adapter,
    parse_adapters,
)
from verifiable.llama.gguf.metadata import inspect, inspect_adapter
from verifiable.llama.gguf.types import ARRAY, F32, STRING, U32


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("base") / "base.gguf")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return write_lora(tmp_path / "style.gguf", base)


@pytest.mark.parametrize(
    ("written", "scale"),
    [("", 1.0), (":0.5", 0.5), (":2", 2.0), (":-1.25", -1.25), (":+.5", 0.5), (":1e-3", 1e-3), (":3.", 3.0)],
)
def test_a_scale_follows_the_file(adapter: Path, written: str, scale: float) -> None:
    assert parse_adapter(f"{adapter}{written}") == Adapter(adapter, scale)


def test_a_file_whose_name_ends_like_a_scale(adapter: Path, tmp_path: Path) -> None:
    odd = tmp_path / "style:0.5"
    odd.write_bytes(adapter.read_bytes())
    assert parse_adapter(str(odd)) == Adapter(odd)
    assert parse_adapter(f"{odd}:2") == Adapter(odd, 2.0)


@pytest.mark.parametrize(
    "text", ["", ":", "no.gguf", "no.gguf:0.5", "{}:x", "{}:0", "{}:0x1p3", "{}:nan", "{}:inf", "{}:1e9"]
)
def test_what_names_no_adapter(adapter: Path, text: str) -> None:
    with pytest.raises(PolicyError):
        parse_adapter(text.format(adapter))


@given(st.floats(1e-4, 1e4) | st.floats(-1e4, -1e-4))
def test_an_adapter_is_read_as_it_is_written(scale: float) -> None:
    here = Path(__file__)
    assert parse_adapter(str(Adapter(here, scale))) == Adapter(here, scale)
    assert adapters_from_cbor(adapters_to_cbor([Adapter(here, scale)])) == (Adapter(here, scale),)


def test_at_most_sixteen(adapter: Path) -> None:
    assert len(parse_adapters([str(adapter)] * 16)) == 16
    with pytest.raises(PolicyError, match="too many"):
        parse_adapters([str(adapter)] * 17)
    assert parse_adapters(None) == ()


def test_an_adapter_is_part_of_the_identity(base: Path, adapter: Path) -> None:
    plain, seen = identify(base), []
    found = identify(base, lambda done, total: seen.append((done, total)), [Adapter(adapter, 0.5)])
    assert replace(found, adapters=()) == plain
    (file,) = found.adapters
    assert (file.name, file.size, file.scale) == ("style.gguf", adapter.stat().st_size, 0.5)
    assert seen[-1] == (base.stat().st_size + file.size,) * 2
    assert type(found).from_cbor(found.to_cbor()) == found


def remove(key: str) -> Callable[[File], None]:
    return lambda file: file.entries.remove(file.entry(key))


def change(key: str, value: object, kind: int | None = None) -> Callable[[File], None]:
    def apply(file: File) -> None:
        entry = file.entry(key)
        entry.value, entry.kind = value, entry.kind if kind is None else kind

    return apply


def rename(old: str, new: str) -> Callable[[File], None]:
    return lambda file: setattr(file.tensor(old), "name", new)


def move(base: str) -> Callable[[File], None]:
    """Make the pair of `Q` that of another tensor."""

    def apply(file: File) -> None:
        for end in (".lora_a", ".lora_b"):
            rename(Q + end, base + end)(file)

    return apply


def swap(file: File) -> None:
    a, b = file.tensor(Q + ".lora_a"), file.tensor(Q + ".lora_b")
    a.name, b.name = b.name, a.name


def shape(name: str, dims: tuple[int, ...], kind: int = 8) -> Callable[[File], None]:
    def apply(file: File) -> None:
        tensor, size = file.tensor(name), 1
        for dim in dims:
            size *= dim
        tensor.dims, tensor.kind, tensor.data = dims, kind, bytes(size // 32 * 34 if kind == 8 else 4 * size)

    return apply


Q = "blk.0.attn_q.weight"
BROKEN: dict[str, Callable[[File], None]] = {
    "no type": remove("general.type"),
    "a model's type": change("general.type", "model"),
    "a type that is no text": change("general.type", 1, U32),
    "an adapter of another kind": change("adapter.type", "control_vector"),
    "no architecture": remove("general.architecture"),
    "another architecture": change("general.architecture", "gemma3"),
    "an alpha that is no float": change("adapter.lora.alpha", 32, U32),
    "an alpha that is no number": change("adapter.lora.alpha", float("nan")),
    "an alpha without end": change("adapter.lora.alpha", float("inf")),
    "one that tokens switch on": lambda file: file.entries.append(
        Entry("adapter.alora.invocation_tokens", ARRAY, [1, 2], U32)
    ),
    "no pairs": lambda file: file.tensors.clear(),
    "an A without its B": lambda file: file.tensors.remove(file.tensor(Q + ".lora_b")),
    "a B without its A": lambda file: file.tensors.remove(file.tensor(Q + ".lora_a")),
    "a tensor of no pair": lambda file: file.tensors.append(Tensor("blk.0.attn_q.weight", (32,), 0, bytes(128))),
    "a pair for no tensor of the model": move("blk.9.attn_q.weight"),
    "a pair for a norm": move("blk.0.attn_norm.weight"),
    "an A of other columns": shape(Q + ".lora_a", (32, 32)),
    "an A of another rank": shape(Q + ".lora_a", (64, 64)),
    "a B of other rows": shape(Q + ".lora_b", (32, 32)),
    "an A in three dimensions": shape(Q + ".lora_a", (64, 32, 2)),
    "an A in one dimension": shape(Q + ".lora_a", (64,), 0),
    "a type without a product": shape(Q + ".lora_a", (64, 32), 26),
    "the wrong way round": swap,
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_adapter_for_the_model_is_refused(name: str, base: Path, adapter: Path) -> None:
    file = read_adapter(adapter)
    BROKEN[name](file)
    adapter.write_bytes(file.build())
    with pytest.raises(MalformedError, match=r"style\.gguf"):
        inspect_adapters([Adapter(adapter)], [inspect(base)])


def read_adapter(path: Path) -> File:
    """As `tests.gguf_files.read` does it for models."""
    info, data = inspect_adapter(path), path.read_bytes()
    entries = [Entry(key, entry.kind, entry.value, entry.element) for key, entry in info.fields.items()]
    tensors = [
        Tensor(each.name, each.dims, each.type, data[info.data_offset + each.offset :][: each.size])
        for each in info.tensors
    ]
    return File(entries, tensors, version=info.version, alignment=info.alignment)


def test_a_sound_adapter_is_left_alone(base: Path, adapter: Path) -> None:
    file = read_adapter(adapter)
    file.tensors.append(Tensor("blk.0.attn_norm.weight", (64,), F32 * 0, bytes(256)))  # llama.cpp passes over norms
    file.entries.remove(file.entry("adapter.lora.alpha"))
    adapter.write_bytes(file.build())
    assert inspect_adapters([Adapter(adapter)], [inspect(base)])


def test_the_embedding_can_only_be_changed_where_the_output_is_another_tensor(base: Path, tmp_path: Path) -> None:
    file = File(
        [
            Entry("general.architecture", STRING, "llama"),
            Entry("general.type", STRING, "adapter"),
            Entry("adapter.type", STRING, "lora"),
        ],
        [
            Tensor("token_embd.weight.lora_a", (4, 384), 0, bytes(4 * 4 * 384)),
            Tensor("token_embd.weight.lora_b", (4, 64), 0, bytes(4 * 4 * 64)),
        ],
    )
    path = tmp_path / "embedding.gguf"
    path.write_bytes(file.build())
    assert inspect_adapters([Adapter(path)], [inspect(base)])
    tied = read(base)
    tied.tensors.remove(tied.tensor("output.weight"))
    other = tmp_path / "tied.gguf"
    other.write_bytes(tied.build())
    with pytest.raises(MalformedError, match="output layer"):
        inspect_adapters([Adapter(path)], [inspect(other)])


def test_three_that_change_one_tensor_have_no_fixed_sum(base: Path, adapter: Path, tmp_path: Path) -> None:
    model = [inspect(base)]
    assert len(inspect_adapters([Adapter(adapter)] * 2, model)) == 2
    with pytest.raises(PolicyError, match="same tensor"):
        inspect_adapters([Adapter(adapter)] * 3, model)
    paths = [write_lora(tmp_path / name, base, changed=(name,)) for name in ("attn_q", "attn_k", "ffn_up")]
    assert len(inspect_adapters([Adapter(path) for path in paths], model)) == 3


def test_an_adapter_for_another_size_is_refused(adapter: Path, tmp_path: Path) -> None:
    wide = write_llama(tmp_path / "wide.gguf", shape=Shape(width=128))
    with pytest.raises(MalformedError, match="another model"):
        inspect_adapters([Adapter(adapter)], [inspect(wide)])


def test_a_model_is_no_adapter_and_an_adapter_no_model(base: Path, adapter: Path) -> None:
    with pytest.raises(MalformedError):
        inspect_adapter(base)
    with pytest.raises(MalformedError):
        inspect(adapter)
    with pytest.raises(EngineError):
        inspect_adapter(adapter.with_name("gone.gguf"))
