"""An audit's result, signed by the auditor: a file that a third party checks with the auditor's key alone.

What is signed is a digest of the report, the JSON that `verifiable audit --json` prints, with the time. The signature
says who audited and that nothing was changed since. Whether the audit was right is not in it: that can be repeated with
the report's command and seed, from the evidence whose digests it holds. Format: spec/fraud.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verifiable.checking.verdict import Status
from verifiable.errors import MalformedError, StoreError, VerificationError, reading_signed
from verifiable.wire import encoding
from verifiable.wire.cose import sign1, verify1
from verifiable.wire.key_file import read_or_make_key, write_line
from verifiable.wire.keys import PrivateKey, PublicKey
from verifiable.wire.sealed import seal, unseal
from verifier.campaign.outcome import COUNTED, counted_as, overall

TYPE = "application/vnd.verifiable.audit+cbor"
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SignedReport:
    """What was checked: the report as JSON values, who signed it, when (ms; the signer's word), and the SHA-256 of the
    file.
    """

    report: Mapping[str, Any]
    signer: PublicKey
    time: int
    digest: bytes

    @property
    def status(self) -> Status:
        return Status(self.report["status"])

    @property
    def about(self) -> list[PublicKey]:
        """The providers whose sessions it is on, by the keys that its signer trusted."""
        named = dict.fromkeys(verdict.get("about") for verdict in self.report["verdicts"])
        return [PublicKey.parse(key) for key in named if key is not None]


def sign_report(report: Mapping[str, Any], key: PrivateKey, time: int) -> bytes:
    """The file for a report. `time` is milliseconds since 1970."""
    data = json.dumps(report, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    statement = encoding.encode({1: encoding.PROTOCOL, 2: hashlib.sha256(data).digest(), 3: time})
    return seal({1: encoding.PROTOCOL, 2: sign1(statement, key, TYPE), 3: data})


def verify_report(data: bytes, trust: Sequence[PublicKey]) -> SignedReport:
    """Check a file: parse strictly, then the signature, then that it is of this report, then that its sums are right.

    Args:
        trust: auditors' keys; never taken from the file.

    Raises:
        MalformedError: no such file.
        VerificationError: `untrusted-key`, `bad-signature` (also where the report is not the one that was signed),
            `wrong-type` or `unsupported-algorithm`; and of what the auditor signed, `signed-malformed` where it is no
            report, `counts-differ` where its sums are not those of its verdicts.
    """
    fields = unseal(data, 3, "signed report", MAX_BYTES)
    body = encoding.bytes_(fields[3], "report", maximum=MAX_BYTES)
    signed = verify1(encoding.bytes_(fields[2], "report signature", maximum=1 << 16), trust, TYPE)
    with reading_signed():
        statement = encoding.versioned(encoding.decode(signed.payload), range(1, 4), "report statement")
        stated = encoding.bytes_(statement[2], "report digest", 32)
        time = encoding.uint(statement[3], "report time")
    digest = hashlib.sha256(body).digest()
    if stated != digest:
        raise VerificationError(
            "the signature is of another report",
            code="bad-signature",
            expected=stated,
            found=digest,
            hint="The report was changed after it was signed.",
        )
    with reading_signed():
        report = _read(body)
    if signed.key.raw in {PublicKey.parse(key).raw for key in _audited(report)}:
        raise VerificationError(
            "the report is signed by a provider that it audits",
            code="untrusted-key",
            expected="an auditor's own key",
            found=signed.key.vkey(),
            hint="Whoever is audited can't vouch for the audit.",
        )
    return SignedReport(report, signed.key, time, hashlib.sha256(data).digest())


def _read(body: bytes) -> Mapping[str, Any]:
    try:
        report = json.loads(body)
        found = [(Status(verdict["status"]), verdict.get("code")) for verdict in report["verdicts"]]
        beside = [(Status(verdict["status"]), verdict.get("code")) for verdict in report["beside"]]
        told = Status(report["status"])
        counts = {name: report[name] for name in (*COUNTED, "sessions", "exit_code")}
        keys = [str(key) for key in report["trusted"]]
        other = {name: [str(key) for key in report.get(name, [])] for name in ("followed", "session_keys")}
        providers = [[str(key) for key in each] for each in report.get("providers", [])]
        about = {each.get("about") for each in (*report["verdicts"], *report["beside"])}
        notes = [{**note, "what": str(note["what"])} for note in report["not_shown"]]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise MalformedError("report", expected="what `verifiable audit --json` prints", found=str(error)) from None
    kinds = [counted_as(*session) for session in found]
    sums: dict[str, int] = {name: kinds.count(name) for name in COUNTED}
    sums |= {"sessions": len(found), "exit_code": told.exit_code}
    if counts != sums or told is not overall([*found, *beside]):
        raise VerificationError(
            "the report's sums are not those of its verdicts",
            code="counts-differ",
            expected=str(sums),
            found=str(counts),
            hint="Its signer signed that: ask for the evidence, and audit it yourself.",
        )
    if not about <= {None, *(each[0] for each in providers if each)}:
        what = "report: a verdict's provider"
        raise MalformedError(what, expected="the first key of one of its providers", found=str(about))
    return {**report, "trusted": keys, **other, "providers": providers, "not_shown": notes}


def _audited(report: Mapping[str, Any]) -> Iterable[str]:
    """The keys of the providers that a report is about."""
    providers = (key for keys in report["providers"] for key in keys)
    return (*report["trusted"], *report["followed"], *report["session_keys"], *providers)


def signing_key(path: Path) -> tuple[PrivateKey, bool]:
    """The auditor's key in a file that only its owner can read; made when there is none, with `FILE.pub` beside it.

    Returns the key, and whether it was made.

    Raises:
        StoreError: others can read it, or it can't be read or written.
        MalformedError: it is no key.
    """
    key, made = read_or_make_key(path, "".join(path.stem.split()).replace("+", "-") or "auditor")
    public = path.with_name(path.name + ".pub")
    try:
        if not public.exists():
            write_line(public, key.public.vkey(), 0o644)
    except OSError as error:
        raise StoreError(f"{public} can't be written", found=str(error)) from error
    return key, made
