"""Damage at rest: a changed byte is named, or changes nothing; an old backup and a second server are refused."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from engine.sessions.retention import drop_expired
from engine.store import DamagedLogError
from fixtures.synthetic import SyntheticProvider
from tests.fault.crash import check_disk
from verifiable.errors import StoreError, VerifiableError

FLIPS = 2000 if os.environ.get("VERIFIABLE_FULL") == "1" else 40
SIGNED = {
    "manifest": "digest, signed",
    "head": "idx, signed",
    "statement": "idx, signed",
    "tile": "level, idx, data",
}
CONTENT = {
    **SIGNED,
    "head": "session, size, signed, idx",
    "statement": "kind, about, hash, signed, idx",
    "session": "session, secret, capability, manifest_digest, opened, erased, dropped",
    "request": "session, turn, canonical",
    "leaf": "session, seq, data, hash",
    "packed": "session, turn, tokens",
    "checkpoint": "size, note",
}


def make(data: Path, count: int) -> Path:
    """A folder with a closed provider: a log of `count` entries, a manifest first, under two checkpoints; sessions
    whole, trimmed to their tokens, and one erased.
    """
    provider = SyntheticProvider(data)
    for half in (1, 2):
        turns = [provider.begin("question", 3) for _ in range(count // 2 - (half == 1))]
        for turn in turns:
            turn.run()
        turns[-1].wait()
        provider.publish()
        if half == 1:
            drop_expired(provider.store, 1000, 2**60, 1)
            erased = provider.store.session(bytes.fromhex(turns[3].session))
            assert erased is not None
            provider.store.erase(erased, 2)
    provider.close()
    report = check_disk(data)
    assert report.findings == []
    assert report.counts["log entries"] == count
    return data


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sound"), 300)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("small"), 20)


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "provider"))


def contents(data: Path, columns_of: dict[str, str] = CONTENT) -> dict[str, list[object]] | None:
    """Every value that means something, table by table; None where the file can't be read."""
    try:
        database = sqlite3.connect(data / "provider.sqlite")
        try:
            return {
                table: database.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2").fetchall()
                for table, columns in columns_of.items()
            }
        finally:
            database.close()
    except sqlite3.Error:
        return None


def named(data: Path) -> bool:
    try:
        return not check_disk(data).clean
    except StoreError:
        return True  # the file does not even open, and the error says so


def refuses(data: Path) -> bool:
    """Whether the log signs nothing more over this folder."""
    try:
        provider = SyntheticProvider(data)
    except VerifiableError:
        return True
    try:
        before = provider.ledger.log.published.size if provider.ledger.log else -1
        provider.answer("more", 2)
        return provider.publish() == before
    except VerifiableError:
        return True
    finally:
        provider.close()


def flip(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))


@pytest.mark.timeout(7200 if FLIPS > 100 else 300)
def test_a_flipped_byte_of_the_database_is_named_or_changes_nothing(small: Path, tmp_path: Path) -> None:
    choose = random.Random(4)
    size = (small / "provider.sqlite").stat().st_size
    before = contents(small)
    assert before is not None
    named_count = 0
    for number in range(FLIPS):
        data = Path(shutil.copytree(small, tmp_path / str(number)))
        at, bit = choose.randrange(size), choose.randrange(8)
        flip(data / "provider.sqlite", at, bit)
        after = contents(data)
        if named(data):
            named_count += 1
        else:
            assert after == before, f"byte {at}, bit {bit}: the content changed and fsck did not say so"
        if contents(data, SIGNED) != contents(small, SIGNED):
            assert refuses(data), f"byte {at}, bit {bit}: the log signed over damage"
        shutil.rmtree(data)
    assert named_count > FLIPS // 6  # most of so small a file is empty


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("UPDATE head SET signed = zeroblob(length(signed)) WHERE idx = 100", "tile/0/000"),
        ("UPDATE tile SET data = substr(data, 1, length(data) - 32) WHERE level = 0 AND idx = 1", "tile/0/001"),
        ("UPDATE tile SET data = zeroblob(8192) WHERE level = 0 AND idx = 0", "tile/0/000"),
        ("DELETE FROM tile WHERE level = 1", "tile/1/000"),
        ("INSERT INTO tile VALUES (3, 9, zeroblob(32))", "tile 3/9"),
        ("DELETE FROM head WHERE idx = 17", "log entry 17"),
        ("UPDATE head SET idx = 300 WHERE idx = 40", "log entry 40"),
        ("DELETE FROM leaf WHERE seq = 1 AND session = (SELECT session FROM head WHERE idx = 299)", "leaf 1"),
        ("UPDATE leaf SET data = NULL, hash = zeroblob(32) WHERE seq = 2 AND data IS NOT NULL", "leaf 2"),
        ("UPDATE session SET capability = zeroblob(32) WHERE number = 200", "row is damaged"),
        ("DELETE FROM session WHERE number = 200", "its row is gone"),
        ("DELETE FROM request WHERE session = (SELECT session FROM head WHERE idx = 280)", "the request of turn 0"),
        ("UPDATE request SET canonical = X'7b7d' WHERE turn = 0", "the request of turn 0"),
        ("UPDATE packed SET tokens = zeroblob(9)", "the packed tokens of turn 0"),
        ("UPDATE checkpoint SET note = (SELECT note FROM checkpoint WHERE size = 150)", "checkpoint of size 300"),
        ("DELETE FROM checkpoint WHERE size = 300", "does not remember"),
        ("DELETE FROM manifest", "manifest is missing"),
        ("DELETE FROM manifest", "it is none of the manifests in the store"),
        ("DELETE FROM statement", "log entry 0"),
        ("UPDATE statement SET kind = 'verdict'", "the verdict with leaf hash"),
        ("UPDATE statement SET about = zeroblob(32)", "the manifest with leaf hash"),
        ("UPDATE statement SET hash = zeroblob(32)", "the manifest with leaf hash"),
        ("UPDATE statement SET signed = zeroblob(length(signed))", "tile/0/000"),
    ],
)
def test_fsck_says_what_is_damaged(folder: Path, statement: str, name: str) -> None:
    with sqlite3.connect(folder / "provider.sqlite") as database:
        database.execute(statement)
    database.close()
    findings = check_disk(folder).findings
    assert any(name in f"{found.where}: {found.what}" for found in findings), findings


