"""Where in an answer a comparison within rounding begins matters less than its margin, and a late cheat is caught.

SmolLM2's own answers, those that reach 96 tokens. Honest claims of another rounding (KV f16) are scored over windows of
32 tokens that begin at token 0, 32 and 64: the mean log ratio of each start, against the margin of 0.1 that the test
leaves to honest providers. Then a provider that computes the first 32 tokens of each answer with the promised Q4_1 and
all others with Q4_0: conversations until it is caught with probability 0.95, when the window is drawn and when it is
always the first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.measure import Figure, main
from fixtures import models
from fixtures.quantise import variant
from verifiable.session.challenge import window_lot
from verifier.commands.calibrate import read_settings
from verifier.model.worker import Worker
from verifier.tolerant.calibrate import claims_of, converse, grounds_of, honest_classes, replays, sample
from verifier.tolerant.eprocess import MARGIN, needed, power
from verifier.tolerant.statistics import Distances, Score, score

CONVERSATIONS, TOKENS, LENGTH, K = 44, 96, 32, 40
STARTS = range(0, TOKENS - LENGTH + 1, LENGTH)
WANTED = 0.95


def at(conversation: Distances, start: int) -> Score:
    part = slice(start, start + LENGTH)
    claim, replays, lost, likely, variance = (column[part] for column in conversation.columns)
    return score(Distances(claim, replays, lost, likely, variance))


def drawn(conversations: Sequence[Distances], seed: bytes) -> list[Score]:
    scores = []
    for number, conversation in enumerate(conversations):
        lot = window_lot(seed, number.to_bytes(16, "big"))
        scores.append(score(replace(conversation, lot=lot).window(LENGTH)))
    return scores


def first(conversations: Sequence[Distances]) -> list[Score]:
    return [at(each, 0) for each in conversations]


def measure() -> Sequence[Figure]:
    path = models.ensure("smollm2")
    runtime = replace(read_settings(None, [])[0], n_ctx=1024)
    with Worker(path) as worker:
        conversations = converse(worker, runtime, CONVERSATIONS, TOKENS, b"windows")
        conversations = [each for each in conversations if len(each.answer) == TOKENS]
        own = replays(worker, runtime, conversations)
        item = next(item for item in honest_classes(runtime) if item.name == "kv-f16")
        true = claims_of(worker, item, conversations, K)
        cheap = claims_of(worker, replace(item, model=variant("Q4_0")), conversations, K)
    grounds = grounds_of(own, K, b"windows")
    honest = {item.name: sample(item, true, grounds).conversations}
    spliced = [[*mine[:LENGTH], *other[LENGTH:]] for mine, other in zip(true, cheap, strict=True)]
    cheat = sample(item, spliced, grounds).conversations
    note = f"{len(conversations)} conversations of {TOKENS} tokens, windows of {LENGTH}"
    figures = [Figure("conversations", len(conversations), "", note=note)]
    for name, claims in honest.items():
        means = {start: float(np.mean([at(each, start).mean for each in claims])) for start in STARTS}
        spread = float(np.std([at(each, 0).mean for each in claims], ddof=1))
        figures += [Figure(f"honest {name}: mean log ratio from token {start} on", means[start], "") for start in means]
        figures.append(Figure(f"honest {name}: spread between conversations at token 0", spread, ""))
        shift = max(means.values()) - min(means.values())
        figures.append(Figure(f"honest {name}: largest shift between starts", shift, "", at_most=MARGIN))
    half = len(conversations) // 2
    classes = {name: drawn(claims[:half], b"calibration") for name, claims in honest.items()}
    for name, scores in (
        ("a drawn window", drawn(cheat[half:], b"audit")),
        ("always the first tokens", first(cheat[half:])),
    ):
        curve = power(classes, scores, most=60)
        count = needed(curve, WANTED)
        if count is None:
            what = f"Q4_0 after token {LENGTH}, {name}: power after 60 conversations"
            figures.append(Figure(what, float(curve[-1]), ""))
        else:
            what = f"Q4_0 after token {LENGTH}, {name}: conversations to power {WANTED}"
            figures.append(Figure(what, count, "conversations"))
    return figures


if __name__ == "__main__":
    sys.exit(main(measure, "windows", __doc__))
