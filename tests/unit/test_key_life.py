"""Statements on keys, and the chain that follows of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from verifiable import limits
from verifiable.errors import MalformedError, NewerVersionError, PolicyError, VerificationError
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import (
    REVOCATION,
    SUCCESSION,
    SUCCESSOR,
    KeysFile,
    Revocation,
    Role,
    Succession,
)
from verifiable.wire import cose, encoding
from verifiable.wire.keys import PrivateKey, PublicKey
from verifiable.wire.sealed import seal

A, B, C, D, MALLORY, SESSION = (PrivateKey(name, name.encode().ljust(32, b"!")) for name in "ABCDMS")
LOG, NEXT_LOG, OTHER_LOG = (PrivateKey("A/log", bytes([each]) * 32) for each in (1, 2, 3))
PROVIDER = Role.PROVIDER


def follows(old: PrivateKey, new: PrivateKey, time: int = 100, role: Role = PROVIDER) -> bytes:
    return Succession.sign(old, new, role, time)


def revokes(
    signer: PrivateKey, key: PublicKey, time: int = 200, role: Role = PROVIDER, reason: str = "stolen"
) -> bytes:
    return Revocation(role, key, time, reason).sign(signer)


def chain(*statements: bytes, trust: tuple[PrivateKey, ...] = (A,)) -> Chain:
    return Chain.follow([key.public for key in trust], statements)


def names(made: Chain) -> str:
    return "".join(key.name for key in made.keys)


def test_statements_are_read_as_they_were_signed() -> None:
    said = Succession(PROVIDER, A.public, B.public, 100)
    assert Succession.open(Succession.confirm(said.accept(B), A)) == said == Succession.open(follows(A, B))
    revoked = Revocation(Role.SESSION, SESSION.public, 7, "the machine was stolen")
    assert Revocation.open(revoked.sign(A), [A.public]) == (revoked, A.public)
    assert Revocation.peek(revoked.sign(A)) == revoked


def test_a_keys_file_is_read_as_written(tmp_path: Path) -> None:
    made = KeysFile((follows(A, B), revokes(B, A.public)))
    path = tmp_path / "acme.keys"
    path.write_bytes(made.encode())
    assert KeysFile.load(path) == made
    assert KeysFile.parse(KeysFile(()).encode()) == KeysFile(())
    most = KeysFile((b"",) * limits.KEY_STATEMENTS)
    assert KeysFile.parse(most.encode()) == most
    many: list[encoding.Value] = [b""] * (limits.KEY_STATEMENTS + 1)
    with pytest.raises(MalformedError, match="at most 256 items"):
        KeysFile.parse(seal({1: 2, 2: many}))
    with pytest.raises(PolicyError, match="too long"):
        KeysFile((bytes(limits.KEYS_BYTES),)).encode()
    with pytest.raises(NewerVersionError):
        KeysFile.parse(seal({1: 3, 2: []}))


def test_nobody_names_another_ones_key_as_his_successor() -> None:
    payload = Succession(PROVIDER, A.public, B.public, 100).payload()
    alone = cose.sign1(cose.sign1(payload, A, SUCCESSOR), A, SUCCESSION)
    with pytest.raises(VerificationError) as refused:
        Succession.open(alone)
    assert refused.value.code == "untrusted-key"
    by_another = cose.sign1(cose.sign1(payload, B, SUCCESSOR), B, SUCCESSION)
    with pytest.raises(VerificationError) as refused:
        Succession.open(by_another)
    assert refused.value.code == "untrusted-key"
    wrong_type = cose.sign1(cose.sign1(payload, B, SUCCESSION), A, SUCCESSION)
    with pytest.raises(VerificationError) as refused:
        Succession.open(wrong_type)
    assert refused.value.code == "wrong-type"
    for made in (alone, by_another, wrong_type):
        assert names(chain(made)) == "A"


def test_what_is_no_succession_is_refused() -> None:
    for role, old, new in ((Role.SESSION, A, B), (PROVIDER, A, A), (Role.LOG, A, B)):
        with pytest.raises(MalformedError):
            Succession(role, old.public, new.public, 1)
    renamed = PrivateKey("other", A.seed)
    with pytest.raises(MalformedError, match="another than the old one"):
        Succession(PROVIDER, A.public, renamed.public, 1)
    said = Succession(PROVIDER, A.public, B.public, 1)
    with pytest.raises(MalformedError, match="the key that accepts"):
        said.accept(C)
    with pytest.raises(MalformedError, match="the key that is succeeded"):
        Succession.confirm(said.accept(B), C)


@pytest.mark.parametrize("reason", ["", "é" * 129, "two\nlines", "\x9b31m"])
def test_a_reason_is_words_on_one_line(reason: str) -> None:
    with pytest.raises(MalformedError, match="reason"):
        Revocation(PROVIDER, A.public, 1, reason)
    payload = encoding.encode({1: 2, 2: 0, 3: A.public.vkey(), 4: 1, 5: reason})
    with pytest.raises(MalformedError, match="reason"):
        Revocation.peek(cose.sign1(payload, A, REVOCATION))


def test_a_role_that_there_is_not_is_refused() -> None:
    payload = encoding.encode({1: 2, 2: 3, 3: A.public.vkey(), 4: 1, 5: "x"})
    with pytest.raises(MalformedError, match="role"):
        Revocation.peek(cose.sign1(payload, A, REVOCATION))


def test_a_chain_is_followed_from_each_trusted_key() -> None:
    made = chain(follows(B, C), follows(A, B), follows(MALLORY, D), trust=(A, D))
    assert names(made) == "ABCD"
    assert made.root_of(C.public) == A.public
    assert made.root_of(D.public) == D.public
    assert made.root_of(MALLORY.public) is None
    assert made.name_of(C.public) == f"{A.public.label}, now {C.public.label}"
    assert made.name_of(A.public) == A.public.label
    assert [key.name for key in made.after(B.public)] == ["B", "C"]
    assert names(chain(follows(A, B), follows(B, A))) == "AB"
    assert names(chain(follows(A, B, role=PROVIDER), trust=())) == ""


def test_a_trusted_key_keeps_the_name_under_which_it_is_trusted() -> None:
    renamed = PrivateKey("mallory", B.seed)
    made = chain(follows(A, renamed), trust=(B, A))
    assert names(made) == "BA"
    assert made.root_of(renamed.public) == A.public
    assert made.name_of(B.public) == f"{A.public.label}, now {B.public.label}"
    assert made.related(A.public) == made.related(renamed.public) == (B.public, A.public)


def test_of_two_successors_neither_is_followed() -> None:
    made = chain(follows(A, B), follows(A, C, 99), follows(C, D))
    assert names(made) == "A"
    assert "two successors" in made.ignored[0]
    again = chain(follows(A, B), follows(A, B, 99))
    assert names(again) == "AB"
    assert again.ignored == ()


def test_a_revoked_key_names_no_successor() -> None:
    for time, reached in ((199, "AB"), (200, "A"), (201, "A")):
        assert names(chain(follows(A, B, time), revokes(A, A.public, 200))) == reached
    thief = chain(revokes(A, A.public, 200), follows(A, B, 100), follows(A, MALLORY, 300))
    assert names(thief) == "AB"


def test_a_key_is_revoked_by_itself_or_a_later_key() -> None:
    for signer, counts in ((A, False), (B, True), (C, True), (MALLORY, False)):
        made = chain(follows(A, B), follows(B, C), revokes(signer, B.public))
        assert (made.revoked(B.public) is not None) is counts
        assert bool(made.ignored) is not counts
    assert chain(revokes(A, A.public)).revoked(PublicKey("other", A.public.raw)) is not None


def test_a_role_is_revoked_for_itself_alone() -> None:
    made = chain(revokes(A, A.public, role=Role.SESSION))
    assert made.revoked(A.public) is None
    assert made.revoked(A.public, Role.SESSION) is not None


def test_an_older_provider_key_cannot_revoke_what_a_later_one_named() -> None:
    for role, key in ((Role.SESSION, SESSION.public), (Role.LOG, LOG.public)):
        made = chain(follows(A, B), revokes(A, key, 300, role), revokes(B, key, 400, role))
        assert [made.revoked(key, role, under.public) for under in (A, B)] == [
            Revocation(role, key, time, "stolen") for time in (300, 400)
        ]


def test_the_earliest_revocation_counts() -> None:
    made = chain(revokes(A, A.public, 300), revokes(A, A.public, 200), revokes(A, A.public, 400))
    found = made.revoked(A.public)
    assert found is not None
    assert found.time == 200


def test_a_log_keeps_its_name_across_its_keys() -> None:
    statement = follows(LOG, NEXT_LOG, role=Role.LOG)
    assert chain(statement).logs(LOG.public) == (LOG.public, NEXT_LOG.public)
    assert chain(statement).logs(NEXT_LOG.public) == (NEXT_LOG.public,)
    other = PublicKey("B/log", LOG.public.raw)
    assert chain(statement).logs(other) == (other,)
    assert chain(statement, follows(LOG, OTHER_LOG, role=Role.LOG)).logs(LOG.public) == (LOG.public,)
    assert chain(follows(LOG, NEXT_LOG)).logs(LOG.public) == (LOG.public,)
    late = chain(statement, revokes(A, LOG.public, 100, Role.LOG))
    assert late.logs(LOG.public) == (LOG.public,)


def test_what_is_no_statement_harms_nothing() -> None:
    other = cose.sign1(b"", A, "application/x-test")
    damaged = bytearray(follows(A, B))
    damaged[-1] ^= 1
    made = chain(b"junk", other, bytes(damaged), follows(A, C), revokes(MALLORY, A.public))
    assert names(made) == "AC"
    assert len(made.ignored) == 4
    assert made.revoked(A.public) is None
