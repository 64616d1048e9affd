"""What `inspect` lets through must not kill llama.cpp; what llama.cpp knows, our tables must know alike.

Loading happens in child processes: an abort() would take the tests with it.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gguf_files import Entry, File, Tensor, read
from verifiable.errors import MalformedError
from verifiable.llama import library
from verifiable.llama.gguf.metadata import inspect
from verifiable.llama.gguf.types import ARRAY, BLOCKS, BOOL, F32, I32, STRING, U8, U32, U64

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import resource, sys
from verifiable.errors import VerifiableError
from verifiable.llama.context import Batch, Context
from verifiable.llama.model import Model
from verifiable.llama.settings import RuntimeSettings
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for path in sys.argv[1:]:
    print(path, flush=True)
    try:
        with Model.load(path) as model, Context(model, RuntimeSettings(n_ctx=64, n_seq_max=2)) as context:
            batch = Batch(8)
            for position in range(4):
                batch.add(0, position, min(position + 3, model.n_vocab - 1), True)
            context.decode(batch)
            model.tokenize("hello <|im_end|> w\\u00f6rld", False, True)
            for token in range(min(model.n_vocab, 300)):
                model.piece(token)
    except VerifiableError:
        pass
print("done", flush=True)
"""


def survives(paths: list[Path]) -> str:
    """Load each file in one child; returns the file that killed it, or nothing."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines[-1:] == ["done"]:
        return ""
    return f"{lines[-1:]} ended with {done.returncode}: {done.stderr[-500:]}"


def changed(file: File, key: str | bytes, kind: int, value: object, element: int | None = None) -> File:
    result = copy.copy(file)
    result.entries = [entry for entry in file.entries if entry.key != key] + [Entry(key, kind, value, element)]
    return result


def dropped(file: File, key: str | bytes) -> File:
    result = copy.copy(file)
    result.entries = [entry for entry in file.entries if entry.key != key]
    return result


def variations(file: File, architecture: str):
    """The file with one thing changed in it, for every thing that the loader reads."""
    numbers = [0, 1, 3, 31, 65, 512, 513, 65_536, 2**31 - 1, 2**31, 2**32 - 1]
    extra = (
        "attention.key_length attention.value_length attention.sliding_window rope.dimension_count vocab_size "
        "expert_count expert_used_count expert_group_count nextn_predict_layers pooling_type ssm.group_count "
        "rope.scaling.original_context_length expert_feed_forward_length leading_dense_block_count"
    ).split()
    tokens = "bos eos eot eom unknown padding seperator mask cls".split()
    keys: dict[str | bytes, Entry] = {entry.key: entry for entry in file.entries}
    keys |= {k: Entry(k, U32, 0) for k in (f"{architecture}.{name}" for name in extra) if k not in keys}
    keys |= {k: Entry(k, U32, 0) for k in (f"tokenizer.ggml.{name}_token_id" for name in tokens) if k not in keys}
    for key, entry in keys.items():
        yield dropped(file, key)
        if entry.kind == U32:
            for number in numbers:
                yield changed(file, key, U32, number)
            yield changed(file, key, ARRAY, [2**31, 0], U32)
            yield changed(file, key, U64, 1)
            yield changed(file, key, STRING, "x")
        elif entry.kind == F32:
            for real in (0.0, -1.0, math.nan, math.inf, 1e38):
                yield changed(file, key, F32, real)
        elif entry.kind == STRING:
            for text in ("", "%s%n", "x" * 300, "llama", "bert", "t5", "rwkv", "plamo2", "none", "gpt2", "mamba"):
                yield changed(file, key, STRING, text)
            yield changed(file, key, U32, 1)
        elif entry.kind == BOOL:
            yield changed(file, key, BOOL, 1 - entry.value)
            yield changed(file, key, U8, 1)
        elif entry.element == STRING:
            values = list(entry.value)
            for some in (values[:0], values[:1], values[:-1], [*values, "zz"], values[::-1], [" "] * 3, ["a b", "b a"]):
                yield changed(file, key, ARRAY, some, STRING)
            yield changed(file, key, ARRAY, [1] * len(values), U32)
            yield changed(file, key, STRING, "x")
        else:
            count = len(entry.value)
            for value in (-1, 0, 3, 5, 6, 99):
                yield changed(file, key, ARRAY, [value] * count, I32)
            yield changed(file, key, ARRAY, list(entry.value)[:5], entry.element)
            yield changed(file, key, ARRAY, [1] * count, U8)
    for number, tensor in enumerate(file.tensors):
        fewer = copy.copy(file)
        fewer.tensors = file.tensors[:number] + file.tensors[number + 1 :]
        yield fewer
        for kind, (_, block, width) in BLOCKS.items():
            for dims in {tensor.dims, tensor.dims[::-1], (*tensor.dims, 1, 1)[:4], (256, *tensor.dims[1:])}:
                if dims and dims[0] % block == 0 and (dims == tensor.dims or kind in (0, 8)):
                    other = copy.copy(file)
                    size = math.prod(dims) // block * width
                    other.tensors = list(file.tensors)
                    other.tensors[number] = Tensor(tensor.name, dims, kind, bytes(size))
                    yield other


@pytest.mark.parametrize("kind", ["llama", "moe", "mamba"])
def test_nothing_that_is_let_through_kills_the_loader(tiny_models, tmp_path, kind):
    file = read(tiny_models[kind])
    accepted = []
    refused = 0
    for number, variation in enumerate(variations(file, "mamba" if kind == "mamba" else "llama")):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(variation.build())
        try:
            inspect(path)
            accepted.append(path)
        except MalformedError:
            refused += 1
            path.unlink()
    assert len(accepted) > 300
    assert refused > 50
    assert survives(accepted) == ""


def test_the_child_notices_a_death(tiny_models, tmp_path):
    """The test above would see it: this file is refused by `inspect`, so here it goes past it."""
    file = read(tiny_models["llama"])
    file.tensor("output_norm.weight").kind = 1
    file.tensor("output_norm.weight").data = bytes(128)
    path = tmp_path / "x.gguf"
    path.write_bytes(file.build())
    with pytest.raises(MalformedError):
        inspect(path)
    child = CHILD.replace(
        "resource.setrlimit(resource.RLIMIT_AS",
        "import verifiable.llama.model as m\nm.inspect_parts = lambda path: ()\nresource.setrlimit(resource.RLIMIT_AS",
    )
    done = subprocess.run([sys.executable, "-c", child, str(path)], cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode < 0


def test_block_sizes_are_those_of_the_library():
    ggml = library.shared_library("ggml-base", "base")
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_name.restype = ctypes.c_char_p
    known = {kind: (block, width) for kind, (_, block, width) in BLOCKS.items()}
    for kind in range(43):  # GGML_TYPE_COUNT
        block, width = ggml.ggml_blck_size(kind), ggml.ggml_type_size(kind)
        assert known.get(kind, (0, 0)) == (block, width)
        if kind in BLOCKS:
            assert ggml.ggml_type_name(kind).decode().lower() == BLOCKS[kind][0].lower()


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_a_real_file_reads_as_the_reference_reader_reads_it(request, model):
    gguf = pytest.importorskip("gguf")
    path = request.getfixturevalue(model)
    info = inspect(path, arrays=True)
    reader = gguf.GGUFReader(path)
    ours = {t.name: (t.dims, t.type, info.data_offset + t.offset, t.size) for t in info.tensors}
    theirs = {
        t.name: (tuple(map(int, t.shape)), int(t.tensor_type), int(t.data_offset), int(t.n_bytes))
        for t in reader.tensors
    }
    assert ours == theirs
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert set(info.fields) == set(fields)
    for name, field in fields.items():
        if name != "tokenizer.ggml.tokens" or model == "smollm2":
            value = field.contents()
            assert info.metadata[name] == (tuple(value) if isinstance(value, list) else value)


def test_the_environment_is_what_the_setting_says():
    library.library()
    assert library.is_tiled() is False
    assert os.environ["GGML_CPU_TILED_MM"] == "0"
    assert os.environ["GGML_NO_BACKTRACE"] == "1"


LIBRARY_CHILD = """
import os
os.environ.update(GGML_CPU_TILED_MM="1", GGML_CPU_TILED_MM_FORCE="1", LLAMA_ATTN_ROT_DISABLE="1")
from verifiable.errors import EngineError
from verifiable.llama import library
library.load_library(False)
assert os.environ["GGML_CPU_TILED_MM"] == "0"
assert not {"GGML_CPU_TILED_MM_FORCE", "LLAMA_ATTN_ROT_DISABLE"} & set(os.environ)
library.load_library(False)
try:
    library.load_library(True)
