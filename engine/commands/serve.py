"""`verifiable serve`: a provider from the command line."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from engine import hub
from engine.api.app import make_app
from engine.drafting.choice import DRAFTERS
from engine.engine import Engine, EngineSettings
from engine.ledger import LedgerSettings
from engine.scheduling.scheduler import SchedulerSettings
from verifiable.errors import EngineError, PolicyError
from verifiable.llama import options
from verifiable.llama.gguf.lora import parse_adapters
from verifiable.llama.settings import RuntimeSettings


def _silent(what: str) -> Any:
    """The option of a sampling default."""
    return typer.Option(help=f"{what} where a request is silent.", show_default="the model's")


def serve(
    model: Annotated[Path, typer.Option(help="The GGUF file to serve, or hf:OWNER/REPOSITORY/FILE.gguf from a hub.")],
    data: Annotated[Path, typer.Option(help="Folder for keys and sessions; made when missing.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    slots: Annotated[int, typer.Option(min=1, max=64, help="Answers generated at once.")] = 4,
    queue: Annotated[
        int | None, typer.Option(min=0, help="Requests that may wait when every slot is taken; as many as slots.")
    ] = None,
    gpu_layers: options.GpuLayers = 0,
    device: options.Device = "",
    rope_freq_base: options.FreqBase = None,
    rope_freq_scale: options.FreqScale = None,
    rope_scaling: options.Scaling = None,
    yarn_orig_ctx: options.YarnOrigCtx = None,
    yarn_ext_factor: options.YarnExtFactor = None,
    yarn_attn_factor: options.YarnAttnFactor = None,
    yarn_beta_fast: options.YarnBetaFast = None,
    yarn_beta_slow: options.YarnBetaSlow = None,
    ctx: Annotated[int, typer.Option(min=8, help="Context length of one answer, tokens.")] = 4096,
    threads: Annotated[int, typer.Option(min=1, help="Threads for the model.")] = 1,
    lora: options.Lora = None,
    kv_type: Annotated[str, typer.Option(help="Type of the KV cache.")] = "bf16",
    k: Annotated[int, typer.Option(min=1, max=128, help="Entries committed for each token.")] = 40,
    temperature: Annotated[float | None, _silent("Temperature")] = None,
    top_k: Annotated[int | None, _silent("Entries to draw from, 0 for all of a record,")] = None,
    top_p: Annotated[float | None, _silent("top_p")] = None,
    min_p: Annotated[float | None, _silent("min_p")] = None,
    repeat_penalty: Annotated[float | None, _silent("Repeat penalty, 1 for none,")] = None,
    repeat_last_n: Annotated[int | None, _silent("Tokens that it looks back, -1 for the whole answer,")] = None,
    draft: Annotated[
        str, typer.Option(help=f"Speculation: {', '.join(DRAFTERS)}. `auto` drafts where measurements say it pays.")
    ] = "auto",
    draft_model: Annotated[Path | None, typer.Option(help="GGUF of a smaller model with the same vocabulary.")] = None,
    self_audit: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the turns that are computed again when idle.")
    ] = 0.0,
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds that running answers get at shutdown.")] = 10.0,
    per_key: Annotated[int | None, typer.Option(min=1, help="Requests that one API key may have at once.")] = None,
    origin: Annotated[list[str] | None, typer.Option(help="Web origin that may call (CORS); may be repeated.")] = None,
    log_requests: Annotated[bool, typer.Option(help="Log a line of JSON for each request, without content.")] = False,
    name: Annotated[str, typer.Option(help="The provider's name in its keys and manifest.")] = "provider",
    store: Annotated[str | None, typer.Option(help="URL of a PostgreSQL database; default: a file in --data.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder of the log's checkpoint, best on another disk.")
    ] = None,
    sequence: Annotated[bool, typer.Option(help="Run the log; one process of those that share a store does.")] = True,
    witness: Annotated[list[str] | None, typer.Option(help="'VKEY URL' of a witness; may be repeated.")] = None,
    quorum: Annotated[int, typer.Option(min=0, help="Witnesses that must cosign before publication.")] = 0,
    keep_days: Annotated[
        float | None, typer.Option(help="Days after which records are dropped; default: never.")
    ] = None,
    keep: Annotated[str, typer.Option(help="What stays of dropped records: tokens or digests.")] = "tokens",
    key: Annotated[
        list[str] | None, typer.Option(help="API key that clients must send; may be repeated. None: open to all.")
    ] = None,
) -> None:
    """Serve a GGUF model with an OpenAI-compatible API; every answer comes with a receipt."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if log_requests:
        _log_requests()
    settings = EngineSettings(
        runtime=RuntimeSettings(
            n_ctx=ctx,
            n_seq_max=slots,
            type_k=kv_type,
            type_v=kv_type,
            n_threads=threads,
            n_gpu_layers=gpu_layers,
            device=device,
            rope=options.rope(
                *(rope_freq_base, rope_freq_scale, rope_scaling, yarn_orig_ctx),
                *(yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow),
            ),
        ),
        adapters=parse_adapters(lora),
        scheduler=SchedulerSettings(slots=slots, queue=queue),
        k=k,
        defaults=_given(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            repeat_last_n=repeat_last_n,
        ),
        drafter=draft,
        draft_model=draft_model,
        self_audit=self_audit,
        name=name,
        ledger=LedgerSettings(store, checkpoint, sequence, tuple(witness or ()), quorum, keep_days, keep),
    )
    if any(not secret for secret in key or ()):
        raise PolicyError("an API key is empty", hint="Give --key a value, or leave it out.")
    with Bars() as bars:
        named = hub.parse_name(str(model))
        if named is not None:
            model = hub.fetch(*named, progress=lambda done, total: bars("fetching from the hub", done, total))
        engine = Engine(model, data, settings, bars)
    run(engine, host, port, key or [], bars, Limits(grace, per_key, tuple(origin or ())))
    if engine.self_audit.differences:
        raise EngineError(
            "the self-audit found records that this machine does not compute again",
            found=f"{engine.self_audit.differences} of {engine.self_audit.checked_turns} turns",
            hint="Check memory, model file and build before serving again.",
        )


