"""What llama.cpp takes for granted in the file of a LoRA adapter, and in an adapter for a model.

As in `gguf_checks`, each rule is one that would end the process, or quietly compute something else. Places are those of
llama.cpp in llama-cpp-python 0.3.36: llama_adapter_lora_init_impl in llama-adapter.cpp reads the file,
build_lora_mm and build_inp_embd in llama-graph.cpp multiply with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from verifiable.errors import PolicyError
from verifiable.llama.gguf.checks import NOT_WEIGHTS, unusable
from verifiable.llama.gguf.types import F32, STRING, TYPE_NAMES, GGUFInfo, TensorInfo

A: Final = ".lora_a"
B: Final = ".lora_b"
_EMBEDDING: Final = "token_embd.weight"
_OUTPUT: Final = "output.weight"
_ALPHA: Final = "adapter.lora.alpha"
_INVOCATION: Final = "adapter.alora.invocation_tokens"
_UNADAPTED: Final = "NVFP4"
"""A type whose scales come after the product: build_ffn asserts that no adapter is there."""
_ARCHITECTURE: Final = "general.architecture"


def check_adapter(info: GGUFInfo, name: str) -> None:
    """Refuse a file that is no LoRA adapter. Raises MalformedError."""
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora"), (_ARCHITECTURE, None)):
        entry = info.fields.get(key)
        # gguf_get_val_str asserts the type, which ends the process.
        if entry is None or entry.kind != STRING or not entry.value or (wanted is not None and entry.value != wanted):
            stated = None if entry is None else entry.value if entry.kind == STRING else TYPE_NAMES[entry.kind]
            raise unusable(name, f"{key} of a LoRA adapter", wanted or "the name of an architecture", stated)
    alpha = info.fields.get(_ALPHA)
    if alpha is not None and not (alpha.kind == F32 and isinstance(alpha.value, float) and math.isfinite(alpha.value)):
        raise unusable(name, f"{_ALPHA} cannot be used", "a finite f32", alpha.value)
    if _INVOCATION in info.fields:
        # Such an adapter counts from certain tokens on; added everywhere it would be another model.
        raise unusable(name, "it is an adapter that some tokens switch on (aLoRA)", "a LoRA adapter that always counts")
    pairs(info, name)


def pairs(info: GGUFInfo, name: str) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """The model's tensor -> (A, B). Norms, which llama.cpp passes over, are left out. Raises MalformedError."""
    tensors = {tensor.name: tensor for tensor in info.tensors}
    pairs = {}
    for tensor in info.tensors:
        if tensor.type_name in NOT_WEIGHTS:
            raise unusable(
                name, f"tensor '{tensor.name}' has a type for which there is no product", None, tensor.type_name
            )
        if tensor.name.endswith((A, B)):
            base = tensor.name.removesuffix(A).removesuffix(B)
            if base + A not in tensors or base + B not in tensors:
                raise unusable(name, f"tensor '{tensor.name}' has no counterpart", f"{base}{A} and {base}{B}")
            pairs[base] = tensors[base + A], tensors[base + B]
        elif not tensor.name.endswith("_norm.weight"):
            raise unusable(name, f"tensor '{tensor.name}' belongs to no LoRA adapter", f"names that end in {A} or {B}")
    if not pairs:
        raise unusable(name, "it changes no tensor", f"tensors whose names end in {A} and {B}")
    return pairs


def check_fit(info: GGUFInfo, name: str, parts: Sequence[GGUFInfo]) -> None:
    """Refuse an adapter that is not one for the model whose files `parts` describes. Raises MalformedError."""
    architecture = parts[0].metadata.get(_ARCHITECTURE)
    if info.metadata[_ARCHITECTURE] != architecture:
        raise unusable(name, "it is for another architecture", architecture, info.metadata[_ARCHITECTURE])
    model = {tensor.name: tensor for part in parts for tensor in part.tensors}
    for base, (a, b) in pairs(info, name).items():
        weight = model.get(base)
        if weight is None:
            raise unusable(name, f"the model has no tensor '{base}'", hint="It is an adapter for another model")
        if base == _EMBEDDING and _OUTPUT not in model:
            # The output layer then is the same tensor, and the pair is the wrong way round for it: an assertion.
            raise unusable(name, f"it changes '{base}', which is the model's output layer too", "other tensors")
        if weight.type_name == _UNADAPTED:
            raise unusable(name, f"it changes '{base}', whose type takes no adapter", "another type", weight.type_name)
        _check_shapes(name, base, weight, a, b)


def _check_shapes(name: str, base: str, weight: TensorInfo, a: TensorInfo, b: TensorInfo) -> None:
    # W has (in, out, experts…), A (in, rank, …), B (rank, out, …); for the embedding A is a table of rows of a rank.
    columns, rows, *rest = weight.dims if len(weight.dims) > 1 else (0, 0)
    rank = b.dims[0] if b.dims else 0
    wanted = (rank, rows, *rest) if base == _EMBEDDING else (columns, rank, *rest)
    if len(weight.dims) < 2 or a.dims != wanted or b.dims != (rank, columns if base == _EMBEDDING else rows, *rest):
        raise unusable(
            name,
            f"the pair of '{base}' does not fit the model",
            "A and B whose product has " + " × ".join(map(str, weight.dims)),
            f"{' × '.join(map(str, a.dims))} and {' × '.join(map(str, b.dims))}",
            "It is an adapter for another model",
        )


def check_order(adapters: Sequence[GGUFInfo]) -> None:
    """Refuse three adapters or more of which two change one tensor. Raises PolicyError.

    llama.cpp keeps a context's adapters by their addresses in memory (`llama_adapter_loras`), and adds them up as they
    come. Of two the later one always comes first; of more the order can be another in each process, and with it the
    last bits of the sum.
    """
    if len(adapters) < 3:
        return
    seen: set[str] = set()
    for info in adapters:
        changed = {tensor.name for tensor in info.tensors}
        if both := seen & changed:
            raise PolicyError(
                "three adapters or more change the same tensor",
                expected="at most two adapters, or a tensor of its own for each",
                found=min(both),
                hint="llama.cpp adds up more than two in no fixed order: merge some of them into one file.",
            )
        seen |= changed
