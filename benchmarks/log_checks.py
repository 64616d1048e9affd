"""An audit's checks of a log of a million entries take less than 2 s and 1 MB of transfer, each for itself.

Signed heads, a year of them, served by the engine's routes over the loopback by another process; all but one in
`SIGNED` are random bytes of a head's length. Bytes are of answers' bodies. VERIFIABLE_LOG_ENTRIES makes another log.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks._log import ENTRY_BYTES
from benchmarks.measure import Figure, main
from engine.log.integrate import MAX_BATCH, integrate
from fixtures.synthetic import SyntheticProvider
from verifiable.checking.checks import SignedHead, check_head
from verifiable.errors import VerifiableError
from verifiable.limits import MERGE_DELAY
from verifiable.session.head import Head
from verifiable.wire.keys import PublicKey
from verifier.monitor.fetch import HttpFetch
from verifier.monitor.monitor import Monitor
from verifier.provider.client import Client
from verifier.provider.listing import read_sample
from verifier.provider.logged import LogReader
from verifier.provider.published import check_log
from verifier.provider.remember import Memory

ENTRIES = int(os.environ.get("VERIFIABLE_LOG_ENTRIES", "1000000"))
NEW = 1000
"""Entries since the auditor and the monitor looked last."""
SIGNED = 8
YEAR = 365 * 86_400_000
BEGUN = 1_700_000_000_000
CHUNK = 20_000
SECONDS, MEGABYTES = 2.0, 1.0


@dataclass(frozen=True, slots=True)
class Made:
    """What is kept of a provider whose log was made: its keys, its manifest, some heads, and its log as it was."""

    trust: PublicKey
    log: PublicKey
    manifest: bytes
    logged: bytes
    lost: bytes
    before: bytes

    def head(self, envelope: bytes) -> SignedHead:
        return check_head(self.manifest, envelope, [self.trust])


class Counting(Client):
    """A client that counts the bytes that it gets."""

    got = 0

    def __enter__(self) -> Counting:
        return self

    def _get(self, *given: object, **named: object) -> bytes:
        data = super()._get(*given, **named)  # type: ignore[arg-type]
        self.got += len(data)
        return data


def make(data: Path) -> Made:
    """A log of `ENTRIES` heads; the last `NEW` of them are published a second time."""
    provider = SyntheticProvider(data, name="benchmark")
    try:
        stated = provider.manifests.in_force()
        key, log, rows = provider.keys.session, provider.ledger.log, random.Random(1)
        if log is None:
            raise RuntimeError("the log did not open")
        logged = b""

        def head(at: int) -> bytes:
            made = Head(rows.randbytes(16), 3, rows.randbytes(32), stated.digest, BEGUN + at * YEAR // ENTRIES)
            return made.sign(key)

        def fill(first: int, end: int) -> None:
            nonlocal logged
            for at in range(first, end):
                signed = rows.randbytes(ENTRY_BYTES) if at % SIGNED else head(at)
                session = rows.randbytes(16) if at % SIGNED else Head.peek(signed).session
                provider.store.add_head(session, 3, signed)
                logged = signed if at == ENTRIES // 3 // SIGNED * SIGNED else logged
            provider.store.flush()
            while integrate(provider.store, lambda row, manifest_of: None, 8 * MAX_BATCH):
                pass

        provider.publish()  # the manifest
        ends = [*range(provider.store.log_size(), ENTRIES - NEW, CHUNK), ENTRIES - NEW]
        for first, end in pairwise(ends):
            fill(first, end)
        log.publish()
        before = log.published.note
        fill(ENTRIES - NEW, ENTRIES)
        log.publish()
        keys = provider.keys
        return Made(keys.provider.public, keys.log.public, stated.envelope, logged, head(ENTRIES // 2), before)
    finally:
        provider.close()


def timed(what: str, client: Counting, check: Callable[[], str], goal: bool = True) -> list[Figure]:
    client.got, start = 0, time.perf_counter()
    note = check()
    seconds, most = time.perf_counter() - start, (SECONDS, MEGABYTES) if goal else (None, None)
    return [
        Figure(f"{what}: time", seconds, "s", at_most=most[0], note=note),
        Figure(f"{what}: transfer", client.got / 1e6, "MB", at_most=most[1]),
    ]


def audits(base: str, made: Made, state: Path) -> list[Figure]:
    """Every check with a client, a reader and a memory of its own."""
    figures = []
    for what, envelope in (("a receipt's head, with its proof", made.logged), ("a head that is missing", made.lost)):
        with Counting(base) as client:
            reader = LogReader(client, [made.trust], MERGE_DELAY, seen(made, state / what))

            def look_up(reader: LogReader = reader, envelope: bytes = envelope) -> str:
                found = reader.look_up(made.head(envelope))
                if found is None or found.logged is not (envelope == made.logged):
                    raise RuntimeError(f"the log says otherwise: {found}")
                return ""

            figures += timed(what, client, look_up, goal=envelope == made.logged)
    with Counting(base) as client:

        def sample() -> str:
            log = check_log(seen(made, state / "provider"), client)
            if log is None or log.since != ENTRIES - NEW:
                raise RuntimeError("the log was not read")
            return f"{len(read_sample(log)[0]):,} entries drawn"

        figures += timed("a provider's log, before the list is held against it", client, sample)
    return figures


def seen(made: Made, folder: Path) -> Memory:
    memory = Memory(folder, [made.trust])
    memory.checkpoint(made.manifest, made.before)
    return memory


def monitored(base: str, made: Made, folder: Path) -> list[Figure]:
    fetch, got = HttpFetch(base + "/log"), 0

    def counting(path: str, maximum: int) -> bytes:
        nonlocal got
        data = fetch(path, maximum)
        got += len(data)
        return data

    folder.mkdir()
    (folder / "checkpoint").write_bytes(made.before)
    start = time.perf_counter()
    look = Monitor(counting, made.log, folder).look()
    seconds = time.perf_counter() - start
    fetch.close()
    if look.old is None or look.new.size != ENTRIES:
        raise VerifiableError("the monitor did not go on")
    what = f"a monitor that goes on by {NEW:,} entries, without reading them"
    return [
        Figure(f"{what}: time", seconds, "s", at_most=SECONDS),
        Figure(f"{what}: transfer", got / 1e6, "MB", at_most=MEGABYTES),
    ]


def measure() -> Sequence[Figure]:
    with tempfile.TemporaryDirectory(prefix="verifiable-log-checks-") as name:
        folder = Path(name)
        made = make(folder / "data")
        command = [sys.executable, "-m", "benchmarks._log", "serve", str(folder / "data")]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline()) if server.stdout else 0
            base = f"http://127.0.0.1:{port}"
            return [*audits(base, made, folder), *monitored(base, made, folder / "monitor")]
        finally:
            server.communicate(timeout=60)


if __name__ == "__main__":
    sys.exit(main(measure, "log_checks", __doc__))
