"""What the routes that prove need of a provider. The engine is one; so is a ledger without a model."""

from __future__ import annotations

from typing import Annotated, Protocol

from fastapi import Depends, Request

from engine.keys.keyring import Keyring
from engine.ledger import Ledger
from engine.sessions.evidence import EvidenceReader
from engine.sessions.manifests import Manifests
from engine.sessions.sessions import Sessions
from engine.store import Store


class LogKeeper(Protocol):
    """What the routes of a log need: a provider, or whoever keeps a log without serving a model."""

    store: Store
    ledger: Ledger

    @property
    def keys(self) -> Keyring: ...


class Provider(LogKeeper, Protocol):
    """Attributes, none of which a route changes."""

    manifests: Manifests
    sessions: Sessions
    evidence: EvidenceReader
    model_name: str


async def provider_of(http: Request) -> Provider:
    """A FastAPI dependency: the provider that this application serves."""
    provider: Provider = http.app.state.provider
    return provider


async def keeper_of(http: Request) -> LogKeeper:
    """A FastAPI dependency: whose log this application serves."""
    keeper: LogKeeper = http.app.state.provider
    return keeper


Served = Annotated[Provider, Depends(provider_of)]
Kept = Annotated[LogKeeper, Depends(keeper_of)]
