"""Committing to a token costs microseconds: what top-k, draw, record, hash, tree and signature take.

Rows of logits are synthetic: normal noise of the spread that real rows have, each next row a small change of the
last, as within one text. No model is needed. The goal is one percent of a token's time on two very small models.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.measure import Figure, main, seconds_per_call
from verifiable.sampling.logits import Floats, TopK
from verifiable.sampling.sampler import SamplingParams, choose
from verifiable.session.records import Source, Token, salt
from verifiable.tlog import merkle
from verifiable.wire.keys import PrivateKey

K = 40
ROWS = 4  # few: a decoded row is still in the processor's cache when its top-k is taken
GOAL_US = {49_152: 85.0, 262_144: 140.0}
"""Vocabulary -> one percent of the fastest decode of a token seen for SmolLM2-135M and Gemma 3 270M on two cores."""
WHOLE = "top-k, draw, record with its salt, leaf hash and tree; a signature is made once an answer"


def rows(vocabulary: int) -> list[Floats]:
    """Neighbouring rows of one imagined text."""
    random = np.random.default_rng(7)
    base = random.standard_normal(vocabulary) * 3
    return [(base + random.standard_normal(vocabulary)).astype(np.float32) for _ in range(ROWS)]


def costs(vocabulary: int) -> dict[str, float]:
    """Processor time, in microseconds, of each step of committing to a token; one sequence, one thread."""
    top, turning = TopK(K), itertools.cycle(rows(vocabulary))
    entries = top(next(turning))
    params = SamplingParams(temperature=0.8, top_k=K, top_p=0.95, min_p=0.05, max_tokens=1024)
    key = PrivateKey.generate("benchmark", seed=bytes(32))
    secret, session = bytes(32), bytes(16)
    counter = itertools.count()
    tree = merkle.Tree()

    def record() -> bytes:
        seq = next(counter)
        token = int(entries.ids[0])
        return Token(session, seq, salt(secret, seq), 0, seq, token, Source.PLAIN, seq, 0, entries).encode()

    leaf = record()
    taken = seconds_per_call(
        {
            "top-k": lambda: top(next(turning)),
            "draw": lambda: choose(entries, params, secret, 100),
            "record": record,
            "hash": lambda: hashlib.sha256(leaf).digest(),
            "leaf": lambda: tree.append(merkle.leaf_hash(leaf)),
            "signature": lambda: key.sign(secret),
        },
        clock=time.thread_time,
    )
    return {name: seconds * 1e6 for name, seconds in taken.items()}


def measure() -> Sequence[Figure]:
    """The steps once, and what depends on the vocabulary for each size of it."""
    figures: list[Figure] = []
    for vocabulary, goal in GOAL_US.items():
        micro = costs(vocabulary)
        if not figures:
            figures += [
                Figure("draw (Gumbel-max)", micro["draw"], "µs/token"),
                Figure("record with its salt", micro["record"], "µs/token"),
                Figure("SHA-256 of a record", micro["hash"], "µs/token"),
                Figure("leaf hash and tree", micro["leaf"], "µs/token"),
                Figure("Ed25519 signature", micro["signature"], "µs/head"),
            ]
        whole = micro["top-k"] + micro["draw"] + micro["record"] + micro["leaf"]
        figures += [
            Figure(f"top-{K} of {vocabulary:,} logits", micro["top-k"], "µs/token"),
            Figure(f"commitment, vocabulary of {vocabulary:,}", whole, "µs/token", at_most=goal, note=WHOLE),
        ]
    return figures


if __name__ == "__main__":
    sys.exit(main(measure, "token_cost", __doc__))
