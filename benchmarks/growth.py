"""A receipt's log proof grows as log₂ of the log: 32 bytes for each doubling, in all three forms.

Sizes are of real proofs from a log that grows from 64 to 65,536 entries; the slope is a least-squares fit of the COSE
receipt's bytes over log₂ n.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks._log import fill
from benchmarks.measure import Figure, main
from engine.ledger import Ledger
from verifiable.tlog.cose_receipt import Proof, mint_proof
from verifiable.tlog.proof import TlogProof

SIZES = (64, 256, 1024, 4096, 16_384, 65_536)


def measure() -> Sequence[Figure]:
    sizes: list[tuple[float, int, int]] = []
    with tempfile.TemporaryDirectory(prefix="verifiable-growth-") as name:
        ledger = Ledger(Path(name), "benchmark")
        log = ledger.log
        if log is None:
            raise RuntimeError("the log did not open")
        for size in SIZES:
            fill(ledger.store, size)
            log.publish()
            at, root, note = log.signed(None)
            path = tuple(log.tree.inclusion_proof(size // 3, at))
            text = TlogProof(size // 3, path, note).format()
            cose = mint_proof(Proof(at, size // 3, path), root, log.key)
            sizes.append((math.log2(size), len(text), len(cose)))
        ledger.close()
    mean_x = sum(x for x, _, _ in sizes) / len(sizes)
    mean_y = sum(y for _, _, y in sizes) / len(sizes)
    slope = sum((x - mean_x) * (y - mean_y) for x, _, y in sizes) / sum((x - mean_x) ** 2 for x, _, _ in sizes)
    return [
        Figure(f".tlog-proof, log of {SIZES[0]}", sizes[0][1], "bytes"),
        Figure(f".tlog-proof, log of {SIZES[-1]:,}", sizes[-1][1], "bytes"),
        Figure(f"COSE receipt, log of {SIZES[0]}", sizes[0][2], "bytes"),
        Figure(f"COSE receipt, log of {SIZES[-1]:,}", sizes[-1][2], "bytes"),
        Figure("COSE receipt, a doubling of the log", slope, "bytes", at_least=32, at_most=36),
    ]


if __name__ == "__main__":
    sys.exit(main(measure, "growth", __doc__))
