"""The files of a model: one, or the parts into which it was split, checked together."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from verifiable import limits
from verifiable.llama.gguf.checks import unusable
from verifiable.llama.gguf.metadata import inspect
from verifiable.llama.gguf.types import I32, TYPE_NAMES, U16, GGUFInfo


def inspect_parts(path: str | PathLike[str]) -> tuple[tuple[Path, GGUFInfo], ...]:
    """Inspect a model given by its only file or by the first of its parts; the others have to lie beside it.

    Parts are named as llama.cpp finds them (`llama_split_path` in llama.cpp): NAME-00001-of-00003.gguf. Returns each
    file with its description, in the order of the parts.

    Raises:
        MalformedError: a part is malformed, is not the part that its name says, or the parts do not fit together.
        EngineError: a part is missing or cannot be read.
    """
    first = Path(path)
    info = inspect(first)
    count = _number(first, info, "split.count", U16, 0)
    if count < 2:
        return ((first, info),)
    if count > limits.FILES:
        raise unusable(str(first), "it is split into too many parts", f"at most {limits.FILES}", count)
    suffix = f"-00001-of-{count:05}.gguf"
    if _number(first, info, "split.no", U16, -1) != 0 or not first.name.endswith(suffix):
        raise unusable(str(first), "it is not the first part of its model", f"a name that ends in {suffix}", first.name)
    stem = first.name.removesuffix(suffix)
    parts = [(first, info)]
    for number in range(1, count):
        part = first.with_name(f"{stem}-{number + 1:05}-of-{count:05}.gguf")
        part_info = inspect(part)
        # llama.cpp reads this number unchecked, and aborts on another type.
        if _number(part, part_info, "split.no", U16, -1) != number:
            raise unusable(str(part), "it is another part of the model", number, part_info.metadata.get("split.no"))
        parts.append((part, part_info))
    names: set[str] = set()
    total = sum(len(part_info.tensors) for _, part_info in parts)
    for part, part_info in parts:
        for tensor in part_info.tensors:
            if tensor.name in names:
                raise unusable(str(part), f"tensor '{tensor.name}' is in another part too")
            names.add(tensor.name)
    if _number(first, info, "split.tensors.count", I32, -1) != total:
        promised = info.metadata.get("split.tensors.count")
        raise unusable(str(first), "the parts have another number of tensors", promised, total)
    return tuple(parts)


def _number(path: Path, info: GGUFInfo, key: str, kind: int, default: int) -> int:
    entry = info.fields.get(key)
    if entry is None:
        return default
    if entry.kind != kind or not isinstance(entry.value, int):
        raise unusable(str(path), f"{key} has the wrong type", TYPE_NAMES[kind], TYPE_NAMES[entry.kind])
    return entry.value
