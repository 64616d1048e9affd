"""Checking a receipt without network, model or engine: who said what, and that nothing was changed since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from verifiable.checking.asked import caveats, check_asked, of_turns
from verifiable.checking.caveats import Caveat
from verifiable.checking.checks import OpenedReceipt, OpenedSession, check_receipt, require_trust
from verifiable.checking.membership import with_log
from verifiable.checking.revoked import with_keys
from verifiable.checking.verdict import Check, Status, Step, Verdict, from_error
from verifiable.errors import PolicyError, VerifiableError
from verifiable.request.exchange import NOTHING, Asked, Exchange
from verifiable.request.request import Request
from verifiable.session.receipt import Receipt
from verifiable.tlog.cosignature import NOBODY, Quorum
from verifiable.wire.keys import PublicKey


@dataclass(frozen=True, slots=True)
class ReceiptDetails:
    """The session that a receipt opens."""

    session: OpenedSession

    def to_json(self) -> dict[str, Any]:
        files = [{"file": file.name, "sha256": file.sha256.hex()} for file in self.session.manifest.model.files]
        return {**session_json(self.session), "model_files": files}


def verify(
    receipt: Receipt | Exchange | bytes,
    *,
    trust: Sequence[PublicKey],
    text: str | None = None,
    asked: Asked = NOTHING,
    quorum: Quorum = NOBODY,
) -> Verdict:
    """Check a receipt and, if given, that `text` and `asked` are the answer and the request that it was given for.

    Args:
        receipt: a receipt, or its bytes; or an exchange, whose text, request and times stand in for what is not given
            apart.
        trust: the provider keys that may have signed the manifest; or a `Chain` of them, where it has a keys file.
        text: the answer exactly as it was received.
        asked: the client's own copy of its request.
        quorum: the witnesses who must have cosigned the checkpoint of the receipt's log proof. Nobody else can show
            offline that the log is the one that others see.

    Returns:
        `verified-receipt`, or `failed` or `inconclusive` with a reason code. It never says that the model was run.

    Raises:
        PolicyError: no key to trust, or an exchange without a receipt.
    """
    require_trust(trust)
    if isinstance(receipt, Exchange):
        asked = asked.over(receipt.asked)
        receipt = receipt_of(receipt)
    asked = asked.with_text(text)
    try:
        parsed = Receipt.parse(receipt) if isinstance(receipt, bytes) else receipt
        opened = check_receipt(parsed, trust, *asked.texts)
        verdict = with_log(accepted(opened, asked), opened.logged, quorum)
        return with_keys(verdict, opened.session.signed, opened.logged, quorum)
    except VerifiableError as error:
        return refused(error)


def receipt_of(exchange: Exchange) -> Receipt:
    """The receipt of an exchange. Raises PolicyError where it has none."""
    if exchange.receipt is None:
        raise PolicyError(
            "the exchange holds no receipt",
            expected="a receipt",
            found="none",
            hint="Name the receipt's own file, and the exchange as the request.",
        )
    return exchange.receipt


def refused(error: VerifiableError) -> Verdict:
    """The verdict on a receipt of which a check does not hold."""
    verdict = from_error(error)
    return replace(verdict, checks=(verdict.check(Step.RECEIPT),))


def accepted(opened: OpenedReceipt, asked: Asked = NOTHING, committed: Request | None = None) -> Verdict:
    """The verdict on a receipt of which every check holds, once it is held against the client's own request; what its
    log proof shows is added by `with_log`.

    `committed` is the request that was committed to, where it is known. Raises VerificationError where the client's is
    another one.
    """
    session = opened.session
    compared = check_asked(session, opened.receipt.turn, asked, committed)
    return Verdict(
        Status.RECEIPT,
        f"signed by {session.signed.by}, and unchanged since",
        session=session.head.session.hex(),
        turn=opened.receipt.turn,
        checks=tuple(_checks(opened, compared)),
        notes=tuple(_notes(opened, asked)),
        details=ReceiptDetails(session),
    )


def session_json(session: OpenedSession) -> dict[str, Any]:
    """Who signed a session, under what, and what of it was signed."""
    manifest = session.manifest
    return {
        "signed_by": session.signed.key.vkey(),
        "provider": manifest.provider,
        "manifest": manifest.digest().hex(),
        "manifest_valid": [manifest.valid_from, manifest.valid_to],
        "head": {"size": session.head.size, "root": session.head.root.hex(), "time": session.head.time},
        "opened": session.opened.time,
        "session_turns": len(session.spans),
    }


def _checks(opened: OpenedReceipt, compared: str | None) -> list[Check]:
    session, receipt, turns = opened.session, opened.receipt, len(opened.session.spans)
    checks = [
        Check(Step.MANIFEST, True, f"signed by {session.signed.by}, valid at that time"),
        Check(Step.HEAD, True, f"{session.head.size} leaves, signed by a session key of that manifest"),
        Check(Step.STRUCTURE, True, f"{turns} turn{'s' if turns != 1 else ''}, complete, nothing removed or reordered"),
    ]
    if opened.text is not None:
        checks.append(Check(Step.TEXT, True, f"it is the text that turn {receipt.turn} committed to"))
    if compared is not None:
        checks.append(Check(Step.REQUEST, True, compared))
    return checks


def _notes(opened: OpenedReceipt, asked: Asked) -> list[Caveat]:
    notes = [Caveat("model-not-run"), *caveats(asked, opened.receipt.turn, opened.session.head.time)]
    turn = opened.receipt.turn
    notes += of_turns([opened.session.spans[turn]], {} if asked.request is None else {turn: asked.request})
    if not opened.session.closed:
        notes.append(Caveat("session-open"))
    return notes
