"""RFC 9162 proofs, subtree proofs, and whole logs as tiles."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.conformance.harness import Outcome, Vectors, check, judge
from tests.logs import build_tile, open_note
from verifiable.tlog import merkle, subtree, tiles
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint
from verifiable.tlog.cosignature import CosignerKey
from verifiable.tlog.merkle import EMPTY_ROOT, Tree, leaf_hash
from verifiable.tlog.proof import TlogProof
from verifiable.wire.keys import PublicKey

FROM_NOTHING = (
    "the vectors call consistency from the empty tree useless and refuse it; we accept an empty proof from the "
    "empty tree's true root, since tlog-witness needs it and every log extends an empty one"
)


def _bytes(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


def _proof(case: dict[str, Any]) -> list[bytes]:
    return [_bytes(item) for item in case["proof"] or []]


def inclusion(vectors: Vectors) -> Iterator[Outcome]:
    for name in vectors.names("rfc6962-merkle/inclusion/**/*.json"):
        case = vectors.json(name)
        leaf, root = _bytes(case["leafHash"]), _bytes(case["root"])
        action = partial(merkle.verify_inclusion, leaf, case["leafIdx"], case["treeSize"], _proof(case), root)
        yield judge(name, action, valid=not case["wantErr"])


def consistency(vectors: Vectors) -> Iterator[Outcome]:
    for name in vectors.names("rfc6962-merkle/consistency/**/*.json"):
        case = vectors.json(name)
        root1, root2 = _bytes(case["root1"]), _bytes(case["root2"])
        action = partial(merkle.verify_consistency, case["size1"], case["size2"], _proof(case), root1, root2)
        from_nothing = case["size1"] == 0 and not case["proof"] and root1 == EMPTY_ROOT
        yield judge(name, action, valid=not case["wantErr"], exception=FROM_NOTHING if from_nothing else "")


def subtree_inclusion(vectors: Vectors) -> Iterator[Outcome]:
    for name in vectors.names("rfc6962-merkle/subtreeinclusion/**/*.json"):
        case = vectors.json(name)
        leaf, root = _bytes(case["leafHash"]), _bytes(case["root"])
        action = partial(
            subtree.verify_subtree_inclusion,
            leaf,
            case["leafIdx"],
            case["start"],
            case["end"],
            _proof(case),
            root,
        )
        yield judge(name, action, valid=not case["wantErr"])


def subtree_consistency(vectors: Vectors) -> Iterator[Outcome]:
    for name in vectors.names("rfc6962-merkle/subtreeconsistency/**/*.json"):
        case = vectors.json(name)
        root1, root2 = _bytes(case["root1"]), _bytes(case["root2"])
        action = partial(
            subtree.verify_subtree_consistency,
            case["start"],
            case["end"],
            case["size"],
            _proof(case),
            root1,
            root2,
        )
        yield judge(name, action, valid=not case["wantErr"])


def tree8(vectors: Vectors) -> Iterator[Outcome]:
    case = vectors.json("rfc6962-merkle/tree8.json")
    leaves = [leaf_hash(bytes.fromhex(entry)) for entry in case["leaf_inputs_hex"]]
    tree = Tree.from_leaves(leaves)
    for height, level in enumerate(case["node_hashes_hex"]):
        for index, expected in enumerate(level):
            lo, hi = index << height, (index + 1) << height
            # A node is the root of its own leaves, whatever tree they are in.
            found = Tree.from_leaves(leaves[lo:hi]).root()
            yield check(f"tree8: node {height}/{index}", found.hex() == expected, found.hex())
    for size, expected in enumerate(case["root_hashes_hex"]):
        yield check(f"tree8: root of {size}", tree.root(size).hex() == expected, tree.root(size).hex())


def tessera(vectors: Vectors) -> Iterator[Outcome]:
    """A whole log, all its sizes: signatures, roots from tiles, bundles against tiles, consistency."""
    folder = "tlog-tiles-tessera"
    key = PublicKey.parse("example.com/log/testdata+33d7b496+AeHTu4Q3hEIMHNqc6fASMsq3rKNx280NI+oO5xCFkkSx")
    trees: dict[int, Tree] = {}
    for size in range(1, 16):
        bundle = tiles.tile_of(tiles.ENTRIES, 0, size)
        entries = tiles.decode_bundle(vectors.read(f"{folder}/{bundle.path()}"), bundle.width)
        trees[size] = Tree.from_leaves(map(leaf_hash, entries))
        again = tiles.encode_bundle(entries) == vectors.read(f"{folder}/{bundle.path()}")
        yield check(f"{folder}/{bundle.path()}", again)
        (tile,) = tiles.tiles_for(size)
        built = build_tile(tile, trees[size].node)
        yield check(f"{folder}/{tile.path()}", built == vectors.read(f"{folder}/{tile.path()}"))

    heads = []
    for name in [f"{folder}/checkpoint.{size}" for size in range(16)] + [f"{folder}/checkpoint"]:
        head = open_checkpoint(vectors.read(name), key).checkpoint
        root = tiles.root_from_tiles(head.size, lambda tile: vectors.read(f"{folder}/{tile.path()}"))
        yield check(name, root == head.root, root.hex())
        heads.append(head)
    for old in heads:
        for new in heads[old.size :]:
            proof = trees[15].consistency_proof(old.size, new.size)
            merkle.verify_consistency(old.size, new.size, proof, old.root, new.root)


def sunlight_tiles(vectors: Vectors) -> Iterator[Outcome]:
    """The hash tiles of a tree of 300 leaves that a mirror cosigned."""
    folder = "tlog-tiles-sunlight-mirror"
    mirror = CosignerKey.parse(vectors.json("tlog-cosignature/sunlight.json")["cases"][1]["vkey"])
    note = vectors.read(f"{folder}/checkpoint")
    head = Checkpoint.parse(open_note(note, [mirror]).text)

    def read(tile: tiles.Tile) -> bytes:
        return vectors.read(f"{folder}/{tile.path()}")

    paths = [tile.path() for tile in tiles.tiles_for(head.size)]
    yield check(f"{folder}/checkpoint", tiles.root_from_tiles(head.size, read) == head.root)
    node = tiles.tile_node(head.size, read)
    for tile in tiles.tiles_for(head.size):
        built = build_tile(tile, node)
        yield check(f"{folder}/{tile.path()}", built == read(tile) and len(paths) == 3)


def rekor(vectors: Vectors) -> Iterator[Outcome]:
    """Real entries of a public log, as `.tlog-proof` files made from their parts."""
    for entry in vectors.json("rekor-v2/entries.json")["entries"]:
        proof = TlogProof(entry["index"], tuple(map(_bytes, entry["proof_b64"])), entry["checkpoint"].encode("utf-8"))
        parsed = TlogProof.parse(proof.format())
        signed = parsed.verify(_bytes(entry["leaf_b64"]), PublicKey.parse(entry["vkey"]))
        head = signed.checkpoint
        same = parsed == proof and (head.size, head.root) == (entry["size"], _bytes(entry["root_b64"]))
        yield check(entry["file"], same)
