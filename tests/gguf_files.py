"""GGUF files for tests: taken apart into a plain structure, changed in one place, and put together again.

It writes whatever it is told to, sound or not; that is what it is for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verifiable.llama.gguf.metadata import inspect
from verifiable.llama.gguf.types import ARRAY, BLOCKS, BOOL, F32, F64, I8, I16, I32, I64, STRING, U8, U16, U32, U64

CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def packed_string(value: str | bytes) -> bytes:
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def packed(kind: int, value: Any) -> bytes:
    return packed_string(value) if kind == STRING else struct.pack("<" + CODES[kind], value)


@dataclass
class Entry:
    """A metadata entry; `element` is set for arrays, `raw` overrules the bytes of the value."""

    key: str | bytes
    kind: int
    value: Any
    element: int | None = None
    raw: bytes | None = None

    def build(self) -> bytes:
        head = packed_string(self.key) + struct.pack("<I", self.kind)
        if self.raw is not None:
            return head + self.raw
        if self.kind != ARRAY:
            return head + packed(self.kind, self.value)
        element = self.element if self.element is not None else U32
        body = b"".join(packed(element, each) for each in self.value)
        return head + struct.pack("<IQ", element, len(self.value)) + body


@dataclass
class Tensor:
    """A tensor; `offset` None means right behind the one before."""

    name: str | bytes
    dims: tuple[int, ...]
    kind: int
    data: bytes
    offset: int | None = None


@dataclass
class File:
    """A whole file. The counts are those of the lists unless overruled."""

    entries: list[Entry] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    n_entries: int | None = None
    n_tensors: int | None = None

    def entry(self, key: str) -> Entry:
        return next(each for each in self.entries if each.key == key)

    def tensor(self, name: str) -> Tensor:
        return next(each for each in self.tensors if each.name == name)

    def build(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_entries = len(self.entries) if self.n_entries is None else self.n_entries
        head = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_entries)
        head += b"".join(entry.build() for entry in self.entries)
        data = b""
        for tensor in self.tensors:
            offset = len(data) if tensor.offset is None else tensor.offset
            head += packed_string(tensor.name) + struct.pack("<I", len(tensor.dims))
            head += b"".join(struct.pack("<Q", dim & (2**64 - 1)) for dim in tensor.dims)
            head += struct.pack("<IQ", tensor.kind & (2**32 - 1), offset & (2**64 - 1))
            data += tensor.data + bytes(-len(tensor.data) % self.alignment)
        return head + bytes(-len(head) % self.alignment) + data if self.tensors else head


def read(path: Path) -> File:
    """Take a sound file apart."""
    info = inspect(path, arrays=True)
    data = path.read_bytes()
    entries = [Entry(key, entry.kind, entry.value, entry.element) for key, entry in info.fields.items()]
    tensors = []
    for tensor in info.tensors:
        start = info.data_offset + tensor.offset
        tensors.append(Tensor(tensor.name, tensor.dims, tensor.type, data[start : start + tensor.size]))
    return File(entries, tensors, version=info.version, alignment=info.alignment)


def small() -> File:
    """The smallest file that `inspect` takes for a model: one tensor, a few entries of several types."""
    return File(
        [
            Entry("general.architecture", STRING, "llama"),
            Entry("llama.block_count", U32, 1),
            Entry("general.alignment", U32, 32),
            Entry("test.flag", BOOL, 1),
            Entry("test.numbers", ARRAY, [1, -2, 3], I32),
            Entry("tokenizer.ggml.tokens", ARRAY, ["a", "b", "<s>"], STRING),
        ],
        [
            Tensor("token_embd.weight", (32, 3), 8, bytes(3 * BLOCKS[8][2])),
            Tensor("output_norm.weight", (32,), 0, bytes(128)),
        ],
    )


def write(folder: Path, file: File | bytes) -> Path:
    """Write a file, or bytes that are to look like one, as `model.gguf`."""
    path = folder / "model.gguf"
    path.write_bytes(file if isinstance(file, bytes) else file.build())
    return path
