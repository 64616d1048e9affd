"""Crash a provider's ledger, again and again, and check after each time that nothing promised was lost.

    python -m tests.fault.crash kills --count 200            # kill -9 at random moments under load
    LD_PRELOAD=shim.so python -m tests.fault.crash faults    # a fault at each write, fsync, rename, unlink, truncation

Every case runs in a forked child over a folder; the parent keeps what the child acknowledged: receipts, and the
checkpoints that it published. After a case fsck must be clean, every acknowledged receipt must be in the store, the
log must go on, and no two checkpoints ever seen may have one size and two roots, or be inconsistent.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.keys import folder
from engine.ledger import LedgerSettings
from engine.log.checkpoint_file import CheckpointFile
from engine.log.fsck import FsckReport, fsck
from engine.log.log import LogSettings
from engine.store.sqlite import open_store
from fixtures.synthetic import VOCABULARY, SyntheticProvider
from verifiable.errors import VerifiableError
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt
from verifiable.tlog.checkpoint import Checkpoint, open_checkpoint
from verifiable.tlog.proof import TlogProof

KINDS = {"eio": 1, "enospc": 2, "short": 3, "kill-before": 4, "kill-after": 5, "full": 6}
WRITERS = 4
ROUNDS = 20
"""Kills of one folder before a fresh one."""
FAST = LedgerSettings(log=LogSettings(integrate_every=0.01, publish_every=0.02))
_REFUSED = 3
"""Exit status of a child whose ledger met the fault and said so."""


@dataclass
class Seen:
    """What the children have acknowledged so far."""

    receipts: list[bytes] = field(default_factory=list)
    checkpoints: dict[bytes, None] = field(default_factory=dict)

    def read(self, data: bytes) -> None:
        """Take in whole lines; a child that was killed may leave half a line, which was then never acknowledged."""
        for line in data.split(b"\n")[:-1]:
            kind, _, value = line.partition(b" ")
            if kind == b"A":
                self.receipts.append(bytes.fromhex(value.decode()))
            else:
                self.checkpoints[bytes.fromhex(value.decode())] = None


def tell(out: int, kind: bytes, value: bytes) -> None:
    os.write(out, kind + b" " + value.hex().encode() + b"\n")


def load(data: Path, out: int) -> None:
    """Answer from several threads, publish all the time, and never stop."""
    provider = SyntheticProvider(data, FAST)
    provider.ledger.start(VOCABULARY)

    def write(seed: int) -> None:
        choose = random.Random(seed ^ os.getpid())
        while True:
            tell(out, b"A", provider.answer("p" * choose.randrange(200), choose.randrange(1, 12)))

    for seed in range(WRITERS):
        threading.Thread(target=write, args=(seed,), daemon=True).start()
    last = b""
    while True:
        note = provider.ledger.log.published.note if provider.ledger.log else b""
        if note != last:
            last = note
            tell(out, b"C", note)
        time.sleep(0.005)


def script(data: Path, out: int) -> None:
    """A fixed piece of work, step by step: the same operations in the same order each time."""
    provider = SyntheticProvider(data, FAST)
    for rounds in (3, 2):
        for _ in range(rounds):
            tell(out, b"A", provider.answer("question", 3))
        provider.publish()
        if provider.ledger.log is not None:
            tell(out, b"C", provider.ledger.log.published.note)
    provider.close()


def child(work: Callable[[Path, int], None], data: Path, arm: Callable[[], None] | None = None) -> tuple[int, int]:
    """Fork a child that does the work; returns its process id and the end of a pipe with what it acknowledges."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    status = 0
    try:
        os.close(reading)
        os.setpgid(0, 0)
        if arm is not None:
            arm()
        work(data, writing)
    except VerifiableError as error:
        status = _REFUSED
        if os.environ.get("FAULT_VERBOSE"):
            print(error, file=sys.stderr)
    except BaseException as error:
        status = 1
        import traceback

        traceback.print_exception(error)
    finally:
        sys.stderr.flush()
        os._exit(status)


