"""Sessions with a lie or two in them, signed as if nothing had happened: for comparing implementations."""

from __future__ import annotations

import base64
import enum
from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np

from spec.generate.world import NEW, PROVIDER, Story, asked, going_on, tokens_digest
from verifiable.errors import VerifiableError
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingParams
from verifiable.session.evidence import Kind
from verifiable.session.records import End, Finish, Leaf, Source, Token

_DRAFTS = (Source.PLAIN, Source.DRAFT_ACCEPTED, Source.DRAFT_ACCEPTED, Source.BONUS, Source.DRAFT_CORRECTED)
HONEST = (
    Story.open("plain").turn(asked(max_tokens=20), 5).close(),
    Story.open("drafted").turn(asked(temperature=1.5, stop=["qq"]), 6, sources=_DRAFTS),
    Story.open("two turns")
    .turn(asked(verifiable=NEW), 3)
    .turn(asked(None, seed=7, verifiable=going_on("two turns")), 2, cached=5),
    Story.open("filters")
    .turn(asked(top_p=0.5, min_p=0.3, temperature=3, top_k=0, verifiable=NEW), 9)
    .turn(asked(None, verifiable=going_on("filters")), 3)
    .turn(asked(max_tokens=2, verifiable=going_on("filters")), 2, finish=Finish.LENGTH)
    .close(),
    Story.open("penalties").turn(
        asked(temperature=1.2, repeat_penalty=1.7, repeat_last_n=3, presence_penalty=0.5, logit_bias={"4": 2.5}),
        9,
        words=12,
    ),
)


def cases(count: int, chance: Random) -> list[tuple[str, dict[str, Any]]]:
    """Receipts and evidence of lying providers: the operation of their vectors, and the case."""
    found: list[tuple[str, dict[str, Any]]] = []
    while len(found) < count:
        story = chance.choice(HONEST)
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            story = _lie(story, chance)
        try:
            operation, data = _hand_out(story, chance)
        except (VerifiableError, StopIteration, IndexError, OverflowError, ValueError):
            continue  # a lie too great to be written down
        case = {"name": str(len(found)), "input": base64.b64encode(data).decode(), "trusted": [PROVIDER.public.vkey()]}
        found.append((operation, case))
    return found


def _lie(story: Story, chance: Random) -> Story:
    match chance.randrange(10):
        case 0:
            one, other = chance.randrange(len(story.leaves)), chance.randrange(len(story.leaves))
            leaves = list(story.leaves)
            leaves[one], leaves[other] = leaves[other], leaves[one]
            if chance.random() < 0.5:
                leaves = [replace(leaf, seq=at) for at, leaf in enumerate(leaves)]
            return replace(story, leaves=tuple(leaves))
        case 1:
            return story.cut(chance.randrange(1, len(story.leaves) + 1))
        case _:
            at = chance.randrange(len(story.leaves))
            leaf = story.leaves[at]
            name = chance.choice(fields(leaf)).name
            return story.edit(at, **{name: _other(getattr(leaf, name), story.leaves, chance)})


def _other(value: object, leaves: tuple[Leaf, ...], chance: Random) -> object:
    """Another value of the same type, often nearly the same one."""
    if isinstance(value, enum.IntEnum):
        return chance.choice(list(type(value)))
    if isinstance(value, int):
        return max(0, chance.choice((value + 1, value - 1, 0, value + 2, chance.randrange(600), 2**31 - 1)))
    if isinstance(value, bytes):
        flipped = value[:-1] + bytes([value[-1] ^ 1]) if value else b"x"
        return chance.choice((bytes(len(value)), flipped, chance.choice(leaves).salt if len(value) == 16 else flipped))
    if isinstance(value, SamplingParams):
        return replace(value, **chance.choice(_PARAMETERS))
    if isinstance(value, Entries):
        ids, logits = value.ids.copy(), value.logits.copy()
        at = chance.randrange(len(ids))
        if chance.random() < 0.5:
            ids[at] = chance.choice((int(ids[0]), chance.randrange(600)))
        else:
            logits[at] += np.float32(chance.choice((-0.01, 0.01, 1, -1)))
        return Entries(ids, logits) if chance.random() < 0.8 else Entries(ids[:-1], logits[:-1])
    return value


_PARAMETERS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 4},
    {"top_p": 0.4},
    {"min_p": 0.2},
    {"max_tokens": 3},
    {"frequency_penalty": 0.5},
    {"repeat_penalty": 1.2, "repeat_last_n": 5},
    {"logit_bias": ((4, 2.5), (9, -1.0))},
    {"ignore_eos": True},
)


def _hand_out(story: Story, chance: Random) -> tuple[str, bytes]:
    """A receipt, or evidence of some kind, for what the story has become."""
    if chance.random() < 0.7:  # a careful liar: the digests of the ends fit
        for at, leaf in enumerate(story.leaves):
            if isinstance(leaf, End):
                story = story.edit(at, tokens_digest=tokens_digest(story.tokens(leaf.turn)))
    if chance.random() < 0.3:
        return "receipt", story.receipt(chance.randrange(2)).encode()
    kind = chance.choice(list(Kind))
    turns = sorted(chance.sample(range(len(story.requests)), chance.randrange(len(story.requests) + 1)))
    tokens = [at for at, leaf in enumerate(story.leaves) if isinstance(leaf, Token)]
    shown = [at for at in tokens if chance.random() < 0.4] if kind is Kind.RECORDS else []
    return "evidence", story.evidence(kind, turns, shown).encode()
