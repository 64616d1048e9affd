"""Sound GGUF files on which llama.cpp would end the process all the same."""

from __future__ import annotations

import math

import pytest

from tests.gguf_files import Entry, File, Tensor, small, write
from verifiable.errors import MalformedError
from verifiable.llama.gguf.metadata import inspect
from verifiable.llama.gguf.types import ARRAY, BLOCKS, F32, F64, I32, STRING, U8, U16, U32, U64


def with_entry(key, kind, value, element=None) -> File:
    file = small()
    file.entries = [entry for entry in file.entries if entry.key != key] + [Entry(key, kind, value, element)]
    return file


def without(key) -> File:
    file = small()
    file.entries = [entry for entry in file.entries if entry.key != key]
    return file


@pytest.mark.parametrize("key", ["general.architecture", "llama.block_count"])
def test_what_every_model_has_must_be_there(tmp_path, key):
    with pytest.raises(MalformedError, match=f"{key} is missing"):
        inspect(write(tmp_path, without(key)))


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("general.architecture", U32, 1),
        ("general.architecture", STRING, ""),
        ("llama.block_count", U64, 1),
        ("llama.block_count", U32, 0),
        ("llama.block_count", U32, 513),
        ("llama.block_count", U32, 2**32 - 1),
        ("llama.nextn_predict_layers", U32, 2),
        ("llama.embedding_length", U32, 0),
        ("llama.context_length", U32, 0),
        ("llama.expert_count", U32, 1025),
        ("llama.expert_used_count", U32, 1),  # of none
        ("llama.expert_group_count", U32, 1),
        ("llama.rope.scaling.type", STRING, "cubic"),
        ("llama.rope.scaling.type", U32, 1),
        ("llama.attention.layer_norm_rms_epsilon", F32, -1.0),
        ("llama.attention.layer_norm_rms_epsilon", F32, math.nan),
        ("llama.attention.layer_norm_epsilon", F32, math.inf),
        ("llama.attention.layer_norm_rms_epsilon", F64, 1e-5),
        ("split.no", U32, 1),
        ("tokenizer.ggml.tokens", STRING, "abc"),
    ],
)
def test_a_value_that_the_loader_asserts_is_checked(tmp_path, key, kind, value):
    with pytest.raises(MalformedError, match=key.rpartition(".")[2]):
        inspect(write(tmp_path, with_entry(key, kind, value)))


@pytest.mark.parametrize(
    ("experts", "used", "groups", "group_used", "sound"),
    [
        (8, 2, 0, 0, True),
        (8, 8, 4, 2, True),
        (8, 9, 0, 0, False),
        (8, 0, 0, 0, False),
        (8, 2, 8, 1, False),
        (8, 2, 3, 1, False),
        (8, 2, 4, 0, False),
        (8, 2, 4, 4, False),
    ],
)
def test_counts_of_experts_must_fit_together(tmp_path, experts, used, groups, group_used, sound):
    file = small()
    for name, value in (
        ("expert_count", experts),
        ("expert_used_count", used),
        ("expert_group_count", groups),
        ("expert_group_used_count", group_used),
    ):
        file.entries.append(Entry(f"llama.{name}", U32, value))
    if sound:
        inspect(write(tmp_path, file))
    else:
        with pytest.raises(MalformedError, match="expert"):
            inspect(write(tmp_path, file))


@pytest.mark.parametrize(("value", "sound"), [([2, 3], True), ([0, 9], False), ([-1, 2], False), ([], False)])
def test_experts_may_be_counted_for_each_layer(tmp_path, value, sound):
    file = with_entry("llama.expert_used_count", ARRAY, value, I32)
    file.entries.append(Entry("llama.expert_count", U32, 8))
    if sound:
        inspect(write(tmp_path, file))
    else:
        with pytest.raises(MalformedError, match="expert_used_count"):
            inspect(write(tmp_path, file))


@pytest.mark.parametrize("tokens", [["a", "a"], ["a\0b", "a\0c"], ["", "[EMPTY_0]"], []])
def test_each_token_needs_a_text_of_its_own(tmp_path, tokens):
    with pytest.raises(MalformedError, match="token"):
        inspect(write(tmp_path, with_entry("tokenizer.ggml.tokens", ARRAY, tokens, STRING)))


def test_empty_tokens_are_told_apart_by_number(tmp_path):
    inspect(write(tmp_path, with_entry("tokenizer.ggml.tokens", ARRAY, ["", "", "a"], STRING)))


def test_a_vocabulary_with_byte_fallback_needs_all_bytes(tmp_path):
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    file = with_entry("tokenizer.ggml.tokens", ARRAY, tokens, STRING)
    file.entries.append(Entry("tokenizer.ggml.model", STRING, "llama"))
    inspect(write(tmp_path, file))
    file.entry("tokenizer.ggml.tokens").value = [token for token in tokens if token != "<0x0A>"]
    with pytest.raises(MalformedError, match=r"no token for a byte: expected <0x0A>"):
        inspect(write(tmp_path, file))


@pytest.mark.parametrize("name", ["I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"])
def test_weights_of_a_type_without_a_product_are_refused(tmp_path, name):
    kind, (_, block, width) = next((k, v) for k, v in BLOCKS.items() if v[0] == name)
    file = small()
    file.tensors[0] = Tensor("token_embd.weight", (block, 3), kind, bytes(3 * width))
    with pytest.raises(MalformedError, match="a type for which there is no product"):
        inspect(write(tmp_path, file))


def test_a_table_of_numbers_is_no_weight(tmp_path):
    file = small()
    file.tensors[0] = Tensor("blk.0.ffn_gate_tid2eid", (4, 3), 26, bytes(48))
    inspect(write(tmp_path, file))


@pytest.mark.parametrize(
    ("tensor", "dims"),
    [
        ("output_norm.weight", (32,)),
        ("output_norm.weight", (32, 1)),
        ("blk.0.attn_q.bias", (32, 1, 1, 1)),
        ("blk.0.ssm_d", (32,)),
        ("blk.0.ssm_a", (32, 4)),
        ("blk.0.ssm_conv1d.weight", (32, 4)),
    ],
)
def test_what_is_added_or_multiplied_singly_must_be_float32(tmp_path, tensor, dims):
    count = math.prod(dims)
    for kind, width in ((1, 2 * count), (8, count // 32 * 34)):
        file = small()
        file.tensors[1] = Tensor(tensor, dims, kind, bytes(width))
        with pytest.raises(MalformedError, match="has the wrong type: expected F32"):
            inspect(write(tmp_path, file))
    file.tensors[1] = Tensor(tensor, dims, 0, bytes(4 * count))
    inspect(write(tmp_path, file))


def test_a_router_of_one_row_may_be_half_precision(tmp_path):
    file = small()
    file.tensors[1] = Tensor("blk.0.ffn_gate_inp_shexp.weight", (32, 1), 1, bytes(64))
    inspect(write(tmp_path, file))


def test_a_later_part_of_a_model_has_tensors_only(tmp_path):
    file = File([Entry("split.no", U16, 1), Entry("split.count", U16, 2)], [Tensor("t", (32,), 0, bytes(128))])
    inspect(write(tmp_path, file))


def test_the_kind_of_an_array_of_flags_is_not_a_count(tmp_path):
    with pytest.raises(MalformedError, match="expert_used_count has the wrong type"):
        inspect(write(tmp_path, with_entry("llama.expert_used_count", ARRAY, [1], U8)))
