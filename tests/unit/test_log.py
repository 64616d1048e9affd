"""The log's parts, one by one: the frontier, the tree over tiles, the checkpoint's file, auditor keys, rates, forms."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st
from starlette.requests import Request

from engine.keys.auditors import Auditors
from engine.log.checkpoint_file import CheckpointFile
from engine.log.frontier import Frontier, grown
from engine.log.rederive import rederive
from engine.log.tree import LogTree
from engine.log.witnesses import WitnessEndpoint, Witnesses
from engine.store import DamagedLogError, LogStore
from engine.web import content
from engine.web.limits import Rate, RateLimit, TooManyRequestsError
from tests.logs import build_tile
from verifiable.errors import MalformedError, PolicyError, StoreError
from verifiable.tlog.cosignature import witness_key
from verifiable.tlog.merkle import Tree, leaf_hash, verify_consistency, verify_inclusion
from verifiable.tlog.tiles import Tile, tile_of, tiles_for
from verifiable.wire.keys import PrivateKey


class MemoryTiles:
    """Tiles in a dictionary, as `grown` says that they grow."""

    def __init__(self) -> None:
        self.data: dict[tuple[int, int], bytes] = {}

    def tile(self, level: int, index: int) -> bytes | None:
        return self.data.get((level, index))

    def add(self, frontier: Frontier, hashes: list[bytes]) -> None:
        for key, found in grown(frontier, hashes).items():
            old = self.data.get(key, b"")
            assert found[0][0] * 32 == len(old)
            self.data[key] = old + b"".join(value for _, value in found)


def hashes(count: int) -> list[bytes]:
    return [leaf_hash(index.to_bytes(4, "big")) for index in range(count)]


@pytest.mark.parametrize("steps", [[1], [255, 1, 1], [256, 256], [700], [3, 300, 65_600]])
def test_the_frontier_and_tiles_agree_with_the_tree(steps: list[int]) -> None:
    total = sum(steps)
    tree = Tree.from_leaves(hashes(total))
    frontier, tiles = Frontier(), MemoryTiles()
    done = 0
    for step in steps:
        tiles.add(frontier, hashes(done + step)[done:])
        done += step
        assert frontier.root() == tree.root(done)
        assert Frontier.read(done, LogTree(tiles).node).root() == tree.root(done)
    for tile in tiles_for(total):
        whole = tiles.tile(tile.level, tile.index)
        assert whole == build_tile(tile, tree.node)
    log = LogTree(tiles, kept=3)
    for size in {1, min(2, total), min(256, total), total // 2 + 1, total}:
        assert log.root(size) == tree.root(size)
        for index in {0, size // 3, size - 1}:
            assert log.inclusion_proof(index, size) == tree.inclusion_proof(index, size)
            verify_inclusion(tree.leaf(index), index, size, log.inclusion_proof(index, size), tree.root(size))
        verify_consistency(size, total, log.consistency_proof(size, total), tree.root(size), tree.root())


def test_a_tile_that_grew_is_read_again_and_one_that_is_too_short_is_named() -> None:
    frontier, tiles = Frontier(), MemoryTiles()
    tiles.add(frontier, hashes(5))
    log = LogTree(tiles)
    assert log.root(5) == Tree.from_leaves(hashes(5)).root()
    with pytest.raises(DamagedLogError, match=r"tile/0/000 of the log is too short.*expected 6.*found 5"):
        log.node(0, 5)
    tiles.add(frontier, hashes(9)[5:])
    assert log.root(9) == Tree.from_leaves(hashes(9)).root()
    tiles.data[0, 0] = tiles.data[0, 0][:-1]
    with pytest.raises(DamagedLogError, match="missing or damaged"):
        LogTree(tiles).root(9)
    del tiles.data[0, 0]
    with pytest.raises(DamagedLogError, match="found nothing"):
        LogTree(tiles).root(9)


class MemoryLog(MemoryTiles):
    """A log of some entries: what `rederive` reads of a store."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.stored = [index.to_bytes(4, "big") for index in range(size)]
        self.add(Frontier(), hashes(size))

    def entries(self, first: int, count: int) -> list[bytes]:
        return self.stored[first : first + count]


