"""Contexts: what they take, what they refuse, and the logits that they give.

Whatever would end the process has to be an error here; the tests run in one process, so a miss ends them all.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fixtures.small_models import Shape, write_llama
from tests.decoding import SETTINGS, TOKENS, feed, rows, same
from verifiable.errors import EngineError, PolicyError
from verifiable.llama.context import Batch, Context, NoRoomError
from verifiable.llama.model import Model
from verifiable.llama.settings import INVARIANT, KV_TYPES, STOCK, RuntimeSettings, as_dict

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tiny_models):
    with Model.load(tiny_models["llama"]) as loaded:
        yield loaded


@pytest.fixture
def context(model):
    with Context(model, SETTINGS) as made:
        yield made


@pytest.fixture(scope="module")
def expected(model):
    """Logits of `TOKENS`, computed alone, all at once."""
    with Context(model, SETTINGS) as context:
        return feed(context, 0, TOKENS)


# Settings.


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_ctx": 0},
        {"n_ctx": -1},
        {"n_ctx": 2**31},
        {"n_ctx": 2**30, "n_seq_max": 4},
        {"n_ctx": True},
        {"n_ctx": 1.5},
        {"n_seq_max": 0},
        {"n_seq_max": 257},
        {"n_batch": 0},
        {"n_batch": 3},  # fewer than sequences: llama.cpp aborts
        {"n_ubatch": 0},
        {"n_threads": 0},
        {"n_threads": 513},
        {"n_gpu_layers": -2},
        {"type_k": "q8"},
        {"type_v": "BF16"},
        {"flash_attn": False, "type_v": "q8_0"},
        {"pairs": True, "n_ubatch": 256},  # llama.cpp would cut batches
        {"pairs": True, "swa_full": False},
    ],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(PolicyError):
        RuntimeSettings(**wrong)


def test_the_two_named_settings():
    assert as_dict(INVARIANT) == as_dict(RuntimeSettings())
    assert (INVARIANT.type_k, INVARIANT.type_v, INVARIANT.repack, INVARIANT.tiled) == ("bf16", "bf16", False, False)
    assert (STOCK.type_k, STOCK.type_v, STOCK.repack, STOCK.tiled) == ("f16", "f16", True, True)
    assert not INVARIANT.kv_unified


@pytest.mark.parametrize("kind", KV_TYPES)
def test_every_kv_type_is_run_or_refused_politely(model, kind):
    settings = RuntimeSettings(n_ctx=64, n_seq_max=1, type_k=kind, type_v=kind)
    with Context(model, settings) as context:
        assert np.isfinite(feed(context, 0, TOKENS[:8])).all()


def test_a_kv_type_that_does_not_fit_the_heads_is_refused(tiny_models, tmp_path):
    path = write_llama(tmp_path / "narrow.gguf", shape=Shape(width=96, heads=6))  # heads of 16; blocks are of 32
    with Model.load(path) as narrow:
        for settings in (RuntimeSettings(n_ctx=64, type_k="q8_0"), RuntimeSettings(n_ctx=64, type_v="q4_0")):
            with pytest.raises(EngineError, match="cannot make a context with these settings") as caught:
                Context(narrow, settings)
            assert "does not divide" in str(caught.value)


@pytest.mark.parametrize("n_seq_max", [1, 2, 4, 16, 256])
def test_any_number_of_sequences(model, n_seq_max, expected):
    settings = RuntimeSettings(n_ctx=32, n_seq_max=n_seq_max, n_batch=max(n_seq_max, 32))
    with Context(model, settings) as context:
        for seq in {0, n_seq_max - 1}:
            assert same(feed(context, seq, TOKENS[:32]), expected[:32])


# Rows.


@pytest.mark.parametrize("capacity", [0, -1, 2**31, 1.0, True])
def test_a_batch_has_a_size(capacity):
    with pytest.raises(EngineError, match="capacity"):
        Batch(capacity)


@pytest.mark.parametrize(
    ("seq", "pos", "token"),
    [
        (-1, 0, 1),
        (256, 0, 1),
        (2**32, 0, 1),
        (0, -1, 1),
        (0, 2**31 - 1, 1),
        (0, 2**32, 1),
        (0, 0, -1),
        (0, 0, 2**31),
        (0, 0, 2**32 + 1),
        (None, 0, 1),
        (0, "0", 1),
        (0, 0, 1.0),
    ],
)
def test_rows_out_of_range_are_refused_and_leave_no_trace(seq, pos, token):
    batch = Batch(4)
    with pytest.raises(EngineError, match="batch row"):
        batch.add(seq, pos, token, True)
    assert len(batch) == 0
    assert batch.spans == {}
    batch.add(0, 0, 1, True)
    assert batch.spans == {0: (0, 1)}


def test_a_full_batch_takes_no_more():
    batch = Batch(2)
    assert [batch.add(0, n, 1, False) for n in range(2)] == [0, 1]
    with pytest.raises(EngineError, match="the batch is full"):
        batch.add(0, 2, 1, False)
    batch.clear()
    assert len(batch) == 0
    assert batch.add(0, 0, 1, False) == 0


def test_rows_of_a_sequence_follow_each_other():
    batch = Batch(8)
    batch.add(0, 5, 1, False)
    batch.add(1, 0, 1, False)
    for wrong in (5, 7, 4):
        with pytest.raises(EngineError, match="expected position 6"):
            batch.add(0, wrong, 1, False)
    batch.add(0, 6, 1, False)
    assert batch.spans == {0: (5, 7), 1: (0, 1)}


def test_what_would_end_the_process_is_refused(context):
    n_vocab = context.model.n_vocab
    for batch, message in (
        (Batch(4), "batch size is out of range"),
        (rows(*((0, n, 1) for n in range(129))), "expected 1 to 128 rows"),
        (rows((0, 0, n_vocab)), f"no such token: expected 0 to {n_vocab - 1}"),
        (rows((0, 0, 2**31 - 1)), "no such token"),
        (rows((4, 0, 1)), "no such sequence"),
        (rows((255, 0, 1)), "no such sequence"),
        (rows((0, 1, 1)), "expected position 0, found position 1"),
    ):
        with pytest.raises(EngineError, match=message):
            context.decode(batch)
    assert context.length(0) == 0


def test_a_refused_batch_changes_nothing(context, expected):
    feed(context, 0, TOKENS[:10])
    logits = context.decode(rows((1, 0, TOKENS[0])))
    for batch in (rows((0, 9, 1)), rows((0, 11, 1)), rows((1, 1, TOKENS[1]), (0, 5, 1))):
        with pytest.raises(EngineError):
            context.decode(batch)
    assert same(logits[0][None], expected[:1])  # not even the logits of the last decode are gone
    assert [context.length(seq) for seq in range(4)] == [10, 1, 0, 0]
    assert same(feed(context, 0, TOKENS[10:20], 10), expected[10:20])


def test_a_sequence_holds_exactly_what_was_asked_for(model):
    with Context(model, RuntimeSettings(n_ctx=100, n_seq_max=2, n_batch=64)) as context:
        feed(context, 0, TOKENS[:100])
        with pytest.raises(NoRoomError, match="sequence 0 is full: expected at most 100 tokens, found 101"):
            context.decode(rows((0, 100, 1)))
        with pytest.raises(NoRoomError):
            context.decode(rows(*((1, n, 1) for n in range(63)), (0, 100, 1)))
        assert context.length(1) == 0
        feed(context, 1, TOKENS[:100])  # the other has its own room
        context.remove(0, 99)
        feed(context, 0, TOKENS[99:100], 99)


def test_all_sequences_can_be_full_at_once(model, expected):
    for unified in (False, True):
        settings = RuntimeSettings(n_ctx=200, n_seq_max=4, n_batch=128, kv_unified=unified)
        with Context(model, settings) as context:
            for seq in range(4):
                logits = feed(context, seq, TOKENS[:200])
                assert unified or same(logits, expected[:200])


def test_n_batch_is_never_more_than_what_llama_took(model):
    with Context(model, RuntimeSettings(n_ctx=16, n_seq_max=1, n_batch=512)) as context:
        assert context.n_batch <= 16  # clamped to the context; a larger batch would end the process
        feed(context, 0, TOKENS[:16])


# Logits.


def test_only_flagged_rows_have_logits(context, expected):
    batch = Batch(8)
    for number in range(6):
        batch.add(0, number, TOKENS[number], number in (1, 4))
    logits = context.decode(batch)
    assert len(logits) == 2
    assert same(np.array([logits[1], logits[4]]), expected[[1, 4]])
    for row in (0, 2, 5, 6, -1):
        with pytest.raises(EngineError, match="was added without logits"):
            logits[row]


def test_rows_may_come_in_any_order_of_sequences(context, expected):
    """llama.cpp reorders them inside; what comes back has the caller's numbers."""
    order = [(seq, pos) for pos in range(12) for seq in (3, 0, 2, 1)]
    batch = Batch(64)
    for seq, pos in order:
        batch.add(seq, pos, TOKENS[pos], (seq + pos) % 3 != 0)
    logits = context.decode(batch)
    for row, (seq, pos) in enumerate(order):
        if (seq + pos) % 3:
            assert same(logits[row][None], expected[pos : pos + 1])


