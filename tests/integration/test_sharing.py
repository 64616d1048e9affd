"""What turns share is computed once: that changes no bit and hides nothing, on real models, with one process or two."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_model import SETTINGS, HonestProvider, manifest_of, provider
from tests.sessions import TRUST, Recording, ask
from tests.simulator import KEY, Provider, seed, serve
from verifiable.checking.verdict import Status, Verdict
from verifiable.llama.chat.prompt import prompt_ids
from verifiable.llama.context import Batch, Context
from verifiable.llama.library import load_library
from verifiable.llama.model import Model
from verifiable.llama.settings import RuntimeSettings
from verifiable.sampling.logits import Entries
from verifiable.wire.ids import common_prefix
from verifier.auditing.scope import audited
from verifier.campaign.campaign import audit_provider
from verifier.campaign.crew import Member
from verifier.campaign.fetched import Auditor
from verifier.model.scoring import start
from verifier.model.worker import Worker
from verifier.provider.client import Client

SYSTEM = "You are the keeper of a lighthouse. You answer in plain words, and you never speak of the weather. " * 4
QUESTIONS = ("Who are you?", "What do you eat?", "Are you alone?", "What is your lamp like?")


class Bending(HonestProvider):
    """Commits to other logits for the token at position `bend`, if it is given; its draws follow from them."""

    bend: int | None = None

    def row(self, ids: Sequence[int]) -> Entries:
        entries = super().row(ids)
        if len(ids) != self.bend:
            return entries
        return Entries(entries.ids, entries.logits + np.float32(0.001))


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[Bending]:
    with provider(smollm2) as honest:
        made = Bending(honest.model, honest.manifest)
        yield made
        made.close()


def chat(
    number: int, smol: Bending, turns: int = 1, bent: tuple[int, int] | None = None, close: bool = True
) -> Recording:
    """A conversation as a client has it: each turn's messages are those before, and one more question.

    `bent` names a turn and the token in it whose record is not the model's.
    """
    made = Recording(manifest=smol.manifest, session=bytes([number]) * 16, capability=bytes([number]) * 32)
    messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{number}: {QUESTIONS[(number + turn) % len(QUESTIONS)]}"})
        body: dict[str, Any] = {"max_tokens": 10, "temperature": 0.8, "messages": messages}
        request = ask(**body, verifiable={"nonce": f"{16 * number + turn:020x}"})
        smol.bend = None
        if bent is not None and bent[0] == turn:
            smol.bend = len(prompt_ids(smol.model, request)) + bent[1]
        smol.answer(request, made)
        messages.append({"role": "assistant", "content": made.texts[-1]})
    if close:
        made.close()
    return made


@pytest.fixture(scope="module")
def sessions(smol: Bending) -> list[Recording]:
    """Five conversations under one system prompt; two of them with a record that the model did not give."""
    return [
        chat(1, smol),
        chat(2, smol, turns=3, bent=(1, 4)),
        chat(3, smol, turns=3),
        chat(4, smol, bent=(0, 7)),
        chat(5, smol),
    ]


def audit(sessions: list[Recording], workers: list[Worker], folder: Path) -> list[Verdict]:
    auditor = Auditor(workers[0], TRUST, folder)
    with serve(Provider(sessions)) as url:
        clients = [Client(url, auditor_key=KEY) for _ in workers]
        crew = [Member(worker, client) for worker, client in zip(workers, clients, strict=True)]
        verdicts, _ = audit_provider(auditor, clients[0], 10, seed, crew=crew)
        for client in clients:
            client.close()
    return verdicts


def test_verdicts_are_the_same_with_and_without_sharing_and_with_two_processes(
    smollm2: Path, sessions: list[Recording], tmp_path: Path
) -> None:
    with Worker(smollm2, share=False) as alone, Worker(smollm2) as sharing, sharing.twin() as twin:
        expected = audit(sessions, [alone], tmp_path / "alone")
        assert audit(sessions, [sharing], tmp_path / "sharing") == expected
        once = sharing.reused
        assert audit(sessions, [sharing, twin], tmp_path / "two") == expected
        assert twin.reused > 0
        assert alone.reused == 0
    prompts = sum(turn.prompt_tokens for verdict in expected for turn in audited(verdict).turns)
    assert once > prompts / 2  # and it is no small part
    by_session = {str(verdict.session)[:2]: verdict for verdict in expected}
    assert {name for name, verdict in by_session.items() if verdict.status is Status.EXACT} == {"01", "03", "05"}
    # Found at the very token, although the turn after it shares it, and those before it are shared too.
    assert [(by_session[name].code, by_session[name].turn, by_session[name].token) for name in ("02", "04")] == [
        ("logits-differ", 1, 4),
        ("logits-differ", 0, 7),
    ]


def test_a_turn_that_was_computed_on_another_memory_is_found_at_its_first_token(
    smollm2: Path, smol: Bending, tmp_path: Path
) -> None:
    """A provider's own prefix cache, poisoned: turn 1 goes on from a memory of other tokens than its prompt has."""
    made = chat(6, smol, close=False)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "And now?"}]
    request = ask(max_tokens=8, temperature=0.8, messages=messages)
    prompt = prompt_ids(smol.model, request)
    poisoned = [*prompt[:20], (prompt[20] + 1) % smol.model.n_vocab, *prompt[21:]]
    smol.forget()
    smol.bend = None

    def row(ids: Sequence[int]) -> Entries:
        return smol.row([*poisoned, *ids[len(prompt) :]])

    made.turn(request, prompt, row, pieces=smol.model.piece, ends=smol.model.eog)
    with Worker(smollm2) as worker:
        (verdict,) = audit([made], [worker], tmp_path)
        assert worker.reused > 0
    assert (verdict.code, verdict.turn, verdict.token) == ("logits-differ", 1, 0)


