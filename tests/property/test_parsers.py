"""Every parser of this layer, fed with damaged and invented input: one of our errors, or the input back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from tests.logs import mint_receipt
from verifiable.checking.registry import TYPE as VERDICT_TYPE, Draw, SignedVerdict, VerdictStatement, verify_verdict
from verifiable.checking.verdict import Status
from verifiable.errors import VerifiableError
from verifiable.manifest.statements import KeysFile, Revocation, Role, Succession
from verifiable.tlog import tiles
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint, sign_checkpoint
from verifiable.tlog.cose_receipt import CoseReceipt, Proof, verify_receipt
from verifiable.tlog.cosignature import CosignerKey, cosign, witness_key
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.tlog.note import Note
from verifiable.tlog.proof import TlogProof
from verifiable.tlog.witness import AddCheckpoint
from verifiable.wire import cose
from verifiable.wire.encoding import encode
from verifiable.wire.keys import PrivateKey, PublicKey

LOG = PrivateKey("log.example", bytes(32))
WITNESS = PrivateKey("witness.example", bytes(31) + b"\1")
TREE = Tree.from_leaves(leaf_hash(bytes([index])) for index in range(7))
HEAD = Checkpoint("log.example", 7, TREE.root())
SIGNED = sign_checkpoint(HEAD, LOG)
COSIGNED = Note.parse(SIGNED).add(cosign(HEAD.text(), WITNESS, 1_700_000_000)).format()
RECEIPT = mint_receipt(TREE, 3, LOG)
ENVELOPE = cose.sign1(b"payload", LOG, "application/x-test")
BUNDLE = tiles.encode_bundle([b"one", b"", b"three"])
SUCCESSION = Succession.sign(LOG, PrivateKey("log.example", bytes(31) + b"\2"), Role.LOG, 1_700_000_000_000)
REVOCATION = Revocation(Role.SESSION, WITNESS.public, 1_700_000_000_000, "stolen").sign(LOG)
VERDICT = VerdictStatement(
    bytes(32),
    1_700_000_000_000,
    Status.FAILED,
    (2, 0, 1, 0, 0, 0),
    90,
    100,
    Draw(40, 3, 0, False, 100_000, 0),
    ("logits-differ",),
    (bytes(32),),
    (bytes(32),),
    "https://a.example/1",
)
SIGNED_VERDICT = VERDICT.sign(WITNESS, LOG.public)
TRUSTED = [LOG.public]


def _text(parse: Callable[[str], str]) -> Callable[[bytes], bytes]:
    """A parser of text, made one of bytes; text that is not UTF-8 never reaches it."""

    def run(data: bytes) -> bytes:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return data
        return parse(text).encode("utf-8")

    return run


def _same(action: Callable[[bytes], object]) -> Callable[[bytes], bytes]:
    """For what only verifies: it may accept nothing but the original, which the test checks."""

    def run(data: bytes) -> bytes:
        action(data)
        return data

    return run


def _signed_verdict(said: SignedVerdict) -> bytes:
    return cose.sign1(said.statement.payload(), WITNESS, VERDICT_TYPE, said.subject)


# Name → (a valid input, a function that parses it and writes it again, whether it is verified by a signature).
PARSERS: dict[str, tuple[bytes, Callable[[bytes], bytes], bool]] = {
    "note": (COSIGNED, lambda data: Note.parse(data).format(), False),
    "checkpoint": (HEAD.text().encode(), _text(lambda text: Checkpoint.parse(text).text()), False),
    "signed checkpoint": (SIGNED, _same(lambda data: open_checkpoint(data, LOG.public)), True),
    "cosigned checkpoint": (
        COSIGNED,
        _same(lambda data: open_checkpoint(data, LOG.public, [witness_key(WITNESS.public)], 1)),
        True,
    ),
    "tlog-proof": (
        TlogProof(3, tuple(TREE.inclusion_proof(3)), SIGNED, b"extra").format(),
        lambda data: TlogProof.parse(data).format(),
        False,
    ),
    "add-checkpoint": (
        AddCheckpoint(3, tuple(TREE.consistency_proof(3)), SIGNED).format(),
        lambda data: AddCheckpoint.parse(data).format(),
        False,
    ),
    "verifier key": (LOG.public.vkey().encode(), _text(lambda text: PublicKey.parse(text).vkey()), False),
    "signer key": (LOG.skey().encode(), _text(lambda text: PrivateKey.parse(text).skey()), False),
    "witness key": (
        witness_key(WITNESS.public).vkey().encode(),
        _text(lambda text: CosignerKey.parse(text).vkey()),
        False,
    ),
    "tile path": (b"tile/0/x001/x234/067.p/8", _text(lambda text: tiles.Tile.parse(text).path()), False),
    "entry bundle": (BUNDLE, lambda data: tiles.encode_bundle(tiles.decode_bundle(data, 3)), False),
    "envelope": (ENVELOPE, _same(lambda data: cose.verify1(data, TRUSTED, "application/x-test")), True),
    "envelope, shown": (ENVELOPE, _same(cose.peek1), False),
    "receipt": (RECEIPT, _same(lambda data: verify_receipt(data, bytes([3]), TRUSTED)), True),
    "receipt, unverified": (RECEIPT, _same(CoseReceipt.parse), False),
    "succession": (SUCCESSION, _same(Succession.open), True),
    "revocation": (REVOCATION, _same(lambda data: Revocation.open(data, TRUSTED)), True),
    "keys file": (
        KeysFile((SUCCESSION, REVOCATION)).encode(),
        lambda data: KeysFile.parse(data).encode(),
        False,
    ),
    "verdict statement": (VERDICT.payload(), lambda data: VerdictStatement.parse(data).payload(), False),
    "signed verdict": (SIGNED_VERDICT, lambda data: _signed_verdict(verify_verdict(data)), True),
    "inclusion proof": (
        encode([7, 3, TREE.inclusion_proof(3)]),
        lambda data: Proof.decode(data).encode(),
        False,
    ),
}


@pytest.mark.parametrize("name", PARSERS)
def test_valid_input_comes_back(name: str):
    valid, parse, _ = PARSERS[name]
    assert parse(valid) == valid


@pytest.mark.parametrize("name", PARSERS)
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_damaged_input(name: str, data: st.DataObject):
    valid, parse, signed = PARSERS[name]
    at = data.draw(st.integers(0, len(valid)))
    cut = data.draw(st.integers(0, 4))
    put = data.draw(
        st.one_of(st.binary(max_size=4), st.sampled_from([b"\n", b"\n\n", b"+", b" ", b"0", b"=", b"\xff"]))
    )
    damaged = valid[:at] + put + valid[at + cut :]
    try:
        again = parse(damaged)
    except VerifiableError as error:
        message = str(error)
    else:
        message = ""
        assert again == damaged
        assert not signed or damaged == valid
    assert message.isprintable()  # what was found is shown without control codes


@pytest.mark.parametrize("name", PARSERS)
@settings(deadline=None, max_examples=60)
@given(st.one_of(st.binary(max_size=120), st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))))
def test_invented_input(name: str, data: bytes):
    _, parse, signed = PARSERS[name]
    try:
        again = parse(data)
    except VerifiableError:
        return
    assert again == data
    assert not signed
