"""Answers of a model to several requests at once, in the process that runs it.

The draws are the replayable sampler's, so a calibration can be repeated from its seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifiable import limits
from verifiable.llama.chat.prompt import prompt_ids
from verifiable.llama.context import Batch, Context
from verifiable.llama.model import Model
from verifiable.llama.settings import RuntimeSettings
from verifiable.request.request import Request
from verifiable.sampling.logits import Floats
from verifiable.sampling.sampler import SamplingDefaults
from verifiable.sampling.turn import TurnSampler
from verifier.model.texts import DAY, Conversation


def converse(model: Model, settings: RuntimeSettings, requests: Sequence[Request]) -> list[Conversation]:
    """Generate one answer to each request, all in one context, until each has ended or is full."""
    prompts = [prompt_ids(model, request, DAY) for request in requests]
    asked = [
        request.params(SamplingDefaults(), limits.ENTRIES, settings.n_ctx, len(ids))
        for request, ids in zip(requests, prompts, strict=True)
    ]
    samplers = [
        TurnSampler(
            params, request.turn_facts(ids, params, request.turn_nonce(b"")).key(), min(limits.ENTRIES, model.n_vocab)
        )
        for request, ids, params in zip(requests, prompts, asked, strict=True)
    ]
    answers: list[list[int]] = [[] for _ in requests]
    with Context(model, settings) as context:
        batch = Batch(context.n_batch)

        def draw(seq: int, row: Floats) -> None:
            answers[seq].append(samplers[seq].sample(row, len(prompts[seq]) + len(answers[seq])))

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
