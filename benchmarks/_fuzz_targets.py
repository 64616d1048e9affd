"""What is fuzzed: every parser, with inputs to begin from and the way back to bytes.

A target takes bytes. It raises one of our errors, or returns what the parsed value is written as; None where nothing
writes such a thing. Whatever was accepted must be written as it was read.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from verifiable.checking.checks import check_evidence, check_receipt
from verifiable.checking.fraud import Fraud
from verifiable.errors import MalformedError, VerifiableError
from verifiable.llama.gguf.metadata import inspect
from verifiable.llama.grammar.gbnf import check
from verifiable.llama.grammar.schema import schema_grammar
from verifiable.manifest.manifest import Manifest
from verifiable.request.request import CHAT, COMPLETION, parse_body, parse_canonical
from verifiable.session import records
from verifiable.session.evidence import Evidence, PackedTokens
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.tlog import tiles
from verifiable.tlog.checkpoint import Checkpoint
from verifiable.tlog.cose_receipt import CoseReceipt
from verifiable.tlog.cosignature import Cosignature, CosignerKey
from verifiable.tlog.note import Note
from verifiable.tlog.proof import TlogProof
from verifiable.tlog.witness import AddCheckpoint
from verifiable.wire import cose, encoding
from verifiable.wire.encoding import Tagged
from verifiable.wire.keys import PrivateKey, PublicKey
from verifiable.wire.sealed import DIGEST_BYTES

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests" / "corpus"
VECTORS = ROOT / "spec" / "vectors"
TRUSTED = [PublicKey.parse("provider.vectors.example+c91fde1f+Aeh0bub/5XQI7NH/fcax19Qpd5oVyz702mq98czUYfXB")]
"""The provider of spec/vectors."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parser under test. `operation` names the vector file whose inputs are seeds; `sealed` files get a new checksum
    after each mutation, so that more than the checksum is tested."""

    name: str
    parse: Callable[[bytes], bytes | None]
    operation: str | None = None
    sealed: bool = False
    seeds: tuple[bytes, ...] = field(default=())

    def inputs(self) -> list[bytes]:
        """Seeds: those given, those of the vectors, and the corpus."""
        seeds = [*self.seeds, *_from_vectors(self.operation), *corpus(self.name).values()]
        return list(dict.fromkeys(seeds))


@cache
def _from_vectors(operation: str | None) -> tuple[bytes, ...]:
    if operation is None:
        return ()
    cases = json.loads((VECTORS / f"{operation}.json").read_text(encoding="utf-8"))["cases"]
    return tuple(_input(operation, case) for case in cases)


def _input(operation: str, case: dict[str, Any]) -> bytes:
    if operation in ("receipt", "evidence", "fraud"):
        return base64.b64decode(case["input"])
    if operation == "key":
        return str(case["vkey"]).encode("utf-8", "surrogatepass")
    return str(case["text"]).encode() if "text" in case else bytes.fromhex(case["input"])


def corpus(name: str) -> dict[str, bytes]:
    """The regression inputs of a target, by file name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).glob("*")) if path.is_file()}


