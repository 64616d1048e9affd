"""A pool of auditors on Ray, on this machine or a cluster: one process and one model each.

An auditor is a Ray actor with one model loaded. When it dies (its machine is gone, its memory was too small) its job
is reported lost, and a new auditor takes its place; Ray itself retries nothing, so that no job can count twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from verifiable.errors import PolicyError
from verifiable.llama.gguf.lora import Adapter
from verifiable.manifest.chain import Chain
from verifiable.wire.keys import PublicKey
from verifier.fleet.fleet import Job, LostError, carry_out
from verifier.model.reexecute import Reexecutor
from verifier.model.worker import Worker

Make = Callable[[str], Reexecutor]
"""Makes the model with that SHA-256, in the auditor's process."""


@dataclass(frozen=True, slots=True)
class FromFiles:
    """Makes a `Worker` from a table of SHA-256 (hex) -> path, with the same adapters on each; every machine of the
    fleet must have the files there.
    """

    files: Mapping[str, str]
    threads: int = 1
    adapters: Sequence[Adapter] = ()

    def __call__(self, model: str) -> Reexecutor:
        # A model that nobody has: any file will do, since the audit then says that its hash is another.
        path = self.files.get(model) or next(iter(self.files.values()))
        return Worker(path, threads=self.threads, adapters=self.adapters)


class AuditorProcess:
    """What an actor is; its methods run in a process of their own."""

    def __init__(self, make: Make, model: str, trust: Sequence[str], statements: Sequence[bytes]) -> None:
        self._worker = make(model)
        self._trust = Chain.follow([PublicKey.parse(text) for text in trust], statements)

    def audit(self, job: Job) -> dict[str, Any]:
        return carry_out(job, self._worker, self._trust)


class RayPool:
    """Implements `Pool`.

    Args:
        address: `local` for a cluster on this machine alone, or Ray's address (`ray://host:10001`, `auto`).
        workers: auditors at the same time, of so many `cores` each.
        make: must be picklable.
        trust: the keys that may have signed manifests; or a `Chain` of them.

    Raises:
        ModuleNotFoundError: ray is not installed (the extra `fleet`).
        PolicyError: the cluster can't be reached.
    """

    def __init__(self, address: str, workers: int, make: Make, trust: Sequence[PublicKey], cores: float = 1.0) -> None:
        self._ray: Any = import_module("ray")
        self._make = make
        chain = Chain.of(trust)
        self._trust = ([key.vkey() for key in chain.trusted], chain.statements)
        self._workers = workers
        options: dict[str, Any] = {"include_dashboard": False, "num_cpus": max(workers, 1)}
        try:
            self._ray.init(
                **(options if address == "local" else {"address": address}),
                log_to_driver=False,
                logging_level="ERROR",
                ignore_reinit_error=False,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise PolicyError("the fleet can't be reached", expected="local or ray://HOST:PORT", found=error) from None
        self._kind = self._ray.remote(num_cpus=cores, max_restarts=0, max_task_retries=0)(AuditorProcess)
        self._idle: list[tuple[str, Any]] = []
        self._busy: dict[Any, tuple[Job, Any]] = {}

    def free(self, model: str) -> bool:
        return len(self._busy) < self._workers

    def submit(self, job: Job) -> None:
        at = next((at for at, (model, _) in enumerate(self._idle) if model == job.model), None)
        if at is not None:
            _, actor = self._idle.pop(at)
        else:
            if len(self._busy) + len(self._idle) >= self._workers:
                _, stale = self._idle.pop(0)  # holds another model
                self._ray.kill(stale)
            actor = self._kind.remote(self._make, job.model, *self._trust)
        self._busy[actor.audit.remote(job)] = (job, actor)

    def wait(self) -> tuple[Job, Mapping[str, Any] | LostError]:
        ready, _ = self._ray.wait(list(self._busy), num_returns=1)
        job, actor = self._busy.pop(ready[0])
        try:
            verdict: dict[str, Any] = self._ray.get(ready[0])
        except self._ray.exceptions.RayError as error:
            # An actor that raised is not to be trusted with another job either.
            self._ray.kill(actor)
            return job, LostError(str(error).strip().splitlines()[-1][:300] if str(error).strip() else "gone")
        self._idle.append((job.model, actor))
        return job, verdict

    def close(self) -> None:
        """End the auditors, and a local cluster with them."""
        for _, actor in [*self._idle, *self._busy.values()]:
            self._ray.kill(actor)
        self._ray.shutdown()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
