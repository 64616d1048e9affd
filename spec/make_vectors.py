"""Make spec/vectors, and the example in spec/protocol.md, from fixed keys and made-up data.

    python -m spec.make_vectors            # write them
    python -m spec.make_vectors --check    # say which differ from what would be written; exit status 1 if any does

No model is needed, and the bytes are the same wherever this runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from spec.generate import (
    asking,
    evidences,
    example,
    exchanges,
    frauds,
    keylife,
    objects,
    primitives,
    receipts,
    trees,
    verdicts,
)
from spec.generate.cases import VectorFile

HERE = Path(__file__).resolve().parent
VECTORS = HERE / "vectors"
PROTOCOL = HERE / "protocol.md"
FILES: tuple[Callable[[], VectorFile], ...] = (
    primitives.cbor,
    primitives.key,
    primitives.signature,
    primitives.envelope,
    trees.tree,
    trees.checkpoint,
    trees.tlog_proof,
    objects.derivation,
    objects.manifest,
    objects.head,
    objects.leaf,
    objects.packed,
    asking.request,
    asking.body,
    asking.draw,
    asking.delivery,
    receipts.receipt,
    evidences.evidence,
    exchanges.exchange,
    exchanges.answer,
    frauds.fraud,
    keylife.keys,
    verdicts.verdict,
)


def contents() -> dict[Path, str]:
    """Every file that this script writes, with what it should hold."""
    made = [make() for make in FILES]
    files = {VECTORS / f"{file.operation}.json": file.render() for file in made}
    files[PROTOCOL] = example.insert(PROTOCOL.read_text(encoding="utf-8"))
    return files


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m spec.make_vectors", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; name the files that differ")
    options = parser.parse_args(arguments)
    files = contents()
    differing = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    stray = sorted(set(VECTORS.glob("*.json")) - files.keys())
    for path in differing:
        print(f"{'differs' if options.check else 'written'}: {path.relative_to(HERE.parent)}")
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
    for path in stray:
        print(f"not made by this script: {path.relative_to(HERE.parent)}")
    return 1 if stray or (options.check and differing) else 0


if __name__ == "__main__":
    sys.exit(main())