@pytest.mark.parametrize("kind", ["llama", "moe", "mamba"])
def test_shared_memory_gives_the_bits_of_a_fresh_one(tiny_models: dict[str, Path], kind: str) -> None:
    """Sequences that begin alike in every way, in random order; recurrent models are computed anew."""
    path = tiny_models[kind]
    runtime = replace(manifest_of(path, RuntimeSettings(n_ctx=256, n_seq_max=1)).runtime)
    chance = random.Random(kind)
    texts = [[chance.randrange(300) for _ in range(120)]]
    for _ in range(12):
        cut = chance.choice((0, 1, 50, 119, 120))
        texts.append([*chance.choice(texts)[:cut], *(chance.randrange(300) for _ in range(140 - cut))])
    with Worker(path) as sharing, Worker(path, share=False) as alone:
        for worker in (sharing, alone):
            worker.identity()
            probed = worker.probe(runtime)
            worker.load(runtime)
        for text in (*texts, texts[0], texts[0]):
            prompt = chance.randrange(1, len(text))
            assert bits(sharing.score(text[:prompt], text[prompt:], 16)) == bits(
                alone.score(text[:prompt], text[prompt:], 16)
            )
        assert (sharing.reused > 0) == (probed.invariant and kind != "mamba")
        assert alone.reused == 0


def bits(entries: Sequence[Entries]) -> list[tuple[bytes, bytes]]:
    return [(one.id_bytes(), one.logit_bytes()) for one in entries]


def test_under_settings_that_depend_on_the_batch_nothing_is_shared(smollm2: Path) -> None:
    runtime = manifest_of(smollm2).runtime
    ids = list(range(100, 160))
    with Worker(smollm2) as worker:
        worker.load(runtime)
        worker.score(ids, ids, 8)
        worker.score(ids, ids, 8)
        assert worker.reused == 0  # not known to be invariant yet
        worker.identity()
        worker.probe(runtime)
        worker.load(runtime)
        worker.score(ids, ids, 8)
        worker.score(ids, ids, 8)
        assert worker.reused == len(ids) - 1  # the last of the prompt gives the first row
        worker.load(runtime, "f16")
        worker.score(ids, ids, 8, as_generated=True)
        worker.score(ids, ids, 8)
        assert worker.reused == len(ids) - 1
        worker.load(runtime)
        worker.score(ids, ids, 8)
        assert worker.reused == len(ids) - 1  # another context came between


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_sharing_is_only_among_equal_tokens(tiny_models: dict[str, Path], kind: str) -> None:
    chance = random.Random(5)
    load_library(SETTINGS.tiled)
    settings = RuntimeSettings(n_ctx=64, n_seq_max=1)
    with Model.load(tiny_models[kind]) as model, Context(model, settings) as context:
        batch = Batch(context.n_batch)
        for _ in range(150):
            held = [chance.randrange(3) for _ in range(chance.randrange(1, 12))]
            ids = [*held[: chance.randrange(len(held) + 1)], *(chance.randrange(3) for _ in range(6))]
            first = chance.randrange(len(ids))
            context.clear()
            batch.clear()
            for at, token in enumerate(held):
                batch.add(0, at, token, False)
            context.decode(batch)
            told = chance.choice((held, held[:-1], [*held, 1]))
            kept = start(context, told, ids, first)
            assert kept == context.length(0)
            assert ids[:kept] == held[:kept]
            assert kept <= first
            if len(told) != len(held):
                assert kept == 0  # what is held is not what it should be
            elif kind == "llama":
                assert kept == min(common_prefix(held, ids), first)
            assert common_prefix(ids, held) == common_prefix(held, ids) <= min(len(ids), len(held))