def test_a_flipped_byte_of_the_checkpoint_is_named_and_nothing_is_signed(small: Path, tmp_path: Path) -> None:
    for at in range((small / "checkpoint" / "checkpoint").stat().st_size):
        if at % 7 and FLIPS < 100:
            continue
        data = Path(shutil.copytree(small, tmp_path / str(at)))
        flip(data / "checkpoint" / "checkpoint", at, at % 8)
        assert any("checkpoint" in found.where for found in check_disk(data).findings)
        assert refuses(data)


def test_a_lost_checkpoint_is_not_made_again(folder: Path) -> None:
    (folder / "checkpoint" / "checkpoint").unlink()
    assert any("missing" in found.what for found in check_disk(folder).findings)
    with pytest.raises(DamagedLogError, match="missing"):
        SyntheticProvider(folder)


def test_an_old_backup_of_the_store_is_refused(folder: Path, tmp_path: Path) -> None:
    backup = Path(shutil.copytree(folder, tmp_path / "backup"))
    provider = SyntheticProvider(folder)
    provider.answer("after the backup", 2)
    assert provider.publish() == 301
    provider.close()
    shutil.copy(backup / "provider.sqlite", folder / "provider.sqlite")
    with pytest.raises(DamagedLogError, match=r"older than the checkpoint.*expected 301.*found 300.*backup"):
        SyntheticProvider(folder)
    assert any("301 entries, the store has 300" in found.what for found in check_disk(folder).findings)


def test_an_old_checkpoint_over_a_newer_store_goes_on_without_a_second_root(folder: Path, tmp_path: Path) -> None:
    old = (folder / "checkpoint" / "checkpoint").read_bytes()
    provider = SyntheticProvider(folder)
    provider.answer("later", 2)
    provider.publish()
    assert provider.ledger.log is not None
    newest = provider.ledger.log.published.note
    provider.close()
    (folder / "checkpoint" / "checkpoint").write_bytes(old)
    provider = SyntheticProvider(folder)
    provider.publish()
    assert provider.ledger.log is not None
    assert provider.ledger.log.published.note == newest
    provider.close()


def test_the_checkpoint_of_another_store_is_refused(folder: Path, tmp_path: Path) -> None:
    other = SyntheticProvider(tmp_path / "other")
    other.answer("x", 2)
    other.publish()
    other.close()
    shutil.copy(tmp_path / "other" / "checkpoint" / "checkpoint", folder / "checkpoint" / "checkpoint")
    with pytest.raises(DamagedLogError, match="damaged, or another log's"):
        SyntheticProvider(folder)


def test_keys_that_are_gone_are_not_made_again_beside_a_store(folder: Path) -> None:
    shutil.rmtree(folder / "keys")
    with pytest.raises(StoreError, match="are gone"):
        SyntheticProvider(folder)


def test_damage_that_happens_while_the_log_runs_stops_the_signing(folder: Path) -> None:
    provider = SyntheticProvider(folder)
    with sqlite3.connect(folder / "provider.sqlite") as database:
        database.execute("UPDATE tile SET data = zeroblob(length(data)) WHERE level = 0 AND idx = 1")
    database.close()
    provider.answer("more", 2)
    with pytest.raises(DamagedLogError, match="root that was published"):
        provider.publish()
    provider.close()


def test_a_second_server_on_one_store_is_refused(folder: Path) -> None:
    code = "import sys, pathlib, fixtures.synthetic as s; s.SyntheticProvider(pathlib.Path(sys.argv[1]))"
    first = SyntheticProvider(folder)
    try:
        second = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=60)
        assert second.returncode == 1
        assert "in use by another provider" in second.stderr
        first.answer("still here", 2)
    finally:
        first.close()