except EngineError as error:
    print(error)
"""


def test_the_library_takes_one_setting_and_no_orders_from_the_environment():
    done = subprocess.run([sys.executable, "-c", LIBRARY_CHILD], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (
        "already loaded with another setting of the tiled product: expected tiled=False, found tiled=True"
        in done.stdout
    )


def test_an_earlier_import_is_refused_when_it_cannot_be_put_right():
    code = "import llama_cpp\nfrom verifiable.llama import library\nlibrary.load_library(False)"
    environment = {key: value for key, value in os.environ.items() if key != "GGML_CPU_TILED_MM"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert "llama_cpp was imported before its environment could be set" in done.stderr
    environment["GGML_CPU_TILED_MM"] = "0"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, timeout=60).returncode == 0


def test_what_computes_nothing_can_be_used_before(tmp_path):
    code = (
        "from verifiable.llama import library\n"
        "assert 'root' in library.bindings('llama_grammar').json_schema_to_gbnf('{}')\n"
        "assert library.is_tiled() is None\n"
        "library.load_library(True)\n"
        "library.bindings('llama_grammar')\n"
        "import os; assert os.environ['GGML_CPU_TILED_MM'] == '1'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_build_is_named():
    info = library.build_info()
    assert info.bindings == "llama-cpp-python 0.3.36"
    assert "ggml" in info.build
    assert "CPU" in info.system
    assert info == library.build_info()
    folder = Path(str(library.library().llama_cpp._base_path))
    files = {each.name: each.sha256 for each in info.libraries}
    assert {"libggml", "libggml-base", "libggml-cpu", "libllama"} <= files.keys()
    assert files["libggml-cpu"] == hashlib.sha256((folder / "libggml-cpu.so").read_bytes()).digest()
    if sys.platform == "linux":
        assert any(name.startswith(("libm", "ld-musl")) for name in files)
    assert "GCC" in info.compiler or "clang" in info.compiler
