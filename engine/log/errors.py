"""Errors of the log that callers treat differently."""

from __future__ import annotations

from verifiable.errors import StoreError


class DamagedLogError(StoreError):
    """What is stored contradicts itself or what was published: nothing may be signed, and trying again is no use."""