@given(st.integers(1, 1300), st.data())
def test_a_root_is_derived_from_sound_bytes_only(size: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(0, size))
    store, whole = MemoryLog(size), Tree.from_leaves(hashes(size))
    tree = LogTree(store)
    assert rederive(cast("LogStore", store), old, whole.root(old), size, tree) == whole.root()
    # The first proofs of what was derived, or is in the tile that still grows, need no look at the store.
    for index in (index for index in {old, size - 1} - {size} if index >= old or size % 256):
        assert tree.quick_inclusion_proof(index, size) == whole.inclusion_proof(index, size)
    if old < size and data.draw(st.booleans()):
        at = data.draw(st.integers(old, size - 1))
        store.stored[at] += b"x"
    elif data.draw(st.booleans()):
        at = data.draw(st.integers(0, size - 1))
        del store.stored[at:]
        if at < old:
            return  # published before: the scrubber's to find
    else:
        # Any byte of a tile: what neither the old root nor the new entries need of it is the scrubber's as well.
        key = data.draw(st.sampled_from(sorted(store.data)))
        at = data.draw(st.integers(0, len(store.data[key]) - 1))
        store.data[key] = store.data[key][:at] + bytes([store.data[key][at] ^ 1]) + store.data[key][at + 1 :]
        try:
            assert rederive(cast("LogStore", store), old, whole.root(old), size) == whole.root()
        except DamagedLogError:
            return
        assert at // 32 < old >> 8 * key[0]
        return
    with pytest.raises(DamagedLogError):
        rederive(cast("LogStore", store), old, whole.root(old), size)


def test_a_root_over_three_levels_of_tiles() -> None:
    size = 2 * 65_536 + 300
    store, whole = MemoryLog(size), Tree.from_leaves(hashes(size))
    for old in (0, 65_536, 65_836, size):
        assert rederive(cast("LogStore", store), old, whole.root(old), size) == whole.root()
    for key, at in (((0, 300), 5), ((1, 0), 100 * 32), ((1, 2), 0), ((2, 0), 0), ((2, 0), 32)):
        sound = store.data[key]
        store.data[key] = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :]
        with pytest.raises(DamagedLogError, match="the log is damaged: hash"):
            rederive(cast("LogStore", store), 0, whole.root(0), size)
        store.data[key] = sound


@given(st.integers(1, 2000), st.data())
def test_partial_tiles_are_prefixes(size: int, data: st.DataObject) -> None:
    older = data.draw(st.integers(1, size))
    tree = Tree.from_leaves(hashes(size))
    tile = data.draw(st.sampled_from(list(tiles_for(older))))
    newer = tile_of(tile.level, tile.index, size)
    assert build_tile(newer, tree.node)[: tile.width * 32] == build_tile(tile, tree.node)
    assert Tile.parse(tile.path()) == tile


def test_a_checkpoint_file_changes_only_for_who_knows_it(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "place" / "checkpoint")
    assert file.read() is None
    with pytest.raises(StoreError, match="somebody else"):
        file.replace(b"old", b"new")
    file.replace(None, b"one")
    with pytest.raises(StoreError, match="somebody else"):
        file.replace(None, b"two")
    file.replace(b"one", b"two")
    assert file.read() == b"two"
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["checkpoint", "checkpoint.lock"]


