from __future__ import annotations

import pytest

from tests.logs import build_tile
from verifiable.errors import MalformedError
from verifiable.tlog import tiles
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.tlog.tiles import ENTRIES, Tile


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        (Tile(0, 0), "tile/0/000"),
        (Tile(0, 999, 1), "tile/0/999.p/1"),
        (Tile(1, 1_000, 255), "tile/1/x001/000.p/255"),
        (Tile(0, 1_234_067), "tile/0/x001/x234/067"),
        (Tile(63, 0, 7), "tile/63/000.p/7"),
        (Tile(ENTRIES, 12_345, 8), "tile/entries/x012/345.p/8"),
    ],
)
def test_paths(tile: Tile, path: str):
    assert tile.path() == path
    assert Tile.parse(path) == tile


@pytest.mark.parametrize(
    "path",
    [
        "tile/00/000",
        "tile/64/000",
        "tile/-1/000",
        "tile/0/0",
        "tile/0/0000",
        "tile/0/x000/000",
        "tile/0/001/000",
        "tile/0/x001",
        "tile/0/000.p/0",
        "tile/0/000.p/256",
        "tile/0/000.p/01",
        "tile/0/000.p/",
        "tile/0/000/",
        "/tile/0/000",
        "tile/0/٠٠٠",
        "tile/entry/000",
        "tile/0/" + "x001/" * 40 + "000",
        "",
    ],
)
def test_other_paths_are_refused(path: str):
    with pytest.raises(MalformedError):
        Tile.parse(path)


def test_tiles_of_a_log():
    """The example of the specification: 70,000 entries."""
    found = [tile.path() for tile in tiles.tiles_for(70_000)]
    assert len(found) == 273 + 1 + 1 + 1 + 1
    assert found[-4:] == ["tile/0/273.p/112", "tile/1/000", "tile/1/001.p/17", "tile/2/000.p/1"]
    assert [tile.path() for tile in tiles.tiles_for(256)] == ["tile/0/000", "tile/1/000.p/1"]
    assert list(tiles.tiles_for(0)) == []
    assert list(tiles.bundles_for(0)) == []
    assert [tile.path() for tile in tiles.bundles_for(257)] == ["tile/entries/000", "tile/entries/001.p/1"]


def test_what_growth_adds():
    assert [tile.path() for tile in tiles.tiles_for(258, 256)] == ["tile/0/001.p/2"]
    assert [tile.path() for tile in tiles.tiles_for(512, 300)] == ["tile/0/001", "tile/1/000.p/2"]
    assert list(tiles.tiles_for(300, 300)) == []
    assert [tile.path() for tile in tiles.bundles_for(300, 255)] == ["tile/entries/000", "tile/entries/001.p/44"]
    assert list(tiles.bundles_for(300, 300)) == []


def test_a_tile_outside_the_tree():
    for level, index, size in ((0, 0, 0), (0, 1, 256), (1, 0, 255), (ENTRIES, 1, 256)):
        with pytest.raises(MalformedError):
            tiles.tile_of(level, index, size)


def test_a_tile_of_the_wrong_length():
    tree = Tree.from_leaves(leaf_hash(bytes([index])) for index in range(5))
    (tile,) = tiles.tiles_for(5)
    good = build_tile(tile, tree.node)
    assert tiles.root_from_tiles(5, {tile: good}.__getitem__) == tree.root()
    for bad in (b"", good[:-1], good + bytes(32)):
        with pytest.raises(MalformedError, match="160 bytes"):
            tiles.root_from_tiles(5, {tile: bad}.__getitem__)
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    assert tiles.root_from_tiles(5, {tile: damaged}.__getitem__) != tree.root()


def test_each_tile_is_read_once():
    tree = Tree.from_leaves(leaf_hash(index.to_bytes(2, "big")) for index in range(700))
    reads: list[Tile] = []

    def read(tile: Tile) -> bytes:
        reads.append(tile)
        return build_tile(tile, tree.node)

    assert tiles.root_from_tiles(700, read) == tree.root()
    assert [tile.path() for tile in reads] == ["tile/1/000.p/2", "tile/0/002.p/188"]


def test_bundles():
    entries = [b"", b"x", bytes(65_535)]
    data = tiles.encode_bundle(entries)
    assert tiles.decode_bundle(data, 3) == entries
    with pytest.raises(MalformedError, match="65535"):
        tiles.encode_bundle([bytes(65_536)])
    for damaged, width in ((data, 2), (data, 4), (data[:-1], 3), (data + b"\0", 3), (data + b"\0\0", 3), (b"\0", 1)):
        with pytest.raises(MalformedError, match="bundle"):
            tiles.decode_bundle(damaged, width)


def test_a_subtree_that_is_not_complete():
    tree = Tree.from_leaves(leaf_hash(bytes([index])) for index in range(5))
    (tile,) = tiles.tiles_for(5)
    node = tiles.tile_node(5, {tile: build_tile(tile, tree.node)}.__getitem__)
    assert node(2, 0) == tree.node(2, 0)
    for height, index in ((1, 2), (2, 1), (3, 0), (8, 0)):
        with pytest.raises(MalformedError):
            node(height, index)
