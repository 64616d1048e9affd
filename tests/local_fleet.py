"""A fleet without processes: auditors one after the other, over the made-up model, some of which die at work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.made_up_model import MadeUpModel
from tests.sessions import TRUST
from verifier.fleet.fleet import Job, LostError, carry_out


class Local:
    """Auditors one after the other; those whose turn is in `dies` die over their job."""

    def __init__(self, dies: Sequence[int] = (), always: str = "") -> None:
        self.dies, self.always = set(dies), always
        self.queue: list[Job] = []
        self.turn = 0

    def free(self, model: str) -> bool:
        return len(self.queue) < 2

    def submit(self, job: Job) -> None:
        self.queue.append(job)

    def wait(self) -> tuple[Job, Mapping[str, Any] | LostError]:
        job = self.queue.pop(0)
        self.turn += 1
        if self.turn in self.dies or job.session == self.always:
            return job, LostError("killed")
        return job, carry_out(job, MadeUpModel(), TRUST)
