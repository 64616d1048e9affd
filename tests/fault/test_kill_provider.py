"""kill -9 the real provider, with its model, in the middle of answers: receipts hold, the log goes on."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fault.crash import check_disk
from tests.needs import ROOT
from verifiable.checking.checks import check_evidence, check_receipt
from verifiable.errors import VerificationError
from verifiable.session.evidence import Evidence
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.wire.keys import PublicKey

pytestmark = pytest.mark.slow

KILLS = 3


class Served:
    """`verifiable serve` as a process."""

    def __init__(self, model: Path, data: Path) -> None:
        arguments = ["--model", str(model), "--data", str(data), "--port", "0", "--slots", "4", "--ctx", "256"]
        command = [sys.executable, "-m", "verifiable", "serve", *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line.startswith("API http://"):
            self.process.kill()
            pytest.fail(f"it does not start: {self.process.communicate()[1]}")
        self.url = line.split()[1].removesuffix("/v1")

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def ask(url: str, number: int, receipts: list[bytes], tokens: int) -> None:
    body = {"messages": [{"role": "user", "content": f"Count from {number}."}], "max_tokens": tokens}
    try:
        answer: dict[str, Any] = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()
    except (httpx.HTTPError, json.JSONDecodeError):
        return  # cut off: never acknowledged
    if "verifiable" in answer:
        receipts.append(base64.urlsafe_b64decode(answer["verifiable"]["receipt"] + "==="))


@pytest.mark.timeout(300)
def test_every_receipt_survives_and_comes_into_the_log(smollm2: Path, tmp_path: Path) -> None:
    data, receipts = tmp_path / "provider", list[bytes]()
    for round_ in range(KILLS):
        served = Served(smollm2, data)
        ask(served.url, round_, receipts, 4)
        threads = [threading.Thread(target=ask, args=(served.url, at, receipts, 200)) for at in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.3 + round_ * 0.4)
        served.kill()
        for thread in threads:
            thread.join()
        report = check_disk(data)
        assert report.findings == []
    assert len(receipts) >= KILLS
    served = Served(smollm2, data)
    trusted = [PublicKey.parse((data / "keys" / "provider.pub").read_text().strip())]
    deadline = time.monotonic() + 10
    for receipt in map(Receipt.parse, receipts):
        check_receipt(receipt, trusted)
        head = Head.peek(receipt.head)
        url, headers = (
            f"{served.url}/v1/sessions/{head.session.hex()}",
            {"X-Verifiable-Capability": (receipt.capability or b"").hex()},
        )
        while True:
            later = Receipt.parse(httpx.get(f"{url}/receipt", headers=headers).content)
            if later.log is not None or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        assert later.log is not None
        assert later.head == receipt.head
        check_receipt(later, trusted)
    codes = {verdict_code(served.url, data, entry["id"], trusted) for entry in listed(served.url)}
    assert codes == {None, "interrupted"}  # what was cut off is told to an auditor as that, and nothing else is wrong
    served.process.send_signal(signal.SIGTERM)
    served.process.communicate(timeout=30)
    report = check_disk(data)
    assert report.findings == []
    assert any("stops in the middle of a turn" in note for note in report.notes)  # and is reported as such


def listed(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{url}/v1/sessions").json()["sessions"]
    return found


def verdict_code(url: str, data: Path, session: str, trusted: list[PublicKey]) -> str | None:
    """The reason code that the evidence of a session gives before any model runs; None where all is well."""
    headers = {"Authorization": f"Bearer {(data / 'keys' / 'auditor.key').read_text().strip()}"}
    answer = httpx.get(f"{url}/v1/sessions/{session}/evidence", headers=headers)
    try:
        check_evidence(Evidence.parse(answer.raise_for_status().content), trusted)
    except VerificationError as error:
        return error.code
    return None
