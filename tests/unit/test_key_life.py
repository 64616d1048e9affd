"""The provider's keys are exchanged and revoked under a running provider, with what was signed elsewhere too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.keys import folder as names, keyring, life, request
from engine.keys.watch import KeyWatch
from engine.ledger import LedgerSettings
from engine.log.checkpoint_file import CheckpointFile
from engine.log.fsck import fsck
from engine.sessions.manifests import NoManifestError
from engine.sessions.recorder import BusySessionError
from fixtures.synthetic import SyntheticProvider
from tests.hand_clock import DAY, Clock
from verifiable import Receipt, verify
from verifiable.checking.checks import check_head
from verifiable.checking.verdict import Status
from verifiable.cli import main
from verifiable.errors import PolicyError, StoreError
from verifiable.manifest.chain import Chain
from verifiable.manifest.manifest import Manifest
from verifiable.manifest.statements import Role
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.entry import MANIFEST, REVOCATION, SUCCESSION, kind_of
from verifiable.tlog.proof import TlogProof
from verifiable.wire.keys import PrivateKey, PublicKey

ROLES = list(Role)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def provider(tmp_path: Path, clock: Clock) -> Iterator[SyntheticProvider]:
    made = SyntheticProvider(tmp_path / "data", clock=clock)
    yield made
    made.close()


def good(provider: SyntheticProvider, first: PublicKey, receipt: bytes) -> Receipt:
    """A receipt that verifies for who trusts the first key, by what the provider says of its keys."""
    chain = Chain.follow([first], provider.keys.statements)
    verdict = verify(receipt, trust=chain.keys)
    assert verdict.status is Status.RECEIPT, verdict
    return Receipt.parse(receipt)


def session_of(provider: SyntheticProvider, receipt: Receipt) -> str:
    return check_head(receipt.manifest, receipt.head, provider.keys.providers).head.session.hex()


def rotate(provider: SyntheticProvider, role: Role, clock: Clock) -> PublicKey:
    clock.time += 1000
    made = life.rotate(provider.keys.folder, role, clock())
    provider.look()
    return made


@pytest.mark.parametrize("role", ROLES)
def test_what_was_begun_under_the_old_key_goes_on_and_what_is_new_is_under_the_new(
    role: Role, provider: SyntheticProvider, clock: Clock
) -> None:
    first, held = provider.keys, good(provider, provider.keys.provider.public, provider.answer(session="new"))
    under_way = provider.begin("x", 3)
    under_way.step(0)
    made = rotate(provider, role, clock)
    under_way.step(1)
    under_way.step(2)
    in_force = provider.manifests.in_force()
    named = {
        Role.PROVIDER: in_force.signer,
        Role.SESSION: in_force.manifest.session_keys[0],
        Role.LOG: in_force.manifest.log,
    }
    assert named[role] == made
    assert all(named[other] != made for other in ROLES if other is not role)
    under_way.finish()
    trust = first.provider.public
    assert good(provider, trust, under_way.wait()).manifest == held.manifest
    again = provider.answer(session=session_of(provider, held), capability=provider.owner(held))
    assert good(provider, trust, again).manifest == held.manifest
    assert good(provider, trust, provider.answer()).manifest == in_force.envelope
    assert verify(provider.answer(), trust=[trust]).code == ("untrusted-key" if role is Role.PROVIDER else None)
    provider.publish()
    kinds = [kind_of(entry) for entry in provider.store.entries(0, 100)]
    assert kinds.count(MANIFEST) == 2
    assert kinds.count(SUCCESSION) == (0 if role is Role.SESSION else 1)
    keys, log = provider.keys, provider.ledger.log
    assert log is not None
    place = CheckpointFile(keys.folder.parent / "checkpoint" / "checkpoint")
    report = fsck(provider.store, keys.providers, keys.logs, place, keys.log_unused)
    assert report.clean, report.findings


def test_the_log_signs_with_both_keys_until_the_old_one_is_dropped(
    provider: SyntheticProvider, clock: Clock, tmp_path: Path
) -> None:
    old = provider.keys.log.public
    provider.answer()
    size = provider.publish()
    new = rotate(provider, Role.LOG, clock)
    log = provider.ledger.log
    assert log is not None
    assert new.name == old.name == log.origin
    for key in (old, new):  # at once, before there is anything new
        assert open_checkpoint(log.published.note, key).checkpoint.size == size
    assert [line.name for line in log.published.signed.note.signatures] == [old.name, new.name]
    receipt = Receipt.parse(provider.answer())
    provider.publish()
    head = check_head(receipt.manifest, receipt.head, provider.keys.providers).head
    proof = log.proof(head.session, head.size)
    assert proof is not None
    for key in (old, new):
        TlogProof.parse(proof).verify(receipt.head, key)
        assert open_checkpoint(log.signed(size)[2], key).checkpoint.size == size
    (provider.keys.folder / names.file(Role.LOG, old)).unlink()
    provider.look()
    provider.answer()
    provider.publish()
    assert [line.name for line in log.published.signed.note.signatures] == [new.name]
    assert open_checkpoint(log.published.note, new).checkpoint.size > size
    provider.close()
    again = SyntheticProvider(tmp_path / "data", clock=clock)
    assert again.keys.logs == (old, new)
    assert again.ledger.log is not None
    assert again.ledger.log.published.note == log.published.note
    again.close()


class PowerCut(BaseException):
    """The machine stops here."""


_CHANGES = ("replace", "unlink", "link", "rename", "open")


def cut_after(monkeypatch: pytest.MonkeyPatch, count: int) -> Callable[[], int]:
    """Cut the power at the change of the disk with that number; the result tells how many came."""
    seen = [0]

    def cutting(real: Callable[..., Any], changes: Callable[..., bool]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if changes(*args):
                if seen[0] == count:
                    raise PowerCut
                seen[0] += 1
            return real(*args, **options)

        return call

    monkeypatch.setattr(os, "replace", cutting(os.replace, lambda *args: True))
    monkeypatch.setattr(os, "unlink", cutting(os.unlink, lambda *args: True))
    monkeypatch.setattr(os, "open", cutting(os.open, lambda path, flags, *more: bool(flags & os.O_EXCL)))
    return lambda: seen[0]


@pytest.mark.parametrize("role", ROLES)
def test_a_power_cut_leaves_the_old_key_or_the_new_one(
    role: Role, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for count in range(100):
        folder = tmp_path / str(count) / "keys"
        before = keyring.load(folder, "acme", clock=clock)
        with monkeypatch.context() as patch:
            told = cut_after(patch, count)
            try:
                made = life.rotate(folder, role, clock())
            except PowerCut:
                made = None
            assert told() <= count
        after = keyring.load(folder, "acme", clock=clock)
        olds, news = ((keys.provider.public, keys.session.public, keys.log.public)[role] for keys in (before, after))
        found.add(olds == news)
        assert after.providers[0] == before.provider.public
        assert after.logs[0] == before.log.public
        assert len(after.statements) == (0 if role is Role.SESSION or olds == news else 1)
        assert after.of([before.session.public]) is not None
        assert not list(folder.glob("*.new.key"))
        if role is Role.LOG and olds != news:
            assert after.before is not None
            assert after.before.public == olds
        if made is not None:
            assert news == made
            break
    assert found == {True, False}
    assert count > 4


def test_a_revoked_key_signs_no_more(provider: SyntheticProvider, clock: Clock) -> None:
    folder, first = provider.keys.folder, provider.keys
    held = good(provider, first.provider.public, provider.answer(session="new"))
    with pytest.raises(PolicyError, match="in use"):
        life.revoke(folder, first.session.public, Role.SESSION, "lost", clock())
    rotate(provider, Role.SESSION, clock)
    life.end(folder, first.session.public, Role.SESSION)
    provider.look()
    with pytest.raises(BusySessionError, match="key that is gone"):
        provider.answer(session=session_of(provider, held), capability=provider.owner(held))
    life.revoke(folder, first.session.public, Role.SESSION, "the machine was stolen", clock())
    provider.look()
    assert not (folder / names.file(Role.SESSION, first.session.public)).exists()
    assert not list(folder.glob("*.ending"))
    revoked = provider.keys.chain.revoked(first.session.public, Role.SESSION)
    assert revoked is not None
    assert (revoked.time, revoked.reason) == (clock(), "the machine was stolen")
    with pytest.raises(BusySessionError):
        provider.answer(session=session_of(provider, held), capability=provider.owner(held))
    with pytest.raises(PolicyError, match="revoked already"):
        life.revoke(folder, first.session.public, Role.SESSION, "again", clock())
    good(provider, first.provider.public, provider.answer())
    provider.publish()
    assert [kind_of(entry) for entry in provider.store.entries(0, 100)].count(REVOCATION) == 1


def test_a_revoked_provider_key_opens_nothing_and_a_revoked_log_key_signs_nothing(
    provider: SyntheticProvider, clock: Clock
) -> None:
    folder, first = provider.keys.folder, provider.keys
    held = Receipt.parse(provider.answer(session="new"))
    rotate(provider, Role.PROVIDER, clock)
    life.revoke(folder, first.provider.public, Role.PROVIDER, "exchanged", clock())
    provider.look()
    with pytest.raises(BusySessionError):
        provider.answer(session=session_of(provider, held), capability=provider.owner(held))
    new = rotate(provider, Role.LOG, clock)
    life.revoke(folder, first.log.public, Role.LOG, "exchanged", clock())
    provider.look()
    assert provider.ledger.log is not None
    assert provider.ledger.log.signers == (new,)
    good(provider, first.provider.public, provider.answer())


def test_the_watch_sees_what_changes_and_tries_again(provider: SyntheticProvider, clock: Clock) -> None:
    taken: list[keyring.Keyring] = []
    failing = [True]

    def use(keys: keyring.Keyring) -> None:
        if failing:
            failing.pop()
            raise StoreError("not now")
        taken.append(keys)

    watch = KeyWatch(provider.keys.folder, provider.ledger.read_keys, use)
    watch.look()
    assert failing
    made = life.rotate(provider.keys.folder, Role.SESSION, clock())
    watch.look()
    assert not taken
    watch.look()
    watch.look()
    assert [keys.session.public for keys in taken] == [made]


# The provider's key on another machine.


@pytest.fixture
def acme() -> PrivateKey:
    return PrivateKey.generate("acme", b"a" * 32)


def offline(tmp_path: Path, clock: Clock, acme: PrivateKey) -> SyntheticProvider:
    return SyntheticProvider(tmp_path / "data", LedgerSettings(provider_key=acme.public), name="acme", clock=clock)


def signed(folder: Path, key: PrivateKey, clock: Clock, days: float = 90, count: int = 1) -> list[bytes]:
    asked = request.read(folder / names.REQUEST)
    return [envelope for _, envelope in request.sign(asked, key, clock(), days, count)]


def install(folder: Path, envelope: bytes, clock: Clock) -> Manifest:
    found = request.install(folder, envelope, clock())
    with names.locked(folder):
        life.settle(folder, clock())
    return found


def test_a_provider_without_its_key_asks_serves_and_stops(tmp_path: Path, clock: Clock, acme: PrivateKey) -> None:
    with pytest.raises(NoManifestError, match="none is installed") as caught:
        offline(tmp_path, clock, acme)
    assert caught.value.exit_code == 2
    assert str(caught.value.hint).count("verifiable ") == 3
    folder = tmp_path / "data" / "keys"
    assert not (folder / "provider.key").exists()
    for envelope in signed(folder, acme, clock, days=30, count=3):
        install(folder, envelope, clock)
    provider = offline(tmp_path, clock, acme)
    used = set()
    for _ in range(88):
        receipt = good(provider, acme.public, provider.answer(session="new"))
        used.add(receipt.manifest)
        clock.time += DAY // 4
        provider.answer(session=session_of(provider, receipt), capability=provider.owner(receipt))
        clock.time += DAY - DAY // 4
        if len(used) == 3 and not provider.manifests.in_force().lasts(clock() + 2 * DAY):
            break
    assert len(used) == 3
    clock.time += 4 * DAY
    with pytest.raises(NoManifestError, match="nearly so"):
        provider.answer()
    install(folder, signed(folder, acme, clock)[0], clock)
    provider.look()
    good(provider, acme.public, provider.answer())
    provider.close()


def test_what_can_not_be_taken_is_refused_by_its_reason(tmp_path: Path, clock: Clock, acme: PrivateKey) -> None:
    with pytest.raises(NoManifestError):
        offline(tmp_path, clock, acme)
    folder = tmp_path / "data" / "keys"
    asked = request.read(folder / names.REQUEST)
    stranger = PrivateKey.generate("acme", b"s" * 32)

    def refused(manifest: Manifest, key: PrivateKey, why: str) -> None:
        [(_, envelope)] = request.sign(manifest, key, clock(), 90, 1)
        with pytest.raises(PolicyError, match=why):
            request.install(folder, envelope, clock())

    refused(asked, stranger, "no manifest by the provider's key")
    refused(replace(asked, k=7), acme, "another k")
    refused(replace(asked, session_keys=(stranger.public,)), acme, "not for this machine's session key")
    refused(replace(asked, log=stranger.public), acme, "not for this machine's log key")
    [late] = signed(folder, acme, clock, days=1)
    clock.time += 2 * DAY
    with pytest.raises(PolicyError, match="is over"):
        request.install(folder, late, clock())
    assert not list((folder / names.MANIFESTS).glob("*"))
    (folder / names.MANIFESTS).mkdir(exist_ok=True)
    (folder / names.MANIFESTS / "x.manifest").write_bytes(late)
    with pytest.raises(NoManifestError, match="over, or nearly so"):
        offline(tmp_path, clock, acme)
    with pytest.raises(PolicyError, match="keys of another provider"):
        offline(tmp_path, clock, stranger)
    with pytest.raises(StoreError, match="--provider-key"):
        keyring.load(folder, "acme", clock=clock)
    SyntheticProvider(tmp_path / "online", clock=clock).close()
    with pytest.raises(PolicyError, match="private key is in"):
        keyring.load(tmp_path / "online" / "keys", "x", acme.public, clock)


@pytest.mark.parametrize("role", [Role.SESSION, Role.LOG])
def test_an_exchange_waits_for_the_manifest_that_names_the_new_key(
    role: Role, tmp_path: Path, clock: Clock, acme: PrivateKey
) -> None:
    with pytest.raises(NoManifestError):
        offline(tmp_path, clock, acme)
    folder = tmp_path / "data" / "keys"
    install(folder, signed(folder, acme, clock)[0], clock)
    provider = offline(tmp_path, clock, acme)
    before = provider.manifests.in_force()
    made = rotate(provider, role, clock)
    assert provider.manifests.in_force() is before
    good(provider, acme.public, provider.answer())
    install(folder, signed(folder, acme, clock)[0], clock)
    provider.look()
    after = provider.manifests.in_force().manifest
    assert made in (*after.session_keys, after.log)
    good(provider, acme.public, provider.answer())
    provider.close()


def test_the_commands_carry_a_provider_through_its_life(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    clock.time = life.milliseconds()
    vault, data = tmp_path / "vault", tmp_path / "data"
    key, folder = vault / "provider.key", data / "keys"

    def run(*arguments: object) -> tuple[int, str]:
        status = main([str(argument) for argument in ("keys", *arguments)])
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    assert run("new", "acme", "--out", vault)[0] == 0
    assert run("new", "acme", "--out", vault)[0] == 2
    acme = names.private(key)
    with pytest.raises(NoManifestError):
        offline(tmp_path, clock, acme)
    status, shown = run("sign", folder / "manifest.request", "--key", key, "--count", 2, "--out", vault / "m.manifest")
    assert status == 0
    assert "synthetic.gguf" in shown
    assert acme.public.label in shown
    assert run("install", vault / "m-1.manifest", vault / "m-2.manifest", "--data", data)[0] == 0
    provider = offline(tmp_path, clock, acme)
    first = provider.keys
    assert run("rotate", "session", "--data", data)[0] == 0
    run("sign", folder / "manifest.request", "--key", key, "--out", vault / "n.manifest")
    assert run("install", vault / "n.manifest", "--data", data)[0] == 0
    provider.look()
    assert provider.keys.session.public != first.session.public
    old = folder / names.file(Role.SESSION, first.session.public).replace(".key", ".pub")
    revocation = vault / "r.cbor"
    status, _ = run("revoke", old, "--reason", "stolen", "--key", key, "--role", "session", "--out", revocation)
    assert status == 0
    assert run("install", revocation, "--data", data)[0] == 0
    assert run("rotate", "provider", "--data", data)[0] == 2
    run("new", "acme", "--out", tmp_path / "next")
    status, _ = run("succeed", key, tmp_path / "next" / "provider.key", "--out", vault / "s.cbor")
    assert status == 0
    assert run("install", vault / "s.cbor", "--data", data)[0] == 0
    provider.look()
    good(provider, acme.public, provider.answer())  # by the key before, until the next one has signed
    assert "by the key before" in caplog.text
    run("sign", folder / "manifest.request", "--key", key, "--out", vault / "o.manifest")
    assert run("install", vault / "o.manifest", "--data", data)[0] == 2  # by the key that was succeeded
    run("sign", folder / "manifest.request", "--key", tmp_path / "next" / "provider.key", "--out", vault / "o.manifest")
    assert run("install", vault / "o.manifest", "--data", data)[0] == 0
    provider.look()
    good(provider, acme.public, provider.answer())
    own, by_next = vault / "own.cbor", vault / "next.cbor"
    for who, out in ((key, own), (tmp_path / "next" / "provider.key", by_next)):
        status, _ = run(
            "revoke", vault / "provider.pub", "--reason", "x", "--key", who, "--role", "provider", "--out", out
        )
        assert status == 0
    assert run("install", own, "--data", data)[0] == 2  # a key that revoked itself would name no successor
    assert run("install", by_next, "--data", data)[0] == 0
    assert len(provider.keys.statements) == 2
    provider.close()
    offline(tmp_path, clock, acme).close()  # the old key still names this provider


@pytest.mark.parametrize("role", ROLES)
def test_the_commands_exchange_and_revoke_where_the_key_is(
    role: Role, provider: SyntheticProvider, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    data = provider.keys.folder.parent
    first = (provider.keys.provider.public, provider.keys.session.public, provider.keys.log.public)[role]
    word = role.name.lower()
    assert main(["keys", "rotate", word, "--data", str(data)]) == 0
    old = provider.keys.folder / names.file(role, first).replace(".key", ".pub")
    asked = ["keys", "revoke", str(old), "--reason", "exchanged", "--data", str(data), "--grace", "0"]
    assert main(asked) == 0
    assert main(asked) == 2
    provider.look()
    assert provider.keys.chain.revoked(first, role) is not None
    assert main(["keys", "rotate", "auditor", "--data", str(data)]) == 2
    assert main(["keys", "rotate", word, "--data", str(data / "elsewhere")]) == 2
