"""What the log's benchmarks share: a log of any size, made quickly, and served on the loopback.

    python -m benchmarks._log serve FOLDER      # for a benchmark: prints its port, ends when standard input does

Entries are random bytes of a head's length: what a proof costs does not depend on what is signed.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path

import uvicorn

from benchmarks._loopback import listen
from engine.api.app import proof_app
from engine.ledger import Ledger
from engine.log.integrate import MAX_BATCH, integrate
from engine.store import Store
from engine.web.limits import ProofRates, Rate
from fixtures.synthetic import SyntheticProvider

ENTRY_BYTES = 230
CHUNK = 20_000


def fill(store: Store, count: int) -> None:
    """Append entries until the log has `count`."""
    have = store.log_size()
    rows = random.Random(have)
    while have < count:
        take = min(CHUNK, count - have)
        for _ in range(take):
            store.add_head(rows.randbytes(16), 1, rows.randbytes(ENTRY_BYTES))
        store.flush()
        while integrate(store, lambda row, manifest_of: None, 8 * MAX_BATCH):
            pass
        have += take


def publish(data: Path, count: int) -> None:
    """A provider's folder with a published log of `count` entries."""
    ledger = Ledger(data, "benchmark")
    fill(ledger.store, count)
    if ledger.log is not None:
        ledger.log.publish()
    ledger.close()


def serve(data: Path) -> None:
    """Serve the proof API of a folder until standard input ends."""
    provider = SyntheticProvider(data, name="benchmark")
    rates = ProofRates(Rate(1e9, 1e9), Rate(1e9, 1e9))
    server = uvicorn.Server(uvicorn.Config(proof_app(provider, rates), log_level="error", access_log=False))
    listener, port = listen()

    def watch() -> None:
        print(port, flush=True)
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    server.run(sockets=[listener])
    provider.close()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    serve(Path(sys.argv[2]))
