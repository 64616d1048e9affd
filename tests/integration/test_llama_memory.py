"""What a context holds: a sequence's logits depend on its own tokens and on nothing else, whatever happened before."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest

from tests.decoding import SETTINGS, TOKENS, feed, fill, same
from verifiable.errors import EngineError
from verifiable.llama.context import Batch, Context, RollbackError
from verifiable.llama.model import Model
from verifiable.llama.settings import RuntimeSettings


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


@pytest.fixture(scope="module")
def expected(model):
    """Logits of `TOKENS`, computed alone, all at once."""
    with Context(model, SETTINGS) as context:
        return feed(context, 0, TOKENS)


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


def test_a_window_that_is_gone_is_not_taken_for_there(gemma3):
    """With `swa_full=False` llama.cpp cuts back further than its window, says yes, and computes something else."""
    tokens = [1000 + n for n in range(900)]
    settings = RuntimeSettings(n_ctx=1024, n_seq_max=1, n_batch=64, n_ubatch=64, swa_full=False)
    with Model.load(gemma3) as model, Context(model, settings) as context:
        fill(context, tokens[:890])
        expected = feed(context, 0, tokens[890:892], 890)
        feed(context, 0, tokens[892:], 892)
        for position in (100, 600):
            with pytest.raises(RollbackError, match="a sliding window that starts at"):
                context.remove(0, position)
        assert context.length(0) == 900
        context.remove(0, 890)  # near enough: what its window needs is still there
        assert same(feed(context, 0, tokens[890:892], 890), expected)
        # The same call unchecked, to know that the check is needed:
        assert context._lib.llama_memory_seq_rm(context._memory, 0, 600, -1)
