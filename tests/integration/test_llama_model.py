"""Models: loading, vocabulary, pieces, and the order in which things are freed."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gguf_files import Entry, read
from verifiable.errors import EngineError, MalformedError, PolicyError
from verifiable.llama.context import Batch, Context
from verifiable.llama.gguf.types import ARRAY, BOOL, F32
from verifiable.llama.model import Model
from verifiable.llama.settings import RuntimeSettings

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = RuntimeSettings(n_ctx=256, n_seq_max=2)


@pytest.fixture(scope="module")
def model(smollm2):
    with Model.load(smollm2) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def gemma(gemma3):
    with Model.load(gemma3) as loaded:
        yield loaded


def test_what_a_model_is(model, gemma):
    assert (model.n_vocab, model.n_ctx_train, model.n_swa) == (49_152, 8192, 0)
    assert (gemma.n_vocab, gemma.n_ctx_train, gemma.n_swa) == (262_144, 32_768, 512)
    assert "Q4_1" in model.description
    for each in (model, gemma):
        assert not each.is_recurrent
        assert not each.is_hybrid
        assert not each.has_encoder
        assert each.has_rope
    assert model.chat_template is not None
    assert "<|im_start|>" in model.chat_template
    assert gemma.chat_template is None


def test_a_recurrent_model_says_so(tiny_models):
    with Model.load(tiny_models["mamba"]) as mamba:
        assert mamba.is_recurrent
        assert not mamba.has_rope


def test_control_tokens(model, gemma):
    assert model.control_tokens["<|im_end|>"] == 2
    assert model.eog >= {0, 2}
    assert gemma.control_tokens["<end_of_turn>"] == 106
    assert gemma.eog >= {1, 106}
    assert (gemma.bos, gemma.adds_bos) == (2, True)
    assert (model.bos, model.adds_bos) == (1, False)
    for each in (model, gemma):
        assert each.eog <= set(each.control_attributes)
        assert set(each.control_tokens.values()) <= set(each.control_attributes)
        with pytest.raises(TypeError):
            each.control_tokens["x"] = 1


def test_pieces_spell_the_text(model, gemma):
    text = "Hello, wörld! 12345 😀👩‍👩‍👧‍👦\n\n\tdef f(x):\n    return x"
    for each in (model, gemma):
        ids = each.tokenize(text, add_special=False, parse_special=False)
        assert b"".join(each.piece(token) for token in ids).decode() == text
    ids = model.tokenize("👩‍👩‍👧‍👦", add_special=False, parse_special=False)
    assert any(not _is_text(model.piece(token)) for token in ids)  # some characters take several tokens


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_control_tokens_have_no_piece(model, gemma):
    for each in (model, gemma):
        for token in each.control_attributes:
            assert each.piece(token) == b""


def test_several_threads_may_ask_for_pieces(tiny_models):
    for _ in range(20):
        with Model.load(tiny_models["llama"]) as model, Model.load(tiny_models["llama"]) as fresh:
            expected = [model.piece(token) for token in range(model.n_vocab)]
            with ThreadPoolExecutor(8) as pool:
                found = list(pool.map(lambda _, f=fresh: [f.piece(t) for t in range(f.n_vocab)], range(8)))
            assert all(each == expected for each in found)


@pytest.mark.parametrize("token", [-1, 49_152, 2**31, 2**63, 2.5, None, "a"])
def test_no_piece_of_what_is_no_token(model, token):
    """Asking llama.cpp for one would end the process."""
    with pytest.raises(PolicyError, match="no such token"):
        model.piece(token)


def test_special_tokens_are_added_only_when_asked_for(gemma):
    plain = gemma.tokenize("hi", add_special=False, parse_special=False)
    assert gemma.tokenize("hi", add_special=True, parse_special=False) == [2, *plain]
    assert gemma.tokenize("", add_special=True, parse_special=False) == [2]
    assert gemma.tokenize("", add_special=False, parse_special=False) == []


def test_control_tokens_are_read_only_when_asked_for(model, gemma):
    for each, text, token in ((model, "<|im_end|>", 2), (gemma, "<end_of_turn>", 106)):
        assert each.tokenize(f"a{text}b", add_special=False, parse_special=True).count(token) == 1
        ids = each.tokenize(f"a{text}b", add_special=False, parse_special=False)
        assert not set(ids) & set(each.control_attributes)
        assert b"".join(map(each.piece, ids)).decode() == f"a{text}b"


def test_no_plain_text_becomes_a_control_token(model, gemma):
    """Not even by way of the merges: some vocabularies assemble "</s>" from its letters."""
    for each in (model, gemma):
        for text in each.control_tokens:
            for around in (text, f"a{text}", f" {text} ", f"\n{text}{text}"):
                ids = each.tokenize(around, add_special=False, parse_special=False)
                assert not set(ids) & set(each.control_attributes), around


def assembling(source: Path, folder: Path, prefix: bool) -> Path:
    """A vocabulary of the kind "llama" whose merges lead to a control token: "<" "/" "s" ">" → "</s>"."""
    file = read(source)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["<", "/", "s", ">", "</", "</s", "▁", "a", "b"]
    tokens += [f"filler{number}" for number in range(384 - len(tokens))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (384 - 259)
    dropped = ("tokenizer.ggml.merges", "tokenizer.ggml.pre", "tokenizer.chat_template")
    file.entries = [entry for entry in file.entries if entry.key not in dropped]
    file.entry("tokenizer.ggml.model").value = "llama"
    file.entry("tokenizer.ggml.tokens").value = tokens
    file.entry("tokenizer.ggml.token_type").value = kinds
    file.entry("tokenizer.ggml.bos_token_id").value = 1
    file.entry("tokenizer.ggml.eos_token_id").value = 2
    file.entry("tokenizer.ggml.padding_token_id").value = 0
    file.entry("tokenizer.ggml.add_bos_token").value = 1
    file.entries.append(Entry("tokenizer.ggml.scores", ARRAY, [-float(number) for number in range(384)], F32))
    file.entries.append(Entry("tokenizer.ggml.add_space_prefix", BOOL, int(prefix)))
    path = folder / "assembling.gguf"
    path.write_bytes(file.build())
    return path


@pytest.mark.parametrize("prefix", [False, True])
def test_a_vocabulary_that_assembles_control_tokens_is_cut(tiny_models, tmp_path, prefix):
    with Model.load(assembling(tiny_models["llama"], tmp_path, prefix)) as model:
        assert 2 in model.control_attributes
        # llama.cpp itself makes the control token of plain text:
        assert 2 in model._tokenize("a</s>b", False, False)
        for text in ("a</s>b", "</s>", "</s></s>", "</</s>s>"):
            ids = model.tokenize(text, add_special=False, parse_special=False)
            assert not set(ids) & set(model.control_attributes)
            spelt = b"".join(map(model.piece, ids)).decode()
            assert spelt.replace("▁", " ").replace(" ", "") == text
            assert model.tokenize(text, add_special=True, parse_special=False) == [1, *ids]
        assert model.tokenize("ab", add_special=True, parse_special=False) == model._tokenize("ab", True, False)


def test_text_that_is_no_unicode_or_too_long_is_refused(model):
    with pytest.raises(PolicyError, match="not valid Unicode"):
        model.tokenize("\ud800", False, False)
    with pytest.raises(PolicyError, match="too long"):
        model.tokenize("a" * (64 * 1024 * 1024 + 1), False, False)


def test_nul_characters_are_text(model):
    ids = model.tokenize("a\0b", False, False)
    assert b"".join(map(model.piece, ids)) == b"a\0b"


def test_a_damaged_file_is_refused_before_llama_sees_it(smollm2, tmp_path):
    path = tmp_path / "cut.gguf"
    with open(smollm2, "rb") as source:
        path.write_bytes(source.read(3_000_000))
    with pytest.raises(MalformedError, match=r"tensor '.*' ends at byte [\d,]+, the file has 3,000,000"):
        Model.load(path)


def test_a_model_that_llama_refuses_is_refused_with_its_reason(tiny_models, tmp_path):
    file = read(tiny_models["llama"])
    file.tensors = [tensor for tensor in file.tensors if tensor.name != "blk.1.ffn_up.weight"]
    path = tmp_path / "x.gguf"
    path.write_bytes(file.build())
    with pytest.raises(EngineError, match=r"llama\.cpp refuses .*tensor 'blk\.1\.ffn_up\.weight' not found"):
        Model.load(path)


def test_progress_is_reported_and_its_errors_are_ignored(smollm2):
    seen = []

    def report(done, total):
        seen.append((done, total))
        raise RuntimeError

    Model.load(smollm2, progress=report).close()
    assert seen[-1] == (1000, 1000)
    assert seen == sorted(seen)


def decode_one(context: Context, token: int = 5) -> bytes:
    context.clear()
    batch = Batch(1)
    batch.add(0, 0, token, True)
    return context.decode(batch)[0].tobytes()


def test_two_models_at_once_do_not_disturb_each_other(tiny_models):
    with Model.load(tiny_models["llama"]) as one, Model.load(tiny_models["llama"]) as other:
        with Context(one, SETTINGS) as a, Context(other, SETTINGS) as b, Context(one, SETTINGS) as c:
            expected = decode_one(a)
            assert decode_one(b) == expected
            assert decode_one(c) == expected
        other.close()
        with Context(one, SETTINGS) as again:
            assert decode_one(again) == expected


def test_loading_again_after_closing(tiny_models):
    results = set()
    for _ in range(3):
        with Model.load(tiny_models["llama"]) as model, Context(model, SETTINGS) as context:
            results.add(decode_one(context))
    assert len(results) == 1


def test_closing_a_model_closes_its_contexts(tiny_models):
    model = Model.load(tiny_models["llama"])
    contexts = [Context(model, SETTINGS) for _ in range(3)]
    contexts[0].close()
    model.close()
    model.close()
    for context in contexts:
        with pytest.raises(EngineError, match="the context is closed"):
            decode_one(context)
        context.close()
    for use in (lambda: model.tokenize("a", False, False), lambda: Context(model, SETTINGS), lambda: model.pointer):
        with pytest.raises(EngineError, match="the model is closed"):
            use()


COLLECTED = """
import gc, sys
from verifiable.llama.context import Batch, Context
from verifiable.llama.model import Model
from verifiable.llama.settings import RuntimeSettings
class Knot:
    pass
