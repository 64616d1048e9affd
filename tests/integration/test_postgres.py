"""PostgreSQL: a real server, eight writers on it at once, and one log."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

from engine.ledger import LedgerSettings
from engine.log.checkpoint_file import CheckpointFile
from engine.log.fsck import fsck
from engine.log.integrate import integrate
from engine.log.log import LogSettings, make_check
from engine.sessions.retention import drop_expired
from engine.store import DamagedLogError
from engine.store.postgres import open_store
from fixtures.synthetic import VOCABULARY, SyntheticProvider
from tests.needs import ROOT, missing_program
from verifiable.errors import PolicyError, StoreError
from verifiable.session.evidence import Kind
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.tlog.proof import TlogProof

WRITERS, EACH = 8, 12


def program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a server of our own, on a socket and a port of the loopback, as a user who is not root."""
    initdb, postgres = program("initdb"), program("postgres")
    if initdb is None or postgres is None:
        missing_program("PostgreSQL is not installed")
    user = None
    if os.getuid() == 0:  # the server refuses to run as root
        user = next((name for name in ("postgres", "nobody") if any(p.pw_name == name for p in pwd.getpwall())), None)
    folder = Path(tempfile.mkdtemp(prefix="verifiable-postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(
        [str(initdb), "-D", data, "-U", "v", "-A", "trust", "--no-sync"],
        user=user,
        check=True,
        timeout=120,
        cwd="/",
        **quiet,
    )  # type: ignore[call-overload]
    process = subprocess.Popen(
        [
            str(postgres),
            "-D",
            data,
            "-p",
            str(port),
            "-k",
            folder,
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "fsync=on",
        ],
        user=user,
        cwd="/",
        **quiet,  # type: ignore[call-overload]
    )
    url = f"postgresql://v@127.0.0.1:{port}/postgres"
    try:
        for _ in range(200):
            try:
                open_store(url).close()
                break
            except StoreError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server: str) -> str:
    """A database of its own for each test."""
    name = f"test{time.time_ns()}"
    admin = sqlalchemy.create_engine(server.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return server.rpartition("/")[0] + f"/{name}"


def check(provider: SyntheticProvider, folder: Path) -> list[str]:
    keys = provider.keys
    place = CheckpointFile(folder / "checkpoint" / "checkpoint")
    report = fsck(provider.store, keys.providers, keys.logs, place, keys.log_unused)
    return [f"{found.where}: {found.what}" for found in report.findings]


WRITER = """
import sys, pathlib
from engine.ledger import LedgerSettings
from fixtures.synthetic import SyntheticProvider
provider = SyntheticProvider(pathlib.Path(sys.argv[1]), LedgerSettings(store=sys.argv[2], sequence=False))
for number in range(int(sys.argv[3])):
    print(provider.answer(f"question {number}", 3).hex(), flush=True)
provider.close()
"""


def test_eight_machines_write_and_one_log_has_everything(url: str, tmp_path: Path) -> None:
    settings = LedgerSettings(store=url, log=LogSettings(integrate_every=0.02, publish_every=0.05))
    provider = SyntheticProvider(tmp_path / "main", settings)
    provider.ledger.start(VOCABULARY)
    writers = []
    for number in range(WRITERS):
        shutil.copytree(tmp_path / "main" / "keys", tmp_path / f"writer{number}" / "keys")
        command = [sys.executable, "-c", WRITER, str(tmp_path / f"writer{number}"), url, str(EACH)]
        writers.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
    receipts = [
        Receipt.parse(bytes.fromhex(line)) for writer in writers for line in writer.communicate(timeout=120)[0].split()
    ]
    assert [writer.returncode for writer in writers] == [0] * WRITERS
    assert len(receipts) == WRITERS * EACH
    log = provider.ledger.log
    assert log is not None
    deadline = time.monotonic() + 10
    while log.published.size <= len(receipts) and time.monotonic() < deadline:
        time.sleep(0.05)
    indices = set()
    for receipt in receipts:
        head = Head.peek(receipt.head)
        proof = provider.ledger.proof(head.session, head.size)
        assert proof is not None
        parsed = TlogProof.parse(proof)
        parsed.verify(receipt.head, provider.keys.log.public)
        indices.add(parsed.index)
    assert indices == set(range(1, 1 + WRITERS * EACH))  # after the manifest
    assert log.failure() is None
    assert check(provider, tmp_path / "main") == []
    provider.close()


def test_sequencers_that_race_make_one_sequence(url: str, tmp_path: Path) -> None:
    provider = SyntheticProvider(tmp_path / "main", LedgerSettings(store=url))
    for _ in range(60):
        provider.answer("q", 1)
    stores = [open_store(url) for _ in range(3)]
    verify = make_check(lambda: provider.keys.providers)
    taken: list[int] = []

    def work(number: int) -> None:
        while count := integrate(stores[number], verify, limit=5):
            taken.append(count)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert sum(taken) == 61
    assert provider.publish() == 61
    assert check(provider, tmp_path / "main") == []
    provider.close()


def test_everything_else_works_there_too(url: str, tmp_path: Path) -> None:
    settings = LedgerSettings(store=url)
    provider = SyntheticProvider(tmp_path / "main", settings)
    receipts = [Receipt.parse(provider.answer("question", 4)) for _ in range(5)]
    heads = [Head.peek(receipt.head) for receipt in receipts]
    provider.publish()
    assert drop_expired(provider.store, VOCABULARY, 2**62, 1) == 5
    provider.sessions.erase(heads[0].session.hex(), provider.owner(receipts[0]))
    provider.close()
    provider = SyntheticProvider(tmp_path / "main", settings)
    assert provider.recovered == 0
    row = provider.store.session(heads[1].session)
    assert row is not None
    assert provider.evidence.evidence(row, Kind.TOKENS).turns[0].tokens is not None
    assert check(provider, tmp_path / "main") == []
    stopped = provider.begin("cut off", 9)
    stopped.step(1)
    provider.store.flush()
    provider.close()
    provider = SyntheticProvider(tmp_path / "main", settings)
    assert provider.recovered == 1
    assert provider.publish() == 7
    provider.close()


def test_a_database_that_was_put_back_is_refused(url: str, tmp_path: Path) -> None:
    provider = SyntheticProvider(tmp_path / "main", LedgerSettings(store=url))
    provider.answer("q", 1)
    provider.publish()
    provider.close()
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for statement in ("UPDATE head SET idx = NULL", "DELETE FROM tile", "DELETE FROM checkpoint"):
            connection.execute(sqlalchemy.text(statement))
    engine.dispose()
    with pytest.raises(DamagedLogError, match="older than the checkpoint"):
        SyntheticProvider(tmp_path / "main", LedgerSettings(store=url))


def test_urls_that_name_no_server_are_refused() -> None:
    with pytest.raises(PolicyError):
        open_store("sqlite:///x")
    with pytest.raises(PolicyError):
        open_store("nonsense")
    with pytest.raises(StoreError) as caught:
        open_store("postgresql://user:secret-word@127.0.0.1:1/x")
    assert "secret-word" not in str(caught.value)


def test_a_database_of_the_version_before_is_brought_up_in_place(url: str, tmp_path: Path) -> None:
    provider = SyntheticProvider(tmp_path / "main", LedgerSettings(store=url))
    provider.answer("q", 1)
    provider.close()
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("DROP TABLE statement"))
        connection.execute(sqlalchemy.text("UPDATE meta SET value = 3 WHERE name = 'version'"))
    engine.dispose()
    provider = SyntheticProvider(tmp_path / "main", LedgerSettings(store=url))
    assert provider.publish() == 2
    assert check(provider, tmp_path / "main") == []
    provider.close()
