"""An honest provider of thirty lines over a real model: one token at a time, without the engine.

What it writes is checked by an auditor that works in large chunks: that both give the same bits is the point.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.sessions import TIME, Recording, manifest as made_up_manifest
from verifiable.llama.chat.prompt import prompt_ids
from verifiable.llama.context import Batch, Context
from verifiable.llama.gguf.identity import identify
from verifiable.llama.library import load_library
from verifiable.llama.model import Model
from verifiable.llama.probe import cache as probe_cache
from verifiable.llama.probe.probe import probe
from verifiable.llama.probe.result import describe
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.manifest import Manifest, Runtime
from verifiable.request.request import Request
from verifiable.sampling.logits import Entries, TopK
from verifier.model.worker import Worker

SETTINGS = RuntimeSettings(n_ctx=1024, n_seq_max=1)


class HonestProvider:
    """Answers requests with a loaded model. `served` may differ from what the manifest says: then it is not honest."""

    def __init__(self, model: Model, manifest: Manifest, served: RuntimeSettings = SETTINGS) -> None:
        self.model = model
        self.manifest = manifest
        self._context = Context(model, served)
        self._batch = Batch(self._context.n_batch)
        self._topk = TopK(min(manifest.k, model.n_vocab))
        self._held: list[int] = []

    def answer(self, request: Request, recording: Recording | None = None, cut: int | None = None) -> Recording:
        """Write one turn, cancelled after `cut` tokens; the prompt goes in in chunks, every token after it alone."""
        made = recording or Recording(manifest=self.manifest)
        self.forget()
        prompt = prompt_ids(self.model, request)
        made.turn(request, prompt, self.row, pieces=self.model.piece, ends=self.model.eog, cut=cut)
        return made

    def forget(self) -> None:
        """Empty the memory: the next row is computed from its first token on."""
        self._context.clear()
        self._held = []

    def row(self, ids: Sequence[int]) -> Entries:
        """The record of the token that follows these ids; what they share with the row before is not computed anew."""
        while len(self._held) < len(ids):
            start, fresh = len(self._held), ids[len(self._held) :][: self._batch.capacity]
            self._batch.clear()
            for position, token in enumerate(fresh, start):
                self._batch.add(0, position, token, position == len(ids) - 1)
            rows = self._context.decode(self._batch)
            self._held += fresh
        return self._topk(rows[len(fresh) - 1])

    def close(self) -> None:
        self._context.close()


def manifest_of(path: Path, settings: RuntimeSettings = SETTINGS) -> Manifest:
    """The manifest that an honest provider signs for this file."""
    identity = identify(path)
    probed = probe(path, settings, cache=probe_cache.default_folder(), identity=identity)
    return made_up_manifest(model=identity, runtime=describe(settings, probed), valid_from=TIME - 1000)


@contextmanager
def provider(path: Path, settings: RuntimeSettings = SETTINGS) -> Iterator[HonestProvider]:
    """An honest provider of the model in `path`."""
    load_library(settings.tiled)
    manifest = manifest_of(path, settings)
    with Model.load(path, settings.repack, settings.n_gpu_layers) as model:
        opened = HonestProvider(model, manifest, settings)
        try:
            yield opened
        finally:
            opened.close()


class Remembering(Worker):
    """An auditor's process that computes nothing twice: the same ids under the same settings give the same rows.

    For tests that audit one answer again and again as different providers commit to it.
    """

    def __init__(self, model: Path) -> None:
        super().__init__(model)
        self._rows: dict[Hashable, list[Entries]] = {}
        self._loaded: Hashable = None

    def load(self, runtime: Runtime, kv_type: str | None = None) -> None:
        self._loaded = (runtime, kv_type)
        super().load(runtime, kv_type)

    def score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, *, as_generated: bool = False
    ) -> list[Entries]:
        asked = (self._loaded, tuple(prompt), tuple(tokens), k, as_generated)
        if asked not in self._rows:
            self._rows[asked] = super().score(prompt, tokens, k, as_generated=as_generated)
        return self._rows[asked]
