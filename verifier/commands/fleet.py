"""What `verifiable audit --fleet` does: a folder of evidence over many auditors, to a folder of Parquet."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from verifiable.checking.caveats import CAVEATS, Caveat
from verifiable.checking.verdict import Status
from verifiable.errors import PolicyError
from verifiable.llama.gguf.lora import Adapter
from verifiable.wire.keys import PublicKey
from verifier.campaign.outcome import overall
from verifier.commands.options import FleetOptions
from verifier.fleet.fleet import question, read_jobs, run_fleet
from verifier.fleet.ray_cluster import FromFiles, RayPool
from verifier.fleet.results import ParquetResults
from verifier.report import show

SUFFIXES = ("*.evidence", "*.cbor")


def caveats(verdicts: Sequence[Mapping[str, Any]]) -> list[Caveat]:
    """What the verdicts do not rest on, each once, with the number of sessions it is said of; rows have details."""
    given = Counter(name for verdict in verdicts for name in {note["id"] for note in verdict.get("not_shown", ())})
    return [Caveat(name, sessions=(count, len(verdicts))) for name, count in given.items() if name in CAVEATS]


def audit_folder(
    address: str,
    source: Path,
    model: Path,
    trust: Sequence[PublicKey],
    adapters: Sequence[Adapter],
    fleet: FleetOptions,
    threads: int,
    as_json: bool,
) -> int:
    """Audit every evidence file of a folder. Returns the exit status, as for one session."""
    from verifiable.llama.gguf.identity import identify

    if not source.is_dir():
        raise PolicyError(
            "a fleet audits a folder of evidence",
            expected="a folder",
            found=str(source),
            hint="Draw and fetch it first: verifiable audit URL --save FOLDER",
        )
    paths = sorted(path for suffix in SUFFIXES for path in source.glob(suffix))
    if not paths:
        raise PolicyError("no evidence in that folder", expected=" or ".join(SUFFIXES), found=str(source))
    identity = identify(model, adapters=adapters)
    jobs, bad = read_jobs(paths, question(trust, identity))
    results = ParquetResults(fleet.results)
    known = results.done()
    fresh = [row for row in bad if row.key not in known]
    if fresh:
        results.add(fresh)
    added = [replace(each, path=each.path.resolve()) for each in adapters]
    make = FromFiles({identity.files[0].sha256.hex(): str(model.resolve())}, threads, added)

    def tell(done: int, total: int) -> None:
        print(f"\r{done:,} of {total:,} sessions", end="", file=sys.stderr, flush=True)

    with RayPool(address, fleet.workers, make, trust, float(threads)) as pool:
        run_fleet(jobs, pool, results, tell=tell)
    print(file=sys.stderr)
    mine = {job.key for job in jobs} | {row.key for row in bad}
    rows = [row for row in results.rows() if row["key"] in mine]
    found = [(Status(row["status"]), row["code"]) for row in rows]
    counts = Counter(str(row["status"]) for row in rows)
    codes = Counter(str(row["code"]) for row in rows if row["code"] is not None)
    status = overall(found)
    notes = caveats([json.loads(row["verdict"]) for row in rows])
    tokens = sum(int(row["tokens_checked"]) for row in rows)
    if as_json:
        facts: dict[str, Any] = {"status": status.value, "sessions": len(rows), "statuses": counts, "codes": codes}
        facts["not_shown"] = [each.to_json() for each in notes]
        print(json.dumps({**facts, "tokens_checked": tokens, "results": str(fleet.results)}, indent=2))
    else:
        print(f"{len(rows):,} sessions, {tokens:,} tokens verified; results in {fleet.results}")
        for name, count in counts.most_common():
            print(f"  {name:<22} {count:,}")
        for name, count in codes.most_common():
            print(f"    {name:<20} {count:,}")
        show.say(show.not_shown(list(map(str, notes))))
    return status.exit_code
