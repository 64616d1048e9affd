from __future__ import annotations

import hashlib

import cbor2
import pytest

from verifiable.errors import MalformedError, VerificationError
from verifiable.wire.keys import PrivateKey, PublicKey, join_vkey

# RFC 8032 §7.1, test 1.
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
RAW = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
SIGNATURE = bytes.fromhex(
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
    "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
)


def test_rfc_8032():
    key = PrivateKey.generate("key.example", SEED)
    assert key.public.raw == RAW
    assert key.sign(b"") == SIGNATURE
    key.public.verify(SIGNATURE, b"")


def test_kid_is_the_thumbprint_of_rfc_9679():
    cose_key = {1: 1, -1: 6, -2: RAW}  # OKP, Ed25519, x: the required members in deterministic order
    assert PublicKey("a", RAW).kid == hashlib.sha256(cbor2.dumps(cose_key, canonical=True)).digest()
    assert PublicKey("b", RAW).kid == PublicKey("a", RAW).kid


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        (SIGNATURE, b"x"),
        (SIGNATURE[:-1], b""),
        (SIGNATURE + b"\0", b""),
        (b"", b""),
        (SIGNATURE[:32] + bytes(32), b""),
    ],
)
def test_bad_signatures(signature: bytes, message: bytes):
    with pytest.raises(VerificationError) as caught:
        PublicKey("a", RAW).verify(signature, message)
    assert caught.value.code == "bad-signature"


def test_a_signature_plus_the_group_order_is_refused():
    order = 2**252 + 27742317777372353535851937790883648493
    s = int.from_bytes(SIGNATURE[32:], "little") + order
    with pytest.raises(VerificationError):
        PublicKey("a", RAW).verify(SIGNATURE[:32] + s.to_bytes(32, "little"), b"")


@pytest.mark.parametrize(
    "raw",
    [
        bytes(32),  # order 4
        b"\x01" + bytes(31),  # the neutral element
        bytes.fromhex("ec" + "ff" * 30 + "7f"),  # order 2
        bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa"),  # order 8
        bytes.fromhex("ee" + "ff" * 30 + "7f"),  # y = p + 1: not canonical
        bytes.fromhex("cdb267ce40c5cd45306fa5d2f29731459387dbf9eb933b7bd5aed9a765b88d4d"),  # mixed order
        b"\x02" + bytes(31),  # not on the curve
        RAW[:31],
        RAW + b"\0",
    ],
)
def test_keys_that_no_honest_signer_has(raw: bytes):
    with pytest.raises(MalformedError):
        PublicKey("a", raw)


def test_text_forms_come_back():
    key = PrivateKey("example.com/log", SEED)
    assert PublicKey.parse(key.public.vkey()) == key.public
    assert PrivateKey.parse(key.skey()).seed == SEED
    assert key.skey().startswith("PRIVATE+KEY+example.com/log+")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text + "\n",
        lambda text: " " + text,
        lambda text: text.replace("+A", "+B", 1),
        lambda text: text.rstrip("="),
        lambda text: "+".join(part.upper() if len(part) == 8 else part for part in text.split("+")),
        lambda text: text.replace("example.com", "example.org"),
        lambda text: text.replace("example.com", "exa mple.com"),
        lambda text: "+" + text,
        lambda text: "",
        lambda text: text[:-2] + "R=" if text.endswith("=") else text + "A",
        lambda text: text.split("+")[0],
    ],
)
def test_other_spellings_are_refused(damage):
    key = PrivateKey("example.com/log", SEED)
    for text, parse in ((key.public.vkey(), PublicKey.parse), (key.skey(), PrivateKey.parse)):
        if damage(text) != text:
            with pytest.raises(MalformedError):
                parse(damage(text))


def test_a_key_of_another_type_is_refused():
    with pytest.raises(MalformedError, match="type"):
        PublicKey.parse(join_vkey("a", 0x04, RAW))


@pytest.mark.parametrize("name", ["", "a+b", "a b", "a\u00a0b", "a\nb", "a\x1bb", "x" * 257, "\ud800"])
def test_key_names(name: str):
    with pytest.raises(MalformedError, match="key name"):
        PublicKey(name, RAW)


def test_the_seed_is_never_shown():
    key = PrivateKey("a", SEED)
    secrets = (SEED.hex(), repr(SEED), key.skey().split("+")[-1])
    broken = key.skey()[:-4] + "AAA="
    with pytest.raises(MalformedError) as caught:
        PrivateKey.parse(broken)
    for shown in (repr(key), str(key), f"{[key]}", str(caught.value)):
        assert not any(secret[:20] in shown for secret in secrets)


@pytest.mark.parametrize("seed", [SEED[:31], SEED + b"\0", b""])
def test_seeds(seed: bytes):
    with pytest.raises(MalformedError, match="seed"):
        PrivateKey("a", seed)
