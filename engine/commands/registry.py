"""`verifiable registry serve`: a log of verdicts, without a model."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from engine.api.app import log_app
from engine.ledger import LedgerSettings
from engine.registry import Registry
from engine.web.server import Server


def serve(
    data: Annotated[Path, typer.Option(help="Folder for the log and its keys; made when missing.")],
    name: Annotated[str, typer.Option(help="The registry's name in its keys, when they are made.")] = "registry",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8200,
    witness: Annotated[list[str] | None, typer.Option(help="'VKEY URL' of a witness; may be repeated.")] = None,
    quorum: Annotated[int, typer.Option(min=0, help="Witnesses that must cosign before publication.")] = 0,
) -> None:
    """Run a log of verdicts on any providers; whom you give an auditor's key may publish there."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    registry = Registry(data, name, LedgerSettings(witnesses=tuple(witness or ()), quorum=quorum))
    try:
        if registry.keys.created:
            folder = registry.keys.folder
            print(
                f"Keys created. Give {folder / 'log.pub'} to whoever reads this log, and back {folder} up.\n"
                f"The first auditor's key is in auditor.key there; verifiable auditors add makes others.",
                file=sys.stderr,
            )
        key = registry.keys.log.public.vkey()
        server = Server(log_app(registry), host, port, lambda base: print(f"{key} {base}", flush=True))
        asyncio.run(server.listen())
    finally:
        registry.close()
