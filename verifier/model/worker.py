"""The auditor's child process: the only place where the verifier runs llama.cpp.

A malformed file or an unlucky setting can make C code end its process, and nothing in Python can catch that. Here it
ends this process, and the parent makes a verdict of it. Commands come in on standard input and answers leave on
standard output (see `pipe`); llama.cpp's own output goes to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO

from verifiable.errors import EngineError, VerifiableError
from verifiable.llama.chat.prompt import prompt_ids
from verifiable.llama.context import Batch, Context, RollbackError
from verifiable.llama.gguf.identity import identify
from verifiable.llama.gguf.lora import adapters_from_cbor
from verifiable.llama.gguf.metadata import inspect
from verifiable.llama.grammar.grammar import Grammar, to_gbnf
from verifiable.llama.library import load_library
from verifiable.llama.model import Model
from verifiable.llama.probe import cache as probe_cache
from verifiable.llama.probe.probe import probe
from verifiable.llama.settings import RuntimeSettings, from_dict
from verifiable.manifest.manifest import ModelIdentity
from verifiable.request.request import parse_canonical
from verifiable.sampling.logits import Entries, Floats
from verifiable.sampling.sampler import SamplingParams
from verifiable.sampling.turn import TurnSampler
from verifiable.wire import encoding
from verifiable.wire.encoding import Value
from verifiable.wire.ids import common_prefix, pack, unpack
from verifier.model import pipe
from verifier.model.converse import converse
from verifier.model.memory import check_memory

OUTPUT_BYTES = 128 << 20
"""Most bytes of logits that one decode may leave in llama.cpp's output buffer; a row takes 4 bytes a token id."""

UNPROCESSED = SamplingParams(1.0, 1, 1.0, 0.0, 1)
"""Parameters that change no logit."""

Send = Callable[[list[Value]], None]