for order in (0, 1):
    model = Model.load(sys.argv[1])
    context = Context(model, RuntimeSettings(n_ctx=256))
    knot = Knot()
    # One garbage cycle with both in it: Python finalises them in whatever order it likes.
    knot.parts = [model, context, knot] if order else [context, model, knot]
    model.knot = knot
    del model, context, knot
    gc.collect()
left = Model.load(sys.argv[1])
also = Context(left, RuntimeSettings(n_ctx=256))  # left for the end of the process
print("done")
"""


def test_garbage_is_freed_in_the_right_order(tiny_models):
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED, str(tiny_models["llama"])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


def test_a_dropped_model_is_freed(tiny_models, tmp_path):
    path = Path(shutil.copy(tiny_models["llama"], tmp_path))  # mapped by this test alone
    model = Model.load(path)
    Context(model, SETTINGS)
    mapped = Path("/proc/self/maps")
    assert str(path) in mapped.read_text()
    del model
    gc.collect()
    assert str(path) not in mapped.read_text()


def test_settings_have_to_fit_the_model(tiny_models):
    with Model.load(tiny_models["llama"]) as model:
        for wrong in (RuntimeSettings(repack=True), RuntimeSettings(n_gpu_layers=1)):
            with pytest.raises(PolicyError, match="loaded with other settings"):
                Context(model, wrong)
        with pytest.raises(PolicyError, match="another setting of the tiled product"):
            Context(model, RuntimeSettings(tiled=True))