PAIRS = replace(SETTINGS, pairs=True)


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (127, 128), (64, 1, 1, 1, 5)])
def test_rows_in_pairs_give_the_same_logits_and_leave_nothing_behind(model, expected, sizes):
    """Full to the last token, in three sequences at once, one of which is cut back and goes on."""
    with Context(model, PAIRS) as context:
        batch = Batch(context.n_batch)
        at = dict.fromkeys((0, 1, 3), 0)
        for step in range(10_000):
            batch.clear()
            wanted = []
            for seq, start in at.items():
                count = min(sizes[(step + seq) % len(sizes)], context.n_batch // 3, 256 - start)
                wanted += [(batch.add(seq, p, TOKENS[p], p % 3 == 0), p) for p in range(start, start + count)]
                at[seq] = start + count
            if not wanted:
                break
            logits = context.decode(batch)
            for row, position in wanted:
                if position % 3 == 0:
                    assert same(logits[row], expected[position])
                else:
                    with pytest.raises(EngineError, match="without logits"):
                        logits[row]
            if step == 1:
                at[1] = max(at[1] - 2, 0)
                context.remove(1, at[1])
            assert {seq: context.length(seq) for seq in at} == at
        assert at == dict.fromkeys((0, 1, 3), 256)


def test_rows_in_pairs_take_whole_batches(model, expected):
    with Context(model, replace(PAIRS, n_ctx=8, n_seq_max=1, n_batch=512)) as context:
        assert same(feed(context, 0, TOKENS[:8]), expected[:8])
        with pytest.raises(NoRoomError):
            context.decode(rows((0, 8, 5)))
    with Context(model, PAIRS) as context:
        full = [(seq, position, TOKENS[position]) for seq in range(4) for position in range(31 + (seq == 0))]
        logits = context.decode(rows(*full))  # odd numbers: as many throw-away rows as there can be
        assert all(same(logits[row], expected[position]) for row, (_, position, _) in enumerate(full))


def test_logits_cannot_be_written_and_end_with_the_next_decode(context):
    logits = context.decode(rows((0, 0, 1)))
    assert logits[0].shape == (context.model.n_vocab,)
    assert logits[0].dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        logits[0][0] = 0
    for change in (
        lambda: context.decode(rows((0, 1, 1))),
        lambda: context.remove(0, 0),
        lambda: context.copy(3, 1),
        context.clear,
        context.close,
    ):
        change()
        with pytest.raises(EngineError, match="these logits are gone"):
            logits[0]
        if change != context.close:
            logits = context.decode(rows((3, context.length(3), 1)))
            assert logits[0].shape == (context.model.n_vocab,)


def test_a_batch_without_logits(context, expected):
    batch = Batch(8)
    for number in range(8):
        batch.add(0, number, TOKENS[number], False)
    assert len(context.decode(batch)) == 0
    assert same(feed(context, 0, TOKENS[8:9], 8), expected[8:9])


def test_a_batch_can_be_used_again_and_changed_after_its_decode(context, expected):
    batch = rows((0, 0, TOKENS[0]))
    logits = context.decode(batch)
    batch.clear()
    batch.add(0, 1, TOKENS[1], False)
    assert same(logits[0][None], expected[:1])


RANDOM_USE = """
import random, resource, sys
from verifiable.errors import EngineError, PolicyError
from verifiable.llama.context import Batch, Context
from verifiable.llama.model import Model
from verifiable.llama.settings import KV_TYPES, RuntimeSettings
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
models = [Model.load(path) for path in sys.argv[1:]]
ran = 0
for seed in range(60):
    rng = random.Random(seed)
    pick = rng.choice
    sequences = pick([1, 2, 3, 16, 256])
    given = dict(
        n_ctx=pick([1, 2, 31, 100, 255, 257]), n_seq_max=sequences, n_batch=pick([1, 3, 16, 256, 512]),
        n_ubatch=pick([1, 2, 31, 512, 4096]), type_k=pick(list(KV_TYPES)), type_v=pick(list(KV_TYPES)),
        flash_attn=pick([True, True, False]), kv_unified=pick([True, False]), swa_full=pick([True, False]),
    )
    print(seed, given, flush=True)
    try:
        context = Context(pick(models), RuntimeSettings(**given))
    except (EngineError, PolicyError):
        continue
    ran += 1
    batch = Batch(pick([1, 8, 600]))
    for _ in range(20):
        seq, action = rng.randrange(sequences + 1), rng.random()
        try:
            if action < 0.1:
                context.remove(seq, rng.randrange(given["n_ctx"] + 2))
            elif action < 0.2:
                context.copy(seq, rng.randrange(sequences + 1))
            elif action < 0.22:
                context.clear()
            else:
                batch.clear()
                for other in rng.sample(range(sequences), min(sequences, pick([1, 2, 16]))):
                    start = context.length(other)
                    for position in range(start, start + pick([1, 1, 5, 40])):
                        batch.add(other, position, rng.randrange(context.model.n_vocab + (rng.random() < 0.01)), True)
                float(context.decode(batch)[0].sum())
        except (EngineError, PolicyError):
            pass
    context.close()
print("done", ran)
"""


def test_no_use_of_any_settings_ends_the_process(tiny_models):
    command = [sys.executable, "-c", RANDOM_USE, *map(str, tiny_models.values())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0, f"{last}: {done.stderr[-500:]}"
    assert int(last.removeprefix("done ")) > 20
