"""Writes docs/conformance.md from a run of every suite: `python -m tests.conformance.table`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from tests.conformance import suites_cbor, suites_cose, suites_ed25519, suites_notes, suites_tree
from tests.conformance.harness import ROOT, Outcome, Suite, Vectors, locate

PAGE: Final = ROOT / "docs" / "conformance.md"

SUITES: Final[Mapping[str, tuple[str, str, Suite]]] = {
    "inclusion": (
        "RFC 9162 inclusion proofs",
        "transparency-dev/merkle",
        suites_tree.inclusion,
    ),
    "consistency": (
        "RFC 9162 consistency proofs",
        "transparency-dev/merkle",
        suites_tree.consistency,
    ),
    "subtree-inclusion": (
        "Subtree inclusion proofs (Merkle Tree Certificates draft)",
        "transparency-dev/merkle",
        suites_tree.subtree_inclusion,
    ),
    "subtree-consistency": (
        "Subtree consistency proofs (same draft)",
        "transparency-dev/merkle",
        suites_tree.subtree_consistency,
    ),
    "tree8": ("A tree of 8: nodes and roots", "transparency-dev/merkle", suites_tree.tree8),
    "tessera": (
        "tlog-tiles: a whole log of 15 entries",
        "transparency-dev/tessera",
        suites_tree.tessera,
    ),
    "sunlight": (
        "tlog-tiles: a tree of 300 leaves",
        "FiloSottile/sunlight",
        suites_tree.sunlight_tiles,
    ),
    "rekor": ("Rekor v2 entries, as `.tlog-proof` files", "sigstore/sigstore-python", suites_tree.rekor),
    "notes": ("Signed notes and verifier keys", "golang/mod, C2SP", suites_notes.notes),
    "tree-text": ("Checkpoint bodies", "golang/mod", suites_notes.tree_text),
    "cosignatures": ("Witness cosignatures", "FiloSottile/sunlight", suites_notes.cosignatures),
    "witness": (
        "Witness requests, in order",
        "FiloSottile/torchwood",
        suites_notes.witness_requests,
    ),
    "cose": ("COSE_Sign1", "cose-wg/Examples", suites_cose.cose_wg),
    "receipts": ("COSE Receipts (RFC 9942)", "scitt-cose", suites_cose.receipts),
    "cbor-good": ("CBOR, valid", "cbor-wg", suites_cbor.good),
    "cbor-bad": ("CBOR, malformed", "cbor-wg", suites_cbor.bad),
    "cbor-appendix-a": ("CBOR, RFC 8949 Appendix A", "cbor-wg", suites_cbor.appendix_a),
    "rfc8032": ("Ed25519 of RFC 8032's authors", "pyca/pynacl", suites_ed25519.rfc8032),
    "wycheproof": ("Ed25519, Wycheproof", "C2SP/wycheproof", suites_ed25519.wycheproof),
    "cctv": ("Ed25519 edge points", "C2SP/CCTV", suites_ed25519.cctv),
    "speccheck": ("Taming the many EdDSAs", "ed25519-speccheck", suites_ed25519.speccheck),
}
"""Name → (title, where the vectors come from, the suite)."""

_HEAD = """# Conformance

How this project does on other projects' test vectors. The vectors are not part of this repository. With them beside it
(or at `VERIFIABLE_VECTORS`), `pytest tests/conformance` runs all of them, and fails when a count below is stale.
`python -m tests.conformance.table` writes this page.

An exception is a vector from which we differ on purpose. Each has a reason; a difference without a reason fails.

"""


_TAIL = """
## Other people's readers

`tests/conformance/test_interoperability.py` has other libraries read what we sign, in an environment of their own.

- `cwt` reads our COSE_Sign1 as it is.
- `pycose` and `scitt-cose` do not know algorithm -19 (Ed25519, RFC 9864) yet. When the same object is signed under the
  older number -8, both read it, and `scitt-cose` verifies our receipts of inclusion.
- `merkle-py`, with its hash function replaced, agrees on every root. Its proofs cannot be used: it takes siblings
  from the wrong positions, so that only those of the first two leaves verify, and they do not bind the tree's size.
"""


def run(vectors: Vectors) -> dict[str, list[Outcome]]:
    """Run every suite."""
    return {name: list(suite(vectors)) for name, (_, _, suite) in SUITES.items()}


def render(results: Mapping[str, Sequence[Outcome]]) -> str:
    """The page."""
    rows = ["| vectors | from | run | passed | exceptions |", "|---|---|---:|---:|---:|"]
    reasons = []
    totals = Counter[str]()
    for name, outcomes in results.items():
        title, source, _ = SUITES[name]
        passed = sum(outcome.passed for outcome in outcomes)
        excepted = Counter(outcome.exception for outcome in outcomes if outcome.exception)
        totals.update(run=len(outcomes), passed=passed, exceptions=excepted.total())
        rows.append(f"| {title} | {source} | {len(outcomes)} | {passed} | {excepted.total()} |")
        reasons += [f"- {title}, {count}: {reason}." for reason, count in excepted.items()]
    rows.append(f"| **all** | | {totals['run']} | {totals['passed']} | {totals['exceptions']} |")
    return _HEAD + "\n".join(rows) + "\n\n## Exceptions\n\n" + "\n".join(reasons) + "\n" + _TAIL


def main() -> int:
    folder = locate()
    if folder is None:
        print("no vectors found: set VERIFIABLE_VECTORS to their folder", file=sys.stderr)
        return 4
    results = run(Vectors(folder))
    failed = [outcome for outcomes in results.values() for outcome in outcomes if outcome.failed]
    for outcome in failed:
        print(f"failed: {outcome.vector}: {outcome.detail}", file=sys.stderr)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(results), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
