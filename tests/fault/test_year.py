"""A year of a provider on a calendar of its own: what was acknowledged on any day holds at the end, or says why not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.fault.crash import check_disk
from tests.fault.year import CUT, ERASED, KEPT_DAYS, open_engine
from tests.integration.serving import http
from tests.needs import ROOT
from verifiable.checking.checks import OpenedReceipt, check_receipt
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import KeysFile
from verifiable.session.receipt import Receipt
from verifiable.tlog.proof import TlogProof
from verifiable.wire.keys import PublicKey
from verifier.provider.client import Client

pytestmark = pytest.mark.slow

QUARTERS = ((0, 91), (91, 91), (182, 92), (274, 91))
END = 366


@pytest.mark.timeout(300)
def test_a_year_of_renewals_retention_and_power_cuts(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    model, data, kept = tiny_models["llama"], tmp_path / "provider", tmp_path / "receipts"
    kept.mkdir()
    for first, length in QUARTERS:
        command = [sys.executable, "-m", "tests.fault.year", *map(str, (model, data, kept, first, length))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == CUT, done.stderr
        assert check_disk(data).findings == []
    trusted = PublicKey.parse((tmp_path / "first.pub").read_text().strip())
    said = KeysFile.load(data / "keys" / "statements.keys").statements
    chain = Chain.follow([trusted], said)
    assert len(chain.keys) == 1 + len(QUARTERS)
    receipts = {path.stem: check_receipt(Receipt.parse(path.read_bytes()), chain) for path in sorted(kept.iterdir())}
    assert len(receipts) == 2 * sum(length for _, length in QUARTERS) + 12
    manifests = {opened.session.signed.manifest.digest() for opened in receipts.values()}
    assert len(manifests) >= 8  # renewed when half is over
    with open_engine(model, data, END) as engine, http(engine, []) as url:
        assert engine.interrupted == 1  # by the last power cut
        with Client(url) as client:
            check_log(client, receipts, chain)
        told = audit(url, model, data, tmp_path)
    assert told["failed"] == 0
    found = {verdict["session"]: (verdict["status"], verdict.get("code")) for verdict in told["verdicts"]}
    days = {opened.session.signed.head.session.hex(): int(name[:3]) for name, opened in receipts.items()}
    ends = Counter(("kept" if days[session] >= END - KEPT_DAYS else "old", *found[session]) for session in days)
    erased = sum(day % 30 == ERASED for day in range(END - KEPT_DAYS, END - 1))
    assert ends["kept", "inconclusive", "erased"] == erased
    assert ends["kept", "verified-exact", None] == sum(day >= END - KEPT_DAYS for day in days.values()) - erased
    assert ends["old", "inconclusive", "erased"] == sum(ends.values()) - ends["kept", "verified-exact", None] - erased
    rest = [found[session] for session in found if session not in days]
    assert rest == [("inconclusive", "interrupted")] * len(QUARTERS)


def check_log(client: Client, receipts: dict[str, OpenedReceipt], chain: Chain) -> None:
    """Every head that was handed out stands in the log."""
    for opened in receipts.values():
        head, log = opened.session.signed.head, opened.session.signed.manifest.log
        assert log is not None
        proof = TlogProof.parse(client.log_proof(head.session, head.size))
        proof.verify(opened.session.signed.head_envelope, chain.logs(log))


def audit(url: str, model: Path, data: Path, folder: Path) -> dict[str, Any]:
    keys = data / "keys"
    command = [sys.executable, "-m", "verifiable", "audit", url, "--model", str(model), "--sessions", "1000", "--json"]
    command += ["--trust", str(folder / "first.pub"), "--auditor-key", str(keys / "auditor.key")]
    command += ["--state", str(folder / "state"), "--save", str(folder / "kept")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told
