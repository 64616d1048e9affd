"""Contexts: what they refuse, and that a sequence's logits depend on its own tokens and on nothing else.

Whatever would end the process has to be an error here; the tests run in one process, so a miss ends them all.
"""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest

from verifiable.errors import EngineError, PolicyError
from verifiable.llama.context import Batch, Context, NoRoomError, RollbackError
from verifiable.llama.model import Model
from verifiable.llama.settings import INVARIANT, KV_TYPES, STOCK, RuntimeSettings, as_dict

SETTINGS = RuntimeSettings(n_ctx=256, n_seq_max=4, n_batch=128)
TOKENS = [3 + (7 * n) % 300 for n in range(256)]


@pytest.fixture(scope="module")
def model(tiny_models):
    with Model.load(tiny_models["llama"]) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def mamba(tiny_models):
    with Model.load(tiny_models["mamba"]) as loaded:
        yield loaded


@pytest.fixture
def context(model):
    with Context(model, SETTINGS) as made:
        yield made


def feed(context: Context, seq: int, tokens, start: int = 0) -> np.ndarray:
    """Decode *tokens* at *start* in one sequence; copies of all their logits, shape (len(tokens), n_vocab)."""
    batch = Batch(context.n_batch)
    found = []
    for at in range(0, len(tokens), context.n_batch):
        batch.clear()
        for number, token in enumerate(tokens[at : at + context.n_batch]):
            batch.add(seq, start + at + number, token, True)
        logits = context.decode(batch)
        found += [logits[row].copy() for row in range(len(batch))]
    return np.array(found)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


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
    from fixtures.small_models import Shape, write_llama

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


def rows(*added: tuple[int, int, int], capacity: int = 200) -> Batch:
    batch = Batch(capacity)
    for seq, pos, token in added:
        batch.add(seq, pos, token, True)
    return batch


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


# Memory.


def test_a_tail_can_be_taken_back(context, expected):
    feed(context, 0, TOKENS[:50])
    feed(context, 0, [5, 6, 7], 50)
    context.remove(0, 50)
    assert context.length(0) == 50
    assert same(feed(context, 0, TOKENS[50:80], 50), expected[50:80])
    context.remove(0, 20, 80)
    assert same(feed(context, 0, TOKENS[20:60], 20), expected[20:60])
    context.remove(0, 0)
    assert context.length(0) == 0
    assert same(feed(context, 0, TOKENS), expected)


def test_removing_what_is_not_there_is_nothing(context):
    feed(context, 0, TOKENS[:5])
    context.remove(0, 5)
    context.remove(0, 100)
    context.remove(1, 0)
    assert context.length(0) == 5


@pytest.mark.parametrize(("p0", "p1"), [(-1, -1), (2, 3), (0, 4), (2, -2), (0, 0)])
def test_holes_are_refused(context, p0, p1):
    feed(context, 0, TOKENS[:5])
    with pytest.raises(EngineError, match="only the tail"):
        context.remove(0, p0, p1)
    assert context.length(0) == 5


@pytest.mark.parametrize("seq", [-1, 4, 256, 2**31])
def test_sequences_that_are_not_there_are_refused(context, seq):
    for use in (
        lambda: context.remove(seq, 0),
        lambda: context.copy(seq, 0),
        lambda: context.copy(0, seq),
        lambda: context.length(seq),
    ):
        with pytest.raises(EngineError, match="no such sequence"):
            use()


@pytest.mark.parametrize("unified", [False, True])
def test_a_copy_goes_its_own_way(model, expected, unified):
    with Context(model, RuntimeSettings(n_ctx=256, n_seq_max=3, n_batch=128, kv_unified=unified)) as context:
        feed(context, 1, [9] * 70)  # what the copy will replace
        feed(context, 0, TOKENS[:60])
        context.copy(0, 1)
        context.copy(1, 2)
        feed(context, 0, [8, 8, 8], 60)
        context.remove(2, 30)
        assert [context.length(seq) for seq in range(3)] == [63, 60, 30]
        if not unified:  # there, neighbours change the logits
            assert same(feed(context, 1, TOKENS[60:90], 60), expected[60:90])
            assert same(feed(context, 2, TOKENS[30:90], 30), expected[30:90])
            context.copy(1, 0)
            assert same(feed(context, 0, TOKENS[90:100], 90), expected[90:100])
        context.copy(0, 0)
        context.remove(1, 0)
        context.copy(1, 0)  # of nothing: the target is empty
        assert context.length(0) == 0


def test_recurrent_memory_refuses_what_it_cannot(mamba):
    with Context(mamba, SETTINGS) as context:
        alone = feed(context, 0, TOKENS[:40])
        with pytest.raises(RollbackError, match="cannot be cut back to position 20"):
            context.remove(0, 20)
        assert context.length(0) == 40
        context.copy(0, 1)
        feed(context, 0, [4, 4], 40)
        more = feed(context, 1, TOKENS[40:60], 40)
        context.remove(0, 0)
        assert same(feed(context, 0, TOKENS[:60]), np.concatenate([alone, more]))


