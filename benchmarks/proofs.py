"""A log of a million entries answers 1,000 inclusion proofs a second over HTTP, with a p99 under 20 ms.

Loopback only, and bounded: 20,000 requests for random entries, sent at 1,000 a second on 16 connections by one client
process; a latency counts from the moment at which the request was due, so that a server that falls behind shows it.
VERIFIABLE_LOG_ENTRIES makes another log.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks._log import publish
from benchmarks.measure import Figure, main
from engine.ledger import Ledger

ENTRIES = int(os.environ.get("VERIFIABLE_LOG_ENTRIES", "1000000"))
REQUESTS = 20_000
RATE = 1000.0
CONNECTIONS = 16
DIRECT = 3000


async def client(port: int, count: int, rate: float) -> list[float]:
    """Seconds that each request took from when it was due."""
    choose = random.Random(5)
    taken: list[float] = []
    due: asyncio.Queue[float] = asyncio.Queue()

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            at = await due.get()
            index = choose.randrange(ENTRIES)
            writer.write(
                f"GET /v1/log/proof?index={index} HTTP/1.1\r\nHost: x\r\nAccept: text/x.tlog.proof\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode("latin-1"))
            taken.append(time.perf_counter() - at)

    tasks = [asyncio.create_task(connection()) for _ in range(CONNECTIONS)]
    start = time.perf_counter()
    for number in range(count):
        at = start + number / rate
        if (wait := at - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        due.put_nowait(at)
    while len(taken) < count and not any(task.done() for task in tasks):
        await asyncio.sleep(0.01)
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    return taken


def measure() -> Sequence[Figure]:
    with tempfile.TemporaryDirectory(prefix="verifiable-proofs-") as name:
        data = Path(name) / "data"
        publish(data, ENTRIES)
        start = time.perf_counter()
        ledger = Ledger(data, "benchmark")
        opening = time.perf_counter() - start
        log = ledger.log
        if log is None:
            raise RuntimeError("the log did not open")
        choose = random.Random(9)
        start = time.perf_counter()
        for _ in range(DIRECT):
            log.tree.inclusion_proof(choose.randrange(ENTRIES), ENTRIES)
        direct = DIRECT / (time.perf_counter() - start)
        ledger.close()
        command = [sys.executable, "-m", "benchmarks._log", "serve", str(data)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline()) if server.stdout else 0
            asyncio.run(client(port, 500, RATE / 2))  # warm: the tiles that most proofs share
            start = time.perf_counter()
            taken = sorted(asyncio.run(client(port, REQUESTS, RATE)))
            seconds = time.perf_counter() - start
        finally:
            server.communicate(timeout=60)
        return [
            Figure(f"proofs over HTTP, log of {ENTRIES:,}", REQUESTS / seconds, "proofs/s", at_least=0.98 * RATE),
            Figure("p50 of a proof", taken[len(taken) // 2] * 1000, "ms"),
            Figure("p99 of a proof", taken[int(len(taken) * 0.99)] * 1000, "ms", at_most=20),
            Figure("proofs without HTTP", direct, "proofs/s"),
            Figure("whole log derived again at start", opening, "s"),
        ]


if __name__ == "__main__":
    sys.exit(main(measure, "proofs", __doc__))
