"""The auditor's child process: the only place where the verifier runs llama.cpp.

A malformed file or an unlucky setting can make C code end its process, and nothing in Python can catch that. Here it
ends this process, and the parent makes a verdict of it. Commands come in on standard input and answers leave on
standard output (see `pipe`); llama.cpp's own output goes to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import IO

import numpy as np

from verifiable.errors import EngineError, VerifiableError
from verifiable.llama.chat.prompt import prompt_ids
from verifiable.llama.context import Context, check_possible
from verifiable.llama.devices import check_kind, processor_only
from verifiable.llama.gguf.identity import identify
from verifiable.llama.gguf.lora import adapters_from_cbor
from verifiable.llama.gguf.metadata import inspect
from verifiable.llama.gguf.parts import inspect_parts
from verifiable.llama.library import build_info, load_library
from verifiable.llama.model import Model
from verifiable.llama.probe import cache as probe_cache
from verifiable.llama.probe.probe import probe
from verifiable.llama.settings import RuntimeSettings, from_dict
from verifiable.manifest.libraries import to_cbor
from verifiable.manifest.manifest import ModelIdentity
from verifiable.request.request import parse_canonical
from verifiable.wire import encoding
from verifiable.wire.encoding import Value
from verifiable.wire.ids import pack, unpack
from verifier.model import pipe
from verifier.model.converse import converse
from verifier.model.memory import check_cache, check_memory, room
from verifier.model.scoring import Scorer, evaluate, masks, start

Send = Callable[[list[Value]], None]


class Session:
    """What the process holds between commands: one model and one context, kept as long as the settings stay; or, until
    something is to be computed, the model's vocabulary alone.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._identity: ModelIdentity | None = None
        self._vocabulary: tuple[str, Model] | None = None
        self._model: Model | None = None
        self._wanted: tuple[object, ...] = ()
        self._settings: RuntimeSettings | None = None
        self._context: Context | None = None
        self._share = False
        self._held: list[int] = []

    def handle(self, command: list[Value]) -> Value:
        """Carry out one command and return its result."""
        name = encoding.text(command[0], "command", 32)
        method: Callable[..., Value] = getattr(self, f"do_{name}")
        return method(*command[1:])

    def do_identify(self, path: str, adapters: Value) -> Value:
        self._identity = identify(path, self._progress("hashing"), adapters_from_cbor(adapters))
        return self._identity.to_cbor()

    def do_probe(self, path: str, adapters: Value, settings: Value, cache: str | None) -> Value:
        """Run the numerics probe. `do_identify` has read the same files before."""
        chosen = from_dict(settings)
        model = self._load(path, adapters, chosen)
        folder = probe_cache.default_folder() if cache == "" else cache
        progress = self._progress("probing")
        result = probe(path, chosen, progress, folder, model=model, identity=self._identity, adapters=model.adapters)
        build = result.build
        code: list[Value] = [to_cbor(build.libraries), build.compiler, processor_only()]
        return [result.invariant, result.fingerprint, list(build.stated), *code]

    def do_load(self, path: str, adapters: Value, settings: Value, share: bool) -> Value:
        """Make sure that the model is loaded; what is scored from now on is computed under these settings.

        With `share` the memory of one turn is kept for the next, as far as both begin with the same tokens. Only for
        settings that the numerics probe found invariant: under them it does not matter how the memory came about.
        """
        chosen = from_dict(settings)
        self._load(path, adapters, chosen)
        self._share = share
        if self._settings != chosen:
            self._forget()
            self._settings = chosen
        return None

    def do_check(self, path: str, tiled: bool, passive: bool, settings: Value, libraries: Value) -> Value:
        chosen = from_dict(settings)
        check_possible(self._words(path, tiled, passive), chosen)
        check_cache(inspect(path).metadata, chosen)
        if libraries == to_cbor(build_info().libraries):
            check_kind(chosen.device)
        return None

    def do_ends(self, path: str, tiled: bool, passive: bool) -> Value:
        return pack(sorted(self._words(path, tiled, passive).eog))

    def do_prompt(self, path: str, tiled: bool, passive: bool, canonical: bytes, opened: int | None) -> Value:
        return pack(prompt_ids(self._words(path, tiled, passive), parse_canonical(canonical), opened))

    def do_pieces(self, path: str, tiled: bool, passive: bool, ids: bytes) -> Value:
        model = self._words(path, tiled, passive)
        return [model.piece(token) for token in unpack(ids)]

    def do_masks(self, path: str, tiled: bool, passive: bool, tokens: bytes, ids: Value, processing: Value) -> Value:
        """For each token the mask of the ids named for it. `processing` is as in `do_score`, and not None."""
        named = [np.frombuffer(encoding.bytes_(each, "ids"), "<u4") for each in encoding.array(ids, None, "ids")]
        return list(masks(self._words(path, tiled, passive), unpack(tokens), named, processing))

    def do_score(self, prompt: bytes, tokens: bytes, k: int, as_generated: bool, processing: Value, skip: int) -> Value:
        """Send the records' entries of `tokens[skip:]` in order, a message for each decode: ["rows", ids, logits,
        masks].

        Returns how many tokens were there already from the turn before.

        `processing` is None, or [sampling parameters, constraint] of a turn with processors. Only then there are masks:
        for each entry a byte, 1 where the draw may take it.
        """
        before, answer = unpack(prompt), unpack(tokens)
        ids, first = [*before, *answer[:-1]], len(before) - 1 + skip
        context, model = self._with_room(len(ids)), self._loaded()
        scorer = Scorer(model, min(k, model.n_vocab), answer, processing, skip)
        share = self._share and not as_generated
        held, self._held = self._held if share else [], []  # until it is known what the memory holds now
        shared = start(context, held, ids, first)
        for rows in evaluate(context, ids, shared, first, as_generated):
            records = [scorer(row) for row in rows]
            self._send(
                [
                    "rows",
                    b"".join([entries.id_bytes() for entries, _ in records]),
                    b"".join([entries.logit_bytes() for entries, _ in records]),
                    b"".join([mask for _, mask in records]),
                ]
            )
        if share:
            self._held = ids
        return shared

    def do_converse(self, path: str, adapters: Value, settings: Value, requests: Value) -> Value:
        """Generate an answer to each request (canonical) and send it: ["conversation", prompt ids, answer ids]."""
        chosen = from_dict(settings)
        model = self._load(path, adapters, chosen)
        self._forget()
        asked = [
            parse_canonical(encoding.bytes_(item, "request")) for item in encoding.array(requests, None, "requests")
        ]
        for at in range(0, len(asked), chosen.n_seq_max):
            for made in converse(model, chosen, asked[at : at + chosen.n_seq_max]):
                self._send(["conversation", pack(made.prompt), pack(made.answer)])
        return None

    def _with_room(self, length: int) -> Context:
        """The context for a turn of `length` tokens: as long as the turns are, whatever the manifest says.

        It grows in large steps, for what it holds is lost then. How long it is changes no bit (see `room`).
        """
        if self._settings is None:
            raise EngineError("no model was loaded yet", hint="This is a fault of the auditor.")
        if self._context is None or self._context.settings.n_ctx < min(length, self._settings.n_ctx):
            self._forget()
            infos = [info for _, info in inspect_parts(str(self._wanted[0]))]
            chosen = replace(self._settings, n_ctx=room(infos, self._settings, length))
            check_memory(infos[0].metadata, chosen)
            self._context = Context(self._loaded(), chosen)
        return self._context

    def _forget(self) -> None:
        if self._context is not None:
            self._context.close()
        self._context, self._held = None, []

    def _load(self, path: str, adapters: Value, settings: RuntimeSettings) -> Model:
        load_library(settings.tiled, passive=settings.n_threads == 1)
        added, device = adapters_from_cbor(adapters), settings.device
        wanted = (path, added, settings.repack, settings.n_gpu_layers, device)
        if self._model is None or self._wanted != wanted:
            if self._model is not None:
                self._model.close()  # closes its context first
            self._model = self._context = self._settings = None
            self._model = Model.load(
                path,
                settings.repack,
                settings.n_gpu_layers,
                progress=self._progress("loading"),
                adapters=added,
                device=device,
            )
            self._wanted = wanted
            if self._vocabulary is not None:
                self._vocabulary[1].close()
                self._vocabulary = None
        return self._model

    def _words(self, path: str, tiled: bool, passive: bool) -> Model:
        """The model for its vocabulary alone: the whole one where that is loaded."""
        load_library(tiled, passive=passive)
        if self._model is not None and self._wanted[0] == path:
            return self._model
        if self._vocabulary is None or self._vocabulary[0] != path:
            self._vocabulary = path, Model.load_vocabulary(path)
        return self._vocabulary[1]

    def _loaded(self) -> Model:
        if self._model is None:
            raise EngineError("no model was loaded yet", hint="This is a fault of the auditor.")
        return self._model

    def _progress(self, stage: str) -> Callable[[int, int], None]:
        return lambda done, total: self._send(["progress", stage, done, total])


def serve(commands: pipe.Reader, answers: IO[bytes]) -> None:
    """Answer commands until the parent closes the pipe."""

    def send(message: list[Value]) -> None:
        pipe.write(answers, message)

    session = Session(send)
    with suppress(pipe.ClosedError):
        while True:
            command = commands.read()
            try:
                send(["done", session.handle(command)])
            except VerifiableError as error:
                send(pipe.message_of(error))


def main() -> None:
    """Keep the pipe to ourselves: whatever else the process prints goes to standard error."""
    commands, answers = pipe.Reader(os.dup(0)), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    try:
        serve(commands, answers)
    except BrokenPipeError:
        sys.exit(0)  # the parent has gone, and nobody is left to tell


if __name__ == "__main__":
    main()
