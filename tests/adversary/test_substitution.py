"""The substitution matrix, sampled: `benchmarks.substitution` runs all of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.adversary.substitution import Asked, World, judge, near
from verifiable.checking.verdict import Status, Verdict

EVERY = {True: 5, False: 53}
"""Of so many cells one is tried here, more of those whose answer is nearly right; primes, so that all kinds occur."""


def test_no_answer_in_the_place_of_another_makes_a_verdict_wrong(tmp_path: Path) -> None:
    cells = list(World(tmp_path).cells())
    some = [cell for close in EVERY for cell in [each for each in cells if near(each[0]) is close][:: EVERY[close]]]
    wrong, seen = [], Counter[Status]()
    for name, question in some:
        for asked, verdict in question():
            seen[verdict.status] += 1
            fault = judge(asked, verdict)
            if fault is not None:
                wrong.append(f"{name}: {fault}")
    assert not wrong
    assert {Status.EXACT, Status.RECEIPT, Status.FAILED, Status.INCONCLUSIVE} <= set(seen)


def test_the_judge_sees_each_kind_of_wrong_verdict() -> None:
    session = b"s" * 16
    good = Verdict(Status.EXACT, "", session=session.hex())
    assert judge(Asked(session, frozenset(), frozenset()), good) is None
    assert "another session" in str(judge(Asked(b"t" * 16, frozenset(), frozenset()), good))
    assert "less than was asked" in str(judge(Asked(session, frozenset({0}), frozenset()), good))
    assert "cheated" in str(judge(Asked(session, frozenset({0}), frozenset({0})), good))
    failed = Verdict(Status.FAILED, "", code="logits-differ", session=session.hex())
    assert "accuses" in str(judge(Asked(session, frozenset(), frozenset()), failed))
    assert judge(Asked(session, frozenset(), frozenset({0})), failed) is None
