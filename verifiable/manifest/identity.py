"""What model is meant, so exactly that two people can compare files: the model, and the adapters on top of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from verifiable import limits
from verifiable.errors import MalformedError
from verifiable.wire import encoding
from verifiable.wire.ids import pack, unpack


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model: its base name, SHA-256 (32 bytes) and size in bytes."""

    name: str
    sha256: bytes
    size: int


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """A LoRA adapter: its file, as `ModelFile`, and the factor by which its change of the weights is multiplied."""

    name: str
    sha256: bytes
    size: int
    scale: float


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What model is meant.

    `file_type` is GGUF's `general.file_type` number, `parameters` and `vocabulary` are counts, the digests are SHA-256
    over the tokenizer's metadata and the chat template's bytes (of no bytes when there is no template). `adapters` are
    applied in their order. `suppressed` are the ids, ascending, that the model's own list bars from every answer.
    """

    files: tuple[ModelFile, ...]
    architecture: str
    file_type: int
    parameters: int
    vocabulary: int
    tokenizer_digest: bytes
    template_digest: bytes
    adapters: tuple[AdapterFile, ...] = ()
    suppressed: tuple[int, ...] = ()

    def to_cbor(self) -> list[encoding.Value]:
        more: encoding.Map = {}
        if self.adapters:
            more[1] = [[file.name, file.sha256, file.size, file.scale] for file in self.adapters]
        if self.suppressed:
            more[2] = pack(self.suppressed)
        return [
            [[file.name, file.sha256, file.size] for file in self.files],
            self.architecture,
            self.file_type,
            self.parameters,
            self.vocabulary,
            self.tokenizer_digest,
            self.template_digest,
            *([more] if more else []),
        ]

    @classmethod
    def from_cbor(cls, value: encoding.Value) -> ModelIdentity:
        items, more = with_more(value, 7, (1, 2), "manifest model")
        files = [
            ModelFile(*_file(entry, 3)) for entry in encoding.array(items[0], None, "model files", maximum=limits.FILES)
        ]
        if not files:
            raise MalformedError("manifest model files", expected=f"1 to {limits.FILES} files", found="none")
        vocabulary = encoding.uint(items[4], "model vocabulary", limits.U31)
        return cls(
            tuple(files),
            encoding.text(items[1], "model architecture", limits.ARCHITECTURE_BYTES),
            encoding.uint(items[2], "model file type", limits.U31),
            encoding.uint(items[3], "model parameters"),
            vocabulary,
            encoding.bytes_(items[5], "tokenizer digest", 32),
            encoding.bytes_(items[6], "template digest", 32),
            _adapters(more[1]) if 1 in more else (),
            _suppressed(more[2], vocabulary) if 2 in more else (),
        )


def with_more(
    value: encoding.Value, count: int, keys: Iterable[int], what: str
) -> tuple[list[encoding.Value], encoding.Map]:
    """An array of `count` items that a map may follow, in which something must be said. Raises MalformedError."""
    items = encoding.array(value, None, what)
    if len(items) not in (count, count + 1):
        raise MalformedError(what, expected=f"{count} items, or a map after them", found=f"{len(items)} items")
    if len(items) == count:
        return items, {}
    more = encoding.map_(items[count], (), f"{what}: what is not always said", optional=keys)
    if not more:
        raise MalformedError(what, expected="no map where it would be empty", found="an empty map")
    return items[:count], more


def _file(entry: encoding.Value, count: int) -> tuple[str, bytes, int]:
    name, digest, size, *_ = encoding.array(entry, count, "manifest model file")
    return (
        encoding.text(name, "model file name", limits.FILE_NAME_BYTES),
        encoding.bytes_(digest, "model file sha256", 32),
        encoding.uint(size, "model file size"),
    )


def _adapters(value: encoding.Value) -> tuple[AdapterFile, ...]:
    adapters = []
    for entry in encoding.array(value, None, "model adapters", maximum=limits.ADAPTERS):
        file = _file(entry, 4)
        scale = encoding.float_(encoding.array(entry, 4, "model adapter")[3], "adapter scale")
        least, most = limits.SCALE
        if not least <= abs(scale) <= most:
            raise MalformedError("adapter scale", expected=f"a magnitude from {least:g} to {most:g}", found=scale)
        adapters.append(AdapterFile(*file, scale))
    if not adapters:
        raise MalformedError("model adapters", expected="no key where there are none", found="an empty list")
    return tuple(adapters)


def _suppressed(value: encoding.Value, vocabulary: int) -> tuple[int, ...]:
    data = encoding.bytes_(value, "suppressed ids", maximum=4 * limits.SUPPRESSED)
    ids = () if len(data) % 4 else tuple(unpack(data))
    ascending = all(low < high for low, high in pairwise(ids))
    if not ids or not ascending or ids[-1] >= vocabulary or len(ids) >= vocabulary:
        raise MalformedError(
            "suppressed ids", expected="ascending ids of 4 bytes each, not the whole vocabulary", found=data
        )
    return ids
