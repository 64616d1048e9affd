"""The options of `verifiable serve`, in the groups in which its help shows them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.drafting.choice import DRAFTERS
from engine.ledger import LedgerSettings
from engine.sessions.retention import KEEP
from verifiable.commands.groups import group
from verifiable.commands.model_options import Lora, models_own
from verifiable.errors import PolicyError
from verifiable.wire import key_file


@group("Server")
class ServerOptions:
    """Where the API listens, and who may call it."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000
    key: Annotated[
        list[str] | None, typer.Option(help="API key that clients must send; may be repeated. None: open to all.")
    ] = None
    per_key: Annotated[int | None, typer.Option(min=1, help="Requests that one API key may have at once.")] = None
    origin: Annotated[list[str] | None, typer.Option(help="Web origin that may call (CORS); may be repeated.")] = None
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds that running answers get at shutdown.")] = 10.0
    log_requests: Annotated[bool, typer.Option(help="Log a line of JSON for each request, without content.")] = False

    def __post_init__(self) -> None:
        if any(not secret for secret in self.key or ()):
            raise PolicyError("an API key is empty", hint="Give --key a value, or leave it out.")

    def api_keys(self) -> list[str]:
        """The keys that were given here and in the environment."""
        return [*(self.key or ()), *filter(None, os.environ.get("VERIFIABLE_API_KEYS", "").split(","))]


@group("Model")
class ModelOptions:
    """How the model runs, and how many requests it takes."""

    slots: Annotated[int, typer.Option(min=1, max=64, help="Answers generated at once.")] = 4
    queue: Annotated[
        int | None, typer.Option(min=0, help="Requests that may wait when every slot is taken; as many as slots.")
    ] = None
    ctx: Annotated[int, typer.Option(min=8, help="Context length of one answer, tokens.")] = 4096
    threads: Annotated[int, typer.Option(min=1, help="Threads for the model.")] = 1
    kv_type: Annotated[str, typer.Option(help="Type of the KV cache.")] = "bf16"
    lora: Lora = None


@group("Speculation")
class SpeculationOptions:
    """What guesses tokens ahead."""

    draft: Annotated[
        str, typer.Option(help=f"Speculation: {', '.join(DRAFTERS)}. `auto` drafts where measurements say it pays.")
    ] = "auto"
    draft_model: Annotated[Path | None, typer.Option(help="GGUF of a smaller model with the same vocabulary.")] = None


def _silent(what: str) -> Any:
    return models_own(f"{what} where a request is silent.")


@group("Sampling")
class SamplingOptions:
    """Sampling parameters of requests that do not say."""

    temperature: Annotated[float | None, _silent("Temperature")] = None
    top_k: Annotated[int | None, _silent("Entries to draw from, 0 for all of a record,")] = None
    top_p: Annotated[float | None, _silent("top_p")] = None
    min_p: Annotated[float | None, _silent("min_p")] = None
    repeat_penalty: Annotated[float | None, _silent("Repeat penalty, 1 for none,")] = None
    repeat_last_n: Annotated[int | None, _silent("Tokens that it looks back, -1 for the whole answer,")] = None


@group("Records")
class RecordOptions:
    """What is committed for each token, how long it is kept, and how often it is looked at again."""

    k: Annotated[int, typer.Option(min=1, max=128, help="Entries committed for each token.")] = 40
    keep_days: Annotated[float | None, typer.Option(help="Days after which records are dropped; default: never.")] = (
        None
    )
    keep: Annotated[str, typer.Option(help="What stays of dropped records: tokens or digests.")] = "tokens"
    self_audit: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the turns that are computed again when idle.")
    ] = 0.0

    def __post_init__(self) -> None:
        if self.keep not in KEEP:
            raise PolicyError("--keep", expected=" or ".join(KEEP), found=self.keep)


@group("Log")
class LogOptions:
    """Where the log is kept, and who cosigns it."""

    store: Annotated[str | None, typer.Option(help="URL of a PostgreSQL database; default: a file in --data.")] = None
    checkpoint: Annotated[Path | None, typer.Option(help="Folder of the log's checkpoint, best on another disk.")] = (
        None
    )
    sequence: Annotated[bool, typer.Option(help="Run the log; one process of those that share a store does.")] = True
    witness: Annotated[list[str] | None, typer.Option(help="'VKEY URL' of a witness; may be repeated.")] = None
    quorum: Annotated[int, typer.Option(min=0, help="Witnesses that must cosign before publication.")] = 0

    provider_key: Annotated[
        str | None,
        typer.Option(
            help="The provider's public key, where the private one is on another machine (`verifiable keys`)."
        ),
    ] = None

    def settings(self, records: RecordOptions) -> LedgerSettings:
        return LedgerSettings(
            store=self.store,
            checkpoint=self.checkpoint,
            sequence=self.sequence,
            witnesses=tuple(self.witness or ()),
            quorum=self.quorum,
            keep_days=records.keep_days,
            keep=records.keep,
            provider_key=None if self.provider_key is None else key_file.read_public(self.provider_key)[-1],
        )
