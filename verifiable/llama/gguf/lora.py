"""LoRA adapters: what an operator or an auditor names on the command line, and its check against the model."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from verifiable import limits
from verifiable.errors import PolicyError
from verifiable.llama.gguf.adapter import check_fit, check_order
from verifiable.llama.gguf.metadata import inspect_adapter
from verifiable.llama.gguf.types import GGUFInfo
from verifiable.wire import encoding
from verifiable.wire.encoding import Value

_SCALED: Final = re.compile(r"(.+):([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter to load: its GGUF file, and the factor by which its change of the weights is multiplied."""

    path: Path
    scale: float = 1.0

    def __post_init__(self) -> None:
        least, most = limits.SCALE
        if not least <= abs(self.scale) <= most:
            raise PolicyError(
                "the scale of an adapter",
                expected=f"a magnitude from {least:g} to {most:g}",
                found=self.scale,
            )

    def __str__(self) -> str:
        """As it is written on the command line."""
        return f"{self.path}:{self.scale!r}"


def parse_adapter(text: str) -> Adapter:
    """FILE or FILE:SCALE. Raises PolicyError."""
    match = None if Path(text).exists() else _SCALED.fullmatch(text)
    adapter = Adapter(Path(text)) if match is None else Adapter(Path(match[1]), float(match[2]))
    if not adapter.path.is_file():
        raise PolicyError(
            "no such adapter file", expected="FILE or FILE:SCALE", found=text, hint="Scales are written as 0.5 or 2."
        )
    return adapter


def parse_adapters(texts: Sequence[str] | None) -> tuple[Adapter, ...]:
    """Every `--lora` of a command, in their order. Raises PolicyError."""
    adapters = tuple(map(parse_adapter, texts or ()))
    if len(adapters) > limits.ADAPTERS:
        raise PolicyError("too many adapters", expected=f"at most {limits.ADAPTERS}", found=len(adapters))
    return adapters


def inspect_adapters(adapters: Sequence[Adapter], parts: Sequence[GGUFInfo]) -> list[GGUFInfo]:
    """Inspect adapters, and check that they are for the model of which *parts* describes the files.

    Raises:
        MalformedError: a file is not a well-formed adapter, or not one for this model.
        EngineError: it cannot be read.
        PolicyError: their sum would not be the same in each process.
    """
    infos = [inspect_adapter(adapter.path) for adapter in adapters]
    for adapter, info in zip(adapters, infos, strict=True):
        check_fit(info, str(adapter.path), parts)
    check_order(infos)
    return infos


def adapters_to_cbor(adapters: Sequence[Adapter]) -> list[Value]:
    """Adapters for another process of this machine: [[absolute path, scale], …]."""
    return [[os.path.abspath(adapter.path), adapter.scale] for adapter in adapters]


def adapters_from_cbor(value: Value) -> tuple[Adapter, ...]:
    """The inverse of `adapters_to_cbor`. Raises MalformedError."""
    pairs = [encoding.array(pair, 2, "adapter") for pair in encoding.array(value, None, "adapters")]
    return tuple(
        Adapter(Path(encoding.text(path, "adapter's path", 1 << 16)), encoding.float_(scale, "adapter's scale"))
        for path, scale in pairs
    )
