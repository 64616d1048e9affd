"""Read the head of a GGUF file strictly, before llama.cpp sees it. Pure Python, no llama.cpp needed.

llama.cpp answers some malformed files by dividing by zero or by abort(), which no caller can catch. So a file is read
here first, and whatever is not plainly well formed is refused with a message that says where and what. Nothing is
allocated from a number in the file before that number has been held against the size of the file.

Format: docs/gguf.md in the ggml repository, as ggml/src/gguf.cpp reads it. Only weights' places are checked, not
their values; bytes after the last tensor are ignored by llama.cpp and here.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from types import MappingProxyType
from typing import BinaryIO, Final, NoReturn

from verifiable.errors import EngineError
from verifiable.llama.gguf.adapter import check_adapter
from verifiable.llama.gguf.checks import TOKENS, check, unusable
from verifiable.llama.gguf.types import (
    ARRAY,
    BLOCKS,
    BOOL,
    SCALARS,
    STRING,
    TYPE_NAMES,
    U32,
    U64,
    ArrayPlace,
    Field,
    GGUFInfo,
    Scalar,
    TensorInfo,
    Value,
)

Rules = Callable[[GGUFInfo, list[bytes], str], None]
"""Checks a sound file further, given its description, its vocabulary and its name; raises MalformedError."""

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32  # GGUF_DEFAULT_ALIGNMENT in gguf.h
MIN_ALIGNMENT: Final = 32
"""TENSOR_ALIGNMENT in ggml-impl.h. A mapped file with less makes `ggml_backend_cpu_buffer_from_ptr` abort."""
MAX_DIMS: Final = 4  # GGML_MAX_DIMS in ggml.h
MAX_NAME: Final = 63  # GGML_MAX_NAME - 1, bytes
MAX_KEY: Final = 65_535  # docs/gguf.md: at most 2^16-1 bytes
MAX_STRING: Final = 64 * 1024 * 1024
MAX_HEAD: Final = 1024 * 1024 * 1024
"""Most bytes of metadata and tensor descriptions. The largest vocabularies in use take some 20 MB."""
KEPT: Final = 1024
"""Arrays of up to so many elements are kept as values; of longer ones only the place is."""
_ADVICE: Final = "The download was probably cut short or the file was changed. Fetch it again and compare the hash"
_INT64_MAX: Final = 2**63 - 1
_REMEMBERED: Final = 16
_SETTLED: Final = 2_000_000_000
"""Nanoseconds after which a change of a file is sure to show in its times, however coarse its file system's are."""
_Version = tuple[int, ...]
_known: dict[_Version, GGUFInfo] = {}
"""Sound models, by what changes with the file: an engine asks three times for the same one while it starts."""


class GgufReader:
    """Reads little-endian values from a file, never past its end (`size`, in bytes). Errors carry the file's name."""

    _CHUNK: Final = 1 << 20

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self._file = file
        self.size = size
        self.name = name
        self.tokens: list[bytes] = []  # the vocabulary, for a check that needs it whole
        self._buffer = b""
        self._start = 0  # file offset of the buffer's first byte
        self._at = 0  # read position within the buffer

    def fail(self, what: str, expected: object = None, found: object = None, hint: str | None = None) -> NoReturn:
        raise unusable(self.name, what, expected, found, hint)

    def tell(self) -> int:
        return self._start + self._at

    def left(self) -> int:
        return self.size - self.tell()

    def need(self, count: int, what: str) -> None:
        """Refuse when fewer than *count* bytes are left in the file."""
        if count > self.left():
            self.fail(f"{what} needs {count:,} bytes at byte {self.tell():,}, the file has {self.size:,}", hint=_ADVICE)
        if self.tell() + count > MAX_HEAD:
            self.fail(f"{what} ends past byte {MAX_HEAD:,}: no real model has so much metadata")

    def take(self, count: int, what: str) -> bytes:
        if self._at + count > len(self._buffer):
            self.need(count, what)
            self._fill(count)
        at = self._at
        self._at = at + count
        return self._buffer[at : self._at]

    def _fill(self, count: int) -> None:
        rest = self._buffer[self._at :]
        self._start += self._at
        wanted = max(count, self._CHUNK) - len(rest)
        try:
            data = self._file.read(min(wanted, self.size - self._start - len(rest)))
        except OSError as error:
            raise EngineError(f"cannot read {self.name}", found=error) from error
        self._buffer, self._at = rest + data, 0
        if len(self._buffer) < count:
            self.fail("it became shorter while it was read", hint=_ADVICE)

    def skip(self, count: int, what: str) -> None:
        self.need(count, what)
        inside = min(count, len(self._buffer) - self._at)
        self._at += inside
        if count > inside:
            self._start, self._buffer, self._at = self.tell() + count - inside, b"", 0
            try:
                self._file.seek(self._start)
            except OSError as error:
                raise EngineError(f"cannot read {self.name}", found=error) from error

    def scalar(self, kind: int, what: str) -> int | float | bool:
        code = SCALARS[kind]
        (value,) = code.unpack(self.take(code.size, what))
        if kind != BOOL:
            number: int | float = value
            return number
        if value > 1:
            self.fail(f"{what} is no boolean", "0 or 1", value)
        return bool(value)

    def uint(self, kind: int, what: str) -> int:
        return int(self.scalar(kind, what))

    def string(self, what: str, maximum: int = MAX_STRING) -> bytes:
        length = self.uint(U64, f"length of {what}")
        if length > maximum:
            self.fail(f"{what} is too long", f"at most {maximum:,} bytes", f"{length:,}")
        return self.take(length, what)

    def text(self, what: str, maximum: int = MAX_STRING) -> str:
        data = self.string(what, maximum)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is no UTF-8 text", found=data)

    def strings(self, count: int, keep: bool, what: str) -> list[bytes]:
        """*count* strings in a row; empty when they are not to be kept. A loop over half a million of them."""
        kept: list[bytes] = []
        unpack = SCALARS[U64].unpack_from
        for _ in range(count):
            at = self._at
            if at + 8 <= len(self._buffer):
                end = at + 8 + unpack(self._buffer, at)[0]
                if end <= len(self._buffer):
                    self._at = end
                    if keep:
                        kept.append(self._buffer[at + 8 : end])
                    continue
            value = self.string(what)
            if keep:
                kept.append(value)
        return kept


