"""RoPE settings: their ranges, and one spelling in CBOR."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from verifiable.commands.model_options import RopeOptions
from verifiable.errors import MalformedError, PolicyError
from verifiable.llama.settings import KV_TYPES, RuntimeSettings, as_dict, from_dict
from verifiable.manifest.rope import MODELS_OWN, SCALINGS, Rope
from verifiable.wire import encoding

ROPES = st.builds(
    Rope,
    freq_base=st.just(0.0) | st.floats(1.0, 1e12),
    freq_scale=st.just(0.0) | st.floats(1e-4, 1e4),
    scaling=st.sampled_from(["", *SCALINGS]),
    yarn_ext_factor=st.just(-1.0) | st.floats(0.0, 100.0),
    yarn_attn_factor=st.just(-1.0) | st.floats(0.0, 100.0),
    yarn_beta_fast=st.just(-1.0) | st.floats(0.0, 1e4),
    yarn_beta_slow=st.just(-1.0) | st.floats(0.0, 1e4),
    yarn_orig_ctx=st.integers(0, 2**31 - 1),
)


@given(ROPES)
def test_it_is_read_as_it_was_written(rope: Rope) -> None:
    fields = rope.to_cbor()
    read = encoding.decode(encoding.encode(fields))
    assert isinstance(read, dict)
    assert Rope.from_cbor(read) == rope
    assert len(fields) == len(rope.stated()) <= len(str(rope).split(","))


def test_what_is_left_to_the_model_has_no_bytes() -> None:
    assert MODELS_OWN.to_cbor() == {}
    assert MODELS_OWN.stated() == {}
    assert str(MODELS_OWN) == ""
    assert str(Rope(freq_base=5e5, scaling="yarn")) == "freq_base 500000.0, scaling yarn"
    assert as_dict(RuntimeSettings(rope=Rope(freq_scale=0.5)))["rope"] == {"freq_scale": 0.5}


@given(ROPES, st.integers(1, 4096), st.sampled_from(sorted(KV_TYPES)), st.booleans())
def test_settings_are_read_as_they_were_written(rope: Rope, n_ctx: int, kind: str, flag: bool) -> None:
    settings = RuntimeSettings(n_ctx=n_ctx, type_k=kind, repack=flag, tiled=not flag, device="a,b", rope=rope)
    named = encoding.decode(encoding.encode(as_dict(settings)))
    assert isinstance(named, dict)
    assert from_dict(named) == settings
    for names in (named | {"more": 1}, {key: value for key, value in named.items() if key != "n_ctx"}, [named], None):
        with pytest.raises(MalformedError):
            from_dict(names)
    with pytest.raises(PolicyError):
        from_dict(named | {"n_ctx": 0})


@pytest.mark.parametrize(
    "wrong",
    [
        {"freq_base": 0.5},
        {"freq_base": -1.0},
        {"freq_base": 1e13},
        {"freq_base": 10_000},
        {"freq_base": math.nan},
        {"freq_scale": 1e-5},
        {"freq_scale": math.inf},
        {"scaling": "Linear"},
        {"yarn_ext_factor": -0.5},
        {"yarn_attn_factor": 101.0},
        {"yarn_beta_fast": -2.0},
        {"yarn_beta_slow": 10_001.0},
        {"yarn_orig_ctx": -1},
        {"yarn_orig_ctx": 2**31},
        {"yarn_orig_ctx": 1.0},
    ],
)
def test_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="RoPE"):
        Rope(**wrong)


@pytest.mark.parametrize(("key", "value"), [(2, 0.0), (3, 0.0), (4, ""), (5, -1.0), (8, -1.0), (9, 0), (2, 1), (4, 1)])
def test_a_key_that_says_nothing_is_malformed(key: int, value: encoding.Value) -> None:
    with pytest.raises(MalformedError):
        Rope.from_cbor({key: value})


def test_options_that_were_not_given_are_left_to_the_model() -> None:
    assert RopeOptions().settings() == MODELS_OWN
    assert RopeOptions(1e6, 0.5, "yarn", 2048, 1.0, 0.5, 16.0, 2.0).settings() == Rope(
        1e6, 0.5, "yarn", 1.0, 0.5, 16.0, 2.0, 2048
    )


@pytest.mark.parametrize("device", [",", "CUDA0,", "CUDA0,CUDA0", "x" * 257])
def test_devices_are_names_joined_by_commas(device: str) -> None:
    with pytest.raises(PolicyError, match="device"):
        RuntimeSettings(device=device)
