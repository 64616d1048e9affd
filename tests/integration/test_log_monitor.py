"""Those who watch a log: witnesses over real HTTP, and a monitor that notices a fork and can show it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from engine.api.app import proof_app
from engine.ledger import LedgerSettings
from engine.store import DamagedLogError
from engine.witness.witness import Witness, make_app
from fixtures.synthetic import SyntheticProvider
from tests.integration.serving import served
from tests.logs import build_tile
from tests.simulator import send, serve
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.cli import main as command
from verifiable.errors import PolicyError, StoreError, VerificationError
from verifiable.net import client as net
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint, sign_checkpoint
from verifiable.tlog.cosignature import CosignerKey, witness_key
from verifiable.tlog.merkle import Tree, consistency_path, leaf_hash, prefix_path
from verifiable.tlog.tiles import ENTRIES, Tile, encode_bundle
from verifiable.tlog.witness import AddCheckpoint
from verifiable.wire.keys import PrivateKey
from verifier.monitor.fetch import Fetch, HttpFetch
from verifier.monitor.fork import check_fork, verify as verify_fork
from verifier.monitor.monitor import ForkError, Monitor, TwoHeadsError


def grow(provider: SyntheticProvider, count: int) -> int:
    for turn in [provider.begin("q", 1) for _ in range(count)]:
        turn.run()
        turn.wait()
    return provider.publish()


def fetch(provider: SyntheticProvider) -> Fetch:
    """The log's files without a socket between."""
    client: Any = TestClient(proof_app(provider))

    def read(path: str, maximum: int) -> bytes:
        answer = client.get(f"/log/{path}")
        if answer.status_code != 200 or len(answer.content) > maximum:
            raise VerificationError("the log does not hand over a file", code="no-evidence", found=answer.status_code)
        return bytes(answer.content)

    return read


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[SyntheticProvider]:
    """A log of 5 entries: the manifest, and the heads of 4 sessions."""
    found = SyntheticProvider(tmp_path / "provider")
    grow(found, 4)
    yield found
    found.close()


def test_a_monitor_follows_a_log_across_its_own_restarts(provider: SyntheticProvider, tmp_path: Path) -> None:
    sizes, kinds = [], []
    for more in (0, 3, 300, 0):  # a log of a manifest and 4 heads at first
        grow(provider, more)
        step = Monitor(fetch(provider), provider.keys.log.public, tmp_path / "state", entries=True).look()
        sizes.append((None if step.old is None else step.old.size, step.new.size, step.entries))
        kinds.append(step.kinds)
    assert sizes == [(None, 5, 5), (5, 8, 3), (8, 308, 300), (308, 308, 0)]
    assert kinds == [{"manifest": 1, "head": 4}, {"head": 3}, {"head": 300}, {}]


