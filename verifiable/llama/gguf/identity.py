"""Say which model is meant, so exactly that two people can compare their files: hashes, counts, digests.

Pure Python: an auditor can compare a file with a manifest without llama.cpp.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Final

from verifiable import limits
from verifiable.errors import EngineError
from verifiable.llama.gguf.checks import TOKENS, unusable
from verifiable.llama.gguf.lora import Adapter, inspect_adapters
from verifiable.llama.gguf.parts import inspect_parts
from verifiable.llama.gguf.types import ARRAY, I32, STRING, TYPE_NAMES, U32, ArrayPlace, GGUFInfo
from verifiable.manifest.identity import AdapterFile, ModelFile, ModelIdentity

Progress = Callable[[int, int], None]
"""Called with what is done and the total, in the same unit."""

TEMPLATE: Final = "tokenizer.chat_template"
SUPPRESS: Final = "tokenizer.ggml.suppress_tokens"
_TOKENIZER: Final = "tokenizer."
_UNKNOWN_TYPE: Final = 1024  # LLAMA_FTYPE_GUESSED in llama.h: the file does not say
_CHUNK: Final = 4 * 1024 * 1024


def identify(
    path: str | PathLike[str], progress: Progress | None = None, adapters: Sequence[Adapter] = ()
) -> ModelIdentity:
    """Read a model's files whole, and those of its adapters, and describe them.

    The tokenizer digest is SHA-256 over the raw GGUF entries (key, type, value) whose key starts with "tokenizer.",
    chat templates left out, in the order of their keys. The template digest is SHA-256 of the template's UTF-8 bytes,
    of no bytes when there is none. `path` is the model's file, or the first of its parts.

    Raises:
        MalformedError: a file is not a well-formed GGUF file, or an adapter is not one for this model.
        EngineError: a file cannot be read, or changes while it is read.
        PolicyError: the adapters can't be used together.
    """
    parts = inspect_parts(path)
    first, info = parts[0]
    architecture = str(info.metadata["general.architecture"])
    vocabulary = _vocabulary(info, architecture)
    suppressed = _suppressed(first, info, vocabulary)
    added = inspect_adapters(adapters, [part for _, part in parts])
    paths = [each.path for each in adapters]
    files = _hash_files([*parts, *zip(paths, added, strict=True)], progress)
    template = info.metadata.get(TEMPLATE, "")
    if not isinstance(template, str):
        raise unusable(str(first), f"{TEMPLATE} has the wrong type", "string")
    return ModelIdentity(
        files=files[: len(parts)],
        architecture=architecture,
        file_type=_file_type(info),
        parameters=sum(tensor.elements for _, part in parts for tensor in part.tensors),
        vocabulary=vocabulary,
        tokenizer_digest=_tokenizer_digest(first, info),
        template_digest=hashlib.sha256(template.encode("utf-8")).digest(),
        adapters=tuple(
            AdapterFile(file.name, file.sha256, file.size, adapter.scale)
            for file, adapter in zip(files[len(parts) :], adapters, strict=True)
        ),
        suppressed=suppressed,
    )


def _hash_files(parts: Sequence[tuple[Path, GGUFInfo]], progress: Progress | None) -> tuple[ModelFile, ...]:
    total = sum(info.size for _, info in parts)
    done = 0
    files = []
    for path, info in parts:
        digest = hashlib.sha256()
        size = 0
        try:
            with open(path, "rb", buffering=0) as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
                    if progress is not None:
                        progress(min(done + size, total), total)
        except OSError as error:
            raise EngineError(f"cannot read {path}", found=error.strerror or error) from error
        if size != info.size:
            raise EngineError(f"{path} changed while it was read", expected=f"{info.size:,} bytes", found=f"{size:,}")
        done += size
        files.append(ModelFile(path.name, digest.digest(), size))
    return tuple(files)


def _file_type(info: GGUFInfo) -> int:
    entry = info.fields.get("general.file_type")
    return entry.value if entry is not None and entry.kind == U32 and isinstance(entry.value, int) else _UNKNOWN_TYPE


def _vocabulary(info: GGUFInfo, architecture: str) -> int:
    entry = info.fields.get(TOKENS)
    if entry is not None and entry.element == STRING:
        return entry.count
    size = info.metadata.get(f"{architecture}.vocab_size", 0)
    return size if isinstance(size, int) and size >= 0 else 0


def _suppressed(path: Path, info: GGUFInfo, vocabulary: int) -> tuple[int, ...]:
    """The ids of the model's own list, as llama_vocab::impl::load in llama-vocab.cpp takes them: those that exist."""
    entry = info.fields.get(SUPPRESS)
    if entry is None:
        return ()
    if entry.kind != ARRAY or entry.element != I32:
        raise unusable(str(path), f"{SUPPRESS} has the wrong type", "an array of i32", TYPE_NAMES[entry.kind])
    place = entry.value
    values: tuple[object, ...] = place if isinstance(place, tuple) else ()
    if isinstance(place, ArrayPlace):
        values = struct.unpack(f"<{place.count}i", _read(path, place.offset, place.size))
    ids = tuple(sorted({value for value in values if isinstance(value, int) and 0 <= value < vocabulary}))
    if len(ids) > limits.SUPPRESSED or (ids and len(ids) >= vocabulary):
        raise unusable(str(path), f"{SUPPRESS} bars too much", f"at most {limits.SUPPRESSED} ids, not all", len(ids))
    return ids


def _tokenizer_digest(path: Path, info: GGUFInfo) -> bytes:
    digest = hashlib.sha256()
    keys = sorted(key for key in info.fields if key.startswith(_TOKENIZER) and not key.startswith(TEMPLATE))
    for key in keys:
        digest.update(_read(path, info.fields[key].offset, info.fields[key].size))
    return digest.digest()


def _read(path: Path, offset: int, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(size)
    except OSError as error:
        raise EngineError(f"cannot read {path}", found=error.strerror or error) from error
    if len(data) != size:
        raise EngineError(f"{path} changed while it was read", expected=f"{size:,} bytes", found=f"{len(data):,}")
    return data
