"""`verifiable witness`: run a witness for one log or more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from engine.web.server import Server
from engine.witness.witness import Witness, make_app
from verifiable.errors import StoreError
from verifiable.wire.key_file import read_or_make_key, read_public


def witness(
    data: Annotated[Path, typer.Option(help="Folder for the witness's key and memory; made when missing.")],
    log: Annotated[
        list[str],
        typer.Option(help="A log's verifier key, or a file with it; may be repeated, also for a log's new key."),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8100,
    name: Annotated[str, typer.Option(help="The witness's name in its key, when the key is made.")] = "witness",
) -> None:
    """Cosign the checkpoints of logs, each only if it extends the last one (c2sp.org/tlog-witness)."""
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the folder {data} can't be made", found=str(error)) from error
    key, _ = read_or_make_key(data / "witness.key", name)
    running = Witness(key, [key for text in log for key in read_public(text)], data / "seen")
    server = Server(make_app(running), host, port, lambda base: print(f"{running.vkey} {base}", flush=True))
    asyncio.run(server.listen())
