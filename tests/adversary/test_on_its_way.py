"""A carrier changes what an honest provider hands over: a mirror, a proxy, somebody on the way, a damaged disk.

Nobody signs how a file is put together, nor the body of an answer. So whatever is changed there, no verdict may accuse
the provider: neither an audit that fetches it, nor one of a file, nor an offline check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_files import small, write
from tests.made_up_model import PROMPT, MadeUpModel, MadeUpProcess
from tests.sessions import PROVIDER, TRUST, Recording, ask, manifest
from tests.simulator import Provider, honest, other_model, serve
from verifiable.checking.checks import check_receipt
from verifiable.checking.offline import verify
from verifiable.checking.verdict import Status, Verdict
from verifiable.cli import main
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.opening import Opening
from verifiable.session.receipt import Receipt
from verifier.auditing.session import audit
from verifier.campaign.fetched import Auditor, Fetched, audit_session
from verifier.commands import run
from verifier.offline.offline import verify_with_evidence
from verifier.provider.client import Client

LATER = manifest(valid_to=2_000_000_000_000)
"""Another manifest that the same provider signed."""


def session() -> Recording:
    made = Recording(session=b"\1" * 16, capability=b"\1" * 32)
    made.turn(ask(max_tokens=5), PROMPT)
    made.turn(ask(max_tokens=6, temperature=0.5), PROMPT, burst=2)
    return made


def flipped(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def openings(made: Recording, opening: Opening) -> Iterator[tuple[str, Opening]]:
    """The same leaves under the same root, one of them hidden; and leaves and hashes that are others."""
    tree = made.log.tree
    for index, data in opening.leaves.items():
        rest = {at: leaf for at, leaf in opening.leaves.items() if at != index}
        if rest:
            yield f"leaf {index} hidden", Opening.of(tree, rest)
        yield f"leaf {index} changed", replace(opening, leaves={**opening.leaves, index: flipped(data, -1)})
        yield f"leaf {index} moved", replace(opening, leaves={**rest, made.log.size - 2: data})
    pairs = [(one, other) for one in opening.leaves for other in opening.leaves if one < other]
    for one, other in pairs:
        rest = {at: leaf for at, leaf in opening.leaves.items() if at not in (one, other)}
        if rest:
            yield f"leaves {one} and {other} hidden", Opening.of(tree, rest)
    for index in range(made.log.size):
        if index not in opening.leaves:
            yield f"leaf {index} shown", Opening.of(tree, {**opening.leaves, index: made.leaves[index]})
    for at, value in enumerate(opening.proof):
        before, after = opening.proof[:at], opening.proof[at + 1 :]
        yield f"hash {at} changed", replace(opening, proof=(*before, flipped(value, 0), *after))
        yield f"hash {at} left out", replace(opening, proof=(*before, *after))


def envelopes(head: bytes, stated: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, data in (("head", head), ("manifest", stated)):
        for at in (0, 1, 3, 10, 50, len(data) // 2, -70, -60, -1):
            yield f"{name}: byte {at} changed", {name: flipped(data, at)}
        yield f"{name} cut short", {name: data[:-1]}
    yield "another manifest of the provider's", {"manifest": LATER.sign(PROVIDER)}
    yield "head and manifest exchanged", {"manifest": head, "head": stated}


def evidences(made: Recording, kind: Kind) -> Iterator[tuple[str, Evidence]]:
    """Evidence of an honest session as a carrier may hand it on."""
    good = made.evidence(kind)
    for name, opening in openings(made, good.opening):
        yield name, replace(good, opening=opening)
    for name, changes in envelopes(good.head, good.manifest):
        yield name, replace(good, **changes)
    for other in Kind:
        yield f"of kind {other.name}", replace(good, kind=other)
    for number, turn in enumerate(good.turns):
        rest = [*good.turns]
        parts: dict[str, list[Any]] = {
            "request": [good.turns[1 - number].request, b"{}", b"\xff", turn.request.replace(b"5", b"6")],
            "secret": [bytes(32), good.turns[1 - number].secret],
            "turn": [1 - number, 2, 7],
            "tokens": [good.turns[1 - number].tokens, None],
        }
        if turn.tokens is not None:
            packed = turn.tokens
            ids = [replace(packed, ids=flipped(packed.ids, at)) for at in range(len(packed.ids))]
            marks = [replace(packed, marks=flipped(packed.marks, at)) for at in range(len(packed.marks) - 1)]
            beyond = replace(packed, ids=b"\xff" * len(packed.ids))
            fewer = replace(packed, count=packed.count - 1, ids=packed.ids[: -packed.width])
            parts["tokens"] += [*ids, *marks, beyond, replace(fewer, marks=packed.marks[: (fewer.count + 1) // 2])]
        for name, values in parts.items():
            for at, value in enumerate(values):
                rest[number] = replace(turn, **{name: value})
                yield f"turn {number}: another {name}, {at}", replace(good, turns=tuple(rest))
        yield f"turn {number} alone", replace(good, turns=(turn,))
    yield "no turns", replace(good, turns=())
    yield "another session's", honest(9, turns=2).evidence(kind)


def receipts(made: Recording) -> Iterator[tuple[str, Receipt]]:
    good = made.receipt(1)
    for name, opening in openings(made, good.opening):
        yield name, replace(good, opening=opening)
    for name, changes in envelopes(good.head, good.manifest):
        yield name, replace(good, **changes)
    for turn in (0, 2, 9):
        yield f"of turn {turn}", replace(good, turn=turn)
    for log in (b"", b"junk", b"c2sp.org/tlog-proof@v1\nindex 0\n\nx\n"):
        yield f"a log proof attached: {log!r}", replace(good, log=log)


def audited(made: Recording, body: bytes, folder: Path) -> Verdict:
    """The audit of the receipt of turn 1, where the body of evidence comes changed."""
    provider = Provider([made])
    provider.change = lambda path, data: body if path.endswith("/evidence") else data
    wanted = Fetched(made.session, receipt=check_receipt(made.receipt(1), TRUST), size=made.log.size)
    with serve(provider) as url, Client(url, capability=made.capability) as client:
        return audit_session(Auditor(MadeUpModel(), TRUST, folder), client, wanted)


def accusing(name: str, verdict: Verdict) -> list[str]:
    return [f"{name}: {verdict.code}, {verdict.summary}"] if verdict.status is Status.FAILED else []


@pytest.mark.parametrize("kind", [Kind.TOKENS, Kind.FULL])
def test_changed_evidence_accuses_nobody(kind: Kind) -> None:
    made, found, names, codes = session(), [], 0, set()
    mine = made.receipt(1)
    for name, evidence in evidences(made, kind):
        alone, offline = audit(evidence, MadeUpModel(), TRUST), verify_with_evidence(mine, evidence, TRUST)
        found += accusing(name, alone) + accusing(f"offline, {name}", offline)
        names += 1
        codes.add(alone.code)
    assert found == []
    assert names > 120
    expected = {"root-differs", "incomplete", "evidence-differs", "salt-differs", "bad-signature", "other-manifest"}
    assert expected | {"malformed", "untrusted-key"} <= codes


def test_changed_evidence_that_is_fetched_accuses_nobody(tmp_path: Path) -> None:
    made, found = session(), []
    for name, evidence in list(evidences(made, Kind.TOKENS))[::5]:
        found += accusing(name, audited(made, evidence.encode(), tmp_path))
    good = made.evidence().encode()
    for at in range(0, len(good), 97):
        found += accusing(f"byte {at}", audited(made, flipped(good, at), tmp_path))
    assert found == []
    assert audited(made, good, tmp_path).status is Status.EXACT


def test_a_changed_receipt_accuses_nobody() -> None:
    made, codes = session(), set()
    found = []
    for name, receipt in receipts(made):
        verdict = verify(receipt, trust=TRUST)
        found += accusing(name, verdict)
        codes.add(verdict.code)
    for at in range(0, len(made.receipt(1).encode()), 7):
        found += accusing(f"byte {at}", verify(flipped(made.receipt(1).encode(), at), trust=TRUST))
    assert found == []
    assert {"root-differs", "incomplete", "bad-signature", "other-manifest", "untrusted-key", "malformed"} <= codes


def test_a_cheated_turn_is_convicted_all_the_same(tmp_path: Path) -> None:
    """What was signed and does not fit is failed, as before."""
    made = session()
    made.turn(ask(max_tokens=5), PROMPT, other_model)
    assert audited(made, made.evidence(turns=[1, 2]).encode(), tmp_path).code == "no-evidence"
    assert audited(made, made.evidence().encode(), tmp_path).code == "records-differ"


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "Worker", MadeUpProcess)
    monkeypatch.chdir(tmp_path)
    made, trust = session(), ["--trust", PROVIDER.public.vkey()]
    write(tmp_path, small())
    Path("answer.receipt").write_bytes(made.receipt(1).encode())
    changed = dict(evidences(made, Kind.TOKENS))["turn 1: another request, 0"]
    Path("changed.evidence").write_bytes(changed.encode())
    provider = Provider([made])
    provider.change = lambda path, data: changed.encode() if path.endswith("/evidence") else data
    with serve(provider) as url:
        options = ["--model", str(tmp_path / "model.gguf"), *trust]
        assert main(["audit", "answer.receipt", *options, "--provider", url]) == 3
        assert main(["audit", "changed.evidence", *options]) == 3
        assert main(["verify", "answer.receipt", "--evidence", "changed.evidence", *trust]) == 3
    shown = capsys.readouterr().out
    assert shown.count("INCONCLUSIVE") == 3
    assert shown.count("evidence-differs") == 3
    assert "not what was signed" in shown
    hidden = dict(receipts(made))["leaf 0 hidden"]
    Path("hidden.receipt").write_bytes(hidden.encode())
    assert main(["verify", "hidden.receipt", *trust]) == 3
