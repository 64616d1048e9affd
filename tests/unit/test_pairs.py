"""Rows in pairs: whatever the batch, llama.cpp gets none that it could cut so that a row is alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from verifiable.llama.batch import Batch
from verifiable.llama.pairs import Pairs, same_again

Rows = list[tuple[int, bool]]
"""For each row its sequence, and whether its logits are wanted."""


def batch_of(rows: Rows, start: int = 7) -> Batch:
    batch = Batch(max(len(rows), 1))
    ends: Counter[int] = Counter()
    for seq, wanted in rows:
        batch.add(seq, start + ends[seq], 1000 * seq + ends[seq], wanted)
        ends[seq] += 1
    return batch


def pieces(batch: Batch) -> Iterator[list[bool]]:
    """How llama.cpp cuts a batch with separate streams: sequences whose numbers follow each other, in the batch too,
    take the same number of rows in each piece, until one of them is used up. Yields which rows of a piece have logits.
    """
    left: dict[int, list[bool]] = {}
    for row in range(len(batch)):
        seq, _, _, wanted = batch.row(row)
        left.setdefault(seq, []).append(wanted)
    while left:
        group: list[int] = []
        for seq in left:
            if not group or seq == group[-1] + 1:
                group.append(seq)
        count = min(len(left[seq]) for seq in group)
        yield [wanted for seq in group for wanted in left[seq][:count]]
        left = {
            seq: rows[count:] if seq in group else rows
            for seq, rows in left.items()
            if seq not in group or len(rows) > count
        }


rows_of = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=60)


@given(rows_of)
def test_no_piece_has_a_lone_row_or_a_lone_output(rows: Rows) -> None:
    batch = batch_of(rows)
    paired, _ = Pairs(len(rows) + 7).of(batch, same_again)
    cut = list(pieces(paired))
    if paired is batch:  # left as it was
        assert len(cut) == 1
    for piece in cut:
        assert len(piece) != 1
        assert sum(piece) != 1
        assert paired is batch or len(piece) % 2 == sum(piece) % 2 == 0


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize(("answers", "rows"), [(2, 1), (5, 1), (1, 2), (1, 7), (3, 4)])
def test_what_is_one_piece_is_left_as_it_is(start: int, answers: int, rows: int) -> None:
    batch = batch_of([(seq, True) for seq in range(start, start + answers) for _ in range(rows)])
    paired, outputs = Pairs(64).of(batch, same_again)
    assert paired is batch
    assert outputs == {row: row for row in range(len(batch))}


@given(rows_of)
def test_every_row_is_there_and_finds_its_logits(rows: Rows) -> None:
    batch = batch_of(rows)
    paired, outputs = Pairs(len(rows) + 7).of(batch, same_again)
    given_rows = {batch.row(row)[:3] for row in range(len(batch))}
    found = [paired.row(row) for row in range(len(paired))]
    assert given_rows <= {row[:3] for row in found}
    in_order = [row[:3] for row in found if row[3]]
    for row in range(len(batch)):
        if batch.row(row)[3]:
            assert in_order[outputs[row]] == batch.row(row)[:3]
    assert set(outputs) == {row for row in range(len(batch)) if batch.row(row)[3]}
    # What was added lies behind its sequence's own rows, one row at most, and repeats the last token.
    for seq, position, token, _ in found:
        if (seq, position, token) not in given_rows:
            assert position == batch.spans[seq][1]
            assert (seq, position - 1, token) in given_rows


def test_the_filler_is_asked_what_to_put() -> None:
    paired, _ = Pairs(4).of(batch_of([(3, True)]), lambda seq, position, last: seq + position + last)
    assert [paired.row(row) for row in range(2)] == [(3, 7, 3000, True), (3, 8, 3011, True)]
