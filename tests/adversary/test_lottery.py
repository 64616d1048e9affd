"""The lottery against a provider that knows how it is held, and for an honest one in bad luck: over HTTP."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_files import small, write
from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import PROVIDER, TIME, TRUST, Recording, ask, made_up, manifest, runtime
from tests.simulator import KEY, LOGGED, Log, Provider, honest, other_model, send, serve
from verifiable import limits
from verifiable.checking.caveats import CAVEATS
from verifiable.cli import main
from verifiable.errors import VerificationError
from verifiable.sampling.sampler import SamplingDefaults
from verifiable.session.evidence import Evidence
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.session.records import Finish
from verifiable.wire.keys import PrivateKey
from verifier.campaign.beacon import QUICKNET
from verifier.campaign.weigh import current_manifest, weigh
from verifier.commands import options as command_options, run
from verifier.model.reexecute import Probed
from verifier.provider import listing
from verifier.provider.client import Client

OTHER_KEYS = manifest(session_keys=(PrivateKey.generate("acme/older", b"o" * 32).public,))


class Machine(MadeUpModel):
    """A made-up model where the command makes a process."""

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUpModel:
    """The command runs here, with the made-up model in the place of a process with llama.cpp."""
    model = Machine()
    monkeypatch.setattr(run, "Worker", lambda *_, **__: model)
    monkeypatch.chdir(tmp_path)
    write(tmp_path, small())
    return model


KNOWN = ["--model", "model.gguf", "--trust", PROVIDER.public.vkey(), "--auditor-key", KEY]


def audit(provider: Provider, *options: str, fresh: bool = False) -> tuple[int, dict[str, Any]]:
    """What `verifiable audit URL` says of a provider: exit status and JSON. `fresh`: by a seed of its own."""
    with serve(provider) as url:
        return audit_at(url, *options, fresh=fresh)


def audit_at(target: str, *options: str, fresh: bool = False) -> tuple[int, dict[str, Any]]:
    known = [*KNOWN, *([] if fresh else ["--seed", "5a" * 32])]
    code = main(["audit", target, *known, *options, "--sign", "me.key"])
    if code == 2:
        assert not Path("audit.report").exists()
        return code, {}
    assert main(["verify", "--report", "audit.report", "--trust", "me.key.pub"]) == code
    assert main(["audit", target, *known, *options, "--json"]) == code
    return code, json.loads(OUTPUT[-1]())


OUTPUT: list[Callable[[], str]] = []


@pytest.fixture(autouse=True)
def output(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Gives what was written since it was asked last; JSON begins at the first brace of a line."""

    def json_of() -> str:
        text = capsys.readouterr().out
        return text[text.rindex("\n{\n") if "\n{\n" in text else 0 :]

    OUTPUT.append(json_of)
    yield lambda: capsys.readouterr().out
    OUTPUT.pop()


def long(number: int, row: Any = made_up) -> Recording:
    """A client's session of 60 tokens."""
    made = Recording(session=number.to_bytes(16, "big"), capability=bytes([number]) * 32)
    made.turn(ask(max_tokens=60), PROMPT, row)
    made.close()
    return made


def filler(number: int) -> Recording:
    """A session of a token, with which the provider asked itself."""
    made = Recording(session=(1000 + number).to_bytes(16, "big"))
    made.turn(ask(max_tokens=1), PROMPT)
    made.close()
    return made


def empty(number: int) -> Recording:
    """A session whose client left before the first token."""
    made = Recording(session=bytes([number]) * 16)
    stated = made.manifest
    request = ask(max_tokens=5)
    params = request.params(stated.defaults, stated.k, stated.runtime.n_ctx, len(PROMPT))
    made.leaves.append(made.log.begin_turn(request.turn_facts(PROMPT, params, request.nonce or b"")))
    made.requests.append(request.canonical)
    made.leaves.append(made.log.end_turn(Finish.CANCELLED, hashlib.sha256(b"").digest()))
    made.close()
    return made


def crashed(number: int, tokens: int = 9) -> Recording:
    made = Recording(session=bytes([number]) * 16)
    made.crash(ask(max_tokens=20), PROMPT, tokens)
    return made


def lists(change: Callable[[dict[str, Any]], None]) -> Callable[[str, bytes], bytes]:
    """Changes each entry of the list."""

    def changed(path: str, body: bytes) -> bytes:
        if path != "/v1/sessions":
            return body
        page = json.loads(body)
        for entry in page["sessions"]:
            change(entry)
        return json.dumps(page).encode()

    return changed