def _given(**options: float | None) -> dict[str, float]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Limits:
    """`grace` seconds for running answers at shutdown; requests at once `per_key`; web `origins` that may call."""

    grace: float = 10.0
    per_key: int | None = None
    origins: tuple[str, ...] = ()


def run(engine: Engine, host: str, port: int, api_keys: list[str], bars: Bars, limits: Limits | None = None) -> None:
    """Serve an engine over HTTP until a signal ends it, then close it."""
    limits = limits or Limits()
    try:
        _announce(engine, bars)
        asyncio.run(_listen(engine, host, port, api_keys, bars, limits))
    finally:
        engine.close()


def _log_requests() -> None:
    """Each request's line as it is, on standard error."""
    logger = logging.getLogger("engine.requests")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


class Bars:
    """Progress on standard error, one bar a stage; implements `engine.engine.Progress`."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=self.console, transient=True
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=done, total=total)


def _announce(engine: Engine, bars: Bars) -> None:
    runtime = engine.manifest.runtime
    say = bars.console.print
    state = "batch-invariant" if runtime.invariant else "NOT batch-invariant: audits will be inconclusive"
    say(f"Model {engine.model_name}: {state}, fingerprint {runtime.fingerprint.hex()[:16]}…", highlight=False)
    if runtime.rope.stated():
        say(f"RoPE {runtime.rope}", highlight=False)
    if engine.left_out:
        say(f"Not used, since it can't be replayed: the model's {', '.join(engine.left_out)}", highlight=False)
    for file in engine.manifest.model.adapters:
        say(f"Adapter {file.name} × {file.scale:g}", highlight=False)
    if engine.interrupted:
        say(f"{engine.interrupted} sessions were interrupted by the last stop; their heads now say so.")
    if engine.keys.created:
        say(
            f"Provider key created: {engine.keys.public_file}. Give this file to your clients and auditors.\n"
            f"Back {engine.keys.folder} up: losing it ends your log. The auditors' key is in auditor.key there.",
            highlight=False,
            soft_wrap=True,
        )


class _Server(uvicorn.Server):
    """Says where it listens once it does: with port 0 only then is the address known."""

    def __init__(self, config: uvicorn.Config, bars: Bars) -> None:
        super().__init__(config)
        self._bars = bars

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup()
        for server in getattr(self, "servers", ()):
            for socket in server.sockets:
                address, port = socket.getsockname()[:2]
                base = f"http://{address}:{port}"
                print(f"API {base}/v1 · proofs {base}/v1/sessions · log {base}/log", flush=True)


async def _listen(engine: Engine, host: str, port: int, keys: list[str], bars: Bars, limits: Limits) -> None:
    config = uvicorn.Config(
        make_app(engine, [*keys, *_environment_keys()], per_key=limits.per_key, origins=limits.origins),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=math.ceil(limits.grace),
    )
    server = _Server(config, bars)
    try:
        await server.serve()
    except SystemExit as error:  # uvicorn's way to say that it could not listen
        raise EngineError(f"can't listen on {host}:{port}", hint="Is the port in use? Choose another.") from error


def _environment_keys() -> list[str]:
    return [key for key in os.environ.get("VERIFIABLE_API_KEYS", "").split(",") if key]
