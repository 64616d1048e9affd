"""The log's commands, called as a person calls them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.synthetic import SyntheticProvider
from tests.needs import ROOT
from verifiable.cli import main
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.tiles import bundles_for, root_from_tiles, tiles_for
from verifiable.wire.keys import PublicKey
from verifier.monitor.monitor import Monitor


@pytest.fixture
def data(tmp_path: Path) -> Path:
    provider = SyntheticProvider(tmp_path / "provider")
    for _ in range(4):  # and the manifest
        provider.answer("q", 2)
    provider.publish()
    provider.close()
    return tmp_path / "provider"


def test_fsck_of_a_sound_and_of_a_damaged_store(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "fsck", "--data", str(data)]) == 0
    assert "CLEAN" in capsys.readouterr().out
    with sqlite3.connect(data / "provider.sqlite") as database:
        database.execute("UPDATE tile SET data = zeroblob(length(data))")
    database.close()
    assert main(["log", "fsck", "--data", str(data)]) == 1
    assert "DAMAGED  tile/0/000.p/5" in (out := capsys.readouterr().out) or "DAMAGED  tile/0/000" in out
    assert main(["log", "fsck", "--data", str(data), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["clean"] is False
    (data / "provider.sqlite").write_bytes(b"not a database, and not empty either" * 100)
    assert main(["log", "fsck", "--data", str(data)]) == 1
    assert "DAMAGED  the database" in capsys.readouterr().out


def test_fsck_where_there_is_nothing_or_somebody(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "fsck", "--data", str(tmp_path / "empty")]) == 1
    assert "there is no store" in capsys.readouterr().out
    provider = SyntheticProvider(data)
    assert main(["log", "fsck", "--data", str(data)]) == 4
    assert "in use" in capsys.readouterr().err
    provider.close()


def test_an_export_is_a_whole_log_that_a_monitor_can_follow(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "export"
    assert main(["log", "export", "--data", str(data), "--out", str(out)]) == 0
    assert "size 5, 2 new files" in capsys.readouterr().out
    key = PublicKey.parse((data / "keys" / "log.pub").read_text().strip())
    head = open_checkpoint((out / "checkpoint").read_bytes(), key).checkpoint
    assert root_from_tiles(5, lambda tile: (out / tile.path()).read_bytes()) == head.root
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {"checkpoint"} | {tile.path() for tile in [*tiles_for(5), *bundles_for(5)]}
    step = Monitor(lambda path, _: (out / path).read_bytes(), key, tmp_path / "state", entries=True).look()
    assert (step.new.size, step.entries) == (5, 5)
    assert main(["log", "export", "--data", str(data), "--out", str(out)]) == 0
    assert "size 5, 0 new files" in capsys.readouterr().out
    (out / "tile" / "0" / "000.p" / "5").write_bytes(b"something else")
    assert main(["log", "export", "--data", str(data), "--out", str(out)]) == 4
    assert "says something else" in capsys.readouterr().err


def test_auditor_keys_are_issued_listed_and_revoked(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["auditors", "add", "alice", "--data", str(data)]) == 0
    token = capsys.readouterr().out.strip()
    assert len(token) >= 43
    assert main(["auditors", "revoke", "alice", "--data", str(data)]) == 0
    assert main(["auditors", "revoke", "alice", "--data", str(data)]) == 2
    capsys.readouterr()
    assert main(["auditors", "list", "--data", str(data)]) == 0
    out = capsys.readouterr().out
    assert "alice" in out
    assert "revoked" in out
    assert token not in out
    assert main(["auditors", "add", "bob", "--data", str(data / "elsewhere")]) == 2


def test_a_group_of_commands_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "--help"]) == 0
    assert "log monitor" in capsys.readouterr().out
    assert main(["log"]) == 2
    assert main(["log", "nonsense"]) == 2
    assert "log fsck" in capsys.readouterr().err
    assert main(["log", "monitor", "ftp://x", "--trust", "x+y+z", "--state", "/nonexistent"]) == 2


def test_the_witness_command_cosigns(data: Path, tmp_path: Path) -> None:
    from engine.ledger import LedgerSettings

    key = data / "keys" / "log.pub"
    command = [
        sys.executable,
        "-m",
        "verifiable",
        "witness",
        "--data",
        str(tmp_path / "w"),
        "--log",
        str(key),
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        line = process.stdout.readline().strip() if process.stdout else ""
        provider = SyntheticProvider(data, LedgerSettings(witnesses=(line,), quorum=1))
        provider.answer("q", 1)
        assert provider.publish() == 6
        assert provider.ledger.log is not None
        assert len(provider.ledger.log.published.signed.note.signatures) == 2
        provider.close()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
