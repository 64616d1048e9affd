"""What a GGUF file consists of: value types, tensor types and their sizes, and the description of a whole file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from types import MappingProxyType
from typing import Final

(U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64) = range(13)  # enum gguf_type in gguf.h
TYPE_NAMES: Final = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")
SCALARS: Final[Mapping[int, Struct]] = {
    kind: Struct("<" + code)
    for kind, code in zip((U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64), "BbHhIifBQqd", strict=True)
}
"""How values of one size are packed, by their type."""
BLOCKS: Final[Mapping[int, tuple[str, int, int]]] = MappingProxyType(
    {
        0: ("F32", 1, 4),
        1: ("F16", 1, 2),
        2: ("Q4_0", 32, 18),
        3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24),
        8: ("Q8_0", 32, 34),
        9: ("Q8_1", 32, 36),
        10: ("Q2_K", 256, 84),
        11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210),
        15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66),
        17: ("IQ2_XS", 256, 74),
        18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50),
        20: ("IQ4_NL", 32, 18),
        21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82),
        23: ("IQ4_XS", 256, 136),
        24: ("I8", 1, 1),
        25: ("I16", 1, 2),
        26: ("I32", 1, 4),
        27: ("I64", 1, 8),
        28: ("F64", 1, 8),
        29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2),
        34: ("TQ1_0", 256, 54),
        35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17),
        40: ("NVFP4", 64, 36),
        41: ("Q1_0", 128, 18),
        42: ("Q2_0", 64, 18),
    }
)
"""`enum ggml_type` -> (name, values in a block, bytes of a block): `type_traits` in ggml/src/ggml.c with the block
structures of ggml-common.h, ggml 0.25. Numbers that are missing were withdrawn."""

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """Where a long array lies that was not kept: element type, count, and its bytes in the file."""

    kind: int
    count: int
    offset: int
    size: int


Value = Scalar | tuple[Scalar, ...] | ArrayPlace


@dataclass(frozen=True, slots=True)
class Field:
    """One metadata entry: its type, the element type when it is an array, its value, and its bytes in the file.

    `offset` and `size` cover the whole entry: key, types and value. Array elements that are strings are decoded with
    surrogate escapes, because tokens need not be whole characters; every other string is valid UTF-8.
    """

    kind: int
    element: int | None
    value: Value
    offset: int
    size: int

    @property
    def count(self) -> int:
        """Elements of an array; 1 for anything else."""
        if isinstance(self.value, ArrayPlace):
            return self.value.count
        return len(self.value) if isinstance(self.value, tuple) else 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's description. `dims` has the fastest-changing dimension first; `offset` counts from `data_offset`."""

    name: str
    dims: tuple[int, ...]
    type: int
    offset: int
    elements: int
    size: int

    @property
    def type_name(self) -> str:
        return BLOCKS[self.type][0]


@dataclass(frozen=True, slots=True)
class GGUFInfo:
    """The head of one GGUF file. `data_offset` is where tensor data starts, `size` the file's length, bytes both."""

    version: int
    fields: Mapping[str, Field]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    size: int
    metadata: Mapping[str, Value] = field(init=False)

    def __post_init__(self) -> None:
        values = {key: entry.value for key, entry in self.fields.items()}
        object.__setattr__(self, "metadata", MappingProxyType(values))