def _text(data: bytes) -> str:
    """For parsers of text: input that is no UTF-8 never reaches them."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedError("text", expected="UTF-8") from None


def _cbor(data: bytes) -> bytes:
    return encoding.encode(encoding.decode(data, tags=frozenset({18})))


def _sign1(data: bytes) -> bytes:
    parsed = cose.parse(data)
    return encoding.encode(Tagged(18, [parsed.raw, parsed.unprotected, parsed.payload, parsed.signature]))


def _envelope(data: bytes) -> None:
    cose.verify1(data, TRUSTED, "application/vnd.verifiable.head+cbor")


def _cose_receipt(data: bytes) -> bytes:
    receipt = CoseReceipt.parse(data)
    envelope = receipt.envelope
    unprotected = {396: {-1: [receipt.proof.encode()]}}
    return encoding.encode(Tagged(18, [envelope.raw, unprotected, None, envelope.signature]))


def _checkpoint(data: bytes) -> bytes:
    return Checkpoint.parse(_text(data)).text().encode()


def _tile(data: bytes) -> bytes:
    return tiles.Tile.parse(_text(data)).path().encode()


def _bundle(data: bytes) -> bytes:
    width = data[0] if data else 0
    return data[:1] + tiles.encode_bundle(tiles.decode_bundle(data[1:], width))


def _canonical(data: bytes) -> bytes:
    return parse_canonical(data).canonical


def _body(path: str) -> Callable[[bytes], None]:
    def parse(data: bytes) -> None:
        """What was accepted from a client must be read back from evidence, and mean the same."""
        request = parse_body(path, data)
        again = parse_canonical(request.canonical)
        if again != request:
            raise AssertionError("the canonical form means another request")

    return parse


_ASKED = b'{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_object","schema":%s}}'
SCHEMAS = (
    b'{"type":"object","properties":{"a":{"type":"string","pattern":"^[A-Z]\\\\d{2,3}(x|\\"y\\")?$","maxLength":9},'
    b'"b":{"type":"integer","minimum":-5,"exclusiveMaximum":1200}},"required":["a"],"additionalProperties":false}',
    b'{"$defs":{"n":{"anyOf":[{"$ref":"#/$defs/n"},{"type":["null","number"],"maximum":0.5}]}},"type":"array",'
    b'"items":{"$ref":"#/$defs/n"},"prefixItems":[{"enum":["x",1,[null]]}],"minItems":1,"maxItems":3}',
    b'{"oneOf":[{"const":1},{"type":"string","format":"date-time"}],"allOf":[{"title":"t"},{"minLength":2}]}',
)


def _schema(data: bytes) -> None:
    """A schema that is taken becomes a grammar that llama.cpp can read."""
    constraint = json.loads(parse_body(CHAT, _ASKED % data).constraint)
    if "schema" in constraint:
        check(schema_grammar(constraint["schema"]), "response_format")


def _packed(data: bytes) -> bytes:
    packed = PackedTokens.from_cbor(encoding.decode(data))
    packed.steps(packed.unpack()[2])
    return encoding.encode(packed.to_cbor())


def _receipt(data: bytes) -> bytes:
    receipt = Receipt.parse(data)
    again = receipt.encode()
    if again == data:
        _try(lambda: check_receipt(receipt, TRUSTED, "text"))
    return again


def _evidence(data: bytes) -> bytes:
    evidence = Evidence.parse(data)
    again = evidence.encode()
    if again == data:
        _try(lambda: check_evidence(evidence, TRUSTED))
    return again


def _fraud(data: bytes) -> bytes:
    fraud = Fraud.parse(data)
    again = fraud.encode()
    if again == data:
        _try(lambda: fraud.verify(TRUSTED))
    return again


def _try(action: Callable[[], object]) -> None:
    """Run a check on what was parsed; that it does not hold is no news, that it crashes would be."""
    with contextlib.suppress(VerifiableError):
        action()


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for what is read from files only; in memory where the system has such a place. Gone when we are."""
    shared = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir=shared if os.access(shared, os.W_OK) else None)


def _gguf(data: bytes) -> None:
    path = Path(_scratch().name, "model.gguf")
    path.write_bytes(data)
    inspect(path)


TARGETS: tuple[Target, ...] = (
    Target("cbor", _cbor, "cbor"),
    Target("sign1", _sign1, "envelope"),
    Target("envelope", _envelope, "envelope"),
    Target("cose-receipt", _cose_receipt),
    Target("note", lambda data: Note.parse(data).format(), "checkpoint"),
    Target("checkpoint", _checkpoint, seeds=(b"log.example\n7\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",)),
    Target("cosignature", lambda data: Cosignature.parse(4, data).format(), seeds=(bytes(72),)),
    Target("tlog-proof", lambda data: TlogProof.parse(data).format(), "tlog-proof"),
    Target("add-checkpoint", lambda data: AddCheckpoint.parse(data).format()),
    Target("tile-path", _tile, seeds=(b"tile/0/x001/067", b"tile/entries/000.p/12", b"tile/63/x123/x456/789")),
    Target("entry-bundle", _bundle, seeds=(b"\3" + tiles.encode_bundle([b"one", b"", b"three"]),)),
    Target("verifier-key", lambda data: PublicKey.parse(_text(data)).vkey().encode(), "key"),
    Target("witness-key", lambda data: CosignerKey.parse(_text(data)).vkey().encode(), "key"),
    Target("signer-key", lambda data: PrivateKey.parse(_text(data)).skey().encode()),
    Target("manifest", lambda data: Manifest.parse(data).payload(), "manifest"),
    Target("head", lambda data: Head.parse(data).payload(), "head"),
    Target("leaf", lambda data: records.parse(data).encode(), "leaf"),
    Target("packed-tokens", _packed, "packed"),
    Target("receipt", _receipt, "receipt", sealed=True),
    Target("evidence", _evidence, "evidence", sealed=True),
    Target("fraud", _fraud, "fraud", sealed=True),
    Target("canonical-request", _canonical, "request"),
    Target("chat-request", _body(CHAT), "body"),
    Target("schema", _schema, seeds=SCHEMAS),
    Target("completion-request", _body(COMPLETION), "body"),
    Target("gguf", _gguf),
)


def reseal(data: bytes) -> bytes:
    """The data with the checksum that a file of it must end in."""
    body = data[:-DIGEST_BYTES]
    return body + hashlib.sha256(body).digest()


def by_name(names: list[str] | None = None) -> Iterator[Target]:
    """The targets named, or all."""
    known = {target.name: target for target in TARGETS}
    for name in names or known:
        yield known[name]
