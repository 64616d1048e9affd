"""The log and the proof API over real HTTP semantics, from a provider whose tokens are made up and nothing else is."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from engine.api.app import proof_app
from engine.keys import life
from engine.store import StoredLeaf
from engine.web.limits import ProofRates, Rate
from fixtures.synthetic import SyntheticProvider
from verifiable.checking.checks import check_evidence, check_receipt
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import MEDIA_TYPE, KeysFile, Role
from verifiable.session.evidence import Evidence
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.cose_receipt import verify_receipt
from verifiable.tlog.entry import REVOCATION, SUCCESSION, kind_of
from verifiable.tlog.merkle import (
    leaf_hash,
    root_from_multiproof,
    roots_from_prefix,
    verify_consistency,
    verify_inclusion,
)
from verifiable.tlog.proof import TlogProof
from verifiable.tlog.tiles import bundles_for, check_tile, decode_bundle, root_from_tiles, tiles_for
from verifiable.wire.text import read_base64url

COUNT = 300


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyntheticProvider]:
    """A manifest and 299 sessions, published at sizes 7, 256 and 300."""
    found = SyntheticProvider(tmp_path_factory.mktemp("provider"))
    for size in (7, 256, COUNT):
        there = max(found.ledger.log.published.size, 1)  # type: ignore[union-attr]
        turns = [found.begin("q", 2) for _ in range(size - there)]
        for turn in turns:
            turn.run()
        for turn in turns:
            turn.wait()
        found.publish()
    yield found
    found.close()


@pytest.fixture(scope="module")
def client(provider: SyntheticProvider) -> TestClient:
    return TestClient(proof_app(provider))


def opened(receipt: bytes) -> tuple[Receipt, Head]:
    parsed = Receipt.parse(receipt)
    return parsed, Head.peek(parsed.head)


def shows(capability: bytes | None) -> dict[str, str]:
    return {"X-Verifiable-Capability": (capability or b"").hex()}


def test_the_static_log_is_complete_and_gives_the_signed_root(provider: SyntheticProvider, client: TestClient) -> None:
    answer = client.get("/log/checkpoint")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-type"].startswith("text/plain")
    head = open_checkpoint(answer.content, provider.keys.log.public).checkpoint
    assert head.size == COUNT
    tiles = {}
    for tile in [*tiles_for(COUNT), *bundles_for(COUNT)]:
        found = client.get(f"/log/{tile.path()}")
        assert found.status_code == 200, tile
        assert "immutable" in found.headers["cache-control"]
        tiles[tile] = found.content
    assert root_from_tiles(COUNT, lambda tile: check_tile(tile, tiles[tile])) == head.root
    hashes = b"".join(tiles[tile] for tile in tiles_for(COUNT) if tile.level == 0)
    entries = [entry for tile in bundles_for(COUNT) for entry in decode_bundle(tiles[tile], tile.width)]
    assert b"".join(map(leaf_hash, entries)) == hashes


@pytest.mark.parametrize("path", ["tile/0/000.p/7", "tile/0/000.p/255", "tile/entries/001.p/44", "tile/1/000.p/1"])
def test_partial_tiles_within_the_published_size_are_there(client: TestClient, path: str) -> None:
    assert client.get(f"/log/{path}").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "tile/0/001", "tile/0/001.p/45", "tile/0/002.p/1", "tile/1/000.p/2", "tile/2/000.p/1", "tile/64/000",
        "tile/entries/001", "tile/0/0", "tile/0/000.p/0", "tile/0/000.p/256", "tile/00/000", "tile/0/x000/000",
        "tile/0/000.p/07", "tile/-1/000", "tile/0/%30%30%30%2e", "tile/0/000/", "tile/0/x999/x999/x999/999", "tile/",
        "tile", "", "checkpoint/", "tile/../checkpoint/x", "tile/..%2f..%2fkeys/provider.key", "%2e%2e/keys/log.key",
    ],
)  # fmt: skip
def test_no_other_tile_is(client: TestClient, path: str) -> None:
    answer = client.get(f"/log/{path}", follow_redirects=False)
    assert answer.status_code in (307, 404), path
    assert b"PRIVATE" not in answer.content


def test_checkpoint_and_tiles_can_be_asked_for_conditionally_and_in_parts(client: TestClient) -> None:
    whole = client.get("/log/tile/0/000")
    assert client.get("/log/tile/0/000", headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
    part = client.get("/log/tile/0/000", headers={"Range": "bytes=32-63"})
    assert (part.status_code, part.content) == (206, whole.content[32:64])
    assert part.headers["content-range"] == f"bytes 32-63/{len(whole.content)}"
    assert client.get("/log/tile/0/000", headers={"Range": "bytes=-32"}).content == whole.content[-32:]
    assert client.get("/log/tile/0/000", headers={"Range": "bytes=99999999-"}).status_code == 416
    assert client.get("/log/tile/0/000", headers={"Range": "lines=1-2"}).status_code == 200


@pytest.mark.parametrize("size", [7, 256, None])
@pytest.mark.parametrize("index", [0, 6])
def test_inclusion_comes_in_three_forms_that_verify(
    provider: SyntheticProvider, client: TestClient, index: int, size: int | None
) -> None:
    query = f"/v1/log/proof?index={index}" + ("" if size is None else f"&size={size}")
    entry = base64.urlsafe_b64decode(client.get(f"/v1/log/entries/{index}").json()["entry"] + "===")
    key = provider.keys.log.public
    assert client.get(f"/v1/log/entries/{index}").json()["kind"] == ("head" if index else "manifest")
    plain = client.get(query).json()
    path = [bytes.fromhex(value) for value in plain["path"]]
    verify_inclusion(leaf_hash(entry), index, plain["size"], path, bytes.fromhex(plain["root"]))
    assert open_checkpoint(plain["checkpoint"].encode(), key).checkpoint.root.hex() == plain["root"]
    proof = client.get(query, headers={"Accept": "text/x.tlog.proof"})
    assert TlogProof.parse(proof.content).verify(entry, key).checkpoint.size == plain["size"]
    receipt = client.get(query, headers={"Accept": "text/html, application/cose;q=0.5"})
    assert receipt.headers["content-type"] == "application/cose"
    included = verify_receipt(receipt.content, entry, [key])
    assert (included.index, included.size) == (index, size or COUNT)


def test_a_form_that_nobody_makes_is_not_acceptable(client: TestClient) -> None:
    assert client.get("/v1/log/proof?index=0", headers={"Accept": "image/png"}).status_code == 406
    assert client.get("/v1/log/proof?index=0", headers={"Accept": "image/png, */*;q=0.1"}).status_code == 200


def test_every_two_published_checkpoints_are_consistent(provider: SyntheticProvider, client: TestClient) -> None:
    notes = [note for _, note in provider.store.checkpoints()]
    heads = [open_checkpoint(note, provider.keys.log.public).checkpoint for note in notes]
    assert [head.size for head in heads] == [7, 256, COUNT]
    for old in heads:
        for new in heads:
            if old.size <= new.size:
                answer = client.get(f"/v1/log/consistency?old={old.size}&new={new.size}").json()
                path = [bytes.fromhex(value) for value in answer["path"]]
                verify_consistency(old.size, new.size, path, old.root, new.root)
    assert client.get("/v1/log/consistency?old=8").status_code == 200  # an old size needs no checkpoint of ours
    assert client.get("/v1/log/consistency?old=7&new=8").status_code == 400  # a new one does
    assert client.get("/v1/log/consistency?old=301").status_code == 400


def test_a_receipt_gets_its_proof_once_it_is_published(provider: SyntheticProvider, client: TestClient) -> None:
    receipt, head = opened(provider.answer("when?", 4))
    assert receipt.log is None
    url, headers = f"/v1/sessions/{head.session.hex()}/receipt", shows(receipt.capability)
    assert Receipt.parse(client.get(url, headers=headers).content).log is None
    provider.publish()
    later = Receipt.parse(client.get(url, headers=headers).content)
    assert later.log is not None
    assert later.head == receipt.head
    check_receipt(later, [provider.keys.provider.public], "")
    by_head = client.get(f"/v1/log/proof?session={head.session.hex()}&head={head.size}").json()
    assert by_head["leaf_hash"] == leaf_hash(receipt.head).hex()


def test_earlier_heads_keep_their_receipts_evidence_and_consistency(
    provider: SyntheticProvider, client: TestClient
) -> None:
    first, head = opened(provider.answer("one", 3, "new"))
    second, later = opened(provider.answer("two", 5, head.session.hex(), provider.owner(first)))
    provider.publish()
    url, headers = f"/v1/sessions/{head.session.hex()}", shows(first.capability)
    trusted = [provider.keys.provider.public]
    for size, turns in ((head.size, 1), (later.size, 2)):
        receipt = Receipt.parse(client.get(f"{url}/receipt?size={size}", headers=headers).content)
        assert receipt.log is not None
        assert len(check_receipt(receipt, trusted).session.spans) == turns
        for kind in ("tokens", "full"):
            data = client.get(f"{url}/evidence?kind={kind}&size={size}", headers=headers).content
            assert len(check_evidence(Evidence.parse(data), trusted).turns) == turns
    answer = client.get(f"{url}/consistency?old={head.size}&new={later.size}", headers=headers).json()
    path = [bytes.fromhex(value) for value in answer["path"]]
    assert roots_from_prefix(head.size, later.size, path) == (head.root, later.root)
    assert client.get(f"{url}/consistency?old={head.size}&new={later.size}").json() == answer  # for everyone
    assert client.get(f"{url}/consistency?old={later.size}&new={head.size}").status_code == 400
    assert client.get(f"/v1/sessions/{'00' * 16}/consistency?old=1&new=2").status_code == 404
    assert base64.urlsafe_b64decode(answer["new"] + "===") == second.head


def test_an_owner_erases_a_session_and_everything_signed_still_verifies(
    provider: SyntheticProvider, client: TestClient
) -> None:
    secret = "a very private question"
    receipt, head = opened(provider.answer(secret, 6))
    provider.publish()
    url, headers = f"/v1/sessions/{head.session.hex()}", shows(provider.owner(receipt))
    kept = client.get(f"{url}/receipt", headers=headers).content
    database = provider.keys.folder.parent / "provider.sqlite"
    assert secret.encode() in database.read_bytes()
    assert client.delete(url).status_code == 404
    assert client.delete(url, headers={"Authorization": f"Bearer {provider.keys.auditor_key}"}).status_code == 404
    assert client.delete(url, headers=shows(receipt.capability)).status_code == 404
    assert client.delete(url, headers=headers).status_code == 204
    assert client.delete(url, headers=headers).status_code == 204
    assert secret.encode() not in database.read_bytes()
    for what in ("receipt", "evidence", "evidence?kind=full", "proofs?positions=3"):
        assert client.get(f"{url}/{what}", headers=headers).status_code == 410
        assert client.get(f"{url}/{what}").status_code == 404
    provider.answer("another", 2)
    provider.publish()
    check_receipt(Receipt.parse(kept), [provider.keys.provider.public])
    proof = provider.ledger.proof(head.session, head.size)
    assert proof is not None
    TlogProof.parse(proof).verify(receipt.head, provider.keys.log.public)


def test_what_is_said_of_the_keys_is_served_and_logged(tmp_path: Path) -> None:
    made = SyntheticProvider(tmp_path / "data")
    client = TestClient(proof_app(made))
    assert KeysFile.parse(client.get("/v1/keys").content).statements == ()
    first = made.keys
    for role in Role:
        life.rotate(first.folder, role, life.milliseconds())
    life.revoke(first.folder, first.session.public, Role.SESSION, "exchanged", life.milliseconds())
    made.look()
    made.publish()
    answer = client.get("/v1/keys")
    assert answer.headers["content-type"] == MEDIA_TYPE
    said = KeysFile.parse(answer.content).statements
    assert [kind_of(statement) for statement in said] == [SUCCESSION, SUCCESSION, REVOCATION]
    assert set(said) <= set(made.store.entries(0, 100))
    assert Chain.follow([first.provider.public], said).keys[-1] == made.keys.provider.public
    status = client.get("/v1/log").json()
    assert status["keys"] == [first.log.public.vkey(), status["key"]] == [key.vkey() for key in made.keys.logs]
    made.close()


def test_who_asks_too_often_is_told_to_wait(provider: SyntheticProvider) -> None:
    client = TestClient(proof_app(provider, ProofRates(public=Rate(0.001, 3), private=Rate(0.001, 2))))
    assert [client.get("/log/checkpoint").status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = client.get("/v1/log")
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    digest = hashlib.sha256(b"").hexdigest()[:32]
    assert [client.get(f"/v1/sessions/{digest}/receipt").status_code for _ in range(3)] == [404, 404, 429]


def test_a_long_sessions_consistency_is_read_once(
    provider: SyntheticProvider, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, head = opened(provider.answer("one", 700, "new"))
    owner = provider.owner(first)
    later = [opened(provider.answer("more", 600, head.session.hex(), owner))[1] for _ in range(2)]
    read, stored_leaves = [], provider.store.stored_leaves

    def counted(session: bytes, size: int | None = None, first: int = 0) -> list[StoredLeaf]:
        leaves = stored_leaves(session, size, first)
        read.append(len(leaves))
        return leaves

    monkeypatch.setattr(provider.store, "stored_leaves", counted)

    def ask(old: Head, new: Head) -> None:
        answer = client.get(f"/v1/sessions/{head.session.hex()}/consistency?old={old.size}&new={new.size}").json()
        path = [bytes.fromhex(value) for value in answer["path"]]
        assert roots_from_prefix(old.size, new.size, path) == (old.root, new.root)

    ask(head, later[0])
    ask(head, later[1])
    ask(later[0], later[1])
    assert max(read) <= 256
    grown = opened(provider.answer("and more", 600, head.session.hex(), owner))[1]
    ask(later[1], grown)
    read.clear()
    ask(later[1], grown)
    ask(head, grown)
    assert read == []


@pytest.mark.parametrize("size", [None, 256])
@pytest.mark.parametrize("wanted", [[0], [6, 7, 200, 255], list(range(100, 200))])
def test_some_entries_come_with_one_proof_of_them_all(
    provider: SyntheticProvider, client: TestClient, wanted: list[int], size: int | None
) -> None:
    query = {"indices": ",".join(map(str, wanted)), **({} if size is None else {"size": str(size)})}
    answer = client.get("/v1/log/entries", params=query).json()
    head = open_checkpoint(answer["checkpoint"].encode(), provider.keys.log.public).checkpoint
    assert head.size == answer["size"]
    assert head.size == size or size is None
    entries = [read_base64url(each, "entry") for each in answer["entries"]]
    assert entries == [provider.store.entries(index, 1)[0] for index in wanted]
    known = dict(zip(wanted, map(leaf_hash, entries), strict=True))
    assert root_from_multiproof(head.size, known, [bytes.fromhex(each) for each in answer["path"]]) == head.root


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("indices=9999", 404), ("indices=256&size=256", 404), ("indices=0&size=255", 400), ("indices=2,1", 400),
        ("indices=1,1", 400), ("indices=", 400), ("indices=-1", 400), ("indices=x", 400), ("size=256", 400),
        ("indices=" + ",".join(map(str, range(4097))), 400),
    ],
)  # fmt: skip
def test_entries_that_there_are_not(client: TestClient, query: str, status: int) -> None:
    answer = client.get(f"/v1/log/entries?{query}")
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
