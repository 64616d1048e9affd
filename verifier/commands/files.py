"""Reading what people name on the command line: keys, receipts, evidence, answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from verifiable import files, limits
from verifiable.checking.offline import receipt_of
from verifiable.errors import MalformedError, PolicyError
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import KeysFile
from verifiable.request import fields
from verifiable.request.exchange import NOTHING, Asked, Exchange, read_asked
from verifiable.session.evidence import Evidence
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.tlog.cosignature import CosignerKey, Quorum
from verifiable.wire.key_file import MAX_BYTES, read_public
from verifiable.wire.keys import PublicKey
from verifiable.wire.text import read_base64url
from verifier.offline.offline import readings

MAX_TEXT = 64 << 20
_BASE64URL = re.compile(rb"[A-Za-z0-9_-]+={0,2}\s*")


def read_trust(values: Sequence[str]) -> list[PublicKey]:
    """The keys of `--trust`; see `read_public` for what each may be and what is raised."""
    return [key for value in values for key in read_public(value)]


def read_chain(values: Sequence[str], paths: Sequence[Path] | None) -> Chain:
    """The keys of `--trust` and what follows from them by the files of `--keys`. Raises MalformedError or OSError."""
    return Chain.follow(read_trust(values), [each for path in paths or () for each in KeysFile.load(path).statements])


def read_quorum(witnesses: Sequence[str] | None, needed: int | None) -> Quorum:
    """What --witness and --quorum say. Raises MalformedError: a key is none; PolicyError: see `Quorum.of`."""
    return Quorum.of([CosignerKey.parse(text) for text in witnesses or ()], needed)


@dataclass(frozen=True, slots=True)
class Copies:
    """What a client kept: its own copy, and the receipt that came with the answer."""

    asked: Asked = NOTHING
    receipt: Receipt | None = None


def read_copies(
    text: Path | None, request: Path | None, nonce: str | None, target: Receipt | Evidence | Exchange | None
) -> Copies:
    """The copies that options name; an exchange, the target's or that of --request, stands in for those not named.

    Raises MalformedError, PolicyError or OSError.
    """
    exchange = target if isinstance(target, Exchange) else None
    if request is not None and exchange is not None:
        raise PolicyError("an exchange holds the request already", expected="an exchange or --request", found="both")
    kept = exchange if request is None else read_request(request)
    receipt = target if isinstance(target, Receipt) else None if kept is None else kept.receipt
    if kept is not None and kept.receipt is not None and receipt is not None:
        _check_same_answer(receipt, kept.receipt)
    asked = NOTHING if kept is None else kept.asked
    if nonce is not None:
        asked = replace(asked, nonce=parse_nonce(nonce))
        mine = None if asked.request is None else asked.request.nonce
        if asked.request is not None and mine != asked.nonce:
            expected = "no --nonce: the request has none" if mine is None else mine.hex()
            raise PolicyError("--nonce is not the nonce of your own request", expected=expected, found=nonce)
    if text is not None:
        asked = replace(asked, texts=readings(read_text(text)))
    return Copies(asked, receipt)


def _check_same_answer(named: Receipt, kept: Receipt) -> None:
    """Raise PolicyError where a receipt and an exchange's own are of two answers, by what they say themselves."""
    with suppress(MalformedError):  # what is none is refused with all other checks
        one, other = (f"turn {each.turn} of session {Head.peek(each.head).session.hex()}" for each in (named, kept))
        if one != other:
            raise PolicyError("the exchange is of another answer than the receipt", expected=one, found=other)


def read_request(path: Path) -> Exchange:
    """A request as a client kept it: see `read_asked`."""
    try:
        return read_asked(files.read(path, limits.EXCHANGE_BYTES))
    except MalformedError as error:
        raise MalformedError(
            f"{path}: {error.what}", expected=error.expected, found=error.found, hint=error.hint
        ) from error


