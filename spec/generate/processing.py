"""Vectors of evidence for turns with logit processors, whose draws depend on the tokens before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from spec.generate.cases import VectorFile
from spec.generate.receipts import TRUST, turn_of
from spec.generate.world import MANIFEST, Story, asked, digest, entries
from verifiable.sampling.logits import Ranked
from verifiable.sampling.sampler import SamplingParams, choose
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.records import Token, Turn
from verifiable.wire.text import write_base64


def add(file: VectorFile) -> None:
    """Add them to the vectors of evidence."""

    def check(name: str, expected: str, made: Evidence) -> None:
        file.add(f"processors: {name}", expected, input=write_base64(made.encode()), trusted=TRUST)

    penalties: dict[str, Any] = {
        "repeat_penalty": 1.8,
        "repeat_last_n": 4,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
    }
    bias = {"3": 4.5, "7": -6, "11": 0}
    turns: dict[str, dict[str, Any]] = {
        "a repeat penalty over the last two tokens": {"repeat_penalty": 0.6, "repeat_last_n": 2},
        "a repeat penalty over the whole answer": {"repeat_penalty": 1.5, "repeat_last_n": -1},
        "a frequency penalty": {"frequency_penalty": 1.5},
        "a presence penalty below zero": {"presence_penalty": -1.25},
        "biases": {"logit_bias": bias},
        "all of them, greedy": {**penalties, "logit_bias": bias, "temperature": 0},
        "all of them, with filters": {**penalties, "logit_bias": bias, "top_k": 5, "top_p": 0.8, "min_p": 0.05},
    }
    for name, asks in turns.items():
        story = Story.open(name).turn(asked(**{"temperature": 1.2, **asks}), 9, words=12)
        check(f"{name}", "ok", story.evidence(Kind.FULL))
    first = story.where(Token)
    check("single records are not replayed", "ok", story.evidence(Kind.RECORDS, shown=[first + 3]))
    check("packed tokens", "ok", story.evidence())
    unknown: dict[str, dict[str, Any]] = {
        "a grammar": {"grammar": "root ::= [a-z]+"},
        "a schema": {"response_format": {"type": "json_object"}},
        "no end tokens": {"ignore_eos": True},
    }
    for name, asks in unknown.items():
        made = Story.open(name).turn(asked(**asks), 3)
        check(f"{name}: not replayed without the vocabulary", "ok", made.evidence(Kind.FULL))

    _suppressed(check, penalties)
    words = 12
    unprocessed = (entries(12 + index, vocabulary=words) for index in range(20))

    def raw(seen: Ranked, params: SamplingParams, key: bytes, position: int) -> int:
        return choose(next(unprocessed), params, key, position)

    ignored = Story.open("ignored").turn(asked(temperature=1.2, **penalties), 20, sampler=raw, words=words)
    check("asked for and not applied", "text-not-sampled", ignored.evidence(Kind.FULL))
    turn = story.where(Turn)
    params = turn_of(story).params
    changes: dict[str, dict[str, Any]] = {
        "another repeat penalty": {"repeat_penalty": 1.7},
        "another count of tokens to look back": {"repeat_last_n": 5},
        "another frequency penalty": {"frequency_penalty": 0.25},
        "another presence penalty": {"presence_penalty": 0.0},
        "another bias": {"logit_bias": ((3, 4.0), (7, -6.0))},
        "a bias left out": {"logit_bias": ((3, 4.5),)},
        "end tokens banned": {"ignore_eos": True},
        "a grammar": {"constraint": digest("grammar")},
    }
    for name, changed in changes.items():
        other = story.edit(turn, params=replace(params, **changed))
        check(f"{name} than was asked for", "parameters-differ", other.evidence())


def _suppressed(check: Callable[[str, str, Evidence], None], penalties: dict[str, Any]) -> None:
    """Turns under a manifest that bars ids from every answer."""
    barred = tuple(range(0, 12, 2))
    manifest = replace(MANIFEST, model=replace(MANIFEST.model, suppressed=barred))

    def open_(name: str) -> Story:
        return Story.open(name, manifest)

    stories = {
        "ids suppressed": open_("suppressed").turn(asked(temperature=1.2), 9, words=12),
        "ids suppressed, greedy": open_("greedy").turn(asked(temperature=0), 9, words=12),
        "ids suppressed, and penalties": open_("both").turn(asked(temperature=1.2, **penalties), 9, words=12),
        "ids suppressed, with filters": open_("filters").turn(asked(top_k=2, top_p=0.7, min_p=0.1), 9, words=12),
    }
    for name, story in stories.items():
        check(name, "ok", story.evidence(Kind.FULL))
    honest = stories["ids suppressed"]
    first = honest.where(Token)
    check("single records under suppressed ids are replayed", "ok", honest.evidence(Kind.RECORDS, shown=[first + 3]))
    words = iter([entries(12 + index, vocabulary=12) for index in range(9)])

    def all_ids(seen: Ranked, params: SamplingParams, key: bytes, position: int) -> int:
        return choose(next(words), params, key, position)

    ignored = open_("barred").turn(asked(temperature=1.2), 9, sampler=all_ids, words=12)
    check("suppressed ids drawn all the same", "text-not-sampled", ignored.evidence(Kind.FULL))
    at = next(token.seq for token in ignored.tokens() if token.token in barred)
    check("one suppressed id drawn", "token-not-sampled", ignored.evidence(Kind.RECORDS, shown=[at]))