# Fillers.


def test_fillers_do_not_thin_out_what_is_drawn() -> None:
    """Three cheated clients among 57 sessions of a token each; drawn by sessions, nine of sixty met one with 39%."""
    provider = Provider([*(long(at, other_model) for at in range(3)), *(filler(at) for at in range(57))])
    code, facts = audit(provider, "--sessions", "9")
    assert (code, facts["failed"] > 0) == (1, True)
    assert facts["challenge"]["plan"]["tokens"] == 3 * 61 + 57 * 2


def light(entry: dict[str, Any]) -> None:
    if int(entry["id"], 16) < 1000:
        entry["size"] = 1


def unsigned(entry: dict[str, Any]) -> None:
    if int(entry["id"], 16) < 1000:
        stated = Head(bytes.fromhex(entry["id"]), 1, bytes(32), bytes(32), 5)
        forged = stated.sign(PrivateKey.generate("nobody", b"n" * 32))
        entry |= {"size": 1, "head": base64.urlsafe_b64encode(forged).decode().rstrip("=")}


@pytest.mark.parametrize("lie", [light, unsigned])
def test_a_size_that_nobody_signed_makes_no_session_light(lie: Callable[[dict[str, Any]], None]) -> None:
    provider = Provider([*(long(at, other_model) for at in range(3)), *(filler(at) for at in range(27))])
    provider.change = lists(lie)
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        found = weigh(client, client.sessions(100), current_manifest(client, TRUST)[0], TRUST, None)
    assert set(found.unproven) == {at.to_bytes(16, "big") for at in range(3)}
    assert set(found.weights) == set(found.listed) - set(found.unproven)


def chance_of(facts: dict[str, Any]) -> float:
    return float(facts["challenge"]["chance_at_share"]["chance"])


def test_the_chance_is_over_sessions_that_were_checked() -> None:
    """Two short sessions, and eight that stop in a long answer: what was drawn of those was not checked."""
    code, facts = audit(Provider([honest(1), honest(2), *(crashed(at, 150) for at in range(3, 11))]), fresh=True)
    assert (code, facts["verified"], facts["interrupted"]) == (0, 2, 8)
    said = facts["challenge"]["chance_at_share"]
    assert (said["sessions"], said["tokens"], said["room"]) == (2, 10, 2 * 6 + 8 * 149)
    assert said["chance"] < 0.02
    assert ("sessions-interrupted", True) in [(each["id"], "with 99%" in each["what"]) for each in facts["not_shown"]]
    code, facts = audit(Provider([honest(1), honest(2)]), fresh=True)
    assert (code, chance_of(facts)) == (0, 1.0)


def test_a_session_of_which_a_turn_was_left_is_not_checked_whole() -> None:
    before, made = stopped()
    provider = Provider([made, honest(1)])
    provider.earlier = {(made.session.hex(), before.log.size): before}
    code, facts = audit(provider, fresh=True)
    assert (code, facts["verified"], facts["challenge"]["chance_at_share"]["sessions"]) == (0, 2, 1)


@pytest.mark.parametrize("options", [("--turns", "1"), ("--seed", "5a" * 32)])
def test_no_chance_is_stated_of_turns_not_opened_or_a_seed_that_was_known(
    options: tuple[str, ...], tmp_path: Path, output: Callable[[], str]
) -> None:
    provider = Provider([honest(at, turns=3) for at in (1, 2)])
    code, facts = audit(provider, *options, fresh=True)
    draw, ids = facts["challenge"], {each["id"] for each in facts["not_shown"]}
    assert (code, draw["chance_at_share"], draw["plan"]["chances"]) == (0, None, None)
    assert draw["no_chance"].startswith("No chance is stated")
    assert ("seed-given" in ids) == draw["seed_given"] == (options[0] == "--seed")
    output()
    with serve(provider) as url:
        assert main(["audit", url, *KNOWN, *options, "--html", "a.html"]) == 0
    for said in (output(), (tmp_path / "a.html").read_text()):
        assert "with a probability" not in said
        assert "No chance is stated" in said