def drain(reading: int, until: float | None = None) -> bytes:
    """Read what a child says, until it ends or a moment of `time.monotonic` has come."""
    parts: list[bytes] = []
    while True:
        wait = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([reading], [], [], wait)[0]:
            return b"".join(parts)
        part = os.read(reading, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


def check_disk(data: Path) -> FsckReport:
    """What fsck says of a folder that nobody uses."""
    store = open_store(data)
    try:
        known = folder.known(data / "keys")
        place = CheckpointFile(data / "checkpoint" / "checkpoint")
        return fsck(store, known.providers, known.logs, place, data / "keys" / "log.unused")
    finally:
        store.close()


def check(data: Path, seen: Seen, every: int = 1) -> list[str]:
    """What is wrong after a case; checks the log proofs of every `every`-th receipt."""
    wrong = []
    if (data / "keys").exists():
        wrong += [f"fsck: {found.where}: {found.what}" for found in check_disk(data).findings]
    elif seen.receipts:
        return ["there are receipts and no keys"]
    try:
        provider = SyntheticProvider(data, FAST)
    except VerifiableError as error:
        return [*wrong, f"it does not start again: {error}"]
    try:
        provider.publish()
        wrong += _receipts(provider, seen, every) + _checkpoints(provider, seen)
    except VerifiableError as error:
        wrong.append(f"it does not go on: {error}")
    finally:
        provider.close()
    wrong += [f"fsck afterwards: {found.where}: {found.what}" for found in check_disk(data).findings]
    return wrong


def _receipts(provider: SyntheticProvider, seen: Seen, every: int) -> list[str]:
    wrong = []
    for number, data in enumerate(seen.receipts):
        receipt = Receipt.parse(data)
        head = Head.peek(receipt.head)
        stored = provider.store.head(head.session, head.size)
        if stored is None or stored[1] != receipt.head:
            wrong.append(f"an acknowledged receipt is lost: session {head.session.hex()}")
        elif number % every == 0:
            proof = provider.ledger.proof(head.session, head.size)
            if proof is None:
                wrong.append(f"the head of session {head.session.hex()} never came into the log")
            else:
                TlogProof.parse(proof).verify(receipt.head, provider.keys.log.public)
    return wrong


def _checkpoints(provider: SyntheticProvider, seen: Seen) -> list[str]:
    wrong = []
    log = provider.ledger.log
    if log is None:
        return ["there is no log"]
    notes = [*seen.checkpoints, *(note for _, note in provider.store.checkpoints())]
    roots: dict[int, bytes] = {}
    for note in notes:
        found: Checkpoint = open_checkpoint(note, provider.keys.log.public).checkpoint
        if roots.setdefault(found.size, found.root) != found.root:
            wrong.append(f"two signed roots for size {found.size}")
        if found.size > log.published.size or (found.size and log.tree.root(found.size) != found.root):
            wrong.append(f"the checkpoint of size {found.size} is not consistent with the log")
    return wrong


def kills(data: Path, count: int, longest: float, seed: int) -> dict[str, object]:
    """Kill a provider under load `count` times; each time it starts from what the last one left."""
    choose = random.Random(seed)
    base, seen, wrong = data, Seen(), list[str]()
    receipts = checkpoints = 0
    for number in range(count):
        if number % ROUNDS == 0:  # a fresh folder now and then: each check derives the whole of it again
            receipts, checkpoints = receipts + len(seen.receipts), checkpoints + len(seen.checkpoints)
            data, seen = base.with_name(f"{base.name}{number}"), Seen()
        process, reading = child(load, data)
        # The start, with its recovery, gets its share of the kills too.
        said = drain(reading, time.monotonic() + choose.uniform(0.0, longest))
        os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        seen.read(said + drain(reading))
        os.close(reading)
        if status != -signal.SIGKILL:
            wrong.append(f"the provider ended by itself with status {status}")
        if (data / "keys").exists() or (data / "provider.sqlite").exists():
            # Every tenth receipt's proof, each receipt's head: the folder grows with every round.
            wrong += check(data, seen, every=10)
        if wrong:
            break
        print(f"\rkill {number + 1} of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    receipts, checkpoints = receipts + len(seen.receipts), checkpoints + len(seen.checkpoints)
    return {"kills": number + 1, "receipts": receipts, "checkpoints": checkpoints, "wrong": wrong}


def faults(shim: ctypes.CDLL, folder: Path, kinds: list[str], step: int, offset: int) -> dict[str, object]:
    """Give each operation of the script each kind of fault, in a fresh folder each time."""

    def armed(at: int, kind: int, data: Path) -> Callable[[], None]:
        return lambda: shim.fault_arm(str(data).encode(), ctypes.c_long(at), kind)

    def count(data: Path, out: int) -> None:
        script(data, out)
        os.write(out, f"N {shim.fault_count():08x}\n".encode())

    first = folder / "count"
    process, reading = child(count, first, armed(0, 0, first))
    total = int(drain(reading).rsplit(b"N ", 1)[1], 16)
    os.waitpid(process, 0)
    wrong: list[str] = []
    cases = refused = killed = unreached = 0
    for kind in kinds:
        for at in range(1 + offset % step, total + 1, step):
            data = folder / f"{kind}-{at}"
            seen = Seen()
            process, reading = child(count, data, armed(at, KINDS[kind], data))
            said, _, number = drain(reading).partition(b"N ")
            seen.read(said)
            os.close(reading)
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            cases += 1
            refused += status == _REFUSED
            killed += status == -signal.SIGKILL
            # How commits fall into groups differs from run to run, and so does the number of operations.
            reached = not number or int(number, 16) >= at
            unreached += not reached
            if kind.startswith("kill") and reached and status != -signal.SIGKILL:
                wrong.append(f"{kind} at operation {at}: the provider lived on")
            if status not in (0, _REFUSED, -signal.SIGKILL):
                wrong.append(f"{kind} at operation {at}: the provider ended with status {status}")
            wrong += [f"{kind} at operation {at}: {what}" for what in check(data, seen)]
            shutil.rmtree(data, ignore_errors=True)
    return {
        "operations": total,
        "cases": cases,
        "refused": refused,
        "killed": killed,
        "unreached": unreached,
        "wrong": wrong,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("kills", "faults"))
    parser.add_argument("--count", type=int, default=200, help="kills")
    parser.add_argument("--longest", type=float, default=0.6, help="seconds that a provider lives at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS), help="faults")
    parser.add_argument("--step", type=int, default=1, help="take every n-th operation")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="verifiable-crash-"))
    try:
        if options.what == "kills":
            result = kills(folder / "data", options.count, options.longest, options.seed)
        else:
            shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
            result = faults(shim, folder, options.kinds.split(","), options.step, options.seed)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