def parse_nonce(text: str) -> bytes:
    """A nonce as people write it. Raises MalformedError."""
    try:
        nonce = fields.nonce(text.lower())
    except PolicyError as error:
        raise MalformedError("--nonce", expected=error.expected, found=text) from error
    return nonce or b""


def read_receipt(path: Path) -> Receipt | Exchange:
    """A receipt from a file: the bytes, the base64url text in which the API hands them out, or an exchange."""
    try:
        data = files.read(path, limits.EXCHANGE_BYTES)
        return Exchange.parse(data) if is_exchange(data) else Receipt.parse(_decoded(data))
    except MalformedError as error:
        hint = error.hint or "Name the file that came with an answer as its receipt."
        raise MalformedError(
            f"{path} is not a sound receipt: {error.what}", expected=error.expected, found=error.found, hint=hint
        ) from error


def write_for_handing_on(kept: Receipt | Exchange, path: Path) -> None:
    """Write a receipt or an exchange without its capability. Raises PolicyError where the file is there; OSError."""
    if isinstance(kept, Receipt):
        data = kept.without_capability().encode()
    else:
        data = replace(kept, receipt=kept.receipt and kept.receipt.without_capability()).encode()
    try:
        files.write_new(path, data, 0o600)
    except FileExistsError:
        raise PolicyError("--without-capability", expected="a file that is not there yet", found=str(path)) from None


def is_exchange(data: bytes) -> bool:
    """Whether a file's bytes are JSON, as an exchange is, and no receipt or evidence."""
    return data.lstrip()[:1] == b"{"


def read_target(path: Path) -> Receipt | Evidence | Exchange:
    """A receipt, evidence or an exchange from a file, whichever it is. Raises MalformedError when it is none."""
    if not path.exists():
        raise PolicyError(
            "no such file to audit", expected="a file, or a provider's http:// or https:// address", found=str(path)
        )
    read = files.read(path, 2 * limits.EVIDENCE_BYTES)
    if is_exchange(read):
        return Exchange.parse(read)
    data = _decoded(read)
    # Both begin as a map {1: version, 2: …}; the second value is a receipt's head or the evidence's kind.
    major = data[4] >> 5 if len(data) > 4 and data[1::2][:2] == b"\x01\x02" else -1
    if major == 2:
        return Receipt.parse(data)
    if major == 0:
        return Evidence.parse(data)
    raise MalformedError(
        f"{path} is no receipt, no evidence and no exchange",
        expected="a file that this project wrote",
        found=data[:8],
        hint="A receipt comes with an answer, evidence from the provider or from an audit with --save.",
    )


def read_clients(folder: Path) -> list[tuple[Receipt, Asked]]:
    """The receipts and exchanges in a folder, in the order of their names, with what their clients kept beside.

    Raises PolicyError: it is no folder, holds none, or an exchange without a receipt; MalformedError: a file is none.
    """
    if not folder.is_dir():
        raise PolicyError("--receipts", expected="a folder", found=str(folder))
    given: list[tuple[Receipt, Asked]] = []
    for path in sorted(folder.iterdir()):
        if path.suffix in (".receipt", ".exchange"):
            read = read_receipt(path)
            given.append((receipt_of(read), read.asked) if isinstance(read, Exchange) else (read, NOTHING))
    if not given:
        raise PolicyError(f"{folder} holds no receipt", expected="files NAME.receipt or NAME.exchange", found="none")
    return given


def read_text(path: Path) -> str:
    """An answer's text. Raises MalformedError when it is not UTF-8."""
    try:
        return files.read(path, MAX_TEXT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(f"{path} is no text", expected="UTF-8", found=f"{error.reason} at {error.start}") from None


def read_secret(value: str | None) -> str | None:
    """A key given as a file or as itself."""
    if value is not None and Path(value).is_file():
        return files.read(Path(value), MAX_BYTES).decode("utf-8", "replace").strip()
    return value


def _decoded(data: bytes) -> bytes:
    if data[:1].isalnum() and _BASE64URL.fullmatch(data):
        return read_base64url(data.decode("ascii").strip().rstrip("="), "receipt or evidence as text")
    return data
