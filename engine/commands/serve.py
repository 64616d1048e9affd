"""`verifiable serve`: a provider from the command line."""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from engine import hub
from engine.api.app import make_app
from engine.commands import serve_options as options
from engine.engine import Engine, EngineSettings
from engine.scheduling.scheduler import SchedulerSettings
from engine.web.server import Server
from verifiable.commands.groups import grouped
from verifiable.commands.model_options import DeviceOptions, RopeOptions, given
from verifiable.commands.progress import Bars
from verifiable.errors import EngineError
from verifiable.llama.gguf.lora import parse_adapters
from verifiable.llama.settings import RuntimeSettings


@grouped
def serve(
    *,
    model: Annotated[Path, typer.Option(help="The GGUF file to serve, or hf:OWNER/REPOSITORY/FILE.gguf from a hub.")],
    data: Annotated[Path, typer.Option(help="Folder for keys and sessions; made when missing.")],
    name: Annotated[
        str | None, typer.Option(help="The provider's name in its keys and manifest; default: its key's, or provider.")
    ] = None,
    server: options.ServerOptions,
    running: options.ModelOptions,
    device: DeviceOptions,
    rope: RopeOptions,
    speculation: options.SpeculationOptions,
    sampling: options.SamplingOptions,
    records: options.RecordOptions,
    log: options.LogOptions,
) -> None:
    """Serve a GGUF model with an OpenAI-compatible API; every answer comes with a receipt."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if server.log_requests:
        _log_requests()
    ledger = log.settings(records)
    settings = EngineSettings(
        runtime=RuntimeSettings(
            n_ctx=running.ctx,
            n_seq_max=running.slots,
            type_k=running.kv_type,
            type_v=running.kv_type,
            n_threads=running.threads,
            n_gpu_layers=device.gpu_layers,
            device=device.device,
            rope=rope.settings(),
        ),
        adapters=parse_adapters(running.lora),
        scheduler=SchedulerSettings(slots=running.slots, queue=running.queue),
        k=records.k,
        defaults=given(sampling),
        drafter=speculation.draft,
        draft_model=speculation.draft_model,
        self_audit=records.self_audit,
        name=name or (ledger.provider_key.name if ledger.provider_key else "provider"),
        ledger=ledger,
    )
    with Bars() as bars:
        on_hub = hub.parse_name(str(model))
        if on_hub is not None:
            model = hub.fetch(*on_hub, progress=partial(bars, "fetching from the hub"))
        engine = Engine(model, data, settings, bars)
    run(engine, server, bars)
    if engine.self_audit.differences:
        raise EngineError(
            "the self-audit found records that this machine does not compute again",
            found=f"{engine.self_audit.differences} of {engine.self_audit.checked_turns} turns",
            hint="Check memory, model file and build before serving again.",
        )


def run(engine: Engine, server: options.ServerOptions, bars: Bars) -> None:
    """Serve an engine over HTTP until a signal ends it, then close it."""
    app = make_app(engine, server.api_keys(), per_key=server.per_key, origins=server.origin or ())
    try:
        _introduce(engine, bars)
        asyncio.run(Server(app, server.host, server.port, _announce, grace=math.ceil(server.grace)).listen())
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


def _introduce(engine: Engine, bars: Bars) -> None:
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


def _announce(base: str) -> None:
    print(f"API {base}/v1 · proofs {base}/v1/sessions · log {base}/log", flush=True)
