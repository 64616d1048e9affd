"""At least 500 session heads a second become durable in SQLite, and come into the log within a second.

Each is a whole short session: opened, one turn of three tokens, ended, signed, and acknowledged once it is on the
disk. 64 are in flight at once, as from a batch of requests; the log sequences, integrates and publishes meanwhile.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Figure, main
from fixtures.synthetic import VOCABULARY, SyntheticProvider

SECONDS = 6.0
IN_FLIGHT = 64
SYNCS = 60


def sync_milliseconds(folder: Path) -> float:
    """What one small write and fsync takes on this disk, median."""
    taken = []
    with (folder / "probe").open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            start = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - start)
    return sorted(taken)[SYNCS // 2] * 1000


def measure() -> Sequence[Figure]:
    with tempfile.TemporaryDirectory(prefix="verifiable-heads-") as name:
        provider = SyntheticProvider(Path(name))
        provider.ledger.start(VOCABULARY)
        stop = time.perf_counter() + SECONDS
        counts = [0] * 2

        def work(index: int) -> None:
            while time.perf_counter() < stop:
                turns = [provider.begin("question", 3) for _ in range(IN_FLIGHT // 2)]
                for turn in turns:
                    turn.run()
                for turn in turns:
                    turn.wait()
                counts[index] += len(turns)

        start = time.perf_counter()
        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        taken = time.perf_counter() - start
        last = time.perf_counter()
        log = provider.ledger.log
        while log is not None and log.size() < sum(counts) and time.perf_counter() - last < 30:
            time.sleep(0.005)
        behind = time.perf_counter() - last
        provider.close()
        return [
            Figure("sessions made durable", sum(counts) / taken, "heads/s", at_least=500),
            Figure("last head integrated after", behind, "s", at_most=1.0),
            Figure("write and fsync on this disk", sync_milliseconds(Path(name)), "ms"),
        ]


if __name__ == "__main__":
    sys.exit(main(measure, "heads", __doc__))
