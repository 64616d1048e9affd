"""A hashed n-gram map that lasts as long as a session: what followed these tokens, in this turn or an earlier one.

Maps are kept by namespace (a session's, or a principal's), least recently used out first, and never shared between
two of them: a draft that hits tells how often a text occurred, and that is nobody else's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from engine.drafting import Sample

MAX_MAPS = 64
MAX_ENTRIES = 1 << 16


class Maps:
    """The maps of all namespaces. Used by the scheduler's thread alone."""

    def __init__(self) -> None:
        self._maps: OrderedDict[str, dict[int, int]] = OrderedDict()

    def of(self, namespace: str | None) -> dict[int, int]:
        """The map of a namespace; for None, a new one that nobody else sees."""
        if namespace is None:
            return {}
        table = self._maps.setdefault(namespace, {})
        self._maps.move_to_end(namespace)
        while len(self._maps) > MAX_MAPS:
            self._maps.popitem(last=False)
        return table


class MapDrafter:
    """Follows the map from the last `size` tokens, token after token, as long as it knows one."""

    name = "session-ngram-map"
    free = True

    def __init__(self, maps: Maps, size: int = 3) -> None:
        self._maps = maps
        self._size = size
        self._map: dict[int, int] = {}
        self._last: list[int] = []

    def begin(self, ids: Sequence[int], namespace: str | None, sample: Sample) -> None:
        self._map = self._maps.of(namespace)
        self._last = []
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        size, table = self._size, self._map
        for token in ids:
            if len(self._last) == size:
                if len(table) >= MAX_ENTRIES:
                    table.pop(next(iter(table)))
                table[hash(tuple(self._last))] = token
                del self._last[0]
            self._last.append(token)

    def draft(self, limit: int) -> list[int]:
        window, drafted = list(self._last), list[int]()
        while len(drafted) < limit and len(window) == self._size:
            token = self._map.get(hash(tuple(window)))
            if token is None:
                break
            drafted.append(token)
            window = [*window[1:], token]
        return drafted

    def close(self) -> None:
        """Nothing is held outside Python."""
