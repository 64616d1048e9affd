"""Other people's libraries read what we sign, in an environment of their own.

python -m venv interop && interop/bin/pip install -r tests/conformance/interop/requirements.txt
VERIFIABLE_INTEROP_PYTHON=interop/bin/python pytest tests/conformance/test_interoperability.py
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.logs import mint_receipt
from verifiable.tlog.cose_receipt import INCLUSION, PROOFS, SIZE, VDS, Proof
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.wire import cose
from verifiable.wire.encoding import Map
from verifiable.wire.keys import PrivateKey

PYTHON = os.environ.get("VERIFIABLE_INTEROP_PYTHON")
if not PYTHON:
    pytest.skip(
        "other libraries are not here: set VERIFIABLE_INTEROP_PYTHON to the Python of their environment "
        "(tests/conformance/interop/requirements.txt)",
        allow_module_level=True,
    )

KEY = PrivateKey("log.example", bytes(32))
TYP = "application/x-test"
TREE = Tree.from_leaves(leaf_hash(b"entry %d" % index) for index in range(9))


def _older_receipt() -> bytes:
    """Our receipt with the older algorithm number, for readers that do not know the newer one."""
    protected: Map = {1: cose.EDDSA, 4: KEY.public.kid, cose.CLAIMS: {cose.ISSUER: KEY.name, SIZE: 9}, VDS: 1}
    proof = Proof(9, 3, tuple(TREE.inclusion_proof(3))).encode()
    return cose.assemble(protected, {PROOFS: {INCLUSION: [proof]}}, TREE.root(), KEY, attached=False)


SIGNED = cose.sign1(b"payload", KEY, TYP)
OLDER = cose.assemble({1: cose.EDDSA, 4: KEY.public.kid, 16: TYP}, {}, b"payload", KEY)
CASES = {
    "signed": ("sign1", SIGNED, b"payload"),
    "signed, older number": ("sign1", OLDER, b"payload"),
    "signed, changed": ("sign1", SIGNED.replace(b"payload", b"payl0ad"), b"payl0ad"),
    "signed, older number, changed": ("sign1", OLDER.replace(b"payload", b"payl0ad"), b"payl0ad"),
    "receipt": ("receipt", mint_receipt(TREE, 3, KEY), b"entry 3"),
    "receipt, older number": ("receipt", _older_receipt(), b"entry 3"),
    "receipt, older number, another entry": ("receipt", _older_receipt(), b"entry 4"),
}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, str]]:
    public = Ed25519PublicKey.from_public_bytes(KEY.public.raw)
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    request = {
        "key": {"raw": KEY.public.raw.hex(), "kid": KEY.public.kid.hex(), "pem": pem.hex()},
        "cases": {
            name: {"kind": kind, "data": data.hex(), "entry": entry.hex()}
            for name, (kind, data, entry) in CASES.items()
        },
    }
    assert PYTHON
    reader = Path(__file__).parent / "interop" / "readers.py"
    done = subprocess.run([PYTHON, reader], input=json.dumps(request), capture_output=True, text=True, check=True)
    result: dict[str, dict[str, str]] = json.loads(done.stdout)
    return result


def test_they_read_what_we_sign(answers: dict[str, dict[str, str]]) -> None:
    assert answers["signed"]["cwt"] == "ok"
    assert answers["signed, older number"] == {"cwt": "ok", "pycose": "ok", "scitt-cose": "ok"}
    assert answers["receipt, older number"] == {"scitt-cose": "ok"}


def test_they_refuse_what_was_changed(answers: dict[str, dict[str, str]]) -> None:
    for name in ("signed, changed", "signed, older number, changed", "receipt, older number, another entry"):
        assert "ok" not in answers[name].values(), name


def test_who_does_not_know_the_newer_algorithm_number(answers: dict[str, dict[str, str]]) -> None:
    """RFC 9864 gave Ed25519 a number of its own, -19. When these learn it, this test says so."""
    assert "-19" in answers["signed"]["pycose"]
    assert "-19" in answers["signed"]["scitt-cose"]
    assert "-19" in answers["receipt"]["scitt-cose"]