def test_of_many_replacements_of_one_checkpoint_one_wins(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "checkpoint")
    file.replace(None, b"old")
    won: list[bytes] = []

    def work(value: bytes) -> None:
        try:
            CheckpointFile(file.path).replace(b"old", value)
            won.append(value)
        except StoreError:
            pass

    threads = [threading.Thread(target=work, args=(bytes([index]),)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert file.read() == won[0]


def test_a_checkpoint_file_that_can_t_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=r"can.t be (locked|read)"):
        CheckpointFile(tmp_path / "file" / "checkpoint").replace(None, b"x")


def test_auditor_keys_are_known_by_their_hash_alone(tmp_path: Path) -> None:
    register = Auditors(tmp_path / "auditors")
    assert not register.allows("")
    register.register("one", "first-token", 5)
    register.register("two", "second-token", 6)
    assert "token" not in (tmp_path / "auditors").read_text()
    assert (tmp_path / "auditors").stat().st_mode & 0o777 == 0o600
    other = Auditors(tmp_path / "auditors")
    assert other.allows("first-token")
    assert not other.allows("first-token ")
    register.revoke("one", 7)
    assert not other.allows("first-token")
    assert other.allows("second-token")
    assert [(key.name, key.issued, key.revoked) for key in other.issued()] == [("one", 5, 7), ("two", 6, None)]
    for name in ("one", "", "a b", "a\nb", "x" * 65, "ä"):
        with pytest.raises(PolicyError):
            register.register(name, "t", 8)
    with pytest.raises(PolicyError, match="no auditor key of this name"):
        register.revoke("one", 8)
    with pytest.raises(PolicyError, match="seconds since 1970"):  # what could not be read again is not written
        register.register("three", "t", 1_800_000_000_000)
    with pytest.raises(PolicyError, match="seconds since 1970"):
        register.revoke("two", 1_800_000_000_000)
    assert [key.name for key in Auditors(tmp_path / "auditors").issued()] == ["one", "two"]


@pytest.mark.parametrize(
    "line", ["one", "one abc 5", "a b c d e", f"one {'0' * 64} 05", f"one {'0' * 64} 5 6 7", "\xff"]
)
def test_a_damaged_register_of_auditors_lets_nobody_in(tmp_path: Path, line: str) -> None:
    digest = hashlib.sha256(b"good").hexdigest()
    (tmp_path / "auditors").write_text(f"good {digest} 1\n{line}\n", "latin-1")
    with pytest.raises(StoreError):
        Auditors(tmp_path / "auditors").allows("good")


def test_rates_are_for_each_address_and_come_back() -> None:
    now = [0.0]
    limit = RateLimit(Rate(2, 3), lambda: now[0])
    for _ in range(3):
        limit.take("a")
    with pytest.raises(TooManyRequestsError):
        limit.take("a")
    limit.take("b")
    now[0] = 0.5
    limit.take("a")
    with pytest.raises(TooManyRequestsError):
        limit.take("a")


def asked(**headers: str) -> Request:
    raw: list[Any] = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "headers": raw})


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "application/json"), ("*/*", "application/json"), ("application/*", "application/json"),
        ("application/cose", "application/cose"),
        ("application/cose;q=0.5, application/json;q=0.4", "application/cose"),
        ("text/html, application/cose;q=0.9, */*;q=0.1", "application/cose"),
        ("TEXT/X.TLOG.PROOF", "text/x.tlog.proof"),
        ("application/json;q=0, */*", "text/x.tlog.proof"), ("application/json; charset=utf-8", "application/json"),
    ],
)  # fmt: skip
def test_the_form_that_a_caller_likes_best(accept: str, form: str) -> None:
    assert content.choose(asked(accept=accept), ("application/json", "text/x.tlog.proof", "application/cose")) == form


@pytest.mark.parametrize("accept", ["image/png", "nonsense", "application/json;q=0", ",,,"])
def test_no_form_for_who_likes_none(accept: str) -> None:
    with pytest.raises(content.NotAcceptableError):
        content.choose(asked(accept=accept), ("application/json",))


def test_witnesses_are_parsed_strictly_and_counted() -> None:
    key = witness_key(PrivateKey.generate("witness", bytes(32)).public)
    witness = WitnessEndpoint.parse(f"{key.vkey()} https://w.example/")
    assert witness.url == "https://w.example"
    for text in ("", key.vkey(), f"{key.vkey()} ftp://x", f"{key.vkey()}  https://x"):
        with pytest.raises((PolicyError, MalformedError)):
            WitnessEndpoint.parse(text)
    with pytest.raises(PolicyError, match="quorum"):
        Witnesses([witness], 2)
    with pytest.raises(PolicyError, match="twice"):
        Witnesses([witness, witness], 1)
    with pytest.raises(PolicyError, match="fewer than 100"):  # with the log's own line, a note has room for no more
        Witnesses([witness] * 100, 1)
