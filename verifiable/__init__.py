"""Verifiable inference: signed commitments to every token of an answer, and the means to check them.

The names below are imported from their modules when they are first used, so that ``import verifiable`` costs
nothing but this file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifiable.checking.offline import verify as verify
    from verifiable.checking.verdict import Verdict as Verdict
    from verifiable.errors import (
        EngineError as EngineError,
        MalformedError as MalformedError,
        PolicyError as PolicyError,
        StoreError as StoreError,
        VerifiableError as VerifiableError,
        VerificationError as VerificationError,
    )
    from verifiable.request.exchange import Asked as Asked, Exchange as Exchange
    from verifiable.session.evidence import Evidence as Evidence
    from verifiable.session.receipt import Receipt as Receipt
    from verifiable.wire.keys import PublicKey as PublicKey

    __version__: str

_HOME = {
    "EngineError": "verifiable.errors",
    "MalformedError": "verifiable.errors",
    "PolicyError": "verifiable.errors",
    "StoreError": "verifiable.errors",
    "VerifiableError": "verifiable.errors",
    "VerificationError": "verifiable.errors",
    "Asked": "verifiable.request.exchange",
    "Evidence": "verifiable.session.evidence",
    "Exchange": "verifiable.request.exchange",
    "PublicKey": "verifiable.wire.keys",
    "Receipt": "verifiable.session.receipt",
    "Verdict": "verifiable.checking.verdict",
    "verify": "verifiable.checking.offline",
}
"""Public name -> the module that defines it."""

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("verifiable-inference")
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module 'verifiable' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