def inspect(path: str | PathLike[str], arrays: bool = False) -> GGUFInfo:
    """Read and check the head of one GGUF file: structure, places of the tensors, and what llama.cpp takes for granted.

    `path` is one part, when the model is split. With `arrays` long ones (tokens, merges) are kept as values too, not as
    places alone. A file that has not changed since it was last read is not read again.

    Raises:
        MalformedError: the file is not a well-formed GGUF file, or llama.cpp would crash on it.
        EngineError: it cannot be read.
    """
    version = None if arrays else _version(path)
    if version is None:
        return _inspect(path, arrays, check)
    info = _known.pop(version, None) or _inspect(path, False, check)
    _known[version] = info  # the last in the order of use
    if len(_known) > _REMEMBERED:
        _known.pop(next(iter(_known)), None)
    return info


def _version(path: str | PathLike[str]) -> _Version | None:
    """What is another when the file is; None where that can't be told, as it was changed just now or is not there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _SETTLED:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def inspect_adapter(path: str | PathLike[str]) -> GGUFInfo:
    """The same for the file of a LoRA adapter, which has other metadata and tensors in pairs."""
    return _inspect(path, False, lambda info, tokens, name: check_adapter(info, name))


def _inspect(path: str | PathLike[str], arrays: bool, rules: Rules) -> GGUFInfo:
    name = fspath(path)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise EngineError(f"{name} is not a file", expected="a regular file")
        with open(path, "rb") as file:
            reader = GgufReader(file, status.st_size, name)
            info = _read(reader, arrays)
            rules(info, reader.tokens, name)
            return info
    except OSError as error:
        raise EngineError(f"cannot read {name}", found=error.strerror or error) from error
    except ValueError as error:  # a NUL in the path
        raise EngineError("cannot read the model file", found=error) from error


def _read(reader: GgufReader, arrays: bool) -> GGUFInfo:
    magic = reader.take(4, "the magic number")
    if magic != MAGIC:
        reader.fail("wrong magic number", MAGIC.decode(), magic)
    version = reader.uint(U32, "the version")
    if version not in VERSIONS:
        hint = "It may be meant for big-endian machines" if version & 0xFFFF == 0 and version else None
        reader.fail("unknown version", " or ".join(map(str, VERSIONS)), version, hint)
    n_tensors = reader.uint(U64, "the number of tensors")
    n_fields = reader.uint(U64, "the number of metadata entries")
    # Shortest possible entries: 8+1+4+1 bytes for a key of one letter with a u8; 8+1+4+4+8 for a tensor without dims.
    for count, least, what in ((n_fields, 14, "metadata entries"), (n_tensors, 25, "tensors")):
        if count * least > reader.left():
            reader.fail(f"{count:,} {what} do not fit into {reader.size:,} bytes", hint=_ADVICE)
    fields: dict[str, Field] = {}
    for number in range(n_fields):
        key = _read_key(reader, number)
        if key in fields:
            reader.fail(f"metadata key '{key}' appears twice")
        fields[key] = _read_field(reader, key, arrays)
    alignment = _alignment(reader, fields)
    tensors: dict[str, TensorInfo] = {}
    for number in range(n_tensors):
        tensor = _read_tensor(reader, number)
        if tensor.name in tensors:
            reader.fail(f"tensor '{tensor.name}' appears twice")
        tensors[tensor.name] = tensor
    data_offset = _pad(reader.tell(), alignment)
    _check_places(reader, tuple(tensors.values()), alignment, data_offset)
    return GGUFInfo(version, MappingProxyType(fields), tuple(tensors.values()), alignment, data_offset, reader.size)


def _read_key(reader: GgufReader, number: int) -> str:
    key = reader.string(f"key of metadata entry {number}", MAX_KEY)
    # docs/gguf.md: ASCII. llama.cpp looks keys up as C strings, so a NUL would hide the rest.
    if not key or not all(0x20 < byte < 0x7F for byte in key):
        reader.fail(f"key of metadata entry {number} is not a word of printable ASCII", found=key)
    return key.decode("ascii")


def _read_field(reader: GgufReader, key: str, arrays: bool) -> Field:
    start = reader.tell() - 8 - len(key)
    what = f"metadata '{key}'"
    kind = reader.uint(U32, f"type of {what}")
    if kind == ARRAY:
        element = reader.uint(U32, f"element type of {what}")
        value = _read_array(reader, key, element, arrays)
        return Field(kind, element, value, start, reader.tell() - start)
    single: Scalar
    if kind == STRING:
        single = reader.text(what)
    elif kind in SCALARS:
        single = reader.scalar(kind, what)
    else:
        reader.fail(f"{what} has an unknown type", "0 to 12", kind)
    return Field(kind, None, single, start, reader.tell() - start)


def _read_array(reader: GgufReader, key: str, element: int, arrays: bool) -> Value:
    what = f"metadata '{key}'"
    if element != STRING and element not in SCALARS:
        reader.fail(f"{what} is an array of unknown or nested type", "0 to 8 or 10 to 12", element)
    count = reader.uint(U64, f"length of {what}")
    width = 8 if element == STRING else SCALARS[element].size  # a string takes at least its length's bytes
    reader.need(count * width, what)
    keep = arrays or count <= KEPT
    start = reader.tell()
    if element == STRING:
        strings = reader.strings(count, keep or key == TOKENS, f"an element of {what}")
        if key == TOKENS:
            reader.tokens = strings
        if keep:
            return tuple(value.decode("utf-8", "surrogateescape") for value in strings)
    elif keep:
        return tuple(reader.scalar(element, f"an element of {what}") for _ in range(count))
    else:
        reader.skip(count * width, what)
    return ArrayPlace(element, count, start, reader.tell() - start)


def _alignment(reader: GgufReader, fields: Mapping[str, Field]) -> int:
    entry = fields.get("general.alignment")
    if entry is None:
        return DEFAULT_ALIGNMENT
    if entry.kind != U32 or not isinstance(entry.value, int):
        reader.fail("general.alignment has the wrong type", "u32", TYPE_NAMES[entry.kind])
    value = entry.value
    if value < MIN_ALIGNMENT or value & (value - 1):
        reader.fail("general.alignment cannot be used", f"a power of two, at least {MIN_ALIGNMENT}", value)
    return value


def _read_tensor(reader: GgufReader, number: int) -> TensorInfo:
    label = f"name of tensor {number}"
    name = reader.text(label, MAX_NAME)
    if not name or not name.isprintable():
        reader.fail(f"{label} is empty or not printable", found=name)
    what = f"tensor '{name}'"
    n_dims = reader.uint(U32, f"number of dimensions of {what}")
    if n_dims > MAX_DIMS:
        reader.fail(f"{what} has too many dimensions", f"at most {MAX_DIMS}", n_dims)
    dims = tuple(reader.uint(U64, f"a dimension of {what}") for _ in range(n_dims))
    elements = 1
    for dim in dims:
        elements *= dim
    if not 1 <= elements <= _INT64_MAX:
        # llama.cpp divides by dimensions; a zero there ends the process.
        reader.fail(f"{what} has no or too many elements", f"1 to {_INT64_MAX}", " × ".join(map(str, dims)))
    kind = reader.uint(U32, f"type of {what}")
    if kind not in BLOCKS:
        reader.fail(f"{what} has an unknown type", "a ggml type", kind)
    type_name, block, width = BLOCKS[kind]
    row = dims[0] if dims else 1
    if row % block:
        reader.fail(f"rows of {what} are no whole blocks of {type_name}", f"a multiple of {block}", row)
    size = elements // block * width
    return TensorInfo(name, dims, kind, reader.uint(U64, f"offset of {what}"), elements, size)


def _check_places(reader: GgufReader, tensors: tuple[TensorInfo, ...], alignment: int, data_offset: int) -> None:
    # gguf.cpp wants tensors one after the other in the order of their descriptions, each padded to the alignment.
    expected = 0
    for tensor in tensors:
        if tensor.offset % alignment:
            reader.fail(f"tensor '{tensor.name}' is not aligned", f"a multiple of {alignment}", tensor.offset)
        if tensor.offset != expected:
            problem = "overlaps the one before" if tensor.offset < expected else "leaves a gap before it"
            reader.fail(f"tensor '{tensor.name}' {problem}", f"offset {expected:,}", f"{tensor.offset:,}")
        end = data_offset + tensor.offset + tensor.size
        if end > reader.size:
            reader.fail(f"tensor '{tensor.name}' ends at byte {end:,}, the file has {reader.size:,}", hint=_ADVICE)
        expected = _pad(tensor.offset + tensor.size, alignment)


def _pad(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment
