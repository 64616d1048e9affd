"""Those who watch a log: witnesses over real HTTP, and a monitor that notices a fork and can show it."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

from engine.api.app import proof_app
from engine.ledger import LedgerSettings
from engine.witness.witness import Witness, make_app
from fixtures.synthetic import SyntheticProvider
from verifiable.checkpoint import open_checkpoint, sign_checkpoint
from verifiable.cosignature import CosignerKey, witness_key
from verifiable.errors import PolicyError, StoreError, VerificationError
from verifiable.keys import PrivateKey
from verifiable.merkle import consistency_path
from verifiable.witness import AddCheckpoint
from verifier.monitor import ForkError, HttpFetch, Monitor, check_fork


@contextmanager
def served(app: object) -> Iterator[str]:
    """An application on a free port of the loopback."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def grow(provider: SyntheticProvider, count: int) -> int:
    for turn in [provider.begin("q", 1) for _ in range(count)]:
        turn.run()
        turn.wait()
    return provider.publish()


def fetch(provider: SyntheticProvider) -> HttpFetch:
    client: Any = TestClient(proof_app(provider))  # it answers as an httpx.Client does
    return HttpFetch("http://testserver/log", client)


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[SyntheticProvider]:
    found = SyntheticProvider(tmp_path / "provider")
    grow(found, 5)
    yield found
    found.close()


def test_a_monitor_follows_a_log_across_its_own_restarts(provider: SyntheticProvider, tmp_path: Path) -> None:
    sizes = []
    for more in (0, 3, 300, 0):
        grow(provider, more)
        step = Monitor(fetch(provider), provider.keys.log.public, tmp_path / "state", entries=True).look()
        sizes.append((None if step.old is None else step.old.size, step.new.size, step.entries))
    assert sizes == [(None, 5, 5), (5, 8, 3), (8, 308, 300), (308, 308, 0)]


@pytest.mark.parametrize("extra", [1, 3, 4], ids=["shorter", "same size", "longer"])
def test_a_fork_is_noticed_and_shown(provider: SyntheticProvider, tmp_path: Path, extra: int) -> None:
    """The same keys over an old copy of everything: the fork that a dishonest provider would make."""
    shutil.copytree(provider.keys.folder.parent, tmp_path / "fork")
    grow(provider, 3)
    key = provider.keys.log.public
    monitor = Monitor(fetch(provider), key, tmp_path / "state")
    assert monitor.look().new.size == 8
    other = SyntheticProvider(tmp_path / "fork")
    grow(other, extra)
    with pytest.raises(ForkError, match="two roots" if extra == 3 else "cannot show that it only grew") as caught:
        Monitor(fetch(other), key, tmp_path / "state").look()
    other.close()
    evidence = caught.value.evidence.read_bytes()
    assert ("Proven" if extra == 3 else "gave no proof") in check_fork(evidence, key)
    notes = [note.encode() for note in json.loads(evidence)["checkpoints"]]
    assert [open_checkpoint(note, key).checkpoint.size for note in notes] == [8, 5 + extra]
    with pytest.raises(VerificationError):
        check_fork(evidence, PrivateKey.generate(key.name, bytes(32)).public)
    assert monitor.look().new.size == 8  # what was remembered is still the honest one


def test_honest_checkpoints_are_no_fork_evidence(provider: SyntheticProvider) -> None:
    log = provider.ledger.log
    assert log is not None
    first = log.published.note
    grow(provider, 3)
    proof = [value.hex() for value in consistency_path(log.tree.node, 5, 8)]
    content = {"checkpoints": [first.decode(), log.published.note.decode()], "proof": proof}
    with pytest.raises(VerificationError, match="extends"):
        check_fork(json.dumps(content).encode(), provider.keys.log.public)


def test_an_older_checkpoint_of_the_same_log_is_stale_and_not_remembered(
    provider: SyntheticProvider, tmp_path: Path
) -> None:
    log = provider.ledger.log
    assert log is not None
    old = log.published.note
    grow(provider, 4)
    real = fetch(provider)
    Monitor(real, provider.keys.log.public, tmp_path / "state").look()

    def cached(path: str, maximum: int) -> bytes:
        return old if path == "checkpoint" else real(path, maximum)

    step = Monitor(cached, provider.keys.log.public, tmp_path / "state").look()
    assert step.stale
    assert Monitor(real, provider.keys.log.public, tmp_path / "state").look().old == log.published.signed.checkpoint


@pytest.mark.parametrize("path", ["tile/0/000.p/5", "checkpoint", "tile/entries/000.p/5"])
@pytest.mark.parametrize("flip", [0x01, 0x80])  # of a checkpoint: mostly another signature; never base64
def test_a_log_that_serves_something_else_is_not_believed(
    provider: SyntheticProvider, tmp_path: Path, path: str, flip: int
) -> None:
    real = fetch(provider)

    def changed(asked: str, maximum: int) -> bytes:
        data = real(asked, maximum)
        return data[:-40] + bytes([data[-40] ^ flip]) + data[-39:] if asked == path else data

    with pytest.raises((VerificationError, StoreError)):
        Monitor(changed, provider.keys.log.public, tmp_path / "state", entries=True).look()
    assert not (tmp_path / "state" / "checkpoint").exists()


