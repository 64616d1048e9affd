"""Verdict statements: what an auditor found at a provider, signed, for a log to hold. Format: spec/registry.md.

A statement is in SCITT's form: a COSE_Sign1 whose signed CWT claims name the auditor's key and the provider's. It says
what the auditor says; whether the audit was right is not in it. Its report, where it is at hand, has its digest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from verifiable import limits
from verifiable.checking.verdict import Status
from verifiable.errors import MalformedError, VerificationError
from verifiable.wire import cose, encoding
from verifiable.wire.encoding import Value
from verifiable.wire.keys import PrivateKey, PublicKey

T = TypeVar("T", str, bytes)
TYPE = "application/vnd.verifiable.verdict+cbor"
COUNTS = 6
"""Sessions verified, verified within rounding, failed, inconclusive, interrupted, with nothing to check."""
MILLION = 1_000_000
RESULTS = tuple(status for status in Status if status is not Status.RECEIPT)
"""What an audit comes to."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How sessions were drawn: `drawn` of a list of `population`, besides `receipts` that the auditor held.

    Args:
        given: the seed was given, not the auditor's own at that moment.
        share, chance: of a provider that cheats in this share of what can be checked, the least chance that it would
            have been caught; in millionths. Both 0 where the report states none.
    """

    population: int
    drawn: int
    receipts: int
    given: bool
    share: int = 0
    chance: int = 0


@dataclass(frozen=True, slots=True)
class VerdictStatement:
    """What one report says.

    Args:
        report: SHA-256 of the signed report's JSON.
        time: ms since 1970, the auditor's word; that of the signed report.
        counts: sessions by what came of them, as `COUNTS` says.
        checked, total: tokens of these sessions.
        draw: None where the auditor chose the sessions.
        codes: reason codes of the sessions' verdicts, sorted.
        models, manifests: SHA-256 of model files, and digests of manifests, sorted; the first where there are more.
        where: URL of the report, or None.
    """

    report: bytes
    time: int
    status: Status
    counts: tuple[int, ...]
    checked: int
    total: int
    draw: Draw | None
    codes: tuple[str, ...]
    models: tuple[bytes, ...]
    manifests: tuple[bytes, ...]
    where: str | None = None

    @property
    def sessions(self) -> int:
        return sum(self.counts)

    def payload(self) -> bytes:
        draw = self.draw
        return encoding.encode(
            {
                1: encoding.PROTOCOL,
                2: self.report,
                3: self.time,
                4: self.status.value,
                5: list(self.counts),
                6: [self.checked, self.total],
                7: None
                if draw is None
                else [draw.population, draw.drawn, draw.receipts, draw.given, draw.share, draw.chance],
                8: list(self.codes),
                9: list(self.models),
                10: list(self.manifests),
                11: self.where,
            }
        )

    @classmethod
    def parse(cls, payload: bytes) -> VerdictStatement:
        """Read a payload strictly; raises MalformedError."""
        fields = encoding.versioned(encoding.decode(payload), range(1, 12), "verdict statement")
        checked, total = (
            encoding.uint(each, "verdict: tokens") for each in encoding.array(fields[6], 2, "verdict: tokens")
        )
        made = cls(
            encoding.bytes_(fields[2], "verdict: report digest", 32),
            encoding.uint(fields[3], "verdict: time"),
            _status(fields[4]),
            tuple(
                encoding.uint(each, "verdict: sessions")
                for each in encoding.array(fields[5], COUNTS, "verdict: counts")
            ),
            checked,
            total,
            None if fields[7] is None else _draw(fields[7]),
            _sorted(fields[8], "verdict: reason codes", _code),
            _sorted(fields[9], "verdict: model hashes", _digest),
            _sorted(fields[10], "verdict: manifest digests", _digest),
            None if fields[11] is None else check_url(encoding.text(fields[11], "verdict: URL", limits.URL_BYTES)),
        )
        if made.checked > made.total:
            raise MalformedError("verdict: tokens", expected=f"at most {made.total} checked", found=made.checked)
        return made

    def sign(self, key: PrivateKey, about: PublicKey) -> bytes:
        """The statement by an auditor about a provider. Raises VerificationError: they are one."""
        _not_oneself(key.public, about)
        return cose.sign1(self.payload(), key, TYPE, about)


@dataclass(frozen=True, slots=True)
class SignedVerdict:
    """A statement whose signature holds: who says it, about whom. Both keys have the names that the claims give."""

    statement: VerdictStatement
    issuer: PublicKey
    subject: PublicKey


def verify_verdict(data: bytes) -> SignedVerdict:
    """Check that a statement is what the key that it names as its issuer signed. Whose key that is does not follow:
    anybody can make keys, and what an unknown auditor says counts for nothing.

    Raises:
        MalformedError: no statement in its one spelling.
        VerificationError: `bad-signature`, `unsupported-algorithm`, `wrong-type`, or `untrusted-key`: the signature is
            by another key than the issuer's, or the issuer is the subject.
    """
    _, claims = cose.peek_claimed(data)
    issuer, subject = PublicKey.parse(claims.issuer), PublicKey.parse(claims.subject)
    signed = cose.verify_claimed(data, [issuer], TYPE)
    _not_oneself(issuer, subject)
    return SignedVerdict(VerdictStatement.parse(signed.payload), issuer, subject)


def vouches_for_itself(issuer: PublicKey, own: Sequence[PublicKey]) -> bool:
    """Whether a statement's issuer is one of the audited provider's own keys."""
    return issuer.raw in {key.raw for key in own}


def _not_oneself(issuer: PublicKey, subject: PublicKey) -> None:
    if vouches_for_itself(issuer, [subject]):
        raise VerificationError(
            "a verdict by the provider that it is about",
            code="untrusted-key",
            expected="an auditor's own key",
            found=issuer.vkey(),
            hint="Whoever is audited can't vouch for the audit.",
        )


def _status(value: Value) -> Status:
    found = encoding.text(value, "verdict: status", 32)
    if found not in RESULTS:
        raise MalformedError("verdict: status", expected=", ".join(RESULTS), found=found)
    return Status(found)


def _draw(value: Value) -> Draw:
    population, drawn, receipts, given, share, chance = encoding.array(value, 6, "verdict: draw")
    return Draw(
        encoding.uint(population, "verdict: population"),
        encoding.uint(drawn, "verdict: drawn"),
        encoding.uint(receipts, "verdict: receipts"),
        encoding.boolean(given, "verdict: seed given"),
        encoding.uint(share, "verdict: share", MILLION),
        encoding.uint(chance, "verdict: chance", MILLION),
    )


def _sorted(value: Value, what: str, read: Callable[[Value, str], T]) -> tuple[T, ...]:
    found = tuple(read(each, what) for each in encoding.array(value, None, what, maximum=limits.VERDICT_CODES))
    if list(found) != sorted(set(found)):
        raise MalformedError(what, expected="sorted, each once", found="another order")
    return found


def _digest(value: Value, what: str) -> bytes:
    return encoding.bytes_(value, what, 32)


def _code(value: Value, what: str) -> str:
    found = encoding.text(value, what, 64)
    if not found or not all("a" <= char <= "z" or char in "0123456789-" for char in found):
        raise MalformedError(what, expected="small letters, digits and hyphens", found=found)
    return found


def check_url(text: str) -> str:
    """A URL as it may stand in a statement: printable ASCII after http:// or https://. Raises MalformedError."""
    if not text.startswith(("http://", "https://")) or not all("!" <= char <= "~" for char in text):
        raise MalformedError("verdict: URL", expected="http:// or https:// and printable ASCII", found=text)
    return text
