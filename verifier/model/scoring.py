"""Recomputing the records of a turn whose tokens are known, in the process that runs the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from verifiable.errors import EngineError
from verifiable.llama.context import Batch, Context, RollbackError
from verifiable.llama.grammar.grammar import Grammar, to_gbnf
from verifiable.llama.model import Model
from verifiable.sampling.logits import Entries, Floats, Ids
from verifiable.sampling.sampler import SamplingParams
from verifiable.sampling.turn import TurnSampler
from verifiable.wire import encoding
from verifiable.wire.encoding import Value
from verifiable.wire.ids import common_prefix

OUTPUT_BYTES = 128 << 20
"""Most bytes of logits that one decode may leave in llama.cpp's output buffer; a row takes 4 bytes a token id."""

UNPROCESSED = SamplingParams(1.0, 1, 1.0, 0.0, 1)
"""Parameters that change no logit."""


def _sampler(model: Model, k: int, processing: Value) -> TurnSampler:
    """A turn's sampler at the start of its answer, without a key: nothing is drawn here."""
    params, grammar = UNPROCESSED, None
    if processing is not None:
        fields, constraint = encoding.array(processing, 2, "processing")
        params = SamplingParams.from_cbor(fields)
        if params.constraint:
            grammar = Grammar(model, to_gbnf(encoding.bytes_(constraint, "constraint")))
    return TurnSampler(params, b"", k, model.eog, grammar, model.suppressed)


class Scorer:
    """From one row of logits after another to the records of a turn whose tokens are known, and their masks where it
    has processors. The first row is that of token `skip`.
    """

    def __init__(self, model: Model, k: int, tokens: Sequence[int], processing: Value, skip: int = 0) -> None:
        self._sampler = _sampler(model, k, processing)
        for token in tokens[:skip]:
            self._sampler.accept(token)
        self._tokens = iter(tokens[skip:])
        self._masked = processing is not None

    def __call__(self, row: Floats) -> tuple[Entries, bytes]:
        try:
            entries = self._sampler.entries(row)
        except EngineError:  # the claimed tokens have left the grammar: the replay says where
            entries = self._sampler.best(row)
        mask = self._sampler.allowed(entries.ids).astype("u1").tobytes() if self._masked else b""
        token = next(self._tokens, None)
        if token is not None:
            self._sampler.accept(token)
        return entries, mask


def masks(model: Model, tokens: Sequence[int], named: Sequence[Ids], processing: Value) -> Iterator[bytes]:
    """Which of the ids that are `named` for each token a draw may take there: a byte an id, 1 where it may."""
    sampler = _sampler(model, 1, processing)
    for token, ids in zip(tokens, named, strict=True):
        yield sampler.allowed(ids).astype("u1").tobytes()
        sampler.accept(token)


def start(context: Context, held: Sequence[int], ids: Sequence[int], first: int) -> int:
    """How many of `ids` the memory holds already when their evaluation starts; the rest of it is forgotten.

    `held` are the tokens that the memory of sequence 0 was computed from; empty where that is not known. `first` is the
    first position whose logits are wanted: it is evaluated in any case.
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


def evaluate(context: Context, ids: Sequence[int], at: int, first: int, as_generated: bool) -> Iterator[list[Floats]]:
    """Evaluate `ids` from position `at` on. Yields for each decode the rows of logits (n_vocab,) from `first` on.

    The rows are llama.cpp's own memory, until the next decode.
    """
    batch = Batch(context.n_batch)
    most_rows = max(1, OUTPUT_BYTES // (4 * context.model.n_vocab))
    while at < len(ids):
        end = chunk_end(at, len(ids), first, context.n_batch, most_rows, as_generated)
        batch.clear()
        wanted = [batch.add(0, position, ids[position], position >= first) for position in range(at, end)]
        rows = context.decode(batch)
        yield [rows[row] for row in wanted[max(first - at, 0) :]]
        at = end


def chunk_end(at: int, count: int, first: int, most: int, most_rows: int, as_generated: bool) -> int:
    """Where the chunk that begins at position `at` of `count` ends.

    `first` is the first position whose logits are wanted, `most` the rows of a call, `most_rows` those with logits.
    With `as_generated` the prompt goes in chunks and the rest one by one, as a provider without speculation does it:
    under settings that are not invariant, that is the schedule most likely to give its bits.
    """
    if as_generated:
        return min(at + most, first + 1) if at <= first else at + 1
    return min(at + most, max(at, first) + most_rows, count)
