"""What clients hand to an auditor: a provider can't evade their receipts, and they can't harm it by their word."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_files import small, write
from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import PROVIDER, TIME, Recording, ask, made_up
from tests.simulator import KEY, LOGGED, Log, Provider, honest, other_model, serve
from verifiable.cli import main
from verifiable.request.exchange import Exchange
from verifiable.request.request import parse_canonical
from verifiable.session import records
from verifiable.session.records import Token
from verifier.commands import run
from verifier.provider import listing

ID = b"\x09" * 16


class Machine(MadeUpModel):
    """A made-up model where the command makes a process."""

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command runs here, with the made-up model in the place of a process; gives the folder of --receipts."""
    model = Machine()
    monkeypatch.setattr(run, "Worker", lambda *_, **__: model)
    monkeypatch.chdir(tmp_path)
    write(tmp_path, small())
    (tmp_path / "clients").mkdir()
    return tmp_path / "clients"


@pytest.fixture
def audit(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    def audited(provider: Provider, *options: str, of: str | None = None) -> tuple[int, dict[str, Any]]:
        """What `verifiable audit` says of a provider, or of a client's file, as JSON."""
        known = ["--model", "model.gguf", "--trust", PROVIDER.public.vkey(), "--auditor-key", KEY, "--json"]
        with serve(provider) as url:
            target = [url, "--seed", "5a" * 32] if of is None else [of, "--provider", url]
            code = main(["audit", *target, *known, *options])
        out = capsys.readouterr().out
        return code, json.loads(out[out.index("{\n") :])

    return audited


def told(row: Any = made_up, turns: int = 1, **given: Any) -> Recording:
    made = Recording(session=ID, capability=b"\x09" * 32, **given)
    for _ in range(turns):
        made.turn(ask(max_tokens=20), PROMPT, row)
    made.close()
    return made


def cut(whole: Recording, size: int) -> Recording:
    """The true beginning of a session, signed in the middle of its first turn."""
    made = Recording(session=whole.session, capability=whole.capability, manifest=whole.manifest)
    made.requests, made.texts = whole.requests[:1], whole.texts[:1]
    request, stated = parse_canonical(whole.requests[0]), made.manifest
    params = request.params(stated.defaults, stated.k, stated.runtime.n_ctx, len(PROMPT))
    made.leaves.append(made.log.begin_turn(request.turn_facts(PROMPT, params, request.nonce or b"")))
    for leaf in map(records.parse, whole.leaves[2:size]):
        assert isinstance(leaf, Token)
        made.leaves.append(made.log.token(leaf.token, leaf.source, leaf.row == 0, leaf.entries))
    assert made.leaves == whole.leaves[:size]
    return made


def answers_with(provider: Provider, early: Recording) -> None:
    """Evidence comes under a head from the middle of the turn."""
    provider.change = lambda path, body: (
        early.evidence().encode() if early.session.hex() in path and path.endswith("/evidence") else body
    )


def codes(facts: dict[str, Any]) -> list[str | None]:
    return [each.get("code") for each in facts["verdicts"]]


def test_an_early_head_does_not_make_a_receipts_turn_a_crash(
    clients: Path, audit: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    whole = told(other_model)
    (clients / "a.receipt").write_bytes(whole.receipt().encode())
    body = json.loads(whole.requests[0])["body"]
    Exchange.of(body, text=whole.texts[0], receipt=whole.receipt()).save("one.exchange")
    provider = Provider([honest(1), whole])
    answers_with(provider, cut(whole, 5))
    code, facts = audit(provider, "--receipts", "clients")
    assert (code, sorted(map(str, codes(facts))), facts["interrupted"]) == (3, ["None", "no-evidence"], 0)
    code, facts = audit(provider, of="one.exchange")
    assert (code, codes(facts)) == (3, ["no-evidence"])


def test_a_receipt_shows_that_no_later_head_stops_in_its_turn(
    clients: Path, audit: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    """The list shows another history, longer than the receipt's, that stops within the receipt's own turn."""
    whole, other = told(), Recording(session=ID, capability=b"\x09" * 32)
    other.crash(ask(max_tokens=60), PROMPT, 40)
    (clients / "a.receipt").write_bytes(whole.receipt().encode())
    provider = Provider([honest(1), other])
    provider.continues = lambda session, old, new: None
    code, facts = audit(provider, "--receipts", "clients")
    assert (code, facts["interrupted"], "two-histories" in codes(facts)) == (1, 0, True)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_later_head_in_the_log_refutes_a_crash_and_a_session_without_tokens(
    size: int, audit: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the part of the log that the list is held against does not show it: the log is read for such sessions."""
    whole = told(other_model, manifest=LOGGED)
    early = cut(whole, size) if size > 1 else Recording(session=ID, manifest=LOGGED)
    good = honest(1, stated=LOGGED)
    monkeypatch.setattr(listing, "read_sample", lambda *_: ([], 0))
    code, facts = audit(Provider([good, early], Log([good.head(), early.head()])))
    assert (code, facts["interrupted"] + facts["nothing_to_check"]) == (0, 1)
    code, facts = audit(Provider([good, early], Log([good.head(), early.head(), whole.head()])))
    assert (code, facts["interrupted"] + facts["nothing_to_check"]) == (3, 0)
    code, facts = audit(Provider([good, early]))  # its log is out of reach
    assert (code, facts["interrupted"] + facts["nothing_to_check"]) == (3, 0)
    assert facts["undecided"] == {"no-evidence": 1}
    assert "no-evidence" in codes(facts)


def test_many_receipts_of_one_session_are_one_session(
    clients: Path, audit: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    many, others = told(turns=4), [honest(1), honest(2)]
    for turn in range(4):
        (clients / f"{turn}.receipt").write_bytes(many.receipt(turn).encode())
        (clients / f"{turn}-again.receipt").write_bytes(many.receipt(turn).encode())
    (clients / "other.receipt").write_bytes(others[0].receipt().encode())
    provider = Provider([many, *others])
    code, facts = audit(provider, "--receipts", "clients")
    drawn = facts["challenge"]
    assert (code, facts["sessions"], facts["verified"], facts["tokens_total"]) == (0, 3, 3, 90)
    assert len({each["session"] for each in facts["verdicts"]}) == 3
    assert (drawn["drawn"], drawn["receipts"], drawn["plan"]["drawn"]) == (3, 2, 3)
    assert [drawn["plan"]["receipts"][name] for name in ("population", "planned", "drawn")] == [2, 2, 2]
    assert sum(many.session.hex() in path and "/evidence" in path for path in provider.asked) == 1
    # At most one turn is drawn of each session, but the receipts' own are opened, all of them.
    provider = Provider([many])
    code, facts = audit(provider, "--receipts", "clients", "--turns", "1")
    assert any("turns=0%2C1%2C2%2C3" in path or "turns=0,1,2,3" in path for path in provider.asked)


def test_a_session_whose_older_receipt_tells_another_history_has_failed(
    clients: Path, audit: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    whole, other = told(turns=2), Recording(session=ID, capability=b"\x09" * 32)
    other.turn(ask(max_tokens=20, temperature=0.5), PROMPT)
    (clients / "a.receipt").write_bytes(whole.receipt(1).encode())
    assert audit(Provider([whole]), "--receipts", "clients")[0] == 0
    (clients / "b.receipt").write_bytes(other.receipt().encode())
    for withheld in (set(), {ID.hex()}):
        provider = Provider([whole])
        provider.withheld = withheld
        code, facts = audit(provider, "--receipts", "clients")
        assert (code, codes(facts)) == (1, ["two-histories"])


def test_a_list_that_is_shorter_than_a_receipt_is_said(
    clients: Path, audit: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    whole = told(other_model)
    (clients / "a.receipt").write_bytes(whole.receipt().encode())
    early = cut(whole, 5)
    provider = Provider([honest(1), early])
    code, facts = audit(provider, "--receipts", "clients")
    assert (code, facts["interrupted"]) == (3, 0)
    assert facts["challenge"]["list"]["left_out"] == [ID.hex()]
    provider.earlier = {(ID.hex(), whole.log.size): whole}
    provider.continues = Provider([whole]).continued
    assert audit(provider, "--receipts", "clients")[0] == 1


@pytest.mark.parametrize(
    ("code", "given"),
    [
        ("text-differs", {"text": "I hate you"}),
        ("time-differs", {"sent": TIME + 3_600_000, "received": TIME + 3_600_005}),
        ("request-differs", {"temperature": 0.1}),
    ],
)
def test_a_clients_own_copy_fails_no_provider(
    code: str, given: dict[str, Any], clients: Path, audit: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    made = told()
    body = json.loads(made.requests[0])["body"]
    kept: dict[str, Any] = {"text": made.texts[0], "sent": TIME - 100, "received": TIME + 6000} | given
    body |= {"temperature": kept.pop("temperature")} if "temperature" in kept else {}
    Exchange.of(body, receipt=made.receipt(), **kept).save(clients / "a.exchange")
    status, facts = audit(Provider([made, honest(2)]), "--receipts", "clients")
    assert (status, facts["status"], facts["verified"]) == (0, "verified-exact", 2)
    (disputed,) = facts["challenge"]["disputed"]
    assert (disputed["code"], disputed["session"], disputed["turn"]) == (code, ID.hex(), 0)
    assert "copy-differs" in {each["id"] for each in facts["not_shown"]}
    # A cheat is met all the same; and by its own audit the client learns what does not fit.
    assert audit(Provider([told(other_model)]), "--receipts", "clients")[0] == 1
    status, facts = audit(Provider([made]), of=str(clients / "a.exchange"))
    assert (status, codes(facts)) == (1, [code])


def test_a_copy_that_fits_is_compared(clients: Path, audit: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    made = told()
    body = json.loads(made.requests[0])["body"]
    exchange = Exchange.of(body, text=made.texts[0], receipt=made.receipt(), sent=TIME - 100, received=TIME + 6000)
    exchange.save(clients / "a.exchange")
    (clients / "b.receipt").write_bytes(made.receipt().encode())
    status, facts = audit(Provider([made]), "--receipts", "clients")
    assert (status, facts["sessions"], facts["challenge"]["disputed"]) == (0, 1, [])
    assert "request-not-given" not in {each["id"] for each in facts["not_shown"]}


def test_a_receipt_that_was_changed_fails_no_provider(
    clients: Path, audit: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    receipt = honest(1).receipt()
    signature = receipt.head[-1] ^ 1
    (clients / "a.receipt").write_bytes(replace(receipt, head=receipt.head[:-1] + bytes([signature])).encode())
    status, facts = audit(Provider([honest(1)]), "--receipts", "clients")
    assert (status, facts["sessions"], facts["verified"]) == (0, 1, 1)
    assert len(facts["challenge"]["disputed"]) == 1
