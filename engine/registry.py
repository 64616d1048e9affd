"""A log without a model: a registry of verdicts that an auditor runs."""

from __future__ import annotations

from pathlib import Path

from engine.ledger import Ledger, LedgerSettings


class Registry:
    """Opens a ledger in a folder and runs its log. Close it. Raises what `Ledger` raises."""

    def __init__(self, data: Path, name: str, settings: LedgerSettings | None = None) -> None:
        self.ledger = Ledger(data, name, settings)
        self.store, self.keys = self.ledger.store, self.ledger.keys
        self.ledger.start(0)

    def close(self) -> None:
        self.ledger.close()
