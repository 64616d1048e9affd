"""What llama.cpp's loader takes for granted in a file whose structure is sound. Each rule here is one that ends the
process when it does not hold, with its place in the source of llama.cpp (llama-cpp-python 0.3.36).

Most other nonsense makes the loader give up politely; that is left to it. No list like this is complete, so audits of
files from strangers belong into a process of their own all the same.
"""

from __future__ import annotations

import math
from typing import Final

from verifiable.errors import MalformedError
from verifiable.llama.gguf.types import F32, I32, STRING, TYPE_NAMES, U16, U32, Field, GGUFInfo, TensorInfo

TOKENS: Final = "tokenizer.ggml.tokens"
MAX_LAYERS: Final = 512  # LLAMA_MAX_LAYERS in llama-hparams.h
MAX_EXPERTS: Final = 1024  # LLAMA_MAX_EXPERTS in llama-hparams.h
MAX_TOKENS: Final = 2**24
"""More than ten times the largest vocabulary in use."""
NOT_WEIGHTS: Final = frozenset(("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"))
"""Types without a product kernel: `type_traits_cpu` in ggml-cpu.c has no function there, and it is called unseen."""
_TABLE: Final = "ffn_gate_tid2eid"
"""The one kind of tensor in use (deepseek4) that holds integers: a table, never multiplied."""
_ELEMENTWISE: Final = ("ssm_a", "ssm_conv1d", "ssm_d")
"""Matrices that kernels read as float32 without asking (ssm_conv and ssm_scan in ggml-cpu/ops.cpp)."""
_FLOAT: Final = 0  # GGML_TYPE_F32
ROPE_SCALINGS: Final = ("none", "linear", "yarn", "longrope")  # LLAMA_ROPE_SCALING_TYPES in llama-model.cpp


def unusable(
    name: str, what: str, expected: object = None, found: object = None, hint: str | None = None
) -> MalformedError:
    """The error for a file that cannot be a model."""
    return MalformedError(f"{name} is not a usable GGUF file: {what}", expected=expected, found=found, hint=hint)


def check(info: GGUFInfo, tokens: list[bytes], name: str) -> None:
    """Refuse a file on which llama.cpp's loader would abort.

    `tokens` is the whole vocabulary, when the file has one. Raises MalformedError, which names the entry, what it
    should be and what it is.
    """
    rules = _Rules(info, name)
    for tensor in info.tensors:
        rules.tensor(tensor)
    if rules.number("split.no", U16, 0, 2**16 - 1, default=0) > 0:
        return  # a later part has tensors only; the first part speaks for all
    rules.layers()
    rules.vocabulary(tokens)