def test_turns_of_a_file_drawn_with_a_seed_that_was_given_are_called_that(
    tmp_path: Path, output: Callable[[], str]
) -> None:
    made = honest(1, turns=3)
    (tmp_path / "a.receipt").write_bytes(made.receipt().encode())
    with serve(Provider([made])) as url:
        for given, turns in itertools.product([(), ("--seed", "5a" * 32)], [(), ("--turns", "1")]):
            output()
            assert main(["audit", "a.receipt", "--provider", url, *KNOWN, *given, *turns, "--json"]) == 0
            ids = {each["id"] for each in json.loads(output())["not_shown"]}
            assert ("seed-given" in ids) == bool(given and turns)


def hollow(number: int, turns: int = 60) -> Recording:
    """A session of many turns without a token, which cost nothing, and one of a token."""
    made = Recording(session=(2000 + number).to_bytes(16, "big"))
    stated = made.manifest
    for _ in range(turns):
        request = made.placed(ask(max_tokens=5))
        params = request.params(stated.defaults, stated.k, stated.runtime.n_ctx, len(PROMPT))
        made.leaves.append(made.log.begin_turn(request.turn_facts(PROMPT, params, request.nonce or b"")))
        made.requests.append(request.canonical)
        made.leaves.append(made.log.end_turn(Finish.CANCELLED, hashlib.sha256(b"").digest()))
    made.turn(ask(max_tokens=1), PROMPT)
    made.close()
    return made


def test_room_without_tokens_lowers_the_chance() -> None:
    """Sessions of turns without a token are drawn for their size; the chance goes by the tokens that they hold."""
    code, facts = audit(
        Provider([*(hollow(at) for at in range(8)), honest(1), honest(2)]), "--sessions", "4", fresh=True
    )
    said = facts["challenge"]["chance_at_share"]
    assert code == 0
    assert said["tokens"] < 20 < 200 < said["room"]
    assert said["chance"] < 0.05


def test_manifests_that_cannot_be_had_make_no_session_heavy() -> None:
    """Fillers under a manifest whose receipts are refused: each weighed as much as the heaviest, and hid the others."""
    old = PrivateKey.generate("acme/old", b"o" * 32)

    class Older(Recording):
        def head(self, **change: Any) -> bytes:
            return replace(self.log.head(TIME + 5000), **change).sign(old)

    def older(number: int) -> Recording:
        made = Older(session=(3000 + number).to_bytes(16, "big"), manifest=manifest(session_keys=(old.public,)))
        made.turn(ask(max_tokens=1), PROMPT)
        made.close()
        return made

    provider = Provider([*(long(at, other_model) for at in range(1, 5)), *(older(at) for at in range(40))])

    def refuses(handler: Any) -> None:
        return send(handler, b"{}", 503) if "/receipt" in handler.path else provider(handler)

    with serve(refuses) as url, Client(url, auditor_key=KEY) as client:
        found = weigh(client, client.sessions(100), current_manifest(client, TRUST)[0], TRUST, None)
    assert (len(found.weights), len(found.unproven)) == (4, 40)
    with serve(refuses) as url:
        code, facts = audit_at(url, "--sessions", "2")
    assert (code, facts["failed"], facts["verified"]) == (1, 2, 2)
    assert ("heads-not-checked", True) in [(each["id"], "40 of 44" in each["what"]) for each in facts["not_shown"]]


def test_one_refused_receipt_does_not_keep_a_manifest_from_being_read() -> None:
    provider = Provider([long(at) for at in range(4)])
    provider.change = lambda path, body: OTHER_KEYS.sign(PROVIDER) if path == "/v1/manifest" else body
    refused: list[str] = []

    def once(handler: Any) -> None:
        if "/receipt" in handler.path and not refused:
            refused.append(handler.path)
            return send(handler, b"{}", 503)
        return provider(handler)

    with serve(once) as url, Client(url, auditor_key=KEY) as client:
        found = weigh(client, client.sessions(100), current_manifest(client, TRUST)[0], TRUST, None)
    assert (len(refused), found.unproven) == (1, ())


def test_more_manifests_than_a_few_are_read() -> None:
    keys = [PrivateKey.generate(f"acme/{at}", bytes([at + 1]) * 32) for at in range(40)]

    made = []
    for at, key in enumerate(keys):
        stated = manifest(session_keys=(key.public,))
        each = Recording(session=(at + 1).to_bytes(16, "big"), manifest=stated, session_key=key)
        each.turn(ask(max_tokens=1), PROMPT)
        each.close()
        made.append(each)
    with serve(Provider(made)) as url, Client(url, auditor_key=KEY) as client:
        found = weigh(client, client.sessions(100), current_manifest(client, TRUST)[0], TRUST, None)
    assert (len(found.weights), found.unproven) == (40, ())


