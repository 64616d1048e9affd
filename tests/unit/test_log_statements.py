"""What a log holds besides heads: taken in once, in order, durable, and read back as what it is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from engine.log.integrate import integrate
from engine.store import DamagedLogError, HeadRow, StatementRow
from engine.store.sqlite import open_store
from fixtures.synthetic import SyntheticProvider
from verifiable import limits
from verifiable.errors import PolicyError, StoreError
from verifiable.manifest.manifest import TYPE
from verifiable.tlog.entry import HEAD, MANIFEST, OTHER, VERDICT, kind_of
from verifiable.tlog.merkle import leaf_hash
from verifiable.wire.cose import sign1
from verifiable.wire.keys import PrivateKey

KEY = PrivateKey.generate("someone", bytes(32))


def kinds(provider: SyntheticProvider) -> list[str]:
    return [kind_of(entry) for entry in provider.store.entries(0, provider.publish())]


def test_a_manifest_is_logged_once_and_before_what_is_signed_under_it(tmp_path: Path) -> None:
    for count in (1, 2):  # the second one is a start again, under the same manifest
        provider = SyntheticProvider(tmp_path)
        provider.answer()
        assert kinds(provider) == [MANIFEST] + [HEAD] * count
        provider.close()


def test_a_manifest_that_a_crash_kept_from_the_log_comes_in_at_the_next_start(tmp_path: Path) -> None:
    SyntheticProvider(tmp_path).close()
    with sqlite3.connect(tmp_path / "provider.sqlite") as database:
        database.execute("DELETE FROM statement")
    database.close()
    provider = SyntheticProvider(tmp_path)
    assert kinds(provider) == [MANIFEST]
    provider.close()


def test_each_renewal_is_logged(tmp_path: Path) -> None:
    now = [1_000_000_000_000]
    provider = SyntheticProvider(tmp_path, clock=lambda: now[0])
    for _ in range(3):
        provider.answer()
        now[0] += 300 * 86_400_000
    entries = kinds(provider)
    assert entries.count(MANIFEST) == 3
    assert entries.count(HEAD) == 3
    provider.close()


def test_statements_are_taken_in_once_and_looked_up(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    made = [sign1(bytes([each]), KEY, TYPE) for each in range(5)]
    numbers = [store.add_statement(MANIFEST, each) for each in made]
    assert [store.add_statement(MANIFEST, each) for each in reversed(made)] == numbers[::-1]
    assert store.log_size() == 0
    assert integrate(store, lambda row, manifest_of: None, 3) == 3
    assert integrate(store, lambda row, manifest_of: None) == 2
    assert (store.log_size(), store.entries(0, 10)) == (5, made)
    row = StatementRow(MANIFEST, b"", leaf_hash(made[3]), made[3], 3)
    assert store.entry(3) == store.statement(leaf_hash(made[3])) == row
    assert store.statement(bytes(32)) is None
    assert [each.index for each in store.statements(MANIFEST, b"", 1, 4, 10)] == [1, 2, 3]
    assert [each.index for each in store.statements(MANIFEST, b"", 1, 4, 2)] == [1, 2]
    assert store.statements(MANIFEST, b"x", 0, 5, 10) == store.statements(VERDICT, b"", 0, 5, 10) == []
    assert store.add_statement(MANIFEST, made[0]) == numbers[0]  # also after it is in the log
    assert store.log_size() == 5
    store.close()


def test_what_is_no_entry_is_refused_before_it_is_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(PolicyError, match=r"too long for the log.*65,535"):
        store.add_statement(MANIFEST, bytes(limits.ENTRY_BYTES + 1))
    store.add_statement(VERDICT, sign1(b"", KEY, TYPE))
    with pytest.raises(DamagedLogError, match="a statement is damaged"):
        integrate(store, lambda row, manifest_of: None)
    assert store.log_size() == 0
    store.close()


def test_a_store_of_the_version_before_is_brought_up_in_place(tmp_path: Path) -> None:
    provider = SyntheticProvider(tmp_path)
    receipt = provider.answer()
    provider.close()
    with sqlite3.connect(tmp_path / "provider.sqlite") as database:
        database.execute("DROP TABLE statement")
        database.execute("UPDATE meta SET value = 3 WHERE name = 'version'")
    database.close()
    provider = SyntheticProvider(tmp_path)
    assert kinds(provider) == [MANIFEST, HEAD]
    assert isinstance(provider.store.entry(1), HeadRow)
    provider.close()
    with sqlite3.connect(tmp_path / "provider.sqlite") as database:
        database.execute("UPDATE meta SET value = 2 WHERE name = 'version'")
    database.close()
    with pytest.raises(StoreError, match=r"store's version.*expected 4.*found 2"):
        SyntheticProvider(tmp_path)
    assert receipt


@pytest.mark.parametrize("entry", [b"", b"\xa0", sign1(b"", KEY, "text/plain"), sign1(b"", KEY, TYPE + "x")])
def test_an_entry_that_nobody_knows_is_of_no_kind(entry: bytes) -> None:
    assert kind_of(entry) == OTHER
