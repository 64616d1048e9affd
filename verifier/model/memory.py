"""How much memory a context takes: the manifest's length is a stranger's, and the memory the auditor's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from verifiable.errors import EngineError, PolicyError
from verifiable.llama.gguf.types import BLOCKS, GGUFInfo
from verifiable.llama.settings import KV_TYPES, RuntimeSettings

SHARE = 0.5
"""The most of this machine's memory that a context may take."""
LEAST = 4096
"""Tokens of the shortest context that is made, where the manifest allows as many."""
LARGEST = 1 << 44
"""Bytes, 16 TiB: a KV cache for one sequence that no machine has."""
_LONG = "rope_factors_long"


def context_bytes(metadata: Mapping[str, object], settings: RuntimeSettings) -> int:
    """Bytes of the KV cache of one sequence, from a GGUF file's metadata; 0 where the file does not say enough."""
    heads = _number(metadata, "attention.head_count_kv", _number(metadata, "attention.head_count", 1))
    per_head = sum(
        length * bytes_ / values for length, (_, values, bytes_) in zip(_head(metadata), _blocks(settings), strict=True)
    )
    return int(settings.n_ctx * _number(metadata, "block_count") * heads * per_head)


def check_memory(metadata: Mapping[str, object], settings: RuntimeSettings) -> None:
    """Raise EngineError when a context with these settings would take too much of this machine's memory."""
    available = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * SHARE)
    needed = context_bytes(metadata, settings)
    if needed > available:
        raise EngineError(
            "the turn is too long for this machine",
            expected=f"at most {available / 2**30:.1f} GiB",
            found=f"{settings.n_ctx:,} tokens, {needed / 2**30:.1f} GiB",
            hint="Audit on a machine with more memory.",
        )


def check_cache(metadata: Mapping[str, object], settings: RuntimeSettings) -> None:
    """Raise PolicyError when no machine can have the KV cache that these settings ask for."""
    needed = context_bytes(metadata, settings)
    if needed > LARGEST:
        raise PolicyError(
            "no machine has memory for one sequence of n_ctx",
            expected=f"at most {LARGEST / 2**40:g} TiB",
            found=f"{settings.n_ctx:,} tokens, {needed / 2**40:,.1f} TiB",
        )
    for length, (name, values, _) in zip(_head(metadata), _blocks(settings), strict=True):
        if length % values:
            raise PolicyError(
                "the model's heads can't be cached in this type",
                expected=f"a head length divisible by {values}",
                found=f"{length}, type {name}",
            )


def room(infos: Sequence[GGUFInfo], settings: RuntimeSettings, length: int) -> int:
    """How many tokens a context is made for, where a turn has `length`: some more, and never more than the manifest's.

    It changes no bit: llama.cpp computes over the places in use, rounded up to 256, and n_ctx is rounded up likewise.
    The one thing that hangs on n_ctx is kept: a model with two sets of RoPE factors takes the long one where n_ctx is
    above the length of its training.
    """
    least = max(length, LEAST)
    metadata = infos[0].metadata
    if any(tensor.name.startswith(_LONG) for info in infos for tensor in info.tensors):
        border = _number(metadata, "rope.scaling.original_context_length", _number(metadata, "context_length"))
        if settings.n_ctx > border:
            least = max(least, border + 1)
    return min(settings.n_ctx, 1 << (least - 1).bit_length())


def _blocks(settings: RuntimeSettings) -> list[tuple[str, int, int]]:
    """Of K and of V: the type's name, the values of a block and its bytes."""
    return [BLOCKS[KV_TYPES[name]] for name in (settings.type_k, settings.type_v)]


def _head(metadata: Mapping[str, object]) -> tuple[int, int]:
    """Numbers that one head keeps of a token in K and in V."""
    width = _number(metadata, "embedding_length") // max(_number(metadata, "attention.head_count", 1), 1)
    return _number(metadata, "attention.key_length", width), _number(metadata, "attention.value_length", width)


def _number(metadata: Mapping[str, object], name: str, default: int = 0) -> int:
    value = metadata.get(f"{metadata.get('general.architecture')}.{name}", default)
    if isinstance(value, (list, tuple)):
        return max((item for item in value if isinstance(item, int)), default=default)
    return value if isinstance(value, int) else default
