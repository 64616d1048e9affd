"""Every parser, fed with bytes that nobody should send: one of our errors, or the input written back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from benchmarks._fuzz_targets import CORPUS, TARGETS, Target, corpus, reseal
from verifiable.errors import MalformedError, VerifiableError
from verifiable.wire.encoding import encode
from verifiable.wire.sealed import seal

TARGET = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
BY_NAME = {target.name: target for target in TARGETS}


def feed(target: Target, data: bytes) -> bool:
    """Whether a target accepts an input. Any error but ours, and any other spelling, fails the test."""
    try:
        written = target.parse(data)
    except VerifiableError:
        return False
    assert written is None or written == data
    return True


@TARGET
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_anything(target: Target, data: st.DataObject) -> None:
    feed(target, data.draw(st.one_of(st.binary(max_size=300), st.text(max_size=100).map(lambda text: text.encode()))))


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A seed with parts replaced, dropped or doubled."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 12)))
        middle = draw(st.one_of(st.binary(max_size=12), st.just(data[at:end] * 2)))
        data = data[:at] + middle + data[end:]
    return data


@TARGET
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_damage_to_what_is_nearly_right(target: Target, data: st.DataObject) -> None:
    value = data.draw(damaged(target.inputs()))
    feed(target, reseal(value) if target.sealed else value)


KEYS = st.one_of(st.integers(0, 12), st.integers(-2, 400), st.binary(max_size=4), st.text(max_size=4))
SCALARS = st.one_of(
    st.integers(-(2**64), 2**64 - 1),
    st.integers(0, 5),
    st.binary(max_size=40),
    st.sampled_from([bytes(16), bytes(32), bytes(64)]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
)


def values(leaves: int) -> st.SearchStrategy[object]:
    """CBOR values of any shape, with about so many scalars in them."""
    return st.recursive(
        SCALARS,
        lambda inner: st.one_of(st.lists(inner, max_size=13), st.dictionaries(KEYS, inner, max_size=11)),
        max_leaves=leaves,
    )


@pytest.mark.parametrize("name", ["cbor", "sign1", "manifest", "head", "leaf", "packed-tokens"])
@settings(deadline=None, max_examples=50)
@given(value=values(30))
def test_well_formed_cbor_of_any_shape(name: str, value: object) -> None:
    feed(BY_NAME[name], encode(value))  # type: ignore[arg-type]


LEAF_SHAPES = st.tuples(st.integers(0, 5), st.just(bytes(16)), st.integers(0, 9), st.just(bytes(16)))


@settings(deadline=None, max_examples=50)
@given(start=LEAF_SHAPES, rest=st.lists(SCALARS | st.dictionaries(st.integers(1, 6), SCALARS), max_size=9))
def test_leaves_that_begin_well(start: tuple[int, bytes, int, bytes], rest: list[object]) -> None:
    feed(BY_NAME["leaf"], encode([*start, *rest]))  # type: ignore[list-item]


@pytest.mark.parametrize(("name", "keys"), [("receipt", 8), ("evidence", 7), ("fraud", 7)])
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_sealed_files_of_any_content(name: str, keys: int, data: st.DataObject) -> None:
    each = values(30 // keys)
    fields = {key: data.draw(each) for key in range(2, keys + 1)}
    feed(BY_NAME[name], seal({1: 2, **fields}))  # type: ignore[dict-item]


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=10),
        st.sampled_from(["user", "new", "text"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
NAMES = st.sampled_from(
    "messages prompt temperature top_p min_p top_k seed max_tokens stop stream stream_options n user metadata store "
    "logprobs top_logprobs verifiable model echo best_of suffix tools response_format role content name".split()
)


@pytest.mark.parametrize("name", ["chat-request", "completion-request"])
@settings(deadline=None, max_examples=50)
@given(fields=st.dictionaries(NAMES, JSON, max_size=6), ascii_only=st.booleans())
def test_requests_of_known_fields(name: str, fields: dict[str, object], ascii_only: bool) -> None:
    """What is accepted from a client is read back from evidence, and means the same."""
    body = {"messages": [{"role": "user", "content": "x"}]} if name == "chat-request" else {"prompt": "x"}
    text = json.dumps({**body, **fields}, ensure_ascii=ascii_only)
    feed(BY_NAME[name], text.encode("utf-8", "surrogatepass"))


@TARGET
def test_something_is_accepted(target: Target) -> None:
    """A target that refuses everything would test nothing."""
    accepted = [data for data in target.inputs() if feed(target, data)]
    assert accepted


def regressions() -> list[tuple[str, str]]:
    return [(target.name, name) for target in TARGETS for name in corpus(target.name)]


@pytest.mark.parametrize(("target", "name"), regressions())
def test_regressions(target: str, name: str) -> None:
    accepted = feed(BY_NAME[target], corpus(target)[name])
    assert accepted == name.startswith("sound"), name


def test_no_regression_is_left_out() -> None:
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= BY_NAME.keys()


def test_a_checksum_alone_does_not_make_a_file(tmp_path: Path) -> None:
    """The targets of sealed files get past the checksum: what refuses this is the content."""
    data = reseal(encode({1: 2, 2: bytes(32)}))
    with pytest.raises(MalformedError) as caught:
        BY_NAME["receipt"].parse(data)
    assert "checksum" not in str(caught.value)
