"""Each key is exchanged and the old one revoked while clients stream: nobody loses an answer, and nobody is accused."""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from engine.engine import Engine, EngineSettings
from engine.keys import folder as names, keyring
from engine.ledger import LedgerSettings
from engine.log.log import LogSettings
from engine.witness.witness import Witness, make_app
from tests.integration.serving import http, served
from verifiable.checking.checks import check_receipt
from verifiable.checking.offline import verify
from verifiable.checking.verdict import Status
from verifiable.cli import main
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import KeysFile, Role
from verifiable.session.receipt import Receipt
from verifiable.tlog.checkpoint import open_checkpoint
from verifiable.tlog.cosignature import CosignerKey
from verifiable.tlog.proof import TlogProof
from verifiable.wire.keys import PrivateKey, PublicKey
from verifier.provider.client import Client

pytestmark = pytest.mark.slow

CLIENTS = 4
TOKENS = 96


@dataclass
class Clients:
    """Clients that stream one answer after another, half of them in a conversation, until they are stopped."""

    url: str
    receipts: list[bytes] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, number: int) -> None:
        session: dict[str, str] = {}
        for turn in itertools.count():
            if self.stopping.is_set():
                return
            asked = {"session": session.get("session", "new")} if number % 2 else {}
            headers = {"X-Verifiable-Capability": session["capability"]} if number % 2 and session else {}
            status, told = self.ask({"prompt": f"{number} {turn}", "verifiable": asked}, headers)
            if status == 409 and session:  # its key is to be revoked, or its log is full: said before anything began
                session = {}
            elif status != 200 or told is None:
                self.trouble.append(f"client {number}, answer {turn}: {status} {told}")
            else:
                self.receipts.append(base64.urlsafe_b64decode(told["receipt"] + "==="))
                session = {name: told[name] for name in ("session", "capability") if told.get(name)}

    def ask(self, body: dict[str, object], headers: dict[str, str]) -> tuple[int, dict[str, str] | None]:
        """The status, and what the last chunk says of the commitments; None where the stream broke off."""
        full = {"max_tokens": TOKENS, "ignore_eos": True, "stream": True, **body}
        last, done = None, False
        try:
            with httpx.stream("POST", f"{self.url}/v1/completions", json=full, headers=headers, timeout=60) as response:
                if response.status_code != 200:
                    return response.status_code, {"error": response.read().decode()}
                for line in response.iter_lines():
                    done = done or line == "data: [DONE]"
                    if line.startswith("data: {"):
                        last = json.loads(line[6:]).get("verifiable") or last
        except httpx.HTTPError as error:
            return 0, {"error": repr(error)}
        return 200, last if done else None

    @contextmanager
    def streaming(self) -> Iterator[None]:
        threads = [threading.Thread(target=self.run, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()

    def more(self, count: int) -> None:
        """Wait until so many more answers came."""
        wanted = len(self.receipts) + count
        until(lambda: len(self.receipts) >= wanted or bool(self.trouble))


def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.mark.timeout(300)
def test_every_key_is_exchanged_and_revoked_while_clients_stream(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    data = tmp_path / "provider"
    first = keyring.load(data / "keys", "acme")
    witness = Witness(PrivateKey.generate("witness", bytes(32)), [first.log.public], tmp_path / "witness")
    with served(make_app(witness)) as place:
        settings = EngineSettings(
            runtime=RuntimeSettings(n_ctx=4096, n_seq_max=CLIENTS),
            k=4,
            name="acme",
            ledger=LedgerSettings(witnesses=(f"{witness.vkey} {place}",), quorum=1, log=LogSettings(0.02, 0.1)),
        )
        with Engine(tiny_models["llama"], data, settings) as engine, http(engine, []) as url:
            clients = Clients(url)
            with clients.streaming():
                clients.more(CLIENTS)
                for role, old in (
                    (Role.SESSION, first.session.public),
                    (Role.LOG, first.log.public),
                    (Role.PROVIDER, first.provider.public),
                ):
                    exchange(engine, role, old, clients, witness)
                    watch(url, first.log.public, tmp_path)
            assert clients.trouble == []
            ledger_log = engine.ledger.log
            assert ledger_log is not None
            ledger_log.integrate()
            until(lambda: ledger_log.published.size == ledger_log.size())
            assert ledger_log.failure() is None
            watch(url, first.log.public, tmp_path)
            check(url, first.provider.public, witness, clients.receipts)


def exchange(engine: Engine, role: Role, old: PublicKey, clients: Clients, witness: Witness) -> None:
    """By the commands that an operator types, while it serves."""
    data = engine.keys.folder.parent
    assert main(["keys", "rotate", role.name.lower(), "--data", str(data)]) == 0
    clients.more(CLIENTS)
    until(lambda: old not in (engine.keys.session.public, engine.keys.log.public, engine.keys.provider.public))
    if role is Role.LOG:  # until here the old key's line was enough: whoever runs the witness takes the new key in now
        witness.logs[old.name] = (old, engine.keys.log.public)
    path = data / "keys" / names.file(role, old).replace(".key", ".pub")
    reason = ["--reason", "a drill", "--grace", "4"]
    assert main(["keys", "revoke", str(path), "--data", str(data), *reason]) == 0
    clients.more(2 * CLIENTS)


def watch(url: str, log: PublicKey, folder: Path) -> None:
    """A monitor that was told the log's first key, across its own restarts."""
    arguments = ["--trust", log.vkey(), "--state", str(folder / "monitor"), "--entries", "--provider", url, "--once"]
    assert main(["log", "monitor", f"{url}/log", *arguments]) == 0


def check(url: str, trusted: PublicKey, witness: Witness, receipts: list[bytes]) -> None:
    """Every receipt verifies by the first key alone, stands in the log, and the witness went on."""
    said = KeysFile.parse(httpx.get(f"{url}/v1/keys").content)
    assert len(said.statements) == 5  # a session's key needs no succession
    chain = Chain.follow([trusted], said.statements)
    assert len(chain.keys) == 2
    with Client(url) as client:
        for data in receipts:
            verdict = verify(data, trust=chain)
            assert verdict.status is Status.RECEIPT, verdict
            signed = check_receipt(Receipt.parse(data), chain).session.signed
            assert signed.manifest.log is not None
            logs = chain.logs(signed.manifest.log)
            proof = TlogProof.parse(client.log_proof(signed.head.session, signed.head.size))
            found = proof.verify(signed.head_envelope, logs)
            assert open_checkpoint(found.note, logs, [CosignerKey.parse(witness.vkey)], quorum=1).witnesses
    assert len({Receipt.parse(data).manifest for data in receipts}) == 4
