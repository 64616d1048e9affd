"""The log as a machine under random commands, against the RFC's tree: restarts, crashes of a copy, old backups."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.ledger import Ledger
from engine.log.integrate import integrate
from engine.log.log import ProviderLog
from engine.store import DamagedLogError
from verifiable.manifest.manifest import TYPE
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.merkle import Tree, leaf_hash, verify_consistency, verify_inclusion
from verifiable.wire.cose import sign1
from verifiable.wire.keys import PrivateKey

SIGNER = PrivateKey.generate("log", bytes(32))


class LogMachine(RuleBasedStateMachine):
    """Entries are arbitrary bytes: what is in them is `check`'s business, which is tested elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="verifiable-log-"))
        self.ledger = Ledger(self.folder / "data", "log")
        self.entries: list[bytes] = []
        self.waiting: list[bytes] = []
        self.statements = 0
        self.published: dict[int, bytes] = {}
        self.number = 0
        self.backup: int | None = None

    @property
    def log(self) -> ProviderLog:
        found = self.ledger.log
        assert found is not None
        return found

    @initialize()
    def start(self) -> None:
        assert self.log.published.size == 0

    @rule(count=st.sampled_from([1, 2, 7, 60, 260]))
    def heads_arrive(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            entry = self.number.to_bytes(8, "big") * 3
            self.ledger.store.add_head(self.number.to_bytes(16, "big"), 1, entry)
            self.waiting.append(entry)
        self.ledger.store.flush()

    @rule(count=st.sampled_from([1, 2, 300]))
    def statements_arrive(self, count: int) -> None:
        """They go in before the heads that wait, the same bytes once."""
        made = [sign1(f"{self.number} {each}".encode(), SIGNER, TYPE) for each in range(count)]
        numbers = [self.ledger.store.add_statement("manifest", each) for each in made]
        assert [self.ledger.store.add_statement("manifest", each) for each in made] == numbers
        self.number += 1
        self.waiting[self.statements : self.statements] = made
        self.statements += count

    @rule(limit=st.sampled_from([1, 3, 100, 1000]))
    def integrate(self, limit: int) -> None:
        taken = integrate(self.ledger.store, lambda row, manifest_of: None, limit)
        assert taken == min(limit, len(self.waiting))
        self.entries += self.waiting[:taken]
        self.waiting = self.waiting[taken:]
        self.statements = max(self.statements - taken, 0)

    @rule()
    def publish(self) -> None:
        grew = len(self.entries) > self.log.published.size
        assert self.log.publish() == grew
        assert self.log.published.size == len(self.entries)
        self.published[len(self.entries)] = self.log.published.root

    @rule()
    def restart(self) -> None:
        self.ledger.close()
        self.ledger = Ledger(self.folder / "data", "log")

    @rule()
    def back_up(self) -> None:
        self.ledger.close()
        shutil.copy(self.folder / "data" / "provider.sqlite", self.folder / "backup")
        self.backup = len(self.entries)
        self.ledger = Ledger(self.folder / "data", "log")

    @precondition(lambda self: self.backup is not None and self.backup < self.log.published.size)
    @rule()
    def put_an_old_backup_back(self) -> None:
        self.ledger.close()
        store = self.folder / "data" / "provider.sqlite"
        shutil.move(store, self.folder / "newest")
        shutil.copy(self.folder / "backup", store)
        with pytest.raises(DamagedLogError, match="older than the checkpoint"):
            Ledger(self.folder / "data", "log")
        shutil.move(self.folder / "newest", store)
        self.ledger = Ledger(self.folder / "data", "log")

    @precondition(lambda self: self.log.published.size > 0)
    @rule(at=st.integers(0, 1 << 30))
    def prove(self, at: int) -> None:
        size = self.log.published.size
        index = at % size
        path = self.log.tree.inclusion_proof(index, size)
        verify_inclusion(leaf_hash(self.entries[index]), index, size, path, self.log.published.root)

    @invariant()
    def every_checkpoint_is_the_tree_of_its_entries(self) -> None:
        tree = Tree.from_leaves(map(leaf_hash, self.entries))
        head = open_checkpoint(self.log.published.note, self.ledger.keys.log.public).checkpoint
        assert head.root == tree.root(head.size)
        for size, root in self.published.items():
            assert root == tree.root(size)
            verify_consistency(size, head.size, self.log.tree.consistency_proof(size, head.size), root, head.root)

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.folder)


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=8, stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
