"""Turns whose logits went through processors (penalties, bias, a grammar): their records, recomputed with the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from verifiable.checking.checks import OpenedTurn
from verifiable.errors import EngineError
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingParams
from verifier.model.reexecute import Reexecutor


@dataclass(frozen=True, slots=True)
class Processing:
    """What a turn's processors need: its parameters, and the request's constraint (empty without a grammar)."""

    params: SamplingParams
    constraint: bytes


@runtime_checkable
class ProcessingReexecutor(Protocol):
    """A `Reexecutor` that knows the processors."""

    def score_processed(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        k: int,
        params: SamplingParams,
        constraint: bytes,
        *,
        as_generated: bool = False,
    ) -> tuple[list[Entries], list[bytes]]:
        """As `Reexecutor.score`, with the records after processing, and for each token the mask of its record: a byte
        for each entry, 1 where the draw may take it.
        """
        ...


def score_turn(
    worker: Reexecutor,
    turn: OpenedTurn,
    prompt: Sequence[int],
    tokens: Sequence[int],
    k: int,
    *,
    as_generated: bool = False,
) -> tuple[list[Entries], list[bytes]]:
    """The records of a turn's first tokens recomputed, and their masks where a processor was active."""
    params = turn.span.turn.params
    if not params.processed:
        return worker.score(prompt, tokens, k, as_generated=as_generated), []
    if not isinstance(worker, ProcessingReexecutor):
        raise EngineError("this re-execution does not know logit processors", hint="Audit with a local model.")
    constraint = turn.request.constraint
    return worker.score_processed(prompt, tokens, k, params, constraint, as_generated=as_generated)
