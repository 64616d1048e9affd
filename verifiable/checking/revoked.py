"""What revocations take from a verdict: never more than its being verified. Rules: spec/keys.md §6."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from verifiable.checking.caveats import Caveat
from verifiable.checking.checks import SignedHead
from verifiable.checking.verdict import Check, Status, Step, Verdict
from verifiable.manifest.statements import Revocation, Role
from verifiable.tlog.cosignature import NOBODY, Quorum
from verifiable.tlog.proof import Inclusion


def revocations(signed: SignedHead) -> Iterator[Revocation]:
    """Those of the keys that a head rests on: the session's, which signed it, and the provider's over that."""
    chain = signed.chain
    for said in (chain.revoked(signed.session_key, Role.SESSION, signed.key), chain.revoked(signed.key)):
        if said is not None:
            yield said


def with_keys(verdict: Verdict, signed: SignedHead, proof: Inclusion | None = None, quorum: Quorum = NOBODY) -> Verdict:
    """A verdict that rests on a signed head, with what became of the keys.

    A head of the time of a revocation, or later, makes a pass inconclusive (`key-revoked`); what failed stays failed,
    and what is inconclusive keeps its reason. An older one is a caveat, for whoever has the key can date heads back:
    unless the witnesses had cosigned `proof`, that of the log, before the revocation. What was said of keys before is
    said anew.
    """
    notes = tuple(note for note in verdict.notes if note.id != "key-revoked-later")
    checks = tuple(check for check in verdict.checks if check.name is not Step.KEYS)
    verdict = replace(verdict, checks=checks, notes=notes)
    if signed.provider.kid != signed.key.kid:
        verdict = _with(verdict, True, f"the key that you trust leads to the one that signed: {signed.by}")
    for said in revocations(signed):
        what = f"the {said.role.words} {said.key.label} was revoked: {said.reason}"
        seen = None if proof is None else quorum.seen(proof.note, proof.log)
        if signed.head.time >= said.time:
            verdict = _revoked(_with(verdict, None, what), said, signed.head.time)
        elif seen is not None and seen < said.time:
            verdict = _with(verdict, True, f"{what}; witnesses had seen the session in the log before")
        else:
            verdict = replace(verdict, notes=(*verdict.notes, Caveat("key-revoked-later", what)))
    return verdict


def _revoked(verdict: Verdict, said: Revocation, time: int) -> Verdict:
    if verdict.status in (Status.FAILED, Status.INCONCLUSIVE):
        return verdict
    return replace(
        verdict,
        status=Status.INCONCLUSIVE,
        summary=f"signed with a {said.role.words} that was revoked: {said.reason}",
        code="key-revoked",
        expected=f"a head signed before {said.time} (ms)",
        found=f"{time} (ms)",
        hint="Whoever has the key may have signed it. Ask the provider for the session under a key that counts.",
    )


def _with(verdict: Verdict, passed: bool | None, detail: str) -> Verdict:
    return replace(verdict, checks=(*verdict.checks, Check(Step.KEYS, passed, detail)))
