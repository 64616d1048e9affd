"""The numerics probe: says "invariant" where it is true, and never where it is not."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.small_models import Shape, write_moe
from tests.gguf_files import read
from verifiable.commands.probe import EXIT_NOT_INVARIANT, probe as command
from verifiable.errors import EngineError, PolicyError
from verifiable.llama import library, trace
from verifiable.llama.context import Batch, Context
from verifiable.llama.gguf.identity import identify
from verifiable.llama.model import Model
from verifiable.llama.probe import cache as probe_cache, plan as probe_plan
from verifiable.llama.probe.probe import ProbeResult, probe, probe_and_pair
from verifiable.llama.probe.result import ScheduleResult
from verifiable.llama.settings import INVARIANT, RuntimeSettings

ROOT = Path(__file__).resolve().parents[2]


def run_command(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """`verifiable probe` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "verifiable", "probe", *arguments],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=500,
    )


STOCK = """
import sys
from verifiable.llama.probe.cache import save
from verifiable.llama.probe.probe import probe
from verifiable.llama.settings import RuntimeSettings
model, folder = sys.argv[1:]
save(folder, {}, probe(model, RuntimeSettings(type_k="f16", type_v="f16", repack=True, tiled=True)))
"""


def stock(model: Path, folder: Path) -> ProbeResult:
    """What the probe finds with llama.cpp's own defaults: KV f16, weights repacked, the tiled product on.

    In a process of its own, since a process has the tiled product or not.
    """
    command = [sys.executable, "-c", STOCK, str(model), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found = probe_cache.load(folder, {})
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_invariant_settings_are_invariant(request, model):
    seen: list[tuple[int, int]] = []
    result = probe(request.getfixturevalue(model), INVARIANT, lambda done, total: seen.append((done, total)))
    assert result.invariant, result.schedules
    for schedule in result.schedules:
        assert schedule.equal
        assert schedule.compared > 20
        assert (schedule.first_difference, schedule.worst, schedule.operation) == (None, 0.0, None)
    assert sum(schedule.traced for schedule in result.schedules) > 100_000
    assert result.build == library.build_info()
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_stock_settings_are_not(request, model, tmp_path):
    found = stock(request.getfixturevalue(model), tmp_path)
    assert not found.invariant
    assert any(schedule.first_difference is not None for schedule in found.schedules)
    assert max(schedule.worst for schedule in found.schedules) > 0.5
    operations = {schedule.operation for schedule in found.schedules}
    assert "FLASH_ATTN_EXT" in operations  # the tiled attention kernel, from 64 rows
    if model == "gemma3":
        assert any(operation and "MUL_MAT" in operation for operation in operations)  # the tiled product, from 8 rows


def test_each_single_setting_is_seen(tiny_models):
    """One cause at a time, on a model that takes a tenth of a second."""
    path = tiny_models["llama"]
    good = probe(path, INVARIANT)
    assert good.invariant
    for change, operation in (
        ({"type_k": "f16", "type_v": "f16"}, "FLASH_ATTN_EXT"),
        ({"type_k": "f32", "type_v": "f32"}, "FLASH_ATTN_EXT"),
        ({"kv_unified": True}, "FLASH_ATTN_EXT"),
    ):
        result = probe(path, replace(INVARIANT, **change))
        assert not result.invariant
        assert any(operation in (schedule.operation or "") for schedule in result.schedules), result.schedules
    for kind in ("q8_0", "q4_0"):
        assert probe(path, replace(INVARIANT, type_k=kind, type_v=kind)).invariant
    assert probe(path, replace(INVARIANT, type_k="f16", type_v="bf16")).invariant


def test_recurrent_models_are_probed_too(tiny_models):
    result = probe(tiny_models["mamba"], INVARIANT)
    assert result.invariant
    assert all(schedule.compared for schedule in result.schedules)


@pytest.mark.parametrize("seed", range(3))
def test_routers_in_float32_are_seen_even_where_no_logit_differs(tmp_path, seed):
    """With a build that has GGML_LLAMAFILE on, a lone row's router is computed by another kernel. The difference is
    often rounded away before the logits: what is compared within finds it in every model."""
    if "LLAMAFILE = 1" not in library.build_info().system:
        pytest.skip("this build has no second kernel for float32")
    path = write_moe(tmp_path / "moe.gguf", seed=seed, shape=Shape(feed_forward=32))
    result = probe(path, INVARIANT)
    assert not result.invariant
    operations = {schedule.operation for schedule in result.schedules if not schedule.equal}
    assert operations == {"ffn_moe_logits-0, MUL_MAT"}


def test_logits_alone_would_miss_some(tmp_path):
    if "LLAMAFILE = 1" not in library.build_info().system:
        pytest.skip("this build has no second kernel for float32")
    results = []
    for seed in range(6):
        path = write_moe(tmp_path / f"{seed}.gguf", seed=seed, shape=Shape(feed_forward=32))
        results.append(probe(path, INVARIANT))
    assert any(all(each.first_difference is None for each in result.schedules) for result in results)
    assert not any(result.invariant for result in results)


def test_half_precision_weights_are_seen(tiny_models, tmp_path):
    if "LLAMAFILE = 1" not in library.build_info().system:
        pytest.skip("this build has no second kernel for float16")
    path = halves(tiny_models["llama"], tmp_path / "f16.gguf")
    result = probe(path, INVARIANT)
    assert not result.invariant
    assert any("MUL_MAT" in (schedule.operation or "") for schedule in result.schedules)


def halves(source, path):
    """A copy of a tiny model with float16 weights."""
    file = read(source)
    rng = np.random.default_rng(1)
    for tensor in file.tensors:
        if tensor.kind == 8:  # Q8_0
            count = math.prod(tensor.dims)
            tensor.kind, tensor.data = 1, (rng.standard_normal(count) * 0.1).astype(np.float16).tobytes()
    path.write_bytes(file.build())
    return path


def float_models(tiny_models, folder):
    """Models for whose float products llama.cpp has another kernel where a row is alone."""
    for seed in range(3):
        yield write_moe(folder / f"moe{seed}.gguf", seed=seed, shape=Shape(feed_forward=32))
    yield write_moe(folder / "wide.gguf", shape=Shape(4, 256, 4, 2, 256, experts=8))
    yield halves(tiny_models["llama"], folder / "f16.gguf")


def test_rows_in_pairs_make_float_weights_invariant(tiny_models, tmp_path):
    for path in float_models(tiny_models, tmp_path):
        settings, result = probe_and_pair(path, INVARIANT)
        assert result.invariant
        assert settings == replace(INVARIANT, pairs="LLAMAFILE = 1" in library.build_info().system)
        assert all(schedule.traced for schedule in result.schedules if "chunk" not in schedule.name)


def test_pairs_are_taken_only_where_they_help(tiny_models, tmp_path):
    assert probe_and_pair(tiny_models["llama"], INVARIANT)[0] == INVARIANT  # not needed
    stock = replace(INVARIANT, type_k="f16", type_v="f16")
    assert probe_and_pair(tiny_models["llama"], stock)[0] == stock  # no help against another attention kernel
    cut = replace(INVARIANT, n_batch=512, n_ubatch=64)
    settings, result = probe_and_pair(write_moe(tmp_path / "moe.gguf", shape=Shape(feed_forward=32)), cut)
    if "LLAMAFILE = 1" in library.build_info().system:
        assert settings == cut  # llama.cpp would cut pairs in two
        assert not result.invariant
    with pytest.raises(PolicyError, match="cut back"), Model.load(tiny_models["mamba"]) as model:
        Context(model, replace(INVARIANT, pairs=True))


def test_a_window_that_is_kept_in_part_is_not_claimed(gemma3, monkeypatch):
    """Its ring buffer wraps behind the probe's end, and then sums in another order."""
    monkeypatch.setattr(probe_plan, "LENGTH", 64)
    monkeypatch.setattr(probe_plan, "HEAD", 40)
    result = probe(gemma3, replace(INVARIANT, swa_full=False))
    assert not result.invariant
    assert "not measured" in result.schedules[-1].name
    assert all(schedule.equal for schedule in result.schedules[:-1])


def test_the_fingerprint_is_that_of_the_reference_logits(tiny_models):
    with Model.load(tiny_models["llama"]) as model:
        result = probe(tiny_models["llama"], INVARIANT, model=model)
        tokens = probe_plan.probe_tokens(model)
        positions = probe_plan.probe_positions(len(tokens))
        digest = hashlib.sha256()
        with Context(model, RuntimeSettings(n_ctx=600, n_seq_max=1, n_batch=512)) as context:
            for start in (0, 512):
                batch = Batch(512)
                for position in range(start, min(start + 512, 600)):
                    batch.add(0, position, tokens[position], position in positions)
                logits = context.decode(batch)
                for position in sorted(positions):
                    if start <= position < start + 512:
                        digest.update(struct.pack(f"<{model.n_vocab}f", *logits[position - start]))
        assert result.fingerprint == digest.digest()


def test_the_fingerprint_depends_on_what_computes_and_on_nothing_else(tiny_models):
    path = tiny_models["llama"]
    expected = probe(path, INVARIANT).fingerprint
    nothing: tuple[dict[str, Any], ...] = (
        {"n_ctx": 128},
        {"n_seq_max": 9},
        {"n_threads": 2},
        {"n_batch": 64},
        {"n_ubatch": 64},
    )
    for change in nothing:
        result = probe(path, replace(INVARIANT, **change))
        assert result.invariant
        assert result.fingerprint == expected
    something: tuple[dict[str, Any], ...] = ({"type_k": "q8_0"}, {"flash_attn": False})
    for change in something:
        assert probe(path, replace(INVARIANT, **change)).fingerprint != expected
    assert probe(tiny_models["moe"], INVARIANT).fingerprint != expected


def test_other_weights_have_another_fingerprint(tiny_models, tmp_path):
    file = read(tiny_models["llama"])
    norm = file.tensor("output_norm.weight")
    norm.data = (np.frombuffer(norm.data, np.float32) * np.float32(1.001)).tobytes()
    path = tmp_path / "x.gguf"
    path.write_bytes(file.build())
    result = probe(path, INVARIANT)
    assert result.invariant
    assert result.fingerprint != probe(tiny_models["llama"], INVARIANT).fingerprint


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_refused(tiny_models, tmp_path, value):
    """Such a file loads, and every logit is NaN: all schedules would agree."""
    file = read(tiny_models["llama"])
    file.tensor("output_norm.weight").data = np.full(64, value, np.float32).tobytes()
    path = tmp_path / "nan.gguf"
    path.write_bytes(file.build())
    with pytest.raises(EngineError, match="the model's logits are not all numbers"):
        probe(path, INVARIANT)


def test_a_probe_that_sees_too_little_claims_nothing(tiny_models, monkeypatch):
    """A release of llama.cpp in which results cannot be looked at must not pass for one in which they agree."""
    for unseen in (b"MUL_MAT", b"ADD", b"MUL", b"ROPE", b"FLASH_ATTN_EXT", b"SWIGLU", b"GET_ROWS"):
        monkeypatch.setattr(trace, "LAYOUT", trace.LAYOUT | {unseen})
    result = probe(tiny_models["llama"], INVARIANT)
    assert not result.invariant
    assert all(schedule.first_difference is None for schedule in result.schedules)


def test_an_error_while_looking_is_an_error_of_the_probe(tiny_models, monkeypatch):
    def fail(*_):
        raise ValueError("broken")

    monkeypatch.setattr(trace.Trace, "_take", fail)
    with pytest.raises(EngineError, match=r"intermediate results: found broken"):
        probe(tiny_models["llama"], INVARIANT)


# The plan.


def test_the_tokens_are_ordinary_ones_of_the_vocabulary(tiny_models, smollm2):
    for path in (tiny_models["llama"], smollm2):
        with Model.load(path) as model:
            tokens = probe_plan.probe_tokens(model)
            assert len(tokens) == 600
            assert all(0 <= token < model.n_vocab for token in tokens)
            assert not set(tokens) & set(model.control_attributes)
            assert len(set(tokens)) > 200
            assert tokens == probe_plan.probe_tokens(model)


def test_the_first_tokens_are_pinned(smollm2):
    """They are part of what a fingerprint means."""
    with Model.load(smollm2) as model:
        stream = hashlib.shake_256(b"verifiable numerics probe 1\0\0\0\0").digest(16)
        drawn = [number % 49_152 for number in struct.unpack("<4I", stream)]
        assert probe_plan.probe_tokens(model)[:4] == drawn


def test_a_start_token_comes_first_where_it_is_wanted(gemma3):
    with Model.load(gemma3) as model:
        assert probe_plan.probe_tokens(model)[0] == 2


@pytest.mark.parametrize("n_threads", [1, 2, 16])
@pytest.mark.parametrize("length", [600, 300, 24])
def test_every_schedule_is_possible(length, n_threads):
    """Positions follow each other in every sequence, and all that is looked up has been learnt before."""
    ends = dict.fromkeys(range(probe_plan.SEQUENCES), 0)
    learnt: set[int] = set()
    positions = probe_plan.probe_positions(length)
    for schedule in probe_plan.schedules(length, n_threads):
        assert schedule.rows > 0
        compared = 0
        for step in schedule.steps:
            for sequence, start, end in step.runs:
                assert start == ends[sequence]
                assert start < end <= length
                ends[sequence] = end
                span = set(range(start, end))
                compared += len(span & positions)
                assert not step.check or span <= learnt
                assert not step.learn or len(step.runs) == 1
                learnt |= set(range(start, start + step.learn))
        assert compared > 0
        if schedule.copies:
            ends[probe_plan.CHUNKED] = 0
            ends = {sequence: 0 if sequence == probe_plan.FRESH else ends[probe_plan.MAIN] for sequence in ends}


def test_the_kernel_borders_are_crossed():
    schedules = {schedule.name: schedule for schedule in probe_plan.schedules(600, 1)}
    sizes = {step.rows for schedule in schedules.values() for step in schedule.steps}
    assert {1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33, 64, 128, 512} <= sizes
    singles = [s.runs[0][1] for s in schedules["single rows, then fours and eights"].steps if s.rows == 1]
    assert any(position < 512 for position in singles)
    assert any(position >= 512 for position in singles)
    mixed = schedules["mixed batches of four sequences"].steps
    assert any(len(step.runs) == 4 for step in mixed)
    assert any(len({end - start for _, start, end in step.runs}) > 1 for step in mixed)
    assert [schedule.n_threads for schedule in schedules.values()][-1] == 2
    assert probe_plan.schedules(600, 8)[-1].n_threads == 1


# The cache.


@pytest.fixture(scope="module")
def measured(tiny_models) -> ProbeResult:
    return probe(tiny_models["llama"], INVARIANT)


def test_a_result_is_kept_and_found_again(tiny_models, tmp_path):
    path = tiny_models["llama"]
    first = probe(path, INVARIANT, cache=tmp_path / "new" / "folder")
    calls: list[int] = []
    again = probe(path, INVARIANT, lambda *_: calls.append(1), cache=tmp_path / "new" / "folder")
    assert again == first
    assert calls == []
    assert again == probe(path, replace(INVARIANT, n_ctx=64, n_seq_max=2), cache=tmp_path / "new" / "folder")
    (file,) = (tmp_path / "new" / "folder").iterdir()
    assert file.name.startswith("probe-")


def test_what_decides_the_result_is_in_the_key(tiny_models):
    identity = identify(tiny_models["llama"])
    base = probe_cache.key(identity, INVARIANT, probe_plan.SEED)
    assert base == probe_cache.key(identity, replace(INVARIANT, n_ctx=1, n_seq_max=1), probe_plan.SEED)
    others = [
        probe_cache.key(identify(tiny_models["moe"]), INVARIANT, probe_plan.SEED),
        probe_cache.key(identity, INVARIANT, b"another probe"),
    ]
    for change in (
        {"type_k": "q8_0"},
        {"type_v": "q8_0"},
        {"repack": True},
        {"tiled": True},
        {"kv_unified": True},
        {"flash_attn": False},
        {"swa_full": False},
        {"n_ubatch": 64},
        {"n_batch": 64},
        {"n_threads": 2},
        {"n_gpu_layers": 1},
    ):
        others.append(probe_cache.key(identity, replace(INVARIANT, **change), probe_plan.SEED))
    for n, one in enumerate([base, *others]):
        assert all(one != other for other in [base, *others][:n])
    assert {"build", "machine"} <= set(base)
    info = library.build_info()
    assert [[each.name, each.sha256.hex()] for each in info.libraries] in base["build"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"[" * 100_000,
        lambda data: b"\xff" + data,
        lambda data: b"null",
        lambda data: data.replace(b'"invariant": true', b'"invariant": 1'),
        lambda data: data.replace(b'"invariant": true', b'"invariant": false'),
        lambda data: data.replace(b'"fingerprint": "', b'"fingerprint": "00'),
        lambda data: data.replace(b'"schedules": [', b'"schedules": [], "x": ['),
        lambda data: data.replace(b'"seconds"', b'"second"'),
        lambda data: data.replace(b'"probe"', b'"prob"'),
        lambda data: data + b" " * (1 << 22),
    ],
)
def test_a_damaged_entry_is_measured_again_and_replaced(tiny_models, tmp_path, damage):
    path = tiny_models["llama"]
    first = probe(path, INVARIANT, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    sound = file.read_bytes()
    file.write_bytes(damage(sound))
    calls: list[int] = []
    again = probe(path, INVARIANT, lambda *_: calls.append(1), cache=tmp_path)
    assert calls
    assert replace(again, seconds=0) == replace(first, seconds=0)
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    assert probe_cache.load(tmp_path, json.loads(file.read_bytes())["key"]) == again


def test_an_entry_of_another_key_is_not_taken(tiny_models, tmp_path, measured):
    identity = identify(tiny_models["llama"])
    one = probe_cache.key(identity, INVARIANT, probe_plan.SEED)
    other = probe_cache.key(identity, replace(INVARIANT, type_k="q8_0"), probe_plan.SEED)
    probe_cache.save(tmp_path, one, measured)
    assert probe_cache.load(tmp_path, one) == measured
    (file,) = tmp_path.iterdir()
    file.rename(probe_cache.path_of(tmp_path, other))
    assert probe_cache.load(tmp_path, other) is None


def test_a_folder_that_cannot_be_written_is_no_error(tiny_models, tmp_path, measured):
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    result = probe(tiny_models["llama"], INVARIANT, cache=blocked / "below")
    assert replace(result, seconds=0) == replace(measured, seconds=0)


def test_what_has_no_number_in_json_is_kept_too(tmp_path, measured):
    broken = (
        ScheduleResult("x", False, 3, math.inf, 5, 7, "MUL_MAT"),
        ScheduleResult("not measured", False, None, 0.0),
    )
    result = replace(measured, invariant=False, schedules=broken)
    probe_cache.save(tmp_path, {"a": 1}, result)
    assert probe_cache.load(tmp_path, {"a": 1}) == result


# The command.


def test_the_command_on_a_sound_model(tiny_models, tmp_path):
    path = str(tiny_models["llama"])
    done = run_command("--model", path, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "INVARIANT: batching, threads and neighbours change no bit" in done.stdout
    found = run_command("--model", path, "--json", cache=tmp_path)
    facts = json.loads(found.stdout)
    assert found.stderr == ""
    assert facts["invariant"] is True
    assert facts["fingerprint"] in done.stdout
    assert facts["files"][0]["sha256"] == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert (tmp_path / "verifiable").is_dir()
    again = run_command("--model", path, "--fresh", "--json", cache=tmp_path / "other")
    assert json.loads(again.stdout)["fingerprint"] == facts["fingerprint"]
    assert not (tmp_path / "other").exists()


def test_the_command_names_the_first_operation_in_which_two_machines_differ(tiny_models, tmp_path):
    """The other machine is played by a probe with another type of cache, which then says that it had this one."""
    path, other = str(tiny_models["llama"]), tmp_path / "other.json"
    facts = json.loads(run_command("--model", path, "--json", cache=tmp_path).stdout)
    assert len(facts["pieces"]["operations"]) > 60
    assert {name.split(":")[0] for name, _ in facts["pieces"]["operations"]} == {"200 rows", "1 rows", "8 rows"}
    other.write_text(json.dumps(facts))
    same = run_command("--model", path, "--compare", str(other), cache=tmp_path)
    assert same.returncode == 0, same.stderr
    assert "SAME BITS at" in same.stdout
    away = json.loads(run_command("--model", path, "--kv-type", "q8_0", "--json", cache=tmp_path).stdout)
    away["settings"] = facts["settings"]
    away["build"]["compiler"] = "another compiler\x1b[2J"
    other.write_text(json.dumps(away))
    differs = run_command("--model", path, "--compare", str(other), cache=tmp_path)
    assert differs.returncode == 3
    assert "First        200 rows: FLASH_ATTN_EXT (number 7" in differs.stdout
    assert "compiler: another compiler[2J; here GCC" in differs.stdout
    told = json.loads(run_command("--model", path, "--compare", str(other), "--json", cache=tmp_path).stdout)
    assert told["comparison"]["operation"] == "200 rows: FLASH_ATTN_EXT"
    assert told["comparison"]["same"] is False
    other.write_text(json.dumps({**facts, "settings": {}}))
    wrong = run_command("--model", path, "--compare", str(other), cache=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "of other settings" in wrong.stderr


def test_the_command_where_it_is_not_invariant(tiny_models, tmp_path):
    done = run_command("--model", str(tiny_models["llama"]), "--kv-type", "f16", cache=tmp_path)
    assert done.returncode == EXIT_NOT_INVARIANT == 3
    assert "NOT INVARIANT" in done.stdout
    assert "FLASH_ATTN_EXT" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--model", "/nonexistent.gguf"], 4, "cannot read /nonexistent.gguf"),
        (["--model", "/dev/null"], 4, "is not a file"),
        (["--model", "pyproject.toml"], 2, "is not a usable GGUF file: wrong magic number"),
        (["--model", "pyproject.toml", "--kv-type", "q9"], 2, "--kv-type"),
        (["--model", "pyproject.toml", "--threads", "0"], 2, "--threads"),
        ([], 2, "--model"),
    ],
)
def test_the_command_on_what_is_wrong(tmp_path, arguments, status, message):
    done = run_command(*arguments, cache=tmp_path)
    assert done.returncode == status
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_where_results_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert probe_cache.default_folder() == tmp_path / "verifiable"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert probe_cache.default_folder() == tmp_path / "home" / ".cache" / "verifiable"


def test_an_unknown_kv_type_is_refused_before_anything_is_read():
    with pytest.raises(PolicyError, match="--kv-type"):
        command(model=Path("/nonexistent"), kv_type="f8")
