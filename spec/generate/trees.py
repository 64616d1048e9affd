"""Vectors of trees and of what a provider-wide log signs: roots, proofs, checkpoints and `.tlog-proof` files."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spec.generate.cases import VectorFile
from spec.generate.world import LOG_KEY, OTHER, WITNESSES
from verifiable.tlog import merkle
from verifiable.tlog.checkpoint import Checkpoint, sign_checkpoint
from verifiable.tlog.cosignature import cosign, witness_key
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.tlog.note import sign_text
from verifiable.tlog.proof import TlogProof
from verifiable.wire.text import write_base64

ENTRIES = [bytes([number]) * (number % 5) for number in range(21)]


def grown(size: int) -> Tree:
    return Tree.from_leaves(map(leaf_hash, ENTRIES[:size]))


def hexes(values: Iterable[bytes]) -> list[str]:
    return [value.hex() for value in values]


def tree() -> VectorFile:
    file = VectorFile(
        "tree",
        "what: root (of entries), inclusion (of a leaf hash), consistency (of two sizes), or multiproof (leaves: index "
        "and leaf hash; the outcome is the root that follows). RFC 9162 with SHA-256.",
    )
    for size in (0, 1, 2, 3, 7, 8, 21):
        file.add(f"root of {size}", what="root", entries=hexes(ENTRIES[:size]))
    for size in range(1, 9):
        for index in range(size):
            _inclusion(file, f"leaf {index} of {size}", "ok", index, size)
    for index in (0, 15, 16, 19, 20):
        _inclusion(file, f"leaf {index} of 21", "ok", index, 21)
    _moved(file)
    for new in range(1, 9):
        for old in range(new + 1):
            _consistency(file, f"{old} to {new}", "ok", old, new)
    _consistency(file, "0 to 0", "ok", 0, 0)
    _inconsistent(file)
    _multiproofs(file)
    return file


def _inclusion(file: VectorFile, name: str, expected: str, index: int, size: int, **changed: object) -> None:
    made = grown(21)
    fields: dict[str, object] = {
        "leaf": made.leaf(index).hex() if index < 21 else bytes(32).hex(),
        "index": index,
        "size": size,
        "proof": hexes(made.inclusion_proof(index, size)) if index < size <= 21 else [],
        "root": made.root(min(size, 21)).hex(),
    }
    file.add(f"inclusion: {name}", expected, what="inclusion", **(fields | changed))


def _moved(file: VectorFile) -> None:
    bad, made = "bad-inclusion-proof", grown(21)
    path = hexes(made.inclusion_proof(5, 8))
    _inclusion(file, "path of leaf 5 of 8 claimed for leaf 4", bad, 4, 8, proof=path)
    leaf = made.leaf(5).hex()
    _inclusion(file, "path of leaf 5 of 8 claimed for leaf 4, with leaf 5", bad, 4, 8, proof=path, leaf=leaf)
    _inclusion(file, "path of leaf 5 of 8 claimed for size 7", bad, 5, 7, proof=path)
    _inclusion(file, "path of leaf 5 of 8 under the root of 7", bad, 5, 8, root=made.root(7).hex())
    _inclusion(file, "one hash too few", bad, 5, 8, proof=path[:-1])
    _inclusion(file, "one hash too many", bad, 5, 8, proof=[*path, path[0]])
    _inclusion(file, "none where one is needed", bad, 0, 2, proof=[])
    _inclusion(file, "one where none is needed", bad, 0, 1, proof=path[:1])
    _inclusion(file, "hashes in reverse", bad, 5, 8, proof=path[::-1])
    _inclusion(file, "a hash of 31 bytes", bad, 5, 8, proof=[path[0][:-2], *path[1:]])
    _inclusion(file, "a hash of 33 bytes", bad, 5, 8, proof=[path[0] + "00", *path[1:]])
    _inclusion(file, "a node passed off as a leaf", bad, 2, 4, leaf=made.node(1, 2).hex(), proof=path[1:])
    _inclusion(file, "index is the size", bad, 8, 8, proof=path)
    _inclusion(file, "in an empty tree", bad, 0, 0, proof=[], root=merkle.EMPTY_ROOT.hex())


def _consistency(file: VectorFile, name: str, expected: str, old: int, new: int, **changed: object) -> None:
    made = grown(21)
    fields: dict[str, object] = {
        "old_size": old,
        "size": new,
        "proof": hexes(made.consistency_proof(old, new)) if old <= new else [],
        "old_root": made.root(old).hex(),
        "root": made.root(new).hex(),
    }
    file.add(f"consistency: {name}", expected, what="consistency", **(fields | changed))


def _inconsistent(file: VectorFile) -> None:
    bad, made = "bad-consistency-proof", grown(21)
    path = hexes(made.consistency_proof(5, 8))
    _consistency(file, "5 to 8, one hash too few", bad, 5, 8, proof=path[:-1])
    _consistency(file, "5 to 8, one hash too many", bad, 5, 8, proof=[*path, path[0]])
    _consistency(file, "5 to 8, no hashes", bad, 5, 8, proof=[])
    _consistency(file, "5 to 8 with the old root of 6", bad, 5, 8, old_root=made.root(6).hex())
    _consistency(file, "5 to 8 with the new root of 7", bad, 5, 8, root=made.root(7).hex())
    _consistency(file, "the proof of 5 to 8 claimed for 6 to 8", bad, 6, 8, proof=path)
    _consistency(file, "a hash of 31 bytes", bad, 5, 8, proof=[path[0][:-2], *path[1:]])
    _consistency(file, "8 to 8 with two roots", bad, 8, 8, old_root=made.root(7).hex())
    _consistency(file, "8 to 8 with a hash", bad, 8, 8, proof=path[:1])
    _consistency(file, "0 to 8 with a hash", bad, 0, 8, proof=path[:1])
    _consistency(file, "0 to 8 with a root of nothing that is not", bad, 0, 8, old_root=made.root(1).hex())
    _consistency(file, "8 to 5", bad, 8, 5)


def _multiproofs(file: VectorFile) -> None:
    made, bad = grown(21), "bad-inclusion-proof"

    def add(name: str, expected: str, size: int, indices: Iterable[int], proof: list[str] | None = None) -> None:
        known = list(indices)
        path = hexes(made.multiproof([index for index in known if index < size], size)) if proof is None else proof
        leaves = [[index, made.leaf(index).hex()] for index in known]
        file.add(f"multiproof: {name}", expected, what="multiproof", size=size, leaves=leaves, proof=path)

    for size, indices in (
        (0, []),
        (1, []),
        (1, [0]),
        (2, [1]),
        (5, [0, 4]),
        (7, [2, 3, 6]),
        (8, range(8)),
        (11, [0, 1, 9, 10]),
        (16, [0, 15]),
        (21, [0, 1, 14, 15, 20]),
        (21, [7]),
        (21, []),
    ):
        add(f"leaves {list(indices)} of {size}", "ok", size, indices)
    path = hexes(made.multiproof([0, 1, 14], 21))
    add("one hash too few", bad, 21, [0, 1, 14], path[:-1])
    add("one hash too many", bad, 21, [0, 1, 14], [*path, path[0]])
    add("a hash of 31 bytes", bad, 21, [0, 1, 14], [path[0][:-2], *path[1:]])
    add("an index outside", bad, 14, [0, 1, 14])
    add("a hash for an empty tree", bad, 0, [], path[:1])
    add("the proof of other leaves gives another root", "ok", 21, [0, 1, 15], path)


def checkpoint() -> VectorFile:
    file = VectorFile(
        "checkpoint",
        "text: a signed note of C2SP. log: the verifier key that must have signed it. witnesses: those that are "
        "trusted, where any are; the outcome names those that cosigned.",
    )
    made = grown(21)
    body = Checkpoint(LOG_KEY.name, 21, made.root())
    good = sign_checkpoint(body, LOG_KEY).decode()

    def add(name: str, expected: str, text: str, named: Sequence[str] | None = None) -> None:
        more = {} if named is None else {"witnesses": list(named)}
        file.add(name, expected, text=text, log=LOG_KEY.public.vkey(), **more)

    def note(text: str) -> str:
        return text + "\n" + sign_text(text, LOG_KEY).line()

    root = write_base64(made.root())
    strange = sign_text(body.text(), OTHER).line()
    add("a checkpoint", "ok", good)
    add("of an empty log", "ok", sign_checkpoint(Checkpoint(LOG_KEY.name, 0, merkle.EMPTY_ROOT), LOG_KEY).decode())
    add("with extension lines", "ok", note(f"{LOG_KEY.name}\n21\n{root}\nmore\nand more\n"))
    add("cosigned by a stranger", "ok", good + strange)
    add("signed twice by the log", "ok", good + good.splitlines(keepends=True)[-1])
    spoilt = sign_text(body.text().replace("21", "22"), LOG_KEY).line()
    add("signed by the log, and once more wrongly", "bad-signature", good + spoilt)
    add("signed by a stranger only", "untrusted-key", body.text() + "\n" + strange)
    add("size changed", "bad-signature", good.replace("\n21\n", "\n22\n"))
    add("of another log, signed by this one's key", "wrong-origin", note(f"other.example\n21\n{root}\n"))
    one, two = (cosign(body.text(), key, 1_800_000_000).line() for key in WITNESSES)
    first, second = (witness_key(key.public).vkey() for key in WITNESSES)
    add("cosigned by a witness that is trusted", "ok", good + one, [first, second])
    add("cosigned by both", "ok", good + two + one + one, [first, second])
    add("cosigned by one that is not trusted", "ok", good + two, [first])
    add("cosigned by nobody", "ok", good, [first])
    add("cosigned, and not signed by the log", "untrusted-key", body.text() + "\n" + one, [first])
    old = cosign(body.text().replace("21", "20"), WITNESSES[0], 1_800_000_000)
    add("a cosignature of another checkpoint", "bad-signature", good + old.line(), [first])
    late = replace(old, signature=(1 << 63).to_bytes(8, "big") + old.signature[8:])
    add("a cosignature of a time of 2^63", "bad-signature", good + late.line(), [first])
    cut = replace(old, signature=old.signature[:-1])
    add("a cosignature cut short", "bad-signature", good + cut.line(), [first])
    add("once rightly and once wrongly", "bad-signature", good + one + old.line(), [first])
    add("a log's key as a witness's", "malformed", good, [LOG_KEY.public.vkey()])
    line = good.splitlines()[-1]
    sign = line.split(" ")[2]
    add("signature of 65 bytes", "bad-signature", good.replace(sign, write_base64(base64.b64decode(sign) + b"\0")))
    add("no signature", "malformed", body.text() + "\n")
    add("no blank line", "malformed", body.text() + line + "\n")
    add("last newline missing", "malformed", good[:-1])
    add("signature line with a hyphen for the dash", "malformed", good.replace("\u2014 ", "- "))
    add("signature in base64 without padding", "malformed", good.replace(sign, sign.rstrip("=")))
    add("signature with a key name that has a plus", "malformed", good.replace("\u2014 log.", "\u2014 log+"))
    add("signature of no bytes", "malformed", good.replace(sign, write_base64(base64.b64decode(sign)[:4])))
    add("two spaces", "malformed", good.replace(f" {sign}", f"  {sign}"))
    add("a tab in the text", "malformed", good.replace(LOG_KEY.name + "\n", LOG_KEY.name + "\t\n", 1))
    add("lines that end in CR LF", "malformed", good.replace("\n", "\r\n"))
    add("size with a zero before it", "malformed", note(f"{LOG_KEY.name}\n021\n{root}\n"))
    add("size with a sign", "malformed", note(f"{LOG_KEY.name}\n+21\n{root}\n"))
    add("size of 2^63", "malformed", note(f"{LOG_KEY.name}\n{2**63}\n{root}\n"))
    add("size in Arabic digits", "malformed", note(f"{LOG_KEY.name}\n\u0662\u0661\n{root}\n"))
    add("root of 31 bytes", "malformed", note(f"{LOG_KEY.name}\n21\n{write_base64(made.root()[:31])}\n"))
    add("root with stray bits", "malformed", note(f"{LOG_KEY.name}\n21\n{root[:-2]}{chr(ord(root[-2]) + 1)}=\n"))
    add("two lines", "malformed", note(f"{LOG_KEY.name}\n21\n"))
    add("an empty extension line", "malformed", note(f"{LOG_KEY.name}\n21\n{root}\n\nmore\n"))
    add("no origin", "malformed", note(f"\n21\n{root}\n"))
    return file


def tlog_proof() -> VectorFile:
    file = VectorFile(
        "tlog-proof",
        "text: a file of c2sp.org/tlog-proof@v1. entry: the log entry, hexadecimal. log: its verifier key.",
    )
    made = grown(21)
    signed = sign_checkpoint(Checkpoint(LOG_KEY.name, 21, made.root()), LOG_KEY)
    honest = TlogProof(13, tuple(made.inclusion_proof(13)), signed)
    good = honest.format().decode()

    def add(name: str, expected: str, text: str, entry: bytes = ENTRIES[13]) -> None:
        file.add(name, expected, text=text, entry=entry.hex(), log=LOG_KEY.public.vkey())

    first = write_base64(honest.proof[0])
    add("a proof", "ok", good)
    add("with extra data", "ok", TlogProof(13, honest.proof, signed, b"extra").format().decode())
    add("of another entry", "bad-inclusion-proof", good, ENTRIES[12])
    add("moved to another index", "bad-inclusion-proof", good.replace("index 13", "index 12"))
    add("index outside", "bad-inclusion-proof", good.replace("index 13", "index 21"))
    add("without one hash", "bad-inclusion-proof", good.replace(first + "\n", "", 1))
    add(
        "under a stranger's checkpoint",
        "untrusted-key",
        TlogProof(13, honest.proof, sign_checkpoint(Checkpoint(OTHER.name, 21, made.root()), OTHER)).format().decode(),
    )
    add("checkpoint changed", "bad-signature", good.replace("\n21\n", "\n22\n"))
    add("another version", "malformed", good.replace("@v1", "@v2"))
    add("index with a zero before it", "malformed", good.replace("index 13", "index 013"))
    add("no index", "malformed", good.replace("index 13\n", ""))
    add("a hash of 31 bytes", "malformed", good.replace(first, write_base64(honest.proof[0][:31])))
    add("64 hashes", "malformed", good.replace(first + "\n", (first + "\n") * (64 - len(honest.proof) + 1)))
    add("extra data after the index", "malformed", good.replace("index 13\n", "index 13\nextra AA==\n"))
    add("no checkpoint", "malformed", good.split("\n\n")[0] + "\n\n")
    add("no blank line", "malformed", good.split("\n\n")[0] + "\n")
    add("nothing", "malformed", "")
    return file
