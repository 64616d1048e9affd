"""Trees of sessions for whoever asks for hashes alone: read by tiles, and kept, so that asking again is cheap."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from engine.log.tree import LogTree
from engine.store import Store
from verifiable.tlog.tiles import HEIGHT, WIDTH

_SESSIONS, _KEPT = 32, 64
"""Sessions whose trees are kept, and the tiles of each: 32 MiB in all. The 17 tiles above the lowest row of the longest
session are among them."""


@dataclass(slots=True)
class _Tiles:
    """A session's tiles, as those of a log: the lowest from its leaves, the others from those below. See `Tiles`."""

    store: Store
    session: bytes
    tree: LogTree = field(init=False)

    def tile(self, level: int, index: int) -> bytes | None:
        if level == 0:
            first = index * WIDTH
            return b"".join(leaf.hash for leaf in self.store.stored_leaves(self.session, first + WIDTH, first))
        newest = self.store.head(self.session)
        below = (0 if newest is None else newest[0]) >> HEIGHT * level
        nodes = range(index * WIDTH, min(below, (index + 1) * WIDTH))
        return b"".join(self.tree.rows(level - 1, at, WIDTH)[HEIGHT] for at in nodes)  # the root of a whole tile


class SessionTrees:
    """The trees of the sessions that were asked for last. Leaves never change, so what was read once stays right."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._trees: OrderedDict[bytes, LogTree] = OrderedDict()

    def of(self, session: bytes) -> LogTree:
        with self._lock:
            tree = self._trees.pop(session, None)
            if tree is None:
                tiles = _Tiles(self._store, session)
                tree = tiles.tree = LogTree(tiles, _KEPT)
            self._trees[session] = tree
            while len(self._trees) > _SESSIONS:
                self._trees.popitem(last=False)
            return tree
