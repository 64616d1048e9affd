"""Whether a later head of a session continues an earlier one: by its opening, or by a proof that the provider gives.

A provider that gives a client one history and logs another, of another length, never signs two roots for one size. Two
sizes are held together by a consistency proof of the session's tree, as those of a log are. Nobody signs such a proof:
one that does not hold accuses nobody, unless it leads to the later head's root. Then that head's own tree has another
beginning than was signed for, which is fraud.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifiable.checking.checks import OpenedEvidence, SignedHead
from verifiable.checking.fraud import Fraud
from verifiable.errors import VerificationError
from verifiable.tlog.merkle import roots_from_prefix
from verifier.offline import frauds
from verifier.offline.rebuild import Bound
from verifier.provider.client import Client
from verifier.provider.remember import Contradiction


def check_continued(client: Client, one: SignedHead, other: SignedHead, bound: Bound | None = None) -> None:
    """Raise unless the larger of two heads of one session continues the smaller one.

    Args:
        bound: what one of them opens; where that is the larger one, the provider need not be asked.

    Raises:
        Contradiction: `two-histories`, with its proof.
        VerificationError: the provider does not show it (`no-evidence`).
    """
    small, large = sorted((one, other), key=lambda each: each.head.size)
    m, n = small.head.size, large.head.size
    if m == n:
        made = frauds.of_heads(one, other)
        if made is not None:
            raise _two_histories(small, large, made.verify(small.chain).found, made)
        return
    path = None if bound is None or (bound.size, bound.root) != (n, large.head.root) else bound.prefix(m)
    opened = path is not None
    if path is None:
        path = _proof(client, small, large)
    made = frauds.of_sizes(small, large, path)
    if made is not None:
        raise _two_histories(small, large, made.verify(small.chain).found, made)
    if not opened:
        try:
            roots = roots_from_prefix(m, n, path)
        except VerificationError as error:
            raise _refused(small, large, error.what) from error
        if roots != (small.head.root, large.head.root):
            raise _refused(small, large, "a proof of another tree")


def check_growth(client: Client, opened: OpenedEvidence, beside: Sequence[SignedHead]) -> None:
    """Hold evidence against other heads of its session (`Memory.head` returns those). Raises as `check_continued`."""
    bound = Bound.of(opened.evidence.opening, opened.session.head)
    for head in beside:
        check_continued(client, opened.session.signed, head, bound)


def _proof(client: Client, small: SignedHead, large: SignedHead) -> list[bytes]:
    try:
        return client.continuation(small.head.session, small.head.size, large.head.size)
    except VerificationError as error:
        raise _refused(small, large, error.what) from error


def _refused(small: SignedHead, large: SignedHead, found: str) -> VerificationError:
    return VerificationError(
        "the provider does not show that a later head of the session continues an earlier one",
        code="no-evidence",
        expected=f"a consistency proof from {small.head.size} to {large.head.size} leaves",
        found=found,
        hint="An honest provider can always give it, also of a session that was erased. It may hide another history.",
    )


def _two_histories(small: SignedHead, large: SignedHead, found: str, made: Fraud) -> Contradiction:
    m, n = small.head.size, large.head.size
    what = f"at size {n} it has not the {m} leaves that were signed for" if m < n else f"two roots at size {n}"
    return Contradiction(
        f"the provider signed two histories of one session: {what}",
        "two-histories",
        small.head.root.hex(),
        found,
        made,
    )