def test_witnesses_cosign_and_a_quorum_decides(tmp_path: Path) -> None:
    data = tmp_path / "provider"
    first = SyntheticProvider(data)
    grow(first, 3)
    log = first.keys.log.public
    first.close()
    keys = [PrivateKey.generate(f"witness{number}", bytes([number]) * 32) for number in (1, 2)]
    witnesses = [Witness(key, [log], tmp_path / key.name) for key in keys]
    with served(make_app(witnesses[0])) as one, served(make_app(witnesses[1])) as two:
        texts = tuple(f"{witness.vkey} {url}" for witness, url in zip(witnesses, (one, two), strict=True))
        provider = SyntheticProvider(data, LedgerSettings(witnesses=texts, quorum=2))
        assert grow(provider, 2) == 5
        assert provider.ledger.log is not None
        note = provider.ledger.log.published.note
        cosigners = [witness_key(key.public) for key in keys]
        assert len(open_checkpoint(note, log, cosigners, quorum=2).witnesses) == 2
        step = Monitor(fetch(provider), log, tmp_path / "state", cosigners, 2).look()
        assert step.witnesses == ("witness1", "witness2")
        receipt = provider.answer("x", 1)
        provider.publish()
        provider.close()
        gone = (*texts[:1], f"{witnesses[1].vkey} http://127.0.0.1:1")
        provider = SyntheticProvider(data, LedgerSettings(witnesses=gone, quorum=2))
        with pytest.raises(PolicyError, match="too few witnesses"):
            grow(provider, 1)
        assert provider.ledger.log is not None
        assert provider.ledger.log.published.size == 6  # integrated, signed, and not published
        assert provider.ledger.log.size() == 7
        provider.close()
        provider = SyntheticProvider(data, LedgerSettings(witnesses=gone, quorum=1))
        assert provider.publish() == 7
        provider.close()
    assert receipt


def test_a_witness_notices_a_fork_and_an_old_backup(tmp_path: Path) -> None:
    provider = SyntheticProvider(tmp_path / "provider")
    grow(provider, 5)
    shutil.copytree(tmp_path / "provider", tmp_path / "fork")
    log = provider.keys.log.public
    witness = Witness(PrivateKey.generate("witness", bytes(32)), [log], tmp_path / "witness")
    with served(make_app(witness)) as url:
        provider.close()
        settings = LedgerSettings(witnesses=(f"{witness.vkey} {url}",), quorum=1)
        provider = SyntheticProvider(tmp_path / "provider", settings)
        grow(provider, 4)
        provider.close()
        for count, reason in ((2, "larger size"), (2, "409|two roots"), (3, "422|consistency")):
            other = SyntheticProvider(tmp_path / "fork", settings)
            with pytest.raises(PolicyError, match=reason):
                grow(other, count)
            other.close()
    assert witness.seen(log.name).size == 9


def test_a_witness_answers_as_the_specification_says(provider: SyntheticProvider, tmp_path: Path) -> None:
    log = provider.ledger.log
    assert log is not None
    witness = Witness(PrivateKey.generate("witness", bytes(32)), [provider.keys.log.public], tmp_path / "witness")
    client = TestClient(make_app(witness))
    first = log.published.note
    grow(provider, 3)
    second = log.published.note
    proof = tuple(log.tree.consistency_proof(5, 8))

    def ask(old: int, path: tuple[bytes, ...], note: bytes) -> Any:
        return client.post("/add-checkpoint", content=AddCheckpoint(old, path, note).format())

    line = ask(0, (), first)
    assert line.status_code == 200
    assert CosignerKey.parse(witness.vkey).name in line.text
    stale = ask(0, (), second)
    assert (stale.status_code, stale.text, stale.headers["content-type"]) == (409, "5\n", "text/x.tlog.size")
    assert ask(5, proof[:-1], second).status_code == 422
    assert ask(5, (bytes(32), *proof[1:]), second).status_code == 422
    assert ask(5, proof, second).status_code == 200
    assert ask(8, (), second).status_code == 200
    assert ask(9, (), second).status_code == 400
    stranger = PrivateKey.generate(log.origin, bytes(32))
    assert ask(8, (), sign_checkpoint(log.published.signed.checkpoint, stranger)).status_code == 403
    assert client.post("/add-checkpoint", content=b"nonsense").status_code == 400
    assert client.post("/add-checkpoint", content=bytes(2 << 20)).status_code == 413
    assert client.get("/add-checkpoint").status_code == 405
    assert witness.seen(log.origin).size == 8


def test_a_witness_with_a_logs_key_is_refused(provider: SyntheticProvider, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="log's key"):
        Witness(provider.keys.log, [provider.keys.log.public], tmp_path)
