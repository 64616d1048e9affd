"""What successions and revocations make of a verdict: a pass counts or not, and nothing that failed is taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.sessions import PROVIDER, SESSION, TIME, TRUST, Recording, manifest, recording
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.checking.offline import verify
from verifiable.checking.verdict import Status, Step, Verdict
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import Revocation, Role, Succession
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.tlog.checkpoint import Checkpoint, sign_checkpoint
from verifiable.tlog.cosignature import NOBODY, Quorum, cosign, witness_key
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.tlog.note import Note
from verifiable.tlog.proof import TlogProof
from verifiable.wire.keys import PrivateKey
from verifier.offline import frauds

NEXT = PrivateKey("acme-2027", b"n" * 32)
LOG, NEXT_LOG = (PrivateKey("acme/log", bytes([each]) * 32) for each in (1, 2))
WITNESSES = [PrivateKey(f"witness{each}.example", bytes([each]) * 32) for each in (3, 4)]
SUCCEEDS = Succession.sign(PROVIDER, NEXT, Role.PROVIDER, TIME - 500)


def under(*statements: bytes) -> Chain:
    return Chain.follow(TRUST, statements)


def made() -> tuple[Recording, int]:
    """A session, and when its head was signed."""
    session = recording(1)
    return session, Head.peek(session.receipt().head).time


def ids(verdict: Verdict) -> set[str]:
    return {note.id for note in verdict.notes}


def keys(verdict: Verdict) -> list[tuple[bool | None, str]]:
    return [(check.passed, check.detail) for check in verdict.checks if check.name is Step.KEYS]


def test_a_receipt_under_a_key_that_succeeds_the_trusted_one() -> None:
    session, _ = made()
    receipt = replace(session.receipt(), manifest=session.manifest.sign(NEXT))
    alone = verify(receipt, trust=TRUST)
    assert (alone.status, alone.code) == (Status.INCONCLUSIVE, "untrusted-key")
    assert "GET /v1/keys" in str(alone.hint)
    followed = verify(receipt, trust=under(SUCCEEDS))
    assert followed.status is Status.RECEIPT
    name = f"{PROVIDER.public.label}, now {NEXT.public.label}"
    assert followed.summary == f"signed by {name}, and unchanged since"
    assert keys(followed) == [(True, f"the key that you trust leads to the one that signed: {name}")]
    assert keys(verify(session.receipt(), trust=under(SUCCEEDS))) == []
    forked = Succession.sign(PROVIDER, PrivateKey("mallory", b"m" * 32), Role.PROVIDER, TIME)
    torn = verify(receipt, trust=under(SUCCEEDS, forked))
    assert torn.code == "untrusted-key"
    assert "two successors" in str(torn.hint)


@pytest.mark.parametrize("role", [Role.SESSION, Role.PROVIDER])
def test_what_is_signed_at_the_revocation_or_later_is_no_pass(role: Role) -> None:
    session, time = made()
    key = {Role.SESSION: SESSION, Role.PROVIDER: PROVIDER}[role].public
    for at, revoked in ((time - 1, True), (time, True), (time + 1, False)):
        verdict = verify(session.receipt(), trust=under(Revocation(role, key, at, "stolen").sign(PROVIDER)))
        assert verdict.code == ("key-revoked" if revoked else None)
        assert verdict.status is (Status.INCONCLUSIVE if revoked else Status.RECEIPT)
        assert ("key-revoked-later" in ids(verdict)) is not revoked
        assert [passed for passed, _ in keys(verdict)] == [None] * revoked


def test_another_key_or_role_takes_nothing() -> None:
    session, _ = made()
    wrong = (
        Revocation(Role.SESSION, PROVIDER.public, 1, "x").sign(PROVIDER),
        Revocation(Role.PROVIDER, SESSION.public, 1, "x").sign(PROVIDER),
        Revocation(Role.SESSION, SESSION.public, 1, "x").sign(NEXT),
        Revocation(Role.SESSION, NEXT.public, 1, "x").sign(PROVIDER),
    )
    verdict = verify(session.receipt(), trust=under(*wrong))
    assert verdict.status is Status.RECEIPT
    assert (keys(verdict), ids(verdict)) == ([], ids(verify(session.receipt(), trust=under())))


def test_what_failed_stays_failed_and_what_was_inconclusive_keeps_its_reason() -> None:
    session, _ = made()
    revoked = under(Revocation(Role.SESSION, SESSION.public, 1, "to escape").sign(PROVIDER))
    assert verify(session.receipt(), trust=revoked, text="another").code == "text-differs"
    too_few = verify(session.receipt(), trust=revoked, quorum=Quorum.of([witness_key(WITNESSES[0].public)]))
    assert too_few.code == "too-few-witnesses"
    assert keys(too_few)[0][0] is None


def logged(session: Recording, log: Sequence[PrivateKey], *times: int) -> Receipt:
    """The session's receipt with a proof that these keys of the log, and a witness at each time (s), signed."""
    receipt = session.receipt()
    tree = Tree.from_leaves([leaf_hash(receipt.head), leaf_hash(b"other")])
    body = Checkpoint("acme/log", 2, tree.root())
    signatures = [Note.parse(sign_checkpoint(body, key)).signatures[0] for key in log]
    signatures += [cosign(body.text(), key, at) for key, at in zip(WITNESSES, times, strict=False)]
    note = Note(body.text(), tuple(signatures)).format()
    return replace(receipt, log=TlogProof(0, tuple(tree.inclusion_proof(0)), note).format())


