"""How a model is loaded and run: the settings that change arithmetic, memory or speed. Pure, no llama.cpp needed.

Whether the logits of a position depend on how the batch was cut, on the number of threads or on other sequences is
decided by `type_k`, `type_v`, `kv_unified`, `repack` and `tiled` (and by the build). `INVARIANT` is the set with
which they do not, on the kinds of model it was measured with; `STOCK` is what llama.cpp does by default, with which
they do. Neither is to be believed without `verifiable.llama.probe.probe`, which decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final

from verifiable import limits
from verifiable.errors import MalformedError, PolicyError
from verifiable.manifest.manifest import Runtime
from verifiable.manifest.rope import MODELS_OWN, Rope

KV_TYPES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "f32": 0,
        "f16": 1,
        "q4_0": 2,
        "q4_1": 3,
        "q5_0": 6,
        "q5_1": 7,
        "q8_0": 8,
        "iq4_nl": 20,
        "bf16": 30,
    }
)
"""Name -> `enum ggml_type` of the types that llama.cpp accepts for a KV cache (common/arg.cpp, `kv_cache_types`)."""

NO_DEVICE: Final = "none"
"""`RuntimeSettings.device` for no GPU."""

MAX_SEQUENCES: Final = 256
"""LLAMA_MAX_SEQ in llama-cparams.h: the most sequences that one context can hold."""

_LIMIT: Final = 2**31 - 1
"""Counts travel as int32 inside llama.cpp."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Settings of a model and its context.

    Args:
        n_ctx: tokens that EACH sequence can hold (llama.cpp counts all sequences together).
        n_seq_max: sequences that can be held at once.
        n_batch: rows that one `Context.decode` takes.
        n_ubatch: rows that llama.cpp computes at once; larger batches are cut into pieces of this size.
        type_k, type_v: types of the KV cache, keys of `KV_TYPES`.
        flash_attn: fused attention. Needed for a quantised V cache.
        kv_unified: one buffer for all sequences instead of one each. Makes logits depend on the neighbours.
        repack: let llama.cpp rearrange weights at load for faster products (`use_extra_bufts`).
        tiled: the tiled K-quant product. Belongs to the process, not the context: see `library.load_library`.
        pairs: never compute a lone row: each sequence's rows come in twos, the last one beside a throw-away row if need
            be. The products of float weights (F32 routers, F16 and BF16 models) have another kernel for one row.
        swa_full: keep whole sequences for sliding-window layers too, so that a rollback is always exact.
        n_threads: threads for decode and prefill.
        n_gpu_layers: layers given to a GPU, 0 for none, -1 for all.
        device: devices for those layers by llama.cpp's names, joined by commas; `NO_DEVICE` for no GPU, empty for all.
        rope: how positions are turned into angles, where that is not left to the model.

    Raises:
        PolicyError: a value is out of range or the combination would end the process inside llama.cpp.
    """

    n_ctx: int = 4096
    n_seq_max: int = 4
    n_batch: int = 512
    n_ubatch: int = 512
    type_k: str = "bf16"
    type_v: str = "bf16"
    flash_attn: bool = True
    kv_unified: bool = False
    repack: bool = False
    tiled: bool = False
    swa_full: bool = True
    pairs: bool = False
    n_threads: int = 1
    n_gpu_layers: int = 0
    device: str = ""
    rope: Rope = MODELS_OWN

    def __post_init__(self) -> None:
        _in_range("n_ctx", self.n_ctx, 1, _LIMIT)
        _in_range("n_seq_max", self.n_seq_max, 1, MAX_SEQUENCES)
        _in_range("n_ctx times n_seq_max", self.n_ctx * self.n_seq_max, 1, _LIMIT)
        _in_range("n_batch", self.n_batch, 1, _LIMIT)
        _in_range("n_ubatch", self.n_ubatch, 1, _LIMIT)
        _in_range("n_threads", self.n_threads, 1, 512)  # GGML_MAX_N_THREADS in ggml.h
        _in_range("n_gpu_layers", self.n_gpu_layers, -1, _LIMIT)
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in KV_TYPES:
                raise PolicyError(
                    f"unknown KV cache type in {name}", expected=", ".join(KV_TYPES), found=getattr(self, name)
                )
        names = self.device.split(",")
        if self.device and (
            not all(names) or len(set(names)) < len(names) or len(self.device.encode()) > limits.DEVICE_BYTES
        ):
            raise PolicyError("device", expected="names of devices, joined by commas", found=self.device)
        if self.n_batch < self.n_seq_max:
            # llama_context::output_reserve reserves a row per sequence and aborts past n_batch rows.
            raise PolicyError(
                "n_batch is smaller than n_seq_max", expected=f"at least {self.n_seq_max}", found=self.n_batch
            )
        if self.pairs and not (self.swa_full and self.n_batch <= self.n_ubatch):
            # A batch that llama.cpp cuts might be cut between two rows that belong together.
            raise PolicyError(
                "rows in pairs need whole batches and memory that can be cut back",
                expected="swa_full, and n_batch of at most n_ubatch",
                found=f"swa_full={self.swa_full}, n_batch={self.n_batch}, n_ubatch={self.n_ubatch}",
            )
        if not self.flash_attn and self.type_v not in ("f32", "f16", "bf16"):
            raise PolicyError(
                "a quantised V cache needs flash attention", expected="flash_attn=True", found=self.type_v
            )


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise PolicyError(f"{name} is out of range", expected=f"an integer from {low} to {high}", found=value)


def settings_of(runtime: Runtime, *, n_threads: int = 1, n_seq_max: int = 1) -> RuntimeSettings:
    """The settings under which a manifest's records can be recomputed; threads and sequences are the caller's."""
    values = {name: getattr(runtime, name) for name in STATED}
    return RuntimeSettings(**values, n_threads=n_threads, n_seq_max=n_seq_max)


def as_dict(settings: RuntimeSettings) -> dict[str, Any]:
    """The settings by name as plain values, for JSON or CBOR. Of RoPE what is not left to the model."""
    return {**{name: getattr(settings, name) for name in _NAMES}, "rope": settings.rope.stated()}


def from_dict(values: object) -> RuntimeSettings:
    """The inverse of `as_dict`. Raises MalformedError: other names; PolicyError: a value is out of range."""
    if not isinstance(values, dict) or values.keys() != set(_NAMES):
        raise MalformedError("runtime settings", expected=f"a map of {', '.join(_NAMES)}", found=str(values))
    return RuntimeSettings(**{**values, "rope": Rope(**values["rope"])})


_NAMES: Final = tuple(field.name for field in fields(RuntimeSettings))
STATED: Final = tuple(name for name in _NAMES if name not in ("n_threads", "n_seq_max"))
"""The settings that a manifest states, under the same names."""

INVARIANT: Final = RuntimeSettings()
"""Logits do not depend on batch cut, threads or neighbours, for the kinds of model named in the numerics page."""

STOCK: Final = RuntimeSettings(n_batch=2048, type_k="f16", type_v="f16", repack=True, tiled=True)
"""What llama.cpp does by itself (`llama_context_default_params`, `llama_model_default_params`)."""
