"""The table of limits: what the largest of each kind takes, and that spec, schema and page say the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api.described import CHAT_BODY, COMPLETION_BODY
from engine.sessions.manifests import sign_manifest
from tests.sessions import PROVIDER, TIME, ask, identity, manifest, recording, runtime
from verifiable import limits
from verifiable.errors import PolicyError
from verifiable.manifest.manifest import AdapterFile, Manifest, ModelFile, Rope, verify_manifest
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingParams
from verifiable.session import records, room
from verifiable.session.evidence import Kind, PackedTokens, TurnEvidence
from verifiable.session.log import SessionLog
from verifiable.session.opening import Opening
from verifiable.session.records import Close, End, Finish, Leaf, NonceSource, Open, Source, Token, Turn
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.wire import encoding
from verifiable.wire.keys import PrivateKey

SPEC = Path(__file__).resolve().parents[2] / "spec"
PLACE = (b"s" * 16, limits.U63, b"x" * 16)
DIGEST = b"d" * 32
LONG = 0.1
"""A float that takes eight bytes."""


def largest_params() -> SamplingParams:
    biases = tuple((limits.U31 - limits.BIASES + each, -LONG) for each in range(limits.BIASES))
    ends = {"temperature": LONG, "top_p": LONG, "min_p": LONG, "repeat_penalty": LONG}
    penalties = {"frequency_penalty": LONG, "presence_penalty": LONG, "repeat_last_n": limits.U31}
    fixed: dict[str, Any] = {"top_k": limits.ENTRIES, "max_tokens": limits.ANSWER_TOKENS, **ends, **penalties}
    return SamplingParams(**fixed, logit_bias=biases, ignore_eos=True, constraint=DIGEST)


def largest_token() -> Token:
    ids = np.arange(2**32 - limits.ENTRIES, 2**32, dtype=np.uint32)
    entries = Entries(ids, np.linspace(9, 1, limits.ENTRIES, dtype=np.float32))
    return Token(*PLACE, limits.U32, limits.U31, limits.U31, Source.FORCED, limits.U31, limits.U31, entries)


def largest_turn() -> Turn:
    nonce = b"n" * limits.NONCE_BYTES[1]
    asked, source = largest_params(), NonceSource.PROVIDER
    return Turn(*PLACE, limits.U32, DIGEST, DIGEST, limits.U31, asked, DIGEST, nonce, source, limits.U31)


def largest_leaves() -> list[Leaf]:
    counts = (limits.U31, limits.U31)
    end = End(*PLACE, limits.U32, Finish.ERROR, *counts, DIGEST, DIGEST, *counts)
    return [Open(*PLACE, DIGEST, limits.U63), largest_turn(), largest_token(), end, Close(*PLACE, limits.U32)]


def key(name: str) -> PrivateKey:
    return PrivateKey.generate(name + "k" * (limits.KEY_NAME_BYTES - len(name)), bytes(32))


def largest_manifest() -> Manifest:
    name = "n" * limits.FILE_NAME_BYTES
    files = (ModelFile(name, DIGEST, limits.U63),) * limits.FILES
    adapters = (AdapterFile(name, DIGEST, limits.U63, LONG),) * limits.ADAPTERS
    suppressed = tuple(range(limits.U31 - limits.SUPPRESSED, limits.U31))
    numbers = {"file_type": limits.U31, "parameters": limits.U63, "vocabulary": limits.U31}
    model = identity(architecture="a" * limits.ARCHITECTURE_BYTES, files=files, adapters=adapters, **numbers)
    rope = {each: LONG if low < LONG else low + LONG for each, (low, _) in limits.ROPE.items()}
    texts = {"build": limits.BUILD_BYTES, "bindings": limits.BUILD_BYTES, "system": limits.SYSTEM_BYTES}
    texts |= {"type_k": limits.CACHE_TYPE_BYTES, "type_v": limits.CACHE_TYPE_BYTES, "device": limits.DEVICE_BYTES}
    counts = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch", "n_gpu_layers"), limits.U31)
    settings = runtime(
        **{each: "t" * size for each, size in texts.items()},
        **counts,
        rope=Rope(**rope, scaling="longrope", yarn_orig_ctx=limits.U31),
        pairs=True,
    )
    return manifest(
        provider="p" * limits.PROVIDER_BYTES,
        valid_from=TIME,
        valid_to=limits.U63,
        model=replace(model, suppressed=suppressed),
        runtime=settings,
        k=limits.ENTRIES,
        drafters=("d" * limits.DRAFTER_BYTES,) * limits.DRAFTERS,
        session_keys=tuple(key(str(each)).public for each in range(limits.SESSION_KEYS)),
        log=key("log").public,
    )


@pytest.mark.parametrize("leaf", largest_leaves(), ids=lambda leaf: type(leaf).__name__)
def test_the_largest_leaf_of_each_kind_is_read(leaf: Leaf) -> None:
    data = leaf.encode()
    assert records.parse(data).encode() == data
    assert len(data) <= limits.LEAF_BYTES
    made = Opening({0: data}, ())
    assert Opening.from_cbor(*made.to_cbor()) == made


def test_the_largest_manifest_is_read() -> None:
    made = largest_manifest()
    signed = made.sign(PROVIDER)
    assert verify_manifest(signed, [PROVIDER.public]) == made
    assert len(signed) <= limits.SIGNED_BYTES


def test_an_opened_record_takes_no_more_than_is_counted() -> None:
    opened = encoding.encode([limits.SESSION_LEAVES, replace(largest_token(), seq=limits.SESSION_LEAVES).encode()])
    assert len(opened) <= limits.RECORD_BYTES + 8 * limits.ENTRIES


def test_a_receipt_has_room_for_all_that_stands_in_it() -> None:
    head = recording().log.head(limits.U63).sign(key("session"))
    log_proof = limits.NOTE_BYTES + 50 * (limits.PROOF_HASHES + 3)
    whole = len(head) + limits.SIGNED_BYTES + limits.SESSION_SHOWN_BYTES + log_proof + 256
    assert whole <= limits.RECEIPT_BYTES


def test_a_turn_fits_a_new_session_however_large_it_is() -> None:
    """Else there would be requests that no session can take."""
    log = SessionLog(b"s" * 16, b"k" * 32, DIGEST)
    log.open(limits.U63)
    assert room.lacking(log, limits.REQUEST_BYTES, limits.ANSWER_TOKENS, limits.ENTRIES) is None


def test_a_turn_takes_no_more_of_evidence_than_is_counted() -> None:
    """Kind tokens: its packed ids are fewer bytes than its records would be."""
    packed = PackedTokens.pack([limits.U31 - 1] * 9, [Source.PLAIN] * 9, [True] * 9, limits.U31)
    part = TurnEvidence(limits.U32, b"r" * limits.REQUEST_BYTES, DIGEST, packed)
    assert len(encoding.encode(part.to_cbor())) <= limits.REQUEST_BYTES + 64 + 9 * limits.RECORD_BYTES


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 8, 30])
@pytest.mark.parametrize("turns", [1, 2, 5, 20])
def test_what_a_session_shows_takes_no_more_than_is_counted(turns: int, tokens: int) -> None:
    made = recording(turns, tokens=tokens)
    for close in (False, True):
        if close:
            made.close()
        opening = Opening.of(made.log.tree, made.log.landmarks)
        assert len(encoding.encode(list(opening.to_cbor()))) <= room.shown(made.log) + 16
    made.log.requests = sum(map(len, made.requests))
    k, fixed = made.manifest.k, len(made.head()) + len(made.manifest.sign(PROVIDER)) + 256
    records_ = sum(isinstance(records.parse(leaf), Token) for leaf in made.leaves) * (limits.RECORD_BYTES + 8 * k)
    for kind in Kind:
        size = len(made.evidence(kind, positions=(8, 9)).encode())
        assert size <= fixed + room.shown(made.log) + made.log.requests + 64 * turns + records_


FULL: dict[str, tuple[dict[str, int], int, int]] = {
    "turns": ({"SESSION_TURNS": 4}, 0, 1),
    "leaves": ({"SESSION_LEAVES": 4 * 14 + 1 + 3}, 0, 1),
    "bytes in a receipt": ({"SESSION_SHOWN_BYTES": 3 * limits.LEAF_BYTES + 1000}, 0, 1),
    "bytes of requests and records": ({"SESSION_CONTENT_BYTES": 40_000}, 30_000, 1),
}


@pytest.mark.parametrize("what", FULL)
def test_a_session_is_full_before_a_turn_that_it_could_not_hold(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed, request, tokens = FULL[what]
    made = recording(4)
    assert room.lacking(made.log, request, tokens, 40) is None
    for name, value in changed.items():
        monkeypatch.setattr(limits, name, value)
    full = room.lacking(made.log, request, tokens, 40)
    assert full is not None
    assert (full.what, full.most) == (what, next(iter(changed.values())))
    assert full.found > full.most


def test_a_file_that_nobody_would_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    made = recording(3)
    receipt, evidence = made.receipt(), made.evidence(Kind.FULL)
    for name, file in (("RECEIPT_BYTES", receipt), ("EVIDENCE_BYTES", evidence)):
        monkeypatch.setattr(limits, name, len(file.encode()))
        file.encode()
        monkeypatch.setattr(limits, name, len(file.encode()) - 1)
        with pytest.raises(PolicyError, match="too long to be read"):
            file.encode()


def test_an_answer_is_no_longer_than_its_evidence_may_be() -> None:
    params = ask(max_tokens=limits.U31).params(manifest().defaults, 40, limits.U31, 7)
    assert params.max_tokens == limits.ANSWER_TOKENS
    with pytest.raises(PolicyError, match="max_tokens"):
        replace(params, max_tokens=limits.ANSWER_TOKENS + 1)


def test_a_request_of_any_spelling_is_held_to_its_canonical_form(monkeypatch: pytest.MonkeyPatch) -> None:
    most = len(ask(metadata=[10**15]).canonical)
    monkeypatch.setattr(limits, "REQUEST_BYTES", most)
    ask(metadata=[10**15])
    with pytest.raises(PolicyError, match="too long"):
        ask(metadata=[10**15, 1])


# What spec and schema say.


def table() -> dict[str, Any]:
    """Every name of the table and its value; the ranges of named fields one by one."""
    found: dict[str, Any] = {}
    for name, value in vars(limits).items():
        if name.isupper():
            found |= (
                {f"{name}.{each}": ends for each, ends in value.items()}
                if isinstance(value, Mapping)
                else {name: value}
            )
    return found


def number(text: str) -> Any:
    """A number as the spec writes it: `2^31 − 1`, `10^6`, `0.01`, `±(2^53 − 1)`."""
    text = text.strip().replace("−", "-").replace(",", "")
    power = re.fullmatch(r"(-?)\(?(\d+)\^(\d+)(?: - (\d+))?\)?", text)
    if power is None:
        return float(text)
    value = int(power[2]) ** int(power[3]) - int(power[4] or 0)
    return -value if power[1] else value


def test_the_spec_has_the_table() -> None:
    section = (SPEC / "protocol.md").read_text(encoding="utf-8").partition("\n## 13. Limits\n")[2]
    rows = re.findall(r"^\| `([A-Z0-9_]+(?:\.[a-z_]+)?)` \| ([^|]+) \| [^|]+ \|$", section, re.MULTILINE)
    assert len(rows) == len(dict(rows))
    said = {name: tuple(map(number, text.split(" to "))) for name, text in rows}
    assert said == {name: value if isinstance(value, tuple) else (value,) for name, value in table().items()}


def test_the_schema_has_the_same_numbers() -> None:
    text = " ".join((SPEC / "verifiable.cddl").read_text(encoding="utf-8").split())
    ends = {name: f"{low}..{high}" for name, (low, high) in {**limits.NUMBERS, **limits.ROPE}.items()}
    name, least, most = f"name: tstr .size (0..{limits.FILE_NAME_BYTES})", *limits.SCALE
    for part in (
        f"2 => tstr .size (0..{limits.PROVIDER_BYTES}), ; provider",
        f"7 => [ k: 1..{limits.ENTRIES}, ",
        f"9 => [ *{limits.DRAFTERS} tstr .size (0..{limits.DRAFTER_BYTES}) ]",
        f"10 => [ 1*{limits.SESSION_KEYS} verifier-key ]",
        f"files: [ 1*{limits.FILES} [ {name}, ",
        f"architecture: tstr .size (0..{limits.ARCHITECTURE_BYTES})",
        f"? 1 => [ 1*{limits.ADAPTERS} [ {name}, ",
        f"? 2 => bytes .size (4..{4 * limits.SUPPRESSED}), ; suppressed",
        f"adapter-scale = -{most}..-{least} / {least}..{most}",
        f"build: tstr .size (0..{limits.BUILD_BYTES}), bindings: tstr .size (0..{limits.BUILD_BYTES}), ",
        f"system: tstr .size (0..{limits.SYSTEM_BYTES}), ",
        f"type_k: tstr .size (0..{limits.CACHE_TYPE_BYTES}), type_v: tstr .size (0..{limits.CACHE_TYPE_BYTES}), ",
        f"? 1 => tstr .size (1..{limits.DEVICE_BYTES}), ; devices",
        f"? 11 => [ 1*{limits.LIBRARIES} library ], ",
        f"? 12 => tstr .size (1..{limits.COMPILER_BYTES}), ; compiler",
        f"library = [ name: tstr .size (1..{limits.LIBRARY_BYTES}), ",
        f"? 2 => {ends['freq_base']}, ",
        f"? 3 => {ends['freq_scale']}, ",
        f"? 5 => {ends['yarn_ext_factor']}, ; yarn_ext_factor ? 6 => {ends['yarn_attn_factor']}, ",
        f"? 7 => {ends['yarn_beta_fast']}, ; yarn_beta_fast ? 8 => {ends['yarn_beta_slow']}, ",
        f"3 => {ends['top_p']}, 4 => {ends['min_p']}, 5 => 1..{limits.ANSWER_TOKENS}, ; max_tokens",
        f"? 6 => [ repeat-penalty: {ends['repeat_penalty']}, repeat-last-n: 1..{limits.U31} ], ? 7 => ",
        f"? 7 => {ends['frequency_penalty']}, ; frequency_penalty",
        f"? 8 => {ends['presence_penalty']}, ; presence_penalty",
        f"? 9 => [ 1*{limits.BIASES} [ token: u31, bias: {limits.BIAS[0]}..{limits.BIAS[1]} ] ]",
        f"ids: bytes .size (4..{4 * limits.ENTRIES}), ",
        f"logits: bytes .size (4..{4 * limits.ENTRIES}), ",
        f"; at most {limits.LEAF_BYTES} bytes of leaf",
        f"count: 0..{limits.ANSWER_TOKENS}, ",
        f"2 => [ *{limits.KEY_STATEMENTS} bytes .size (0..{limits.ENTRY_BYTES}) ], ; statements on keys",
        f"5 => tstr .size (1..{limits.REASON_BYTES}), ; reason",
        f"8 => [ *{limits.VERDICT_CODES} tstr .size (1..64) ], ; reason codes",
        f"11 => tstr .size (0..{limits.URL_BYTES}) / null, ; URL of the report",
        f"verifier-key = tstr .size (0..{limits.KEY_BYTES})",
        f"u31 = 0..{limits.U31} u32 = 0..{limits.U32} u63 = 0..{limits.U63}",
    ):
        assert part in text, part


def test_the_providers_document_has_the_same_limits() -> None:
    chat, completion = (
        body["requestBody"]["content"]["application/json"]["schema"]["properties"]
        for body in (CHAT_BODY, COMPLETION_BODY)
    )
    assert chat["logit_bias"]["maxProperties"] == limits.BIASES
    assert chat["stop"]["oneOf"][2]["maxItems"] == limits.STOPS
    assert chat["stop"]["oneOf"][1]["maxLength"] == limits.STOP_CHARACTERS
    assert (
        chat["tools"]["maxItems"] == chat["messages"]["items"]["properties"]["tool_calls"]["maxItems"] == limits.TOOLS
    )
    assert chat["grammar"]["maxLength"] == limits.FORM
    assert chat["model"]["maxLength"] == limits.NAME_CHARACTERS
    assert completion["prompt"]["oneOf"][1]["items"]["maximum"] == limits.U31
    for name, ends in {**limits.NUMBERS, **limits.INTEGERS}.items():
        shown = (completion if name == "logprobs" else chat)[name]
        assert (shown["minimum"], shown["maximum"]) == ends


@pytest.mark.parametrize("changes", [{"provider": "p" * 257}, {"drafters": ("d",) * 17}])
def test_a_manifest_that_nobody_could_read_is_not_signed(changes: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="nobody could read"):
        sign_manifest(manifest(**changes), PROVIDER)
    assert sign_manifest(manifest(), PROVIDER) == manifest().sign(PROVIDER)


def test_hidden_leaves_are_counted_with_their_worst_place() -> None:
    """Whatever the place: as many hashes as an opening needs, never fewer."""
    tree = Tree.from_leaves(leaf_hash(bytes([each])) for each in range(200))
    for hidden in range(70):
        shown = ([*range(first), *range(first + hidden, 200)] for first in range(1, 100))
        most = max(len(tree.multiproof(each)) for each in shown)
        assert most * 34 <= room._hashes(hidden), hidden