@pytest.mark.parametrize("extra", [1, 3, 4], ids=["shorter", "same size", "longer"])
def test_a_fork_is_noticed_and_shown(
    provider: SyntheticProvider, tmp_path: Path, extra: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same keys over an old copy of everything: the fork that a dishonest provider would make."""
    shutil.copytree(provider.keys.folder.parent, tmp_path / "fork")
    grow(provider, 3)
    key = provider.keys.log.public
    monitor = Monitor(fetch(provider), key, tmp_path / "state")
    assert monitor.look().new.size == 8
    other = SyntheticProvider(tmp_path / "fork")
    grow(other, extra)
    with pytest.raises(ForkError, match="two roots" if extra == 3 else "cannot show that it only grew") as caught:
        Monitor(fetch(other), key, tmp_path / "state").look()
    other.close()
    evidence = caught.value.evidence.read_bytes()
    proven = extra == 3  # of two sizes a stranger sees only that both were signed, as by a log that grows
    code = command(["verify", "--fork", str(caught.value.evidence), "--trust", key.vkey(), "--json"])
    assert code == (1 if proven else 3)
    shown = json.loads(capsys.readouterr().out)
    assert shown["code"] == ("log-forked" if proven else "nothing-checked")
    assert ("two roots" if proven else "no proof that the one extends") in shown["summary"]
    notes = [note.encode() for note in json.loads(evidence)["checkpoints"]]
    assert [open_checkpoint(note, key).checkpoint.size for note in notes] == [8, 5 + extra]
    with pytest.raises(VerificationError):
        check_fork(evidence, [PrivateKey.generate(key.name, bytes(32)).public])
    assert monitor.look().new.size == 8  # what was remembered is still the honest one


def test_honest_checkpoints_are_no_fork_evidence(provider: SyntheticProvider) -> None:
    log = provider.ledger.log
    assert log is not None
    first = log.published.note
    grow(provider, 3)
    proof = [value.hex() for value in consistency_path(log.tree.node, 5, 8)]
    key = provider.keys.log.public
    content = {"log": key.vkey(), "checkpoints": [first.decode(), log.published.note.decode()], "proof": proof}
    with pytest.raises(VerificationError, match="extends"):
        check_fork(json.dumps(content).encode(), [key])
    for made_up in ([], ["00" * 32]):  # the proof left out, by whoever made the file
        said = verify_fork(json.dumps({**content, "proof": made_up}).encode(), [key])
        assert (said.status, said.code) == ("inconclusive", "nothing-checked")
    content["checkpoints"] = [first.decode()] * 2
    with pytest.raises(VerificationError, match="agree"):
        check_fork(json.dumps(content).encode(), [key])


def test_an_older_checkpoint_of_the_same_log_is_stale_and_not_remembered(
    provider: SyntheticProvider, tmp_path: Path
) -> None:
    log = provider.ledger.log
    assert log is not None
    old = log.published.note
    grow(provider, 4)
    real = fetch(provider)
    Monitor(real, provider.keys.log.public, tmp_path / "state").look()

    def cached(path: str, maximum: int) -> bytes:
        return old if path == "checkpoint" else real(path, maximum)

    step = Monitor(cached, provider.keys.log.public, tmp_path / "state").look()
    assert step.stale
    assert Monitor(real, provider.keys.log.public, tmp_path / "state").look().old == log.published.signed.checkpoint


@pytest.mark.parametrize("path", ["tile/0/000.p/5", "checkpoint", "tile/entries/000.p/5"])
@pytest.mark.parametrize("flip", [0x01, 0x80])  # of a checkpoint: mostly another signature; never base64
def test_a_log_that_serves_something_else_is_not_believed(
    provider: SyntheticProvider, tmp_path: Path, path: str, flip: int
) -> None:
    real = fetch(provider)

    def changed(asked: str, maximum: int) -> bytes:
        data = real(asked, maximum)
        return data[:-40] + bytes([data[-40] ^ flip]) + data[-39:] if asked == path else data

    with pytest.raises((VerificationError, StoreError)):
        Monitor(changed, provider.keys.log.public, tmp_path / "state", entries=True).look()
    assert not (tmp_path / "state" / "checkpoint").exists()


def forged(provider: SyntheticProvider) -> bytes:
    """A second history of an earlier session, signed with the provider's own session key."""
    entry = provider.store.entry(2)
    assert entry is not None
    head = Head.peek(entry.signed)
    return replace(head, root=bytes(32)).sign(provider.keys.session)


def with_two_heads(provider: SyntheticProvider, second: bytes | None = None) -> tuple[Fetch, Callable[[], bytes]]:
    """The log of a provider that took a second history of one of its sessions into it."""
    entries = [row.signed for at in range(provider.publish()) if (row := provider.store.entry(at)) is not None]
    entries.append(forged(provider) if second is None else second)
    tree = Tree.from_leaves(map(leaf_hash, entries))
    note = sign_checkpoint(Checkpoint(provider.keys.log.name, tree.size, tree.root()), provider.keys.log)

    def serve(path: str, maximum: int) -> bytes:
        if path == "checkpoint":
            return note
        tile = Tile.parse(path)
        if tile.level == ENTRIES:
            return encode_bundle(entries[tile.index * 256 : tile.index * 256 + tile.width])
        return build_tile(tile, tree.node)

    return serve, lambda: provider.manifests.in_force().envelope


def test_two_heads_in_the_log_become_a_file_that_anyone_can_check(provider: SyntheticProvider, tmp_path: Path) -> None:
    """Over two looks, with more than a bundle between the two heads, and again after the alarm."""
    state, log = tmp_path / "state", provider.keys.log.public
    grow(provider, 300)
    Monitor(fetch(provider), log, state, entries=True).look()
    dishonest, manifest = with_two_heads(provider)
    Monitor(dishonest, log, tmp_path / "without").look()  # not asked to read entries: it can't know
    for _ in range(2):
        with pytest.raises(TwoHeadsError, match="two histories of session") as caught:
            Monitor(dishonest, log, state, entries=True, manifest=manifest).look()
        assert caught.value.code == "two-histories"
        assert caught.value.evidence.suffix == ".fraud"
    trust = provider.keys.public_file.read_text()
    assert command(["verify", "--fraud", str(caught.value.evidence), "--trust", trust.strip()]) == 1
    # What was remembered stays: the honest part is still followed.
    assert Monitor(fetch(provider), log, state, entries=True).look().new.size == 305


def test_a_provider_that_hides_its_manifest_is_too_late(provider: SyntheticProvider, tmp_path: Path) -> None:
    state, log = tmp_path / "state", provider.keys.log.public
    Monitor(fetch(provider), log, state, entries=True, manifest=lambda: provider.manifests.in_force().envelope).look()
    dishonest, _ = with_two_heads(provider)

    def hidden() -> bytes:
        raise VerificationError("gone", code="no-evidence")

    with pytest.raises(TwoHeadsError) as caught:
        Monitor(dishonest, log, state, entries=True, manifest=hidden).look()
    assert caught.value.evidence.suffix == ".fraud"
    with pytest.raises(TwoHeadsError, match="never shown") as caught:  # by one who never saw it
        Monitor(dishonest, log, tmp_path / "late", entries=True, manifest=hidden).look()
    assert len(json.loads(caught.value.evidence.read_bytes())["entries"]) == 2


def test_entries_that_were_passed_over_once_are_read_when_asked_for(
    provider: SyntheticProvider, tmp_path: Path
) -> None:
    state, log = tmp_path / "state", provider.keys.log.public
    assert Monitor(fetch(provider), log, state).look().entries == 0
    grow(provider, 2)
    assert Monitor(fetch(provider), log, state, entries=True).look().entries == 7


def test_the_monitors_command_alarms_at_two_heads(
    provider: SyntheticProvider, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, manifest = with_two_heads(provider)

    def dishonest(handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.removeprefix("/log/")
        send(handler, manifest() if path == "/v1/manifest" else log(path, 1 << 20))

    state = tmp_path / "state"
    with serve(dishonest) as url:
        words = ["log", "monitor", f"{url}/log", "--trust", provider.keys.log.public.vkey(), "--once"]
        assert command([*words, "--entries", "--state", str(state), "--json"]) == 1
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert told["state"] == "two-histories"
    trust = str(provider.keys.public_file)
    assert command(["verify", "--fraud", told["evidence"], "--trust", trust]) == 1
    with served(proof_app(provider)) as url:
        words[2] = f"{url}/log"
        assert command([*words, "--entries", "--state", str(tmp_path / "honest"), "--json"]) == 0
        assert list((tmp_path / "honest" / "manifests").iterdir())


def forked_log(provider: SyntheticProvider) -> tuple[Fetch, Callable[[], bytes], Tree, Head]:
    """A log that has a longer history of an earlier session, which begins otherwise; its tree, and the head told."""
    entry = provider.store.entry(2)
    assert entry is not None
    told = Head.peek(entry.signed)
    tree = Tree.from_leaves(leaf_hash(bytes([number])) for number in range(told.size + 3))
    longer = replace(told, size=tree.size, root=tree.root()).sign(provider.keys.session)
    log, manifest = with_two_heads(provider, longer)
    return log, manifest, tree, told


def test_a_longer_history_of_a_session_in_the_log_becomes_a_file_that_anyone_can_check(
    provider: SyntheticProvider, tmp_path: Path
) -> None:
    """The provider is asked for the proof that it continues the shorter one, at each look until it gives one."""
    log, manifest, tree, told = forked_log(provider)
    asked: list[tuple[bytes, int, int]] = []
    right = prefix_path(tree.range, told.size, tree.size)
    answers: list[Any] = [VerificationError("not for you", code="no-evidence"), [], [bytes(32)] * len(right)]

    def continues(session: bytes, old: int, new: int) -> list[bytes]:
        asked.append((session, old, new))
        answer = answers.pop(0) if answers else right
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    state = tmp_path / "state"
    monitor = Monitor(log, provider.keys.log.public, state, entries=True, manifest=manifest, continues=continues)
    for _ in range(3):
        assert monitor.look().unshown == 1
    with pytest.raises(TwoHeadsError, match="two histories of session") as caught:
        monitor.look()
    assert asked == [(told.session, told.size, tree.size)] * 4
    assert Fraud.load(caught.value.evidence).kind is FraudKind.TWO_SIZES
    assert command(["verify", "--fraud", str(caught.value.evidence), "--trust", str(provider.keys.public_file)]) == 1
    assert Monitor(log, provider.keys.log.public, tmp_path / "alone", entries=True).look().unshown == 1


def conversation(provider: SyntheticProvider, turns: int) -> None:
    """A session of so many turns, each with its head in the log."""
    receipt = Receipt.parse(provider.answer("one", 3, "new"))
    session = Head.peek(receipt.head).session.hex()
    owner = provider.owner(receipt)
    for _ in range(turns - 1):
        provider.answer("more", 2, session, owner)
    provider.publish()


def test_the_monitors_command_asks_which_heads_continue_which(
    provider: SyntheticProvider, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation(provider, 4)
    log, manifest, tree, told = forked_log(provider)

    def dishonest(handler: BaseHTTPRequestHandler) -> None:
        path, _, query = handler.path.removeprefix("/log/").partition("?")
        if "/consistency" not in path:
            return send(handler, manifest() if path == "/v1/manifest" else log(path, 1 << 20))
        if path.split("/")[3] != told.session.hex():
            return send(handler, b"{}", 404)
        proof = prefix_path(tree.range, told.size, tree.size)
        assert query == f"old={told.size}&new={tree.size}"
        return send(handler, json.dumps({"path": [value.hex() for value in proof]}).encode())

    key = provider.keys.log.public.vkey()
    words = ["log", "monitor", "URL", "--trust", key, "--once", "--entries", "--json", "--state"]
    with served(proof_app(provider)) as url:
        words[2] = f"{url}/log"
        assert command([*words, str(tmp_path / "honest")]) == 0
        assert json.loads(capsys.readouterr().out)["unshown"] == 0
        with serve(
            lambda handler: send(handler, fetch(provider)(handler.path.removeprefix("/copy/"), 1 << 20))
        ) as mirror:
            words[2] = f"{mirror}/copy"  # static files alone show no proof; the provider does
            assert command([*words, str(tmp_path / "mirror")]) == 3
            assert json.loads(capsys.readouterr().out)["unshown"] == 3
            assert command([*words, str(tmp_path / "mirror"), "--provider", url]) == 0
            assert json.loads(capsys.readouterr().out)["unshown"] == 0
    with serve(dishonest) as url:
        words[2] = f"{url}/log"
        assert command([*words, str(tmp_path / "state")]) == 1
    told_by = json.loads(capsys.readouterr().out.splitlines()[0])
    assert told_by["state"] == "two-histories"
    assert command(["verify", "--fraud", told_by["evidence"], "--trust", str(provider.keys.public_file)]) == 1


def mirror_of(provider: SyntheticProvider, note: bytes) -> Fetch:
    """An honest mirror of a log that has grown since that checkpoint: of what is full by now it has no partial tile."""
    log = provider.ledger.log
    assert log is not None
    real, size = fetch(provider), log.published.size

    def read(path: str, maximum: int) -> bytes:
        if path == "checkpoint":
            return note
        tile = Tile.parse(path)
        if tile.width < 256 and (tile.index + 1) * 256 << 8 * max(tile.level, 0) <= size:
            raise VerificationError("the log does not hand over a file", code="no-evidence", found=404)
        return real(path, maximum)

    return read


def test_a_mirror_that_has_only_the_full_tile_is_read(
    provider: SyntheticProvider, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, key, state = provider.ledger.log, provider.keys.log.public, tmp_path / "state"
    assert log is not None
    grow(provider, 275)
    note = log.published.note
    grow(provider, 20)
    later = log.published.note
    grow(provider, 220)
    mirror, mirror_later = mirror_of(provider, note), mirror_of(provider, later)
    with pytest.raises(VerificationError):
        mirror("tile/0/001.p/24", 1 << 20)
    look = Monitor(mirror, key, state, entries=True).look()
    assert (look.new.size, look.entries) == (280, 280)

    def spoilt(path: str, maximum: int) -> bytes:
        data = mirror_later(path, maximum)
        return data[:-1] + bytes([data[-1] ^ 1]) if path == "tile/0/001" else data

    # Beyond the checkpoint nothing is signed for yet, but a full tile was seen as it was.
    with pytest.raises(VerificationError, match="full tiles never change") as caught:
        Monitor(spoilt, key, state, entries=True).look()
    assert caught.value.code == "no-evidence"
    assert Monitor(mirror_later, key, state, entries=True).look().entries == 20
    for read, status in ((mirror, 0), (spoilt, 3)):

        def answer(handler: BaseHTTPRequestHandler, read: Fetch = read) -> None:
            try:
                send(handler, read(handler.path.removeprefix("/copy/"), 1 << 20))
            except VerificationError:
                send(handler, b"", 404)

        with serve(answer) as url:
            words = [
                "log",
                "monitor",
                f"{url}/copy",
                "--trust",
                key.vkey(),
                "--once",
                "--state",
                str(tmp_path / "other"),
            ]
            assert command(words) == status
    assert "full tiles never change" in capsys.readouterr().err


def test_a_log_that_is_away_is_not_called_forked(provider: SyntheticProvider, tmp_path: Path) -> None:
    words = ["log", "monitor", "http://127.0.0.1:1/log", "--trust", provider.keys.log.public.vkey(), "--once"]
    assert command([*words, "--state", str(tmp_path / "state")]) == 3


def test_a_log_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "TOTAL_SECONDS", 0.5)

    def dripping(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b"x")
            time.sleep(0.1)

    began = time.monotonic()
    with serve(dripping) as url, pytest.raises(VerificationError, match="too slow"):
        HttpFetch(url)("checkpoint", 1000)
    assert time.monotonic() - began < 5


def test_witnesses_cosign_and_a_quorum_decides(tmp_path: Path) -> None:
    data = tmp_path / "provider"
    first = SyntheticProvider(data)
    grow(first, 2)
    log = first.keys.log.public
    first.close()
    keys = [PrivateKey.generate(f"witness{number}", bytes([number]) * 32) for number in (1, 2)]
    witnesses = [Witness(key, [log], tmp_path / key.name) for key in keys]
    with served(make_app(witnesses[0])) as one, served(make_app(witnesses[1])) as two:
        texts = tuple(f"{witness.vkey} {url}" for witness, url in zip(witnesses, (one, two), strict=True))
        provider = SyntheticProvider(data, LedgerSettings(witnesses=texts, quorum=2))
        assert grow(provider, 2) == 5
        assert provider.ledger.log is not None
        note = provider.ledger.log.published.note
        cosigners = [witness_key(key.public) for key in keys]
        assert len(open_checkpoint(note, log, cosigners, quorum=2).witnesses) == 2
        step = Monitor(fetch(provider), log, tmp_path / "state", cosigners, 2).look()
        assert step.witnesses == ("witness1", "witness2")
        receipt = provider.answer("x", 1)
        provider.publish()
        provider.close()
        gone = (*texts[:1], f"{witnesses[1].vkey} http://127.0.0.1:1")
        provider = SyntheticProvider(data, LedgerSettings(witnesses=gone, quorum=2))
        with pytest.raises(PolicyError, match="too few witnesses"):
            grow(provider, 1)
        assert provider.ledger.log is not None
        assert provider.ledger.log.published.size == 6  # integrated, signed, and not published
        assert provider.ledger.log.size() == 7
        provider.close()
        provider = SyntheticProvider(data, LedgerSettings(witnesses=gone, quorum=1))
        assert provider.publish() == 7
        provider.close()
    assert receipt


def test_a_log_does_not_open_under_the_checkpoint_of_another_history(tmp_path: Path) -> None:
    """Two copies of one store went on by themselves; the published checkpoint is the other one's."""
    first = SyntheticProvider(tmp_path / "first")
    grow(first, 1)
    first.close()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    notes = []
    for name in ("first", "second"):
        provider = SyntheticProvider(tmp_path / name)
        grow(provider, 3)
        log = provider.ledger.log
        assert log is not None
        notes.append(log.published.note)
        provider.close()
    (place,) = [path for path in (tmp_path / "second").rglob("*") if path.is_file() and path.read_bytes() == notes[1]]
    place.write_bytes(notes[0])
    with pytest.raises(DamagedLogError, match="not what was signed for size 5"):
        SyntheticProvider(tmp_path / "second")


def test_a_witness_notices_a_fork_and_an_old_backup(tmp_path: Path) -> None:
    provider = SyntheticProvider(tmp_path / "provider")
    grow(provider, 4)
    shutil.copytree(tmp_path / "provider", tmp_path / "fork")
    log = provider.keys.log.public
    witness = Witness(PrivateKey.generate("witness", bytes(32)), [log], tmp_path / "witness")
    with served(make_app(witness)) as url:
        provider.close()
        settings = LedgerSettings(witnesses=(f"{witness.vkey} {url}",), quorum=1)
        provider = SyntheticProvider(tmp_path / "provider", settings)
        grow(provider, 4)
        provider.close()
        for count, reason in ((2, "larger size"), (2, "409|two roots"), (3, "422|consistency")):
            other = SyntheticProvider(tmp_path / "fork", settings)
            with pytest.raises(PolicyError, match=reason):
                grow(other, count)
            other.close()
    assert witness.seen(log.name).size == 9


def test_a_witness_answers_as_the_specification_says(provider: SyntheticProvider, tmp_path: Path) -> None:
    log = provider.ledger.log
    assert log is not None
    witness = Witness(PrivateKey.generate("witness", bytes(32)), [provider.keys.log.public], tmp_path / "witness")
    client = TestClient(make_app(witness))
    first = log.published.note
    grow(provider, 3)
    second = log.published.note
    proof = tuple(log.tree.consistency_proof(5, 8))

    def ask(old: int, path: tuple[bytes, ...], note: bytes) -> Any:
        return client.post("/add-checkpoint", content=AddCheckpoint(old, path, note).format())

    line = ask(0, (), first)
    assert line.status_code == 200
    assert CosignerKey.parse(witness.vkey).name in line.text
    stale = ask(0, (), second)
    assert (stale.status_code, stale.text, stale.headers["content-type"]) == (409, "5\n", "text/x.tlog.size")
    assert ask(5, proof[:-1], second).status_code == 422
    assert ask(5, (bytes(32), *proof[1:]), second).status_code == 422
    assert ask(5, proof, second).status_code == 200
    assert ask(8, (), second).status_code == 200
    assert ask(9, (), second).status_code == 400
    stranger = PrivateKey.generate(log.origin, bytes(32))
    assert ask(8, (), sign_checkpoint(log.published.signed.checkpoint, stranger)).status_code == 403
    assert client.post("/add-checkpoint", content=b"nonsense").status_code == 400
    assert client.post("/add-checkpoint", content=bytes(2 << 20)).status_code == 413
    assert client.get("/add-checkpoint").status_code == 405
    assert witness.seen(log.origin).size == 8


def test_a_witness_with_a_logs_key_is_refused(provider: SyntheticProvider, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="log's key"):
        Witness(provider.keys.log, [provider.keys.log.public], tmp_path)
