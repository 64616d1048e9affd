"""`verifiable log fsck` and `verifiable log export`: for the operator, on a provider that is not running."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from engine.keys import folder
from engine.ledger import checkpoint_path
from engine.log import export as exports
from engine.log.checkpoint_file import CheckpointFile
from engine.log.fsck import FsckReport, fsck as check
from engine.store import InUseError, Store, sqlite
from verifiable.errors import StoreError

_Data = Annotated[Path, typer.Option(help="The provider's data folder.")]
_Url = Annotated[str | None, typer.Option("--store", help="URL of the PostgreSQL database, if the provider has one.")]
_Place = Annotated[
    Path | None, typer.Option(help="Folder of the published checkpoint, if it is not in the data folder.")
]


def fsck(
    data: _Data,
    store: _Url = None,
    checkpoint: _Place = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Derive everything again from the stored bytes, and say exactly what is damaged."""
    try:
        opened = _open(data, store)
    except InUseError:
        raise
    except StoreError as error:
        report = FsckReport()
        report.damaged("the database", error)
    else:
        with closing(opened):
            known = folder.known(data / "keys")
            place = CheckpointFile(checkpoint_path(data, checkpoint))
            report = check(opened, known.providers, known.logs, place, data / "keys" / "log.unused")
    if as_json:
        findings = [{"where": finding.where, "what": finding.what} for finding in report.findings]
        print(json.dumps({"clean": report.clean, "findings": findings, "notes": report.notes, "counts": report.counts}))
    else:
        _show(report)
    return 0 if report.clean else 1


def export(
    data: _Data,
    out: Annotated[Path, typer.Option(help="Folder to write; what is there already is compared, not replaced.")],
    store: _Url = None,
    checkpoint: _Place = None,
) -> None:
    """Write the published log as static files that any web server can serve (C2SP tlog-tiles)."""
    with closing(_open(data, store)) as opened:
        known = folder.known(data / "keys")
        count, size = exports.export(opened, known.logs, CheckpointFile(checkpoint_path(data, checkpoint)), out)
    print(f"{out}: checkpoint of size {size}, {count} new files")


def _open(data: Path, url: str | None) -> Store:
    if url is not None:
        from engine.store import postgres  # its driver is an extra of its own

        return postgres.open_store(url)
    if not (data / sqlite.FILE).exists():
        raise StoreError(f"there is no store in {data}", expected=sqlite.FILE)
    return sqlite.open_store(data)


def _show(report: FsckReport) -> None:
    for finding in report.findings:
        print(f"DAMAGED  {finding.where}: {finding.what}")
    for note in report.notes[:20]:
        print(f"note     {note}")
    if len(report.notes) > 20:
        print(f"note     … and {len(report.notes) - 20} more")
    counted = ", ".join(f"{count:,} {name}" for name, count in report.counts.items()) or "nothing could be read"
    if report.clean:
        print(f"CLEAN: every signature, hash and root follows from the stored bytes ({counted}).")
    else:
        print(f"{len(report.findings)} damaged\nLooked at: {counted}. Nothing was changed.")
