"""Checking a receipt without network, model or engine: who said what, and that nothing was changed since."""

from __future__ import annotations

from collections.abc import Sequence

from verifiable.checking.checks import OpenedSession, check_receipt
from verifiable.checking.verdict import Check, Status, Verdict, from_error
from verifiable.errors import PolicyError, VerifiableError
from verifiable.session.receipt import Receipt
from verifiable.session.records import NonceSource
from verifiable.wire.keys import PublicKey


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
    if not trust:
        raise PolicyError("no key to trust", hint="Get the provider's public key over a channel that you trust.")
    try:
        parsed = Receipt.parse(receipt) if isinstance(receipt, bytes) else receipt
        session = check_receipt(parsed, trust, text)
    except VerifiableError as error:
        return from_error(error, checks=(Check("Receipt", False, error.what),))
    return Verdict(
        Status.RECEIPT,
        f"signed by {session.manifest.provider}, and unchanged since",
        session=session.head.session.hex(),
        turn=parsed.turn,
        checks=tuple(_checks(parsed, session, text)),
        not_shown=tuple(_not_shown(parsed, session, text)),
        details={
            "provider": session.manifest.provider,
            "manifest": session.manifest.digest().hex(),
            "manifest_valid": [session.manifest.valid_from, session.manifest.valid_to],
            "head": {"size": session.head.size, "root": session.head.root.hex(), "time": session.head.time},
            "opened": session.opened.time,
            "session_turns": len(session.spans),
        },
    )


def _checks(receipt: Receipt, session: OpenedSession, text: str | None) -> list[Check]:
    turns = len(session.spans)
    found = [
        Check("Manifest", True, f"signed by a key you trust as {session.manifest.provider}, valid at that time"),
        Check("Head", True, f"{session.head.size} leaves, signed by a session key of that manifest"),
        Check("Structure", True, f"{turns} turn{'s' if turns != 1 else ''}, complete, nothing removed or reordered"),
    ]
    if receipt.log is not None:
        found.append(Check("Provider's log", True, "the head stands in the log that the manifest names"))
    if text is not None:
        found.append(Check("Text", True, f"it is the text that turn {receipt.turn} committed to"))
    return found


def _not_shown(receipt: Receipt, session: OpenedSession, text: str | None) -> list[str]:
    notes = ["That the model really said it: an audit re-executes it"]
    if text is None:
        notes.append("That the text you have is the text that was committed: no text was given")
    if receipt.log is None:
        notes.append("That the session stands in the provider's public log: the receipt carries no proof of it")
    if session.spans[receipt.turn].turn.nonce_source is NonceSource.PROVIDER:
        notes.append("That the draw was not shopped for: the client sent no nonce")
    return notes