class _Rules:
    def __init__(self, info: GGUFInfo, name: str) -> None:
        self.info = info
        self.name = name

    def fail(self, what: str, expected: object = None, found: object = None) -> MalformedError:
        return unusable(self.name, what, expected, found)

    def get(self, key: str, kind: int) -> Field | None:
        entry = self.info.fields.get(key)
        if entry is not None and entry.kind != kind:
            raise self.fail(f"{key} has the wrong type", TYPE_NAMES[kind], TYPE_NAMES[entry.kind])
        return entry

    def number(self, key: str, kind: int, low: int, high: int, default: int | None = None) -> int:
        entry = self.get(key, kind)
        value = default if entry is None else entry.value
        if not isinstance(value, int):
            raise self.fail(f"{key} is missing", f"{low} to {high}")
        if entry is not None and not low <= value <= high:
            raise self.fail(f"{key} is out of range", f"{low} to {high}", value)
        return value

    def tensor(self, tensor: TensorInfo) -> None:
        """Types that no kernel takes: the graph is built all the same, and computing it ends the process."""
        parts = tensor.name.split(".")
        if tensor.type_name in NOT_WEIGHTS and not (tensor.type_name == "I32" and _TABLE in parts):
            raise self.fail(f"tensor '{tensor.name}' has a type for which there is no product", found=tensor.type_name)
        vector = not tensor.dims or tensor.elements == tensor.dims[0]
        # Converters keep vectors and norms in float32; binary-ops.cpp aborts on others. A router may have one row.
        router = len(tensor.dims) > 1 and parts[-1] == "weight" and "norm" not in tensor.name
        needs_float = (vector and not router) or any(part in _ELEMENTWISE for part in parts)
        if needs_float and tensor.type != _FLOAT:
            raise self.fail(f"tensor '{tensor.name}' has the wrong type", "F32", tensor.type_name)

    def layers(self) -> None:
        """llama_model_base::load_hparams in llama-model.cpp."""
        entry = self.get("general.architecture", STRING)
        if entry is None or not isinstance(entry.value, str) or not entry.value:
            raise self.fail("general.architecture is missing", "the name of an architecture")
        architecture = entry.value
        blocks = self.number(f"{architecture}.block_count", U32, 1, MAX_LAYERS)
        self.number(f"{architecture}.nextn_predict_layers", U32, 0, blocks, default=0)
        self.number(f"{architecture}.embedding_length", U32, 1, 2**24, default=1)
        self.number(f"{architecture}.context_length", U32, 1, 2**31 - 1, default=1)
        experts = self.number(f"{architecture}.expert_count", U32, 0, MAX_EXPERTS, default=0)
        used = self._experts_used(f"{architecture}.expert_used_count")
        if used > experts or (experts > 0) != (used > 0):
            raise self.fail(f"{architecture}.expert_used_count is out of range", f"1 to {experts}", used)
        groups = self.number(f"{architecture}.expert_group_count", U32, 0, max(experts - 1, 0), default=0)
        if groups > 1:
            self.number(f"{architecture}.expert_group_used_count", U32, 1, groups - 1)
            if experts % groups:
                raise self.fail(f"{architecture}.expert_group_count does not divide {experts}", found=groups)
        scaling = self.get(f"{architecture}.rope.scaling.type", STRING)
        if scaling is not None and scaling.value not in ROPE_SCALINGS:
            raise self.fail(f"{architecture}.rope.scaling.type is unknown", ", ".join(ROPE_SCALINGS), scaling.value)

        for kind in ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon"):
            key = f"{architecture}.attention.{kind}"
            epsilon = self.get(key, F32)
            # ggml_compute_forward_rms_norm asserts that it is not negative, which NaN fails too.
            if epsilon is not None and not (isinstance(epsilon.value, float) and 0 <= epsilon.value < math.inf):
                raise self.fail(f"{key} is out of range", "a number from 0", epsilon.value)

    def _experts_used(self, key: str) -> int:
        entry = self.info.fields.get(key)
        if entry is None:
            return 0
        values = entry.value if isinstance(entry.value, tuple) else (entry.value,)
        if (entry.kind if entry.element is None else entry.element) not in (U32, I32) or not values:
            raise self.fail(f"{key} has the wrong type", "u32, one or one per layer")
        numbers = [value for value in values if isinstance(value, int)]
        if len(numbers) != len(values) or min(numbers) < 0:
            raise self.fail(f"{key} is out of range", "counts", entry.value)
        return max(numbers)

    def vocabulary(self, tokens: list[bytes]) -> None:
        """llama_vocab::impl::load in llama-vocab.cpp: the map from text to token must have an entry for each token."""
        entry = self.info.fields.get(TOKENS)
        if entry is None:
            return
        if entry.element != STRING:
            raise self.fail(f"{TOKENS} has the wrong type", "an array of strings")
        if not 1 <= len(tokens) <= MAX_TOKENS:
            raise self.fail(f"{TOKENS} has a wrong length", f"1 to {MAX_TOKENS:,}", f"{len(tokens):,}")
        texts = set(tokens)
        if len(texts) < len(tokens) or b"" in texts or any(b"\0" in token for token in tokens):
            texts = self._texts(tokens)
        if self.info.metadata.get("tokenizer.ggml.model") == "llama":
            # llama_vocab::byte_to_token looks for these without asking, while it tokenises a text that needs them.
            for byte in range(256):
                if b"<0x%02X>" % byte not in texts and bytes([byte]) not in texts:
                    raise self.fail("the vocabulary has no token for a byte", f"<0x{byte:02X}>")

    def _texts(self, tokens: list[bytes]) -> set[bytes]:
        """The vocabulary as llama.cpp has it: it reads C strings, and gives a name to those that are empty."""
        seen: dict[bytes, int] = {}
        for number, token in enumerate(tokens):
            text = token.partition(b"\0")[0] or b"[EMPTY_%d]" % number
            if seen.setdefault(text, number) != number:
                raise self.fail(f"tokens {seen[text]} and {number} are the same", "a text of its own for each", text)
        return set(seen)