def test_a_list_that_is_not_read_whole_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Provider([honest(at) for at in range(1, 5)])
    assert "list-cut" not in {each["id"] for each in audit(provider)[1]["not_shown"]}
    monkeypatch.setattr(listing, "MAX_SESSIONS", 4)
    assert "list-cut" not in {each["id"] for each in audit(provider)[1]["not_shown"]}
    monkeypatch.setattr(listing, "MAX_SESSIONS", 3)
    code, facts = audit(provider)
    assert (code, facts["challenge"]["population"], facts["challenge"]["list"]["cut"]) == (0, 3, True)
    assert "list-cut" in {each["id"] for each in facts["not_shown"]}
    monkeypatch.setattr(limits, "PAGES", 1)
    with serve(provider) as url, Client(url) as client, pytest.raises(VerificationError, match="too many pages"):
        client.sessions(100)


# Whose sessions.


def test_sessions_of_another_trusted_provider_are_named_and_count_for_no_chance(
    tmp_path: Path, output: Callable[[], str]
) -> None:
    """A reseller lists sessions that it had as the client of another provider whom the auditor trusts, too."""
    key, session_key = PrivateKey.generate("cheap-ai", b"a" * 32), PrivateKey.generate("cheap-ai/s", b"b" * 32)
    stated = manifest(provider="cheap-ai", session_keys=(session_key.public,))

    class Resold(Recording):
        def head(self, **change: Any) -> bytes:
            return replace(self.log.head(TIME + 5000), **change).sign(session_key)

        def receipt(self, turn: int | None = None) -> Receipt:
            return replace(super().receipt(turn), manifest=stated.sign(key))

        def evidence(self, *args: Any, **options: Any) -> Evidence:
            return replace(super().evidence(*args, **options), manifest=stated.sign(key))

    own = Resold(session=bytes([9]) * 16, manifest=stated)
    own.turn(ask(max_tokens=1), PROMPT)
    own.close()
    provider = Provider([honest(1), honest(2), own])
    provider.change = lambda path, body: stated.sign(key) if path == "/v1/manifest" else body
    code, facts = audit(provider, "--trust", key.public.vkey(), fresh=True)
    assert (code, facts["verified"], facts["challenge"]["chance_at_share"]["sessions"]) == (0, 3, 1)
    assert ("other-signer", True) in [(each["id"], "2 of 3, by acme" in each["what"]) for each in facts["not_shown"]]
    output()
    with serve(provider) as url:
        assert main(["audit", url, *KNOWN, "--trust", key.public.vkey(), "--html", "a.html"]) == 0
    said = output()
    assert said.count("\nProvider ") + said.startswith("Provider ") == 2
    assert ": 2 sessions" in said
    assert ": 1 session" in said
    for text in (said, (tmp_path / "a.html").read_text()):
        assert "2 of these sessions were signed by other trusted keys" in text
        assert "The provider answered" not in text
        assert "cheap-ai+" in text
        assert "acme+" in text
    # Where nothing else was verified, nothing was shown about the provider that was asked.
    del provider.recordings[own.session.hex()]
    code, facts = audit(provider, "--trust", key.public.vkey(), "--sign", "auditor.key", fresh=True)
    assert (code, facts["status"], facts["verified"]) == (3, "inconclusive", 2)
    assert [each["code"] for each in facts["beside"]] == ["other-signer"]
    signed = ["verify", "--report", "audit.report", "--trust", Path("auditor.key.pub").read_text().strip()]
    assert main(signed) == 3  # its sums hold
    assert "Found: other-signer" in output()


def test_sessions_under_several_manifests_have_a_line_each(output: Callable[[], str]) -> None:
    """The first session's settings are not those of all."""
    coarse = manifest(runtime=runtime(type_k="q4_0", type_v="q4_0"))
    with serve(Provider([honest(1), honest(2, stated=coarse), honest(3, stated=coarse)])) as url:
        assert main(["audit", url, *KNOWN, "--html", "a.html"]) == 0
    for said in (output(), Path("a.html").read_text()):
        assert "KV cache bf16/bf16" in said
        assert "KV cache q4_0/q4_0" in said
        assert coarse.digest().hex()[:8] in said