def test_witnesses_who_saw_it_before_the_revocation_show_that_it_was_not_dated_back() -> None:
    session = recording(1, manifest=manifest(log=LOG.public))
    second = TIME // 1000 + 60
    both = [witness_key(key.public) for key in WITNESSES]
    for revoked, times, needed, shown in (
        ((second + 1) * 1000 + 1, (second, second), 2, True),
        ((second + 1) * 1000, (second, second), 2, False),  # some time within that second
        ((second + 1) * 1000 + 1, (second, second + 1), 2, False),
        ((second + 1) * 1000 + 1, (second, second + 1), 1, True),
    ):
        chain = under(Revocation(Role.SESSION, SESSION.public, revoked, "stolen").sign(PROVIDER))
        verdict = verify(logged(session, [LOG], *times), trust=chain, quorum=Quorum.of(both, needed))
        assert verdict.status is Status.RECEIPT
        assert ("key-revoked-later" in ids(verdict)) is not shown
        assert [passed for passed, _ in keys(verdict)] == [True] * shown
    alone = verify(logged(session, [LOG], second, second), trust=chain, quorum=NOBODY)
    assert "key-revoked-later" in ids(alone)


def test_a_log_proof_by_the_key_that_succeeds_the_logs() -> None:
    session = recording(1, manifest=manifest(log=LOG.public))
    succeeds = Succession.sign(LOG, NEXT_LOG, Role.LOG, TIME)
    receipt = logged(session, [NEXT_LOG])
    assert verify(receipt, trust=under()).code == "untrusted-key"
    assert verify(receipt, trust=under(succeeds)).status is Status.RECEIPT
    assert verify(logged(session, [LOG, NEXT_LOG]), trust=under()).status is Status.RECEIPT
    newer = recording(1, manifest=manifest(log=NEXT_LOG.public))
    assert verify(logged(newer, [LOG]), trust=under(succeeds)).code == "untrusted-key"


def test_a_fraud_file_is_judged_without_revocations_and_names_them() -> None:
    session, _ = made()
    own = session.receipt()
    other = replace(Head.peek(own.head), root=bytes(32)).sign(SESSION)
    file = Fraud(FraudKind.TWO_HEADS, (own.manifest, session.manifest.sign(NEXT)), (own.head, other))
    assert frauds.verify(file, TRUST).code == "nothing-checked"
    assert frauds.verify(file, [*TRUST, NEXT.public]).code == "nothing-checked"
    revoked = Revocation(Role.SESSION, SESSION.public, 1, "to escape").sign(PROVIDER)
    found = frauds.verify(file, under(SUCCEEDS, revoked))
    assert (found.status, found.code) == (Status.FAILED, "two-histories")
    assert "was revoked: to escape" in str(found.hint)
    assert len(keys(found)) == 1


def test_two_checkpoints_of_two_keys_of_a_log_contradict_each_other() -> None:
    stated = manifest(log=LOG.public).sign(PROVIDER)
    notes = [sign_checkpoint(Checkpoint("acme/log", 2, bytes([n]) * 32), key) for n, key in ((1, LOG), (2, NEXT_LOG))]
    file = Fraud(FraudKind.TWO_CHECKPOINTS, (stated,), (notes[0], notes[1]))
    assert frauds.verify(file, TRUST).code == "nothing-checked"
    succeeds = Succession.sign(LOG, NEXT_LOG, Role.LOG, TIME)
    assert frauds.verify(file, under(succeeds)).code == "two-histories"
    newer = replace(file, manifests=(manifest(log=NEXT_LOG.public).sign(PROVIDER),))
    assert frauds.verify(newer, under(succeeds)).code == "two-histories"
