"""What was not replayed is not counted as replayed (spec/protocol.md §10.3, step 19)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spec.generate.world import MANIFEST, PROVIDER, Story, asked, tokens_digest
from verifiable.checking.checks import check_evidence
from verifiable.checking.verdict import Status, Verdict
from verifiable.session.evidence import Evidence, Kind
from verifier.offline.offline import verify_with_evidence
from verifier.offline.replay import replay_records, replayable

TRUST = [PROVIDER.public]
PENALTY: dict[str, Any] = {"repeat_penalty": 1.5}
GRAMMAR: dict[str, Any] = {"grammar": "root ::= [a-z]+"}


def told(story: Story, evidence: Evidence) -> Verdict:
    return verify_with_evidence(story.receipt(), evidence, TRUST)


def said(verdict: Verdict) -> str:
    return " ".join(check.detail for check in verdict.checks if check.name == "Sampler replay")


@pytest.mark.parametrize(
    ("asks", "kind", "count"),
    [
        ({}, Kind.FULL, 5),
        ({}, Kind.RECORDS, 2),
        (PENALTY, Kind.FULL, 5),
        (PENALTY, Kind.RECORDS, 0),
        (GRAMMAR, Kind.FULL, 0),
        ({"ignore_eos": True}, Kind.FULL, 0),
        ({}, Kind.TOKENS, 0),
    ],
)
def test_only_what_was_replayed_is_counted(asks: dict[str, Any], kind: Kind, count: int) -> None:
    story = Story.open(f"{asks} {kind}").turn(asked(**asks), 5)
    shown = [token.seq for token in story.tokens()[1:3]]
    evidence = story.evidence(kind, shown=shown if kind is Kind.RECORDS else [])
    (turn,) = check_evidence(evidence, TRUST).turns
    assert replayable(turn) == count
    assert replay_records(turn) is None
    verdict = told(story, evidence)
    assert verdict.status is Status.RECEIPT
    assert said(verdict) == (f"{count} tokens follow from their records and the turn's key" if count else "")
    left = {5: set(), 2: {"records-not-replayed"}, 0: {"records-not-replayed" if turn.shown else "records-not-shown"}}[
        count
    ]
    assert {note.id for note in verdict.notes if note.id.startswith("records-")} == left


@pytest.mark.parametrize(("kind", "count"), [(Kind.FULL, 5), (Kind.RECORDS, 2)])
def test_suppressed_ids_need_neither_the_model_nor_the_tokens_before(kind: Kind, count: int) -> None:
    manifest = replace(MANIFEST, model=replace(MANIFEST.model, suppressed=(0, 2, 4)))
    story = Story.open("suppressed", manifest).turn(asked(temperature=1.2), 5, words=10)
    shown = [token.seq for token in story.tokens()[1:3]]
    (turn,) = check_evidence(story.evidence(kind, shown=shown if kind is Kind.RECORDS else []), TRUST).turns
    assert (replayable(turn), replay_records(turn)) == (count, None)


def test_a_replaced_token_is_found_where_it_can_be() -> None:
    """The same lie, with and without what its discovery takes."""
    story = Story.open("liar").turn(asked(temperature=1.5, **PENALTY), 5)
    token = story.tokens()[2]
    other = next(int(item) for item in token.entries.ids if item != token.token)
    liar = story.edit(token.seq, token=other)
    shown = liar.evidence(Kind.RECORDS, shown=[token.seq])
    assert told(liar, shown).status is Status.RECEIPT  # not seen from one record, and not claimed to be right
    assert said(told(liar, shown)) == ""
    signed = liar.edit(liar.leaves[-1].seq, tokens_digest=tokens_digest(liar.tokens()))
    assert told(signed, signed.evidence(Kind.FULL)).code == "token-not-sampled"
