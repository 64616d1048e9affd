"""A log as tests have it: tiles and COSE receipts of a whole tree in memory, and a note opened in one go."""

from __future__ import annotations

from collections.abc import Iterable

from verifiable.tlog.cose_receipt import Proof, mint_proof
from verifiable.tlog.merkle import Node, Tree
from verifiable.tlog.note import Note, Opened, Verifier
from verifiable.tlog.tiles import HEIGHT, WIDTH, Tile
from verifiable.wire.keys import PrivateKey


def build_tile(tile: Tile, node: Node) -> bytes:
    """A hash tile's bytes, from the hashes of complete subtrees (for instance those of a `merkle.Tree`)."""
    first = tile.index * WIDTH
    return b"".join(node(tile.level * HEIGHT, first + at) for at in range(tile.width))


def mint_receipt(tree: Tree, index: int, key: PrivateKey, size: int | None = None) -> bytes:
    """Mint a receipt for an entry of a log's tree. The key's name is the log's origin."""
    size = tree.size if size is None else size
    return mint_proof(Proof(size, index, tuple(tree.inclusion_proof(index, size))), tree.root(size), key)


def open_note(data: bytes, verifiers: Iterable[Verifier]) -> Opened:
    """Parse and verify a note; see `Note.verify`."""
    return Note.parse(data).verify(verifiers)
