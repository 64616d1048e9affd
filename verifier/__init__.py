"""The auditor: offline checks, sampler replay, re-execution in a child process, verdicts and reports.

`audit` and what it takes are imported when they are first used, so that `verifiable verify` starts quickly and needs
no llama.cpp.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifier.auditing.session import audit as audit
    from verifier.model.worker import Worker as Worker
    from verifier.provider.client import Client as Client

_HOME = {
    "Client": "verifier.provider.client",
    "Worker": "verifier.model.worker",
    "audit": "verifier.auditing.session",
}
"""Public name -> the module that defines it."""

__all__ = ["Client", "Worker", "audit"]


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module 'verifier' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value
