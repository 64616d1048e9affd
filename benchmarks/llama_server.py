"""Throughput with commitments against llama-server's, same model, threads and KV type, at 1, 4 and 8 streams.

llama-server comes from the PyPI package `xllamacpp` and runs in a process of its own, as does this provider; both are
asked over HTTP by the same clients, in turn, and the other one is idle meanwhile. The ratio against llama-server's own
defaults (KV f16, repacked weights, tiled products) is reported too: that is what invariance costs.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from benchmarks._loopback import listen
from benchmarks._serving import SUBJECTS, decoding_rate
from benchmarks.measure import Figure, in_turn, main, paired
from fixtures import models

ROUNDS = 11
TOKENS = 64
SLOTS = 8
CONTEXT = 512
WIDTHS = (1, 4, 8)


def _provider(path: str, folder: str, pipe: Connection) -> None:
    import uvicorn

    from engine.api.app import make_app
    from engine.engine import Engine, EngineSettings
    from engine.scheduling.scheduler import SchedulerSettings
    from verifiable.llama.settings import RuntimeSettings

    settings = EngineSettings(
        RuntimeSettings(n_ctx=CONTEXT, n_seq_max=SLOTS), SchedulerSettings(slots=SLOTS), drafter="auto"
    )
    with Engine(path, folder, settings) as engine:
        listener, port = listen()
        pipe.send(f"http://127.0.0.1:{port}")
        uvicorn.Server(uvicorn.Config(make_app(engine), log_level="error")).run(sockets=[listener])


def _llama_server(path: str, stock: str, pipe: Connection) -> None:
    os.environ["GGML_CPU_TILED_MM"] = "1" if stock else "0"
    import xllamacpp  # type: ignore[import-untyped]

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_parallel = SLOTS
    params.n_ctx = CONTEXT * SLOTS
    params.n_batch = params.n_ubatch = 512
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.port = 0
    params.warmup = True
    params.verbosity = 0
    if not stock:
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_BF16
        params.no_extra_bufts = True
        params.kv_unified = False
    server = xllamacpp.Server(params)
    pipe.send(server.listening_address)
    while True:
        time.sleep(60)


@contextmanager
def _running(target: Any, *arguments: str) -> Iterator[str]:
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not mine.poll(120):
            raise RuntimeError("the server did not start")
        yield str(mine.recv())
    finally:
        process.terminate()
        process.join(10)
        if process.is_alive():
            process.kill()


def rate(url: str, width: int) -> float:
    """Tokens a second of `width` streams, from the moment when all have begun to the moment when the first ends."""
    times: list[list[float]] = [[] for _ in range(width)]
    errors: list[BaseException] = []

    def one(number: int) -> None:
        body = {
            "messages": [{"role": "user", "content": f"Tell a long story about {SUBJECTS[number]}."}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=300) as response:
                for line in response.iter_lines():
                    if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                        times[number].append(time.perf_counter())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return decoding_rate(times, settled=1)


def measure() -> Sequence[Figure]:
    path = str(models.ensure("smollm2"))
    figures = []
    with (
        TemporaryDirectory() as folder,
        _running(_provider, path, str(Path(folder))) as mine,
        _running(_llama_server, path, "") as same,
        _running(_llama_server, path, "stock") as stock,
    ):
        urls = {"mine": mine, "same": same, "stock": stock}
        for url in urls.values():
            rate(url, 1)
        for width in WIDTHS:
            rates = in_turn({name: partial(rate, url, width) for name, url in urls.items()}, ROUNDS)
            name = f"{width} streams"
            figures.append(Figure(name, statistics.median(rates["mine"]), "tokens/s"))
            figures.append(paired(f"{name} ÷ llama-server, same settings", rates["mine"], rates["same"], at_least=1.0))
            figures.append(paired(f"{name} ÷ llama-server, its defaults", rates["mine"], rates["stock"]))
    return figures


if __name__ == "__main__":
    sys.exit(main(measure, "llama_server", __doc__))
