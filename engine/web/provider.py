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


class Provider(Protocol):
    """Attributes, none of which a route changes."""

    manifests: Manifests
    store: Store
    sessions: Sessions
    evidence: EvidenceReader
    ledger: Ledger
    keys: Keyring
    model_name: str


async def provider_of(http: Request) -> Provider:
    """A FastAPI dependency: the provider that this application serves."""
    provider: Provider = http.app.state.provider
    return provider


Served = Annotated[Provider, Depends(provider_of)]
