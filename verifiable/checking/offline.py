"""Checking a receipt without network, model or engine: who said what, and that nothing was changed since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verifiable.checking.checks import OpenedReceipt, OpenedSession, check_receipt, require_trust
from verifiable.checking.verdict import About, Caveat, Check, Status, Step, Verdict, from_error
from verifiable.errors import VerifiableError
from verifiable.manifest.manifest import Manifest
from verifiable.session.receipt import Receipt
from verifiable.session.records import NonceSource
from verifiable.wire.keys import PublicKey

NO_LOG_PROOF = Caveat(
    "That the session stands in the provider's public log: the receipt carries no proof of it", about=About.LOG
)


@dataclass(frozen=True, slots=True)
class ReceiptDetails:
    """The session that a receipt opens."""

    session: OpenedSession

    def to_json(self) -> dict[str, Any]:
        return {**manifest_json(self.session.manifest), **session_json(self.session)}


def verify(receipt: Receipt | bytes, *, trust: Sequence[PublicKey], text: str | None = None) -> Verdict:
    """Check a receipt and, if given, that `text` is the answer that it was given for.

    Args:
        receipt: a receipt, or its bytes.
        trust: the provider keys that may have signed the manifest.
        text: the answer exactly as it was received.

    Returns:
        `verified-receipt`, or `failed` or `inconclusive` with a reason code. It never says that the model was run.

    Raises:
        PolicyError: no key to trust.
    """
    require_trust(trust)
    try:
        parsed = Receipt.parse(receipt) if isinstance(receipt, bytes) else receipt
        return accepted(check_receipt(parsed, trust, *(() if text is None else (text,))))
    except VerifiableError as error:
        return refused(error)


def refused(error: VerifiableError) -> Verdict:
    """The verdict on a receipt of which a check does not hold."""
    return from_error(error, checks=(Check(Step.RECEIPT, False, error.what),))


def accepted(opened: OpenedReceipt) -> Verdict:
    """The verdict on a receipt of which every check holds."""
    session = opened.session
    return Verdict(
        Status.RECEIPT,
        f"signed by {session.manifest.provider}, and unchanged since",
        session=session.head.session.hex(),
        turn=opened.receipt.turn,
        checks=tuple(_checks(opened)),
        notes=tuple(_notes(opened)),
        details=ReceiptDetails(session),
    )


def manifest_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "provider": manifest.provider,
        "manifest": manifest.digest().hex(),
        "manifest_valid": [manifest.valid_from, manifest.valid_to],
    }


def session_json(session: OpenedSession) -> dict[str, Any]:
    return {
        "head": {"size": session.head.size, "root": session.head.root.hex(), "time": session.head.time},
        "opened": session.opened.time,
        "session_turns": len(session.spans),
    }


def _checks(opened: OpenedReceipt) -> list[Check]:
    session, receipt, turns = opened.session, opened.receipt, len(opened.session.spans)
    checks = [
        Check(Step.MANIFEST, True, f"signed by a key you trust as {session.manifest.provider}, valid at that time"),
        Check(Step.HEAD, True, f"{session.head.size} leaves, signed by a session key of that manifest"),
        Check(Step.STRUCTURE, True, f"{turns} turn{'s' if turns != 1 else ''}, complete, nothing removed or reordered"),
    ]
    if receipt.log is not None:
        checks.append(Check(Step.LOG, True, "the head stands in the log that the manifest names"))
    if opened.text is not None:
        checks.append(Check(Step.TEXT, True, f"it is the text that turn {receipt.turn} committed to"))
    return checks


def _notes(opened: OpenedReceipt) -> list[Caveat]:
    notes = [Caveat("That the model really said it: an audit re-executes it")]
    if opened.text is None:
        notes.append(Caveat("That the text you have is the text that was committed: no text was given"))
    if opened.receipt.log is None:
        notes.append(NO_LOG_PROOF)
    if opened.session.spans[opened.receipt.turn].turn.nonce_source is NonceSource.PROVIDER:
        notes.append(Caveat("That the draw was not shopped for: the client sent no nonce"))
    return notes
