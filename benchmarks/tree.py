"""The tree takes 100,000 leaves in under half a second; a proof takes under 20 µs to make and under 30 µs to check.

pymerkle and merkle-py do the same in the same run, in an environment of their own (`out/trees`, made on first use:
neither is a dependency, and the one's licence does not fit). merkle-py builds all proofs at once and slows with the
square of the leaves, so it is compared over few.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Figure, main
from verifiable.tlog.merkle import Tree, leaf_hash, verify_inclusion

LEAVES = 100_000
FEW = 256
PROOFS = 2000
ROUNDS = 3
FOLDER = Path(__file__).resolve().parent.parent / "out" / "trees"
PACKAGES = ("pymerkle==7.0.0", "merkle-py==1.2.11", "py-utls==0.3.2")

THEIRS = """
import contextlib, hashlib, io, json, sys, time
leaves, few, proofs, seed = map(int, sys.argv[1:])
import random
from pymerkle import InmemoryTree, verify_inclusion
indices = random.Random(seed).sample(range(leaves), proofs)
start = time.perf_counter()
tree = InmemoryTree(algorithm="sha256")
for index in range(leaves):
    tree.append_entry(index.to_bytes(4, "big"))
append = time.perf_counter() - start
root = tree.get_state()
start = time.perf_counter()
made = [tree.prove_inclusion(index + 1) for index in indices]
prove = (time.perf_counter() - start) / proofs
bases = [tree.get_leaf(index + 1) for index in indices]
start = time.perf_counter()
for base, proof in zip(bases, made):
    verify_inclusion(base, root, proof)
verify = (time.perf_counter() - start) / proofs
import merklepy
entries = [hashlib.sha256(index.to_bytes(4, "big")).digest() for index in range(few)]
start = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    merklepy.MerkleTree().add_leaves(False, *entries)
small = time.perf_counter() - start
print(json.dumps([append, prove, verify, small]))
"""


def environment() -> Path:
    """The Python of an environment that has the two packages."""
    python = FOLDER / "bin" / "python"
    if not (FOLDER / "ready").exists():
        print("Making an environment for pymerkle and merkle-py in out/trees", file=sys.stderr)
        venv.create(FOLDER, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *PACKAGES]
        subprocess.run(pip, check=True, stdin=subprocess.DEVNULL, timeout=300)
        (FOLDER / "ready").touch()
    return python


def ours(seed: int) -> list[float]:
    """Seconds: append all, prove one, verify one, append few and prove each."""
    indices = random.Random(seed).sample(range(LEAVES), PROOFS)
    start = time.perf_counter()
    tree = Tree()
    for index in range(LEAVES):
        tree.append(leaf_hash(index.to_bytes(4, "big")))
    append = time.perf_counter() - start
    root = tree.root()
    start = time.perf_counter()
    made = [tree.inclusion_proof(index) for index in indices]
    prove = (time.perf_counter() - start) / PROOFS
    start = time.perf_counter()
    for index, proof in zip(indices, made, strict=True):
        verify_inclusion(leaf_hash(index.to_bytes(4, "big")), index, LEAVES, proof, root)
    verify = (time.perf_counter() - start) / PROOFS
    start = time.perf_counter()
    small = Tree()
    for index in range(FEW):
        small.append(leaf_hash(index.to_bytes(4, "big")))
        small.inclusion_proof(index)
    return [append, prove, verify, time.perf_counter() - start]


def theirs(python: Path, seed: int) -> list[float]:
    command = [str(python), "-c", THEIRS, str(LEAVES), str(FEW), str(PROOFS), str(seed)]
    done = subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    seconds: list[float] = json.loads(done.stdout)
    return seconds


def measure() -> Sequence[Figure]:
    python = environment()
    rounds = [(ours(seed), theirs(python, seed)) for seed in range(ROUNDS)]
    mine = [sorted(figures)[ROUNDS // 2] for figures in zip(*(pair[0] for pair in rounds), strict=True)]
    other = [sorted(figures)[ROUNDS // 2] for figures in zip(*(pair[1] for pair in rounds), strict=True)]
    return [
        Figure("append 100,000 leaves", mine[0], "s", at_most=0.5),
        Figure("inclusion proof", mine[1] * 1e6, "µs", at_most=20),
        Figure("verification", mine[2] * 1e6, "µs", at_most=30),
        Figure("append, pymerkle ÷ ours", other[0] / mine[0], "×"),
        Figure("inclusion proof, pymerkle ÷ ours", other[1] / mine[1], "×"),
        Figure("verification, pymerkle ÷ ours", other[2] / mine[2], "×"),
        Figure(f"{FEW} leaves with their proofs, merkle-py ÷ ours", other[3] / mine[3], "×"),
    ]


if __name__ == "__main__":
    sys.exit(main(measure, "tree", __doc__))