class Session:
    """What the process holds between commands: one model and one context, kept as long as the settings stay."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._path = ""
        self._identity: ModelIdentity | None = None
        self._model: Model | None = None
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
        return [result.invariant, result.fingerprint, list(result.build)]

    def do_load(self, path: str, adapters: Value, settings: Value, share: bool) -> Value:
        """Make sure that the model is loaded and the context has these settings.

        With `share` the memory of one turn is kept for the next, as far as both begin with the same tokens. Only for
        settings that the numerics probe found invariant: under them it does not matter how the memory came about.
        """
        chosen = from_dict(settings)
        model = self._load(path, adapters, chosen)
        self._share = share
        if self._context is None or self._context.settings != chosen:
            self._forget()
            check_memory(inspect(path).metadata, chosen)
            self._context = Context(model, chosen)
        return [model.n_vocab, pack(sorted(model.eog))]

    def do_prompt(self, canonical: bytes, opened: int | None) -> Value:
        return pack(prompt_ids(self._loaded(), parse_canonical(canonical), opened))

    def do_pieces(self, ids: bytes) -> Value:
        model = self._loaded()
        return [model.piece(token) for token in unpack(ids)]

    def do_score(self, prompt: bytes, tokens: bytes, k: int, as_generated: bool, how: Value) -> Value:
        """Send the records' entries of `tokens` in order, a message for each decode: ["rows", ids, logits, masks].

        Returns how many tokens were there already from the turn before.

        `how` is None, or [sampling parameters, constraint] of a turn with processors. Only then there are masks: for
        each entry a byte, 1 where the draw may take it.
        """
        context, model = self._context, self._loaded()
        if context is None:
            raise EngineError("no context was made yet", hint="This is a fault of the auditor.")
        record = _Scorer(model, min(k, model.n_vocab), unpack(tokens), how)
        ids, first = unpack(prompt), len(prompt) // 4 - 1
        ids += unpack(tokens)[:-1]
        most_rows = max(1, OUTPUT_BYTES // (4 * model.n_vocab))
        batch = Batch(context.n_batch)
        held, self._held = self._held, []  # until it is known what the memory holds now
        shared = at = start(context, held if self._share and not as_generated else [], ids, first)
        while at < len(ids):
            end = chunk_end(at, len(ids), first, context.n_batch, most_rows, as_generated)
            batch.clear()
            wanted = [batch.add(0, position, ids[position], position >= first) for position in range(at, end)]
            rows = context.decode(batch)
            entries = [record(rows[row]) for row in wanted[max(first - at, 0) :]]
            self._send(
                [
                    "rows",
                    b"".join([entry.id_bytes() for entry, _ in entries]),
                    b"".join([entry.logit_bytes() for entry, _ in entries]),
                    b"".join([mask for _, mask in entries]),
                ]
            )
            at = end
        if self._share and not as_generated:
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

    def _forget(self) -> None:
        if self._context is not None:
            self._context.close()
        self._context, self._held = None, []

    def _load(self, path: str, adapters: Value, settings: RuntimeSettings) -> Model:
        load_library(settings.tiled, passive=settings.n_threads == 1)
        wanted = (settings.repack, settings.n_gpu_layers)
        added, device = adapters_from_cbor(adapters), settings.device
        model = self._model
        same = model is not None and (model.repack, model.n_gpu_layers, model.adapters, model.device) == (
            *wanted,
            added,
            device,
        )
        if model is None or path != self._path or not same:
            if model is not None:
                model.close()  # closes its context first
            self._model = self._context = None
            model = Model.load(path, *wanted, progress=self._progress("loading"), adapters=added, device=device)
            self._model, self._path = model, path
        return model

    def _loaded(self) -> Model:
        if self._model is None:
            raise EngineError("no model was loaded yet", hint="This is a fault of the auditor.")
        return self._model

    def _progress(self, stage: str) -> Callable[[int, int], None]:
        return lambda done, total: self._send(["progress", stage, done, total])


class _Scorer:
    """From one row of logits after another to the records of a turn whose tokens are known, and their masks where it
    has processors. Nothing is drawn here.
    """

    def __init__(self, model: Model, k: int, tokens: list[int], how: Value) -> None:
        params, grammar = UNPROCESSED, None
        if how is not None:
            fields, constraint = encoding.array(how, 2, "processing")
            params = SamplingParams.from_cbor(fields)
            if params.constraint:
                grammar = Grammar(model, to_gbnf(encoding.bytes_(constraint, "constraint")))
        self._sampler = TurnSampler(params, b"", k, model.eog, grammar, model.suppressed)
        self._tokens = iter(tokens)
        self._masked = how is not None

    def __call__(self, row: Floats) -> tuple[Entries, bytes]:
        try:
            entries = self._sampler.entries(row)
        except EngineError:  # the claimed tokens have left the grammar: the replay says where
            entries = self._sampler.best(row)
        mask = self._sampler.allowed(entries).astype("u1").tobytes() if self._masked else b""
        token = next(self._tokens, None)
        if token is not None:
            self._sampler.accept(token)
        return entries, mask


def start(context: Context, held: Sequence[int], ids: Sequence[int], first: int) -> int:
    """How many of `ids` the memory holds already when their evaluation starts; the rest of it is forgotten.

    Args:
        held: the tokens that the memory of sequence 0 was computed from; empty where that is not known.
        ids: what is to be evaluated.
        first: the first position whose logits are wanted: it is evaluated in any case.
    """
    shared = min(common_prefix(held, ids), first)
    if shared > 0 and context.length(0) == len(held):
        try:
            context.remove(0, shared)
            return shared
        except RollbackError:  # recurrent, or a window that has moved on: computed anew
            pass
    context.clear()
    return 0


def chunk_end(at: int, count: int, first: int, most: int, most_rows: int, as_generated: bool) -> int:
    """Where the chunk that begins at position `at` of `count` ends.

    `first` is the first position whose logits are wanted, `most` the rows of a call, `most_rows` those with logits.
    With `as_generated` the prompt goes in chunks and the rest one by one, as a provider without speculation does it:
    under settings that are not invariant, that is the schedule most likely to give its bits.
    """
    if as_generated:
        return min(at + most, first + 1) if at <= first else at + 1
    return min(at + most, max(at, first) + most_rows, count)


def serve(commands: BinaryIO, answers: BinaryIO) -> None:
    """Answer commands until the parent closes the pipe."""

    def send(message: list[Value]) -> None:
        pipe.write(answers, message)

    session = Session(send)
    while (command := pipe.read(commands)) is not None:
        try:
            send(["done", session.handle(command)])
        except VerifiableError as error:
            send(pipe.message_of(error))


def main() -> None:
    """Keep the pipe to ourselves: whatever else the process prints goes to standard error."""
    commands, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    try:
        serve(commands, answers)
    except BrokenPipeError:
        sys.exit(0)  # the parent has gone, and nobody is left to tell


if __name__ == "__main__":
    main()
