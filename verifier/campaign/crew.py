"""Auditing many fetched sessions: those that begin alike one after the other, on one process or on several.

A worker keeps what one turn begins with for the next that begins alike (`worker.start`), so the order decides
how much is computed. Sorted by what their clients asked, conversations with one system prompt stand together. The order
in which sessions are executed changes no verdict, and verdicts come back in the order in which the sessions were drawn.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from verifiable.checking.verdict import Verdict
from verifiable.errors import PolicyError
from verifiable.session.evidence import Evidence
from verifier.campaign.fetched import Auditor, Fetched, audit_fetched
from verifier.model.reexecute import Reexecutor
from verifier.provider.client import Client

RUNS = 4
"""Pieces for each process that a group is cut into: few, so that what begins alike stays together."""

KEY = 1 << 14
"""Characters of a conversation that decide where it is sorted."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process that runs the model, and a connection of its own to the provider."""

    worker: Reexecutor
    client: Client


def check_cores(processes: int, threads: int) -> None:
    """Raise PolicyError where so many processes of so many threads each would wait for one another."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes > 1 and processes * threads > cores:
        raise PolicyError(
            "--processes times --threads",
            expected=f"at most {cores}, the cores that may be used here",
            found=f"{processes} times {threads}",
        )


def prompt_key(evidence: Evidence) -> str:
    """What a session's first opened turn asked, such that texts that begin alike are sorted beside each other."""
    try:
        asked = json.loads(evidence.turns[0].request)
        body = asked["body"]
        return json.dumps(body.get("messages", body.get("prompt")), ensure_ascii=False)[:KEY]
    except (ValueError, TypeError, LookupError, RecursionError, AttributeError):
        return ""  # its audit will say what is wrong with it


def audit_all(
    auditor: Auditor, crew: Sequence[Member], group: Sequence[Fetched], tell: Callable[[], None] = lambda: None
) -> list[Verdict]:
    """The verdict of each session of a group, in the group's order.

    Args:
        crew: one process or more; none works for two sessions at once.
        tell: called after each session, by one process at a time.
    """
    parsed = [None if each.evidence is None else each.evidence.evidence for each in group]
    keys = ["" if evidence is None else prompt_key(evidence) for evidence in parsed]
    order = sorted(range(len(group)), key=keys.__getitem__)
    pieces = len(crew) * RUNS if len(crew) > 1 else 1
    size = max(1, -(-len(order) // pieces))
    waiting: SimpleQueue[list[int]] = SimpleQueue()
    for start in range(0, len(order), size):
        waiting.put(order[start : start + size])
    verdicts: dict[int, Verdict] = {}
    told, stop = threading.Lock(), threading.Event()

    def work(member: Member) -> None:
        while True:
            try:
                run = waiting.get_nowait()
            except Empty:
                return
            for at in run:
                if stop.is_set():
                    return
                verdicts[at] = audit_fetched(auditor, member.client, member.worker, group[at])
                with told:
                    tell()

    if len(crew) == 1:
        work(crew[0])
    else:
        with ThreadPoolExecutor(len(crew)) as pool:
            try:
                for done in [pool.submit(work, member) for member in crew]:
                    done.result()
            finally:
                stop.set()  # where one failed, or somebody interrupts: the others end with their session
    return [verdicts[at] for at in range(len(group))]