def test_a_beacon_is_named_with_whether_its_signature_was_checked(
    monkeypatch: pytest.MonkeyPatch, output: Callable[[], str]
) -> None:
    """On the terminal, in the page and among what is not shown; the command that repeats the audit names it."""
    number = (TIME // 1000 - QUICKNET.genesis) // QUICKNET.period + 1000
    Path("round.json").write_text(json.dumps({"round": number, "signature": "01" * 48}))
    monkeypatch.setattr(command_options, "find_spec", lambda name: None)  # as without the extra
    with serve(Provider([honest(1), honest(2)])) as url:
        assert main(["audit", url, *KNOWN, "--beacon", "round.json", "--html", "a.html"]) == 0
        said = [output(), Path("a.html").read_text()]
        assert main(["audit", url, *KNOWN, "--beacon", "round.json", "--json"]) == 0
    facts = json.loads(output())
    for each in said:
        assert f"drand quicknet, round {number} of " in each
        assert "its signature was not checked" in each
        assert "stood before the beacon" in each
    assert {"beacon-before", "beacon-not-checked"} <= {each["id"] for each in facts["not_shown"]}
    assert "--beacon round.json" in facts["command"]
    assert not facts["challenge"]["seed_given"]


def test_heads_of_earlier_manifests_are_verified_by_the_receipts_of_their_sessions() -> None:
    provider = Provider([long(at) for at in range(3)])
    provider.change = lambda path, body: OTHER_KEYS.sign(PROVIDER) if path == "/v1/manifest" else body
    with serve(provider) as url, Client(url, auditor_key=KEY) as client:
        found = weigh(client, client.sessions(100), current_manifest(client, TRUST)[0], TRUST, None)
    assert not found.unproven
    assert sum("receipt" in path for path in provider.asked) == 1


def test_receipts_of_known_clients_are_drawn_beside_the_list(tmp_path: Path) -> None:
    """The provider leaves its cheated session out of its list; the client's receipt brings it back."""
    cheated, fair = long(1, other_model), [long(at) for at in (2, 3)]
    provider = Provider([cheated, *fair])
    page = provider.page

    def without(path: str, body: bytes) -> bytes:
        if path == "/v1/sessions":
            shown = json.loads(page({}))
            shown["sessions"] = [entry for entry in shown["sessions"] if entry["id"] != cheated.session.hex()]
            return json.dumps(shown).encode()
        return body

    provider.change = without
    code, facts = audit(provider)
    assert (code, facts["verified"]) == (0, 2)
    folder = tmp_path / "clients"
    folder.mkdir()
    for number, made in enumerate([cheated, fair[0]]):
        (folder / f"{number}.receipt").write_bytes(made.receipt().encode())
    code, facts = audit(provider, "--receipts", str(folder))
    assert (code, facts["failed"], facts["verified"], facts["challenge"]["receipts"]) == (1, 1, 2, 2)
    assert facts["challenge"]["plan"]["receipts"]["tokens"] == 2 * 61


def test_a_known_client_is_asked_for_as_a_client(tmp_path: Path) -> None:
    """By its capability and without the auditor's key: nothing tells the provider that an auditor asks."""
    made = long(1)
    provider = Provider([made])
    seen: list[tuple[str, str | None]] = []

    def answer(handler: Any) -> None:
        seen.append((handler.path, handler.headers.get("Authorization")))
        provider(handler)

    (tmp_path / "a.receipt").write_bytes(made.receipt().encode())
    with serve(answer) as url:
        assert audit_at(url, "--receipts", str(tmp_path))[0] == 0
    assert {key for path, key in seen if made.session.hex() in path} == {None}


# Nothing to check, interrupted, erased.


def test_one_client_that_left_and_one_crash_leave_an_honest_provider_verified(
    output: Callable[[], str],
) -> None:
    recordings = [honest(1), honest(2), empty(3), crashed(4)]
    code, facts = audit(Provider(recordings))
    assert (code, facts["status"]) == (0, "verified-exact")
    names = ("verified", "failed", "inconclusive", "nothing_to_check", "interrupted")
    assert [facts[name] for name in names] == [2, 0, 0, 1, 1]
    weights = [max(made.log.size - 3, 1) for made in recordings]
    assert facts["interrupted_share"] == pytest.approx(weights[3] / sum(weights))
    codes = {verdict["session"]: verdict.get("code") for verdict in facts["verdicts"]}
    assert (codes["03" * 16], codes["04" * 16]) == ("no-tokens", "interrupted")
    with serve(Provider(recordings)) as url:
        known = ["--model", "model.gguf", "--trust", PROVIDER.public.vkey(), "--auditor-key", KEY]
        output()
        assert main(["audit", url, *known]) == 0
    said = output()
    assert "2 of 2 sessions" in said
    assert "1 had no token" in said
    assert f"with {weights[3] / sum(weights):.0%} of the room drawn" in said


@pytest.mark.parametrize("made", [empty(3), crashed(4), crashed(4, 0)])
def test_nothing_to_check_alone_is_no_pass(made: Recording) -> None:
    assert audit(Provider([made]))[0] == 3
    assert audit(Provider([made]), "--turns", "1")[0] == 3


def stopped(row: Any = made_up, tokens: int = 9, *, temperature: float = 1.0) -> tuple[Recording, Recording]:
    """A session as it was at the end of its turn, and with a turn after it that was begun and left."""
    before, made = (Recording(session=bytes([6]) * 16) for _ in range(2))
    for each in (before, made):
        each.turn(ask(max_tokens=5, temperature=temperature), PROMPT, row)
    made.crash(ask(max_tokens=20), PROMPT, tokens)
    return before, made


@pytest.mark.parametrize("tokens", [0, 9])
@pytest.mark.parametrize("options", [(), ("--turns", "1"), ("--state", "state")])
def test_a_turn_that_is_begun_and_left_keeps_none_before_it_from_being_audited(
    tokens: int, options: tuple[str, ...]
) -> None:
    for row, code in ((made_up, 0), (other_model, 1)):
        before, made = stopped(row, tokens)
        provider = Provider([made, honest(1)])
        provider.earlier = {(made.session.hex(), before.log.size): before}
        found, facts = audit(provider, *options)
        assert (found, facts["verified"], facts["failed"], facts["interrupted"]) == (code, 2 - code, code, 0)
        notes = next(each["not_shown"] for each in facts["verdicts"] if each["session"] == made.session.hex())
        assert {"id": "turn-interrupted", "what": f"Turn 1: {CAVEATS['turn-interrupted']}"} in notes
        if options[:1] == ("--state",):
            shutil.rmtree("state")


def test_what_stands_before_a_turn_that_was_left_is_asked_for_under_its_own_head() -> None:
    before, made = stopped()
    other, _ = stopped(temperature=0.5)
    for shown, code, why in ((made, 3, "no-evidence"), (other, 1, "two-histories")):
        provider = Provider([made])
        provider.earlier = {(made.session.hex(), before.log.size): shown}
        found, facts = audit(provider)
        assert (found, [each["code"] for each in facts["verdicts"]]) == (code, [why])


def instead(made: Recording, evidence: bytes) -> Callable[[str, bytes], bytes]:
    """Other evidence of one session."""
    return lambda path, body: evidence if f"{made.session.hex()}/evidence" in path else body


def test_an_ended_session_does_not_pass_for_an_interrupted_one() -> None:
    """The end is hidden behind a hash, or the evidence is under a head from the middle: neither is a crash."""
    cheated = honest(1, other_model)
    hidden = {seq: data for seq, data in cheated.log.landmarks.items() if seq < 2}
    opening = type(cheated.evidence().opening).of(cheated.log.tree, hidden)
    early = Recording(session=cheated.session)
    early.crash(ask(max_tokens=5), PROMPT, 3)
    shown = {"incomplete": replace(cheated.evidence(), opening=opening), "no-evidence": early.evidence()}
    for why, evidence in shown.items():
        provider = Provider([cheated, honest(2)])
        provider.change = instead(cheated, evidence.encode())
        code, facts = audit(provider)
        assert (code, facts["undecided"], facts["interrupted"]) == (3, {why: 1}, 0)


def test_an_erased_session_is_called_that(tmp_path: Path) -> None:
    made = honest(1)
    provider = Provider([made, honest(2)])

    def gone(handler: Any) -> None:
        if made.session.hex() in handler.path:
            return send(handler, b"{}", 410)
        return provider(handler)

    with serve(gone) as url:
        code, facts = audit_at(url)
    assert (code, facts["undecided"], facts["verified"]) == (3, {"erased": 1}, 1)


def test_a_provider_that_never_can_be_checked_is_counted_and_named(
    machine: MadeUpModel, output: Callable[[], str]
) -> None:
    machine.probed = Probed(True, b"x" * 32, ("b1",))
    code, facts = audit(Provider([honest(1), honest(2), honest(3)]))
    assert (code, facts["undecided"]) == (3, {"fingerprint-differs": 3})
    output()
    with serve(Provider([honest(1), honest(2)])) as url:
        known = ["--model", "model.gguf", "--trust", PROVIDER.public.vkey(), "--auditor-key", KEY]
        main(["audit", url, *known])
    assert "Could not be checked: 2 fingerprint-differs." in output()


# Ends.


@pytest.mark.parametrize("finish", [Finish.CANCELLED, Finish.ERROR])
def test_an_answer_as_long_as_it_may_be_was_not_cancelled(finish: Finish, tmp_path: Path) -> None:
    made = Recording()
    made.turn(ask(max_tokens=5), PROMPT, finish=finish)
    made.close()
    code, facts = audit(Provider([made]))
    assert (code, facts["verdicts"][0]["code"]) == (1, "counts-differ")
    path = tmp_path / "a.receipt"
    path.write_bytes(made.receipt().encode())
    assert main(["verify", str(path), "--trust", PROVIDER.public.vkey()]) == 1


# Memory.


def test_two_audits_with_one_state_accuse_nobody(tmp_path: Path) -> None:
    """While a lottery waits for its seed, a client's audit of the same session, grown since, comes and goes."""
    made, grown = honest(1), Recording(session=bytes([1]) * 16, capability=bytes([1]) * 32)
    made = Recording(session=bytes([1]) * 16, capability=bytes([1]) * 32)
    for each, turns in ((made, 1), (grown, 2)):
        for _ in range(turns):
            each.turn(ask(max_tokens=5), PROMPT)
    state = tmp_path / "state"
    (tmp_path / "a.receipt").write_bytes(grown.receipt().encode())
    provider = Provider([grown])
    page = provider.page
    early = base64.urlsafe_b64encode(made.head()).decode().rstrip("=")

    def older(path: str, body: bytes) -> bytes:
        if path == "/v1/sessions":
            shown = json.loads(page({}))
            shown["sessions"][0] |= {"size": made.log.size, "head": early}
            return json.dumps(shown).encode()
        return body

    provider.change = older
    asked = threading.Event()

    def answer(handler: Any) -> None:
        if "evidence" in handler.path and f"size={made.log.size}" in handler.path:
            if not asked.is_set():
                asked.set()
                with serve(Provider([grown])) as url:
                    grow = [str(tmp_path / "a.receipt"), "--provider", url, "--model", "model.gguf"]
                    assert main(["audit", *grow, "--trust", PROVIDER.public.vkey(), "--state", str(state)]) == 0
            return send(handler, made.evidence().encode())
        return provider(handler)

    known = ["--model", "model.gguf", "--trust", PROVIDER.public.vkey(), "--auditor-key", KEY]
    with serve(answer) as url:
        assert main(["audit", url, *known, "--state", str(state)]) == 0
        assert asked.is_set()
        # The list is fetched again, and is older than what was known before: now that counts.
        assert main(["audit", url, *known, "--state", str(state)]) == 3


# Mistakes of the auditor's.


def test_another_providers_key_says_nothing_about_this_one(output: Callable[[], str]) -> None:
    key = PrivateKey.generate("acme", b"o" * 32).public.vkey()
    for options in ([], ["--state", "state"]):
        with serve(Provider([honest(1, stated=LOGGED)], Log([]))) as url:
            assert main(["audit", url, "--model", "model.gguf", "--trust", key, "--sign", "me.key", *options]) == 2
        assert output() == ""
        assert not Path("audit.report").exists()


def test_what_a_manifest_declares_is_printed(tmp_path: Path, output: Callable[[], str]) -> None:
    stated = manifest(k=1, runtime=runtime(type_k="q8_0"), defaults=SamplingDefaults(temperature=1.7, top_k=1))
    made = Recording(manifest=stated)
    path = tmp_path / "a.receipt"
    made.turn(ask(max_tokens=1), PROMPT, first)
    path.write_bytes(made.receipt().encode())
    assert main(["verify", str(path), "--trust", PROVIDER.public.vkey()]) == 0
    said = output()
    for fact in ("KV cache q8_0/bf16", "k 1", "temperature 1.7", "top_k 1"):
        assert fact in said


def first(ids: Sequence[int]) -> Any:
    entries = made_up(ids)
    return type(entries)(entries.ids[:1], entries.logits[:1])
