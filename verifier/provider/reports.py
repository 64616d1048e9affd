"""The verdicts about a provider that a log holds: each checked, each shown to stand in the log that everybody is shown.

The log's index of verdicts is nobody's signed word: it may leave some out. Whoever wants all of them reads the log's
entries, under the root that was signed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from verifiable import limits
from verifiable.checking.registry import SignedVerdict, verify_verdict, vouches_for_itself
from verifiable.errors import MalformedError, VerificationError
from verifiable.manifest.manifest import verify_manifest
from verifiable.tlog.cosignature import NOBODY, Quorum
from verifiable.tlog.entry import VERDICT, kind_of, subject_of
from verifiable.tlog.tiles import WIDTH
from verifiable.wire.keys import PublicKey
from verifier.provider.client import Client
from verifier.provider.published import Published, log_keys


@dataclass(frozen=True, slots=True)
class Found:
    """A verdict, and which entry of which log it is. `own`: a key of the audited provider itself signed it."""

    said: SignedVerdict
    origin: str
    index: int
    own: bool


@dataclass(frozen=True, slots=True)
class LogReports:
    """What one log holds about a provider.

    Args:
        size: entries that its checkpoint covers.
        witnesses: who cosigned that, of those whom the reader named.
        left_out: entries that its index leaves out; None where the entries were not read.
        unsound: entries that say they are verdicts about the provider, and are none that hold.
    """

    origin: str
    size: int
    found: tuple[Found, ...]
    witnesses: tuple[str, ...] = ()
    left_out: int | None = None
    unsound: int = 0


def log_of(
    client: Client, about: Sequence[PublicKey], named: Sequence[PublicKey]
) -> tuple[Sequence[PublicKey], list[PublicKey]]:
    """Who may sign the log at a URL: the key that the reader names, else those of the provider's manifest. And the
    provider's session and log keys, where it is the provider's.

    Raises VerificationError: `untrusted-key` where there is neither; or it can't be reached.
    """
    own: list[PublicKey] = []
    logs: Sequence[PublicKey] = ()
    with contextlib.suppress(VerificationError, MalformedError):  # a registry has no manifest
        signed = client.manifest()
        logs = log_keys(signed, about) or ()
        own = [*verify_manifest(signed, about).session_keys, *logs]
    origin = client.checkpoint().split(b"\n", 1)[0]
    logs = [key for key in named if key.name.encode() == origin] or logs
    if not logs:
        raise VerificationError(
            "the log's key is not known",
            code="untrusted-key",
            expected="--log with its key, or a manifest of the provider that names it",
            found=origin.decode("utf-8", "replace")[:80],
            hint="Get the log's key from whoever runs it.",
        )
    return logs, own


def read_reports(
    client: Client,
    log: Sequence[PublicKey],
    about: Sequence[PublicKey],
    own: Sequence[PublicKey] = (),
    quorum: Quorum = NOBODY,
    scan: bool = False,
) -> LogReports:
    """The verdicts about a provider in a log: those that its index shows, or with `scan` all of them.

    Raises a VerificationError: the log can't be read, too few witnesses, or its proofs do not hold.
    """
    published = Published.read(client, None, b"", log)
    witnesses = quorum.check(published.note, log) if quorum.witnesses else ()
    shown = {index: entry for key in about for index, entry in _index(published, key).items()}
    head, left_out = published.checkpoint, None
    if scan:
        wanted = {key.kid for key in about}
        entries = published.range(0, head.size).leaves if head.size else {}
        held = {at: each for at, each in entries.items() if kind_of(each) == VERDICT and subject_of(each) in wanted}
        left_out, shown = len(held.keys() - shown.keys()), shown | held
    found, unsound = [], 0
    for index, entry in sorted(shown.items()):
        try:
            said = verify_verdict(entry)
        except (MalformedError, VerificationError):
            unsound += 1
            continue
        found.append(Found(said, head.origin, index, vouches_for_itself(said.issuer, [*about, *own])))
    return LogReports(
        published.checkpoint.origin, published.checkpoint.size, tuple(found), witnesses, left_out, unsound
    )


def _index(published: Published, about: PublicKey) -> dict[int, bytes]:
    """What the log's index shows, each shown to be an entry of the log that is published."""
    found: dict[int, bytes] = {}
    since: int | None = 0
    for _ in range(limits.LOG_ENTRIES // WIDTH):
        page, following = published.client.reports(about, since or 0)
        for entry, proof in page:
            published.check(proof.verify(entry, published.log))
            if subject_of(entry) == about.kid:  # whatever else it shows is no verdict about this provider
                found[proof.index] = entry
        if following is None:
            return found
        if following <= (since or 0):
            break
        since = following
    raise VerificationError("the log's index of verdicts does not end", code="unreachable", found=f"{since}")
