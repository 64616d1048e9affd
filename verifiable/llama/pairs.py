"""Rows in pairs, so that llama.cpp never computes a lone one.

On the CPU, the product of a float matrix (F32, F16, BF16: the routers of every mixture of experts, and whole models)
with one row runs in another kernel than with two or more, which agree among themselves whatever their number. So the
rows of each sequence are made even in number, where need be by a throw-away row that repeats the last token and is
forgotten at once, like a rejected draft. Logits come in pairs too: the last layer and the output matrix
only see the rows that have them.

llama.cpp cuts a batch (`llama_batch_allocr::split_equal`) so that each piece takes equally many rows of sequences whose
numbers follow each other, until the shortest is used up. When all their numbers are even, so are those of every piece,
as long as the whole batch fits one micro-batch (which `RuntimeSettings` sees to). A batch that is one piece needs
nothing: answers that stand side by side in a step keep each other company.
"""

from __future__ import annotations

from collections.abc import Callable

from verifiable.llama.batch import Batch

Filler = Callable[[int, int, int], int]
"""`filler(seq, position, last)`: the token of a throw-away row at `position` behind the token `last`."""


def same_again(_seq: int, _position: int, last: int) -> int:
    """The throw-away row of daily use: whatever was there once more, so that few other experts are woken."""
    return last


class Pairs:
    """Makes batches even, one after the other in the same memory. `capacity` counts rows, throw-away ones included."""

    def __init__(self, capacity: int) -> None:
        self._paired = Batch(capacity)

    def of(self, batch: Batch, filler: Filler) -> tuple[Batch, dict[int, int]]:
        """The batch to compute, valid until the next one, and the number of output of each row of *batch* that has
        one: the even batch, or *batch* itself where it is one piece.
        """
        if _one_piece(batch):
            return batch, batch._index
        paired = self._paired
        paired.clear()
        rows: dict[int, list[int]] = {}
        for row in range(len(batch)):
            rows.setdefault(batch.row(row)[0], []).append(row)
        outputs: dict[int, int] = {}
        for seq, own in rows.items():
            for first in range(0, len(own), 2):
                two = own[first : first + 2]
                wanted = any(batch.row(row)[3] for row in two)
                for row in two:
                    _, position, token, asked = batch.row(row)
                    place = paired.add(seq, position, token, wanted)
                    if asked:
                        outputs[row] = paired.output(place)
                if len(two) == 1:
                    paired.add(seq, position + 1, filler(seq, position + 1, token), wanted)
        return paired, outputs


def _one_piece(batch: Batch) -> bool:
    """Whether llama.cpp computes a batch in one piece, with more than one row, and not just one that has logits."""
    spans = batch.spans
    first = next(iter(spans), 0)
    counts = {end - start for start, end in spans.values()}
    neighbours = list(spans) == list(range(first, first + len(spans)))
    return neighbours and len(counts) == 1 and len(batch) > 1 and len(batch._index) != 1
