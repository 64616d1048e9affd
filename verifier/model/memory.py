"""How much memory a manifest's context would take: the length is a stranger's, and the memory the auditor's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from verifiable.errors import EngineError
from verifiable.llama.settings import RuntimeSettings

SHARE = 0.5
"""The most of this machine's memory that a context may take."""
MAX_CONTEXT = 1 << 21
"""Tokens; more than any model that exists was made for."""
_BYTES = {"f32": 4}
"""Bytes of a cached number, where it is more than the two of f16 and bf16."""


def context_bytes(metadata: Mapping[str, object], settings: RuntimeSettings) -> int:
    """Bytes of the KV cache of one sequence, from a GGUF file's metadata; 0 where the file does not say enough."""

    def number(name: str, default: int = 0) -> int:
        value = metadata.get(f"{metadata.get('general.architecture')}.{name}", default)
        if isinstance(value, (list, tuple)):
            return max((item for item in value if isinstance(item, int)), default=default)
        return value if isinstance(value, int) else default

    heads = number("attention.head_count", 1)
    width = number("embedding_length") // max(heads, 1)
    per_head = number("attention.key_length", width) * _BYTES.get(settings.type_k, 2)
    per_head += number("attention.value_length", width) * _BYTES.get(settings.type_v, 2)
    return settings.n_ctx * number("block_count") * number("attention.head_count_kv", heads) * per_head


def check_memory(metadata: Mapping[str, object], settings: RuntimeSettings) -> None:
    """Raise EngineError when a context with these settings would take too much of this machine's memory."""
    available = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * SHARE)
    needed = context_bytes(metadata, settings)
    if needed > available or settings.n_ctx > MAX_CONTEXT:
        raise EngineError(
            "the manifest's context is too long for this machine",
            expected=f"at most {available / 2**30:.1f} GiB",
            found=f"{settings.n_ctx:,} tokens, {needed / 2**30:.1f} GiB",
            hint="Audit on a machine with more memory.",
        )