def test_recurrent_sequences_side_by_side(mamba):
    with Context(mamba, SETTINGS) as context:
        alone = feed(context, 0, TOKENS[:64])
        context.clear()
        scramble(context, alone, random.Random(5), 64)


def scramble(context: Context, expected: np.ndarray, rng: random.Random, length: int) -> None:
    """Random batches over all sequences, each going through the same tokens at its own pace."""
    places = [0] * context.settings.n_seq_max
    batch = Batch(context.n_batch)
    while min(places) < length:
        batch.clear()
        wanted = []
        for seq in rng.sample(range(len(places)), rng.randint(1, len(places))):
            count = min(rng.choice([1, 1, 1, 2, 4, 5, 8, 30]), length - places[seq], batch.capacity - len(batch))
            for position in range(places[seq], places[seq] + count):
                flag = rng.random() < 0.5
                row = batch.add(seq, position, TOKENS[position], flag)
                if flag:
                    wanted.append((row, position))
            places[seq] += count
        if len(batch):
            logits = context.decode(batch)
            for row, position in wanted:
                assert same(logits[row][None], expected[position : position + 1])


@pytest.mark.parametrize("seed", range(4))
def test_no_sequence_disturbs_another(context, expected, seed):
    scramble(context, expected, random.Random(seed), 200)


@pytest.mark.parametrize("seed", range(4))
def test_any_history_leads_to_the_same_logits(context, expected, seed):
    """Rollbacks, copies, emptying and refills at random, as in a long-running server: every logit is still the same."""
    rng = random.Random(100 + seed)
    for _ in range(120):
        seq = rng.randrange(4)
        length = context.length(seq)
        choice = rng.random()
        if choice < 0.15:
            context.remove(seq, rng.randint(0, length))
        elif choice < 0.25:
            context.copy(seq, rng.randrange(4))
        elif choice < 0.28:
            context.clear()
        elif choice < 0.4 and length < 250:
            feed(context, seq, [rng.randrange(384) for _ in range(5)], length)
            context.remove(seq, length)
        else:
            count = min(rng.choice([1, 1, 3, 8, 40]), 256 - length)
            if count:
                assert same(
                    feed(context, seq, TOKENS[length : length + count], length), expected[length : length + count]
                )


def test_another_number_of_threads_changes_nothing(context, expected):
    feed(context, 0, TOKENS[:100])
    context.set_threads(2)
    assert same(feed(context, 0, TOKENS[100:110], 100), expected[100:110])
    for wrong in (0, -1, 513):
        with pytest.raises(EngineError, match="number of threads"):
            context.set_threads(wrong)


def test_other_python_threads_run_while_it_computes(smollm2):
    with Model.load(smollm2) as model, Context(model, RuntimeSettings(n_ctx=512, n_seq_max=1)) as context:
        ticks = 0
        stop = threading.Event()

        def tick():
            nonlocal ticks
            while not stop.is_set():
                ticks += 1
                time.sleep(0.001)

        thread = threading.Thread(target=tick)
        thread.start()
        feed(context, 0, [100] * 256)
        stop.set()
        thread.join()
        assert ticks > 20


# Sliding windows.


def fill(context: Context, tokens) -> None:
    """Decode *tokens* in sequence 0 without asking for logits."""
    batch = Batch(context.n_batch)
    for start in range(0, len(tokens), context.n_batch):
        batch.clear()
        for position in range(start, min(start + context.n_batch, len(tokens))):
            batch.add(0, position, tokens[position], False)
        context.decode(batch)


def test_a_window_that_is_gone_is_not_taken_for_there(gemma3):
    """With `swa_full=False` llama.cpp cuts back further than its window, says yes, and computes something else."""
    tokens = [1000 + n for n in range(900)]
    settings = RuntimeSettings(n_ctx=1024, n_seq_max=1, n_batch=64, n_ubatch=64, swa_full=False)
    with Model.load(gemma3) as model:
        with Context(model, settings) as context:
            fill(context, tokens[:890])
            expected = feed(context, 0, tokens[890:892], 890)
        with Context(model, settings) as context:
            fill(context, tokens)
            for position in (100, 600):
                with pytest.raises(RollbackError, match="a sliding window that starts at"):
                    context.remove(0, position)
            assert context.length(0) == 900
            context.remove(0, 890)  # near enough: what its window needs is still there
            assert same(feed(context, 0, tokens[890:892], 890), expected)
            # The same call unchecked, to know that the check is needed:
            assert context._lib.llama_memory_seq_rm(context._memory, 0, 600, -1)
