"""Vectors of verdict statements, and of what is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spec.generate.cases import VectorFile
from spec.generate.world import OTHER, PROVIDER, digest, private_key
from verifiable import limits
from verifiable.checking.registry import TYPE, Draw, VerdictStatement
from verifiable.checking.verdict import Status
from verifiable.wire import cose, encoding
from verifiable.wire.text import write_base64

AUDITOR = private_key("auditor.vectors.example")
MADE = VerdictStatement(
    report=digest("a report"),
    time=1_800_000_000_000,
    status=Status.FAILED,
    counts=(18, 0, 1, 0, 1, 0),
    checked=5_000,
    total=5_120,
    draw=Draw(1_000, 20, 2, False, 100_000, 878_423),
    codes=("interrupted", "logits-differ"),
    models=(digest("a model"),),
    manifests=tuple(sorted((digest("one manifest"), digest("another")))),
    where="https://auditor.example/reports/1",
)


def signed(payload: bytes, protected: Mapping[int, Any] | None = None) -> bytes:
    headers: dict[Any, Any] = {
        cose.ALG: cose.ED25519,
        cose.KID: AUDITOR.public.kid,
        cose.CLAIMS: {cose.ISSUER: AUDITOR.public.vkey(), cose.SUBJECT: PROVIDER.public.vkey()},
        cose.TYP: TYPE,
    }
    changed = {key: value for key, value in {**headers, **(protected or {})}.items() if value is not None}
    return cose.assemble(changed, {}, payload, AUDITOR)


def verdict() -> VectorFile:
    file = VectorFile(
        "verdict",
        "input: a verdict statement in base64. ok: who says it about whom, and what; the signature is by the key that "
        "the statement names, of which nothing more is said.",
    )

    def add(name: str, expected: str, data: bytes) -> None:
        file.add(name, expected, input=write_base64(data))

    few = replace(MADE, draw=None, codes=(), models=(), manifests=(), where=None, status=Status.EXACT)
    many = tuple(f"code-{number:02}" for number in range(limits.VERDICT_CODES))
    for name, made in {
        "a verdict": MADE,
        "sessions that the auditor chose, and no more": few,
        "as much as there may be": replace(MADE, codes=many, where="http://" + "x" * (limits.URL_BYTES - 7)),
        "within rounding": replace(MADE, status=Status.STATISTICAL),
        "no chance is stated": replace(MADE, draw=Draw(5, 5, 0, True)),
    }.items():
        add(name, "ok", signed(made.payload()))
    good = signed(MADE.payload())
    add("a changed signature", "bad-signature", good[:-1] + bytes([good[-1] ^ 1]))
    add("a changed payload", "bad-signature", good.replace(MADE.report, digest("another report")))
    vkey = OTHER.public.vkey()
    claims = {cose.ISSUER: vkey, cose.SUBJECT: PROVIDER.public.vkey()}
    add("signed by another key than the issuer's", "untrusted-key", signed(MADE.payload(), {cose.CLAIMS: claims}))
    own = {cose.ISSUER: AUDITOR.public.vkey(), cose.SUBJECT: AUDITOR.public.vkey()}
    add("about the issuer itself", "untrusted-key", signed(MADE.payload(), {cose.CLAIMS: own}))
    add("of another type", "wrong-type", signed(MADE.payload(), {cose.TYP: "application/vnd.verifiable.head+cbor"}))
    add("of another algorithm", "unsupported-algorithm", signed(MADE.payload(), {cose.ALG: -7}))
    add("without claims", "malformed", signed(MADE.payload(), {cose.CLAIMS: None}))
    add("a claim more", "malformed", signed(MADE.payload(), {cose.CLAIMS: {**own, 3: 0}}))
    add("without a subject", "malformed", signed(MADE.payload(), {cose.CLAIMS: {cose.ISSUER: AUDITOR.public.vkey()}}))
    nobody = {cose.ISSUER: AUDITOR.public.vkey(), cose.SUBJECT: "nobody"}
    add("a subject that is no key", "malformed", signed(MADE.payload(), {cose.CLAIMS: nobody}))
    fields: Any = encoding.decode(MADE.payload())
    for name, key, value in (
        ("of an older version", 1, 1),
        ("a short digest", 2, bytes(31)),
        ("a negative time", 3, -1),
        ("a status that no audit has", 4, "verified-receipt"),
        ("an unknown status", 4, "fine"),
        ("five counts", 5, [1, 2, 3, 4, 5]),
        ("more tokens checked than there are", 6, [2, 1]),
        ("a draw of five", 7, [1, 1, 0, False, 0]),
        ("a chance above one", 7, [1, 1, 0, False, 0, 1_000_001]),
        ("a seed given as a number", 7, [1, 1, 0, 0, 0, 0]),
        ("codes out of order", 8, ["b", "a"]),
        ("a code twice", 8, ["a", "a"]),
        ("a code in capitals", 8, ["A"]),
        ("an empty code", 8, [""]),
        ("a code too many", 8, [*many, "z"]),
        ("hashes out of order", 9, [b"\2" * 32, b"\1" * 32]),
        ("a short hash", 10, [bytes(31)]),
        ("a URL of another scheme", 11, "ftp://auditor.example"),
        ("a URL with a space", 11, "https://auditor.example/ 1"),
        ("a URL that is too long", 11, "http://" + "x" * limits.URL_BYTES),
    ):
        add(name, "malformed", signed(encoding.encode({**fields, key: value})))
    add("of a newer version", "newer-version", signed(encoding.encode({**fields, 1: 3})))
    add("a field more", "malformed", signed(encoding.encode({**fields, 12: 0})))
    return file
