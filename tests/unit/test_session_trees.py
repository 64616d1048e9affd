"""Trees of sessions from tiles: the hashes of a tree that is built leaf by leaf."""

from __future__ import annotations

from typing import Any

import pytest

from engine.sessions.trees import SessionTrees
from engine.store import StoredLeaf
from verifiable.tlog.merkle import Tree, leaf_hash, prefix_path, range_hash

LEAVES = [leaf_hash(b"leaf %d" % at) for at in range(65_536 + 700)]


class Leaves:
    """A store with one session."""

    size = len(LEAVES)

    def head(self, session: bytes) -> tuple[int, bytes] | None:
        return self.size, b""

    def stored_leaves(self, session: bytes, size: int, first: int) -> list[StoredLeaf]:
        return [StoredLeaf(None, each) for each in LEAVES[first : min(size, self.size)]]


@pytest.mark.parametrize("sizes", [(300, 70_000 - 4000), (1, 2, 256, 257, 65_536, 65_537, 65_536 + 700)])
def test_a_session_that_grows_has_the_same_hashes(sizes: tuple[int, ...]) -> None:
    store: Any = Leaves()
    trees = SessionTrees(store)
    whole = Tree.from_leaves(LEAVES)
    for at, new in enumerate(sizes):
        store.size = new
        node = trees.of(b"session").node
        for old in sizes[:at]:
            path = prefix_path(lambda low, high: range_hash(node, low, high), old, new)  # noqa: B023
            assert path == prefix_path(whole.range, old, new)
