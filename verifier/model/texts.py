"""Conversations for a calibration: questions of every kind, and the answers that the auditor's own model gives.

Run as a module it is a child process like `verifier.model.worker`, for the same reason: C code over a file that may be
malformed. It reads one command and writes one answer (see `pipe`). Several answers are generated in one batch; the
draws are the replayable sampler's, so a calibration can be repeated from its seed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from verifiable.errors import EngineError, VerificationError
from verifiable.llama.gguf.lora import Adapter, adapters_from_cbor, adapters_to_cbor
from verifiable.manifest.rope import MODELS_OWN, Rope
from verifiable.request.request import CHAT, COMPLETION, Request, parse_body
from verifiable.wire import encoding
from verifiable.wire.encoding import Value
from verifiable.wire.ids import pack, unpack
from verifier.model import pipe
from verifier.model.pipe import ClosedError, Reader, StalledError

if TYPE_CHECKING:
    from verifiable.llama.model import Model
    from verifiable.llama.settings import RuntimeSettings
    from verifiable.sampling.logits import Floats

Sender = Callable[[list[Value]], None]
AT_ONCE = 8
"""Sequences of one batch."""
SECONDS = 600.0
"""Longest silence of the child process."""
DAY = 1_767_225_600_000
"""The day, 2026-01-01 in milliseconds since 1970, on which these conversations are held: some templates write one."""

_TASKS = (
    "Tell a story about {}.",
    "Explain {} to a child.",
    "List five facts about {}.",
    "Write a polite letter to a friend about {}.",
    "What would change in the world without {}?",
    "Compare {} with something that looks quite different.",
    "Write a poem about {}.",
    "Give step-by-step advice to someone who knows nothing about {}.",
    "Argue for and against {}.",
    "Write a Python function whose topic is {}.",
    "Erkläre kurz, was es mit {} auf sich hat.",
    "Answer as a sceptical scientist: what do we know about {}?",
)
_SUBJECTS = (
    "rivers", "bridges", "bread", "clocks", "winter", "maps", "glass", "sleep", "the moon", "taxes", "chess", "salt",
    "railways", "bees", "paper", "earthquakes", "coffee", "mirrors", "volcanoes", "vaccines", "pianos", "deserts",
    "cathedrals", "whales", "insurance", "wheels", "poetry", "algebra", "lightning", "bicycles",
)  # fmt: skip
_SYSTEMS = (None, "You are a helpful assistant.", "Answer briefly and to the point. You work for a public library.")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt and an answer as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def requests(count: int, seed: bytes, tokens: int, temperature: float = 0.8, chat: bool = True) -> list[Request]:
    """`count` different requests, in an order that the seed gives."""
    kinds = list(product(_SYSTEMS, _TASKS, _SUBJECTS))
    order = sorted(range(len(kinds)), key=lambda at: hashlib.sha256(seed + at.to_bytes(4, "big")).digest())
    found = []
    for number in range(count):
        system, task, subject = kinds[order[number % len(kinds)]]
        question = task.format(subject) + ("" if number < len(kinds) else f" ({number})")
        body: dict[str, object] = {
            "max_tokens": tokens,
            "temperature": temperature,
            "verifiable": {"nonce": hashlib.sha256(seed + b"nonce" + number.to_bytes(4, "big")).hexdigest()},
        }
        if chat:
            lead = [] if system is None else [{"role": "system", "content": system}]
            body["messages"] = [*lead, {"role": "user", "content": question}]
        else:
            body["prompt"] = question
        found.append(parse_body(CHAT if chat else COMPLETION, json.dumps(body).encode()))
    return found


def generate(
    model: str | PathLike[str],
    wanted: Sequence[Request],
    n_ctx: int,
    threads: int = 1,
    adapters: Sequence[Adapter] = (),
    rope: Rope = MODELS_OWN,
) -> list[Conversation]:
    """The answers of the auditor's own model under batch-invariant settings, in the order of `wanted`.

    Raises:
        VerificationError: the child process failed (`auditor-crashed`).
        EngineError: it says why it could not do it.
    """
    command: list[Value] = [os.path.abspath(fspath(model)), n_ctx, threads]
    command.append([item.canonical for item in wanted])
    command.append(adapters_to_cbor(adapters))
    command.append(rope.to_cbor())
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", "verifier.model.texts"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
    if process.stdin is None or process.stdout is None:
        raise EngineError("the child process has no pipes")
    reader = Reader(os.dup(process.stdout.fileno()), SECONDS)
    found: list[Conversation] = []
    try:
        pipe.write(process.stdin, command)
        while (message := reader.read())[0] == "answer":
            found.append(Conversation(*(tuple(unpack(encoding.bytes_(part, "ids"))) for part in message[1:3])))
    except (ClosedError, StalledError, OSError):
        raise VerificationError(
            "the auditor could not generate calibration texts",
            code="auditor-crashed",
            expected=f"{len(wanted)} answers",
            found=f"{len(found)}",
            hint="Check the model file and this machine's memory.",
        ) from None
    finally:
        process.kill()
        process.wait()
        reader.close()
        process.stdin.close()
        process.stdout.close()
    if message[0] == "error":
        raise EngineError(str(message[1]))
    return found


def _serve(command: list[Value], send: Sender) -> None:
    from verifiable.llama.library import load_library
    from verifiable.llama.model import Model
    from verifiable.llama.settings import RuntimeSettings
    from verifiable.request.request import parse_canonical

    path, n_ctx, threads = str(command[0]), int(str(command[1])), int(str(command[2]))
    canonical = [encoding.bytes_(item, "request") for item in encoding.array(command[3], None, "requests")]
    rope = Rope.from_cbor(encoding.map_(command[5], (), "RoPE settings", optional=range(2, 10)))
    settings = RuntimeSettings(n_ctx=n_ctx, n_seq_max=AT_ONCE, n_threads=threads, rope=rope)
    load_library(settings.tiled, passive=threads == 1)
    adapters = adapters_from_cbor(command[4])
    with Model.load(path, settings.repack, settings.n_gpu_layers, adapters=adapters) as model:
        for at in range(0, len(canonical), AT_ONCE):
            group = [parse_canonical(item) for item in canonical[at : at + AT_ONCE]]
            for answer in _answers(model, settings, group):
                send(["answer", pack(answer.prompt), pack(answer.answer)])
    send(["done"])


def _answers(model: Model, settings: RuntimeSettings, group: Sequence[Request]) -> list[Conversation]:
    """Generate one answer to each request, all in one context, until each has ended or is full."""
    from verifiable.llama.chat.prompt import prompt_ids
    from verifiable.llama.context import Batch, Context
    from verifiable.sampling.logits import MAX_K, TopK
    from verifiable.sampling.sampler import SamplingDefaults, choose, sampling_key

    prompts = [prompt_ids(model, request, DAY) for request in group]
    asked = [
        request.params(SamplingDefaults(), MAX_K, settings.n_ctx, len(ids))
        for request, ids in zip(group, prompts, strict=True)
    ]
    keys = [sampling_key(request.nonce or b"", request.digest(), 0) for request in group]
    topk = [TopK(min(MAX_K, model.n_vocab)) for _ in group]
    answers: list[list[int]] = [[] for _ in group]
    with Context(model, settings) as context:
        batch = Batch(context.n_batch)

        def draw(seq: int, row: Floats) -> None:
            position = len(prompts[seq]) + len(answers[seq])
            answers[seq].append(choose(topk[seq](row), asked[seq], keys[seq], position))

        for seq, ids in enumerate(prompts):
            for start in range(0, len(ids), context.n_batch):
                batch.clear()
                part = ids[start : start + context.n_batch]
                rows = [batch.add(seq, start + at, token, start + at == len(ids) - 1) for at, token in enumerate(part)]
                logits = context.decode(batch)
            draw(seq, logits[rows[-1]])
        while True:
            batch.clear()
            running = {}
            for seq, answer in enumerate(answers):
                if len(answer) < asked[seq].max_tokens and answer[-1] not in model.eog:
                    running[seq] = batch.add(seq, len(prompts[seq]) + len(answer) - 1, answer[-1], True)
            if not running:
                break
            logits = context.decode(batch)
            for seq, row in running.items():
                draw(seq, logits[row])
    return [Conversation(tuple(ids), tuple(answer)) for ids, answer in zip(prompts, answers, strict=True)]


def main() -> None:
    """Answer one command. Whatever else the process prints goes to standard error."""
    from verifiable.errors import VerifiableError

    commands, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    command = pipe.read(commands)
    if command is None:
        return
    try:
        _serve(command, lambda message: pipe.write(answers, message))
    except VerifiableError as error:
        pipe.write(answers, ["error", str(error)[:2000]])
    except BrokenPipeError:
        sys.exit(0)  # the parent has gone


if __name__ == "__main__":
    main()
