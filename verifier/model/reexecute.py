"""Re-execution: what an audit needs of a model. `verifier.model.worker` has one on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from verifiable.checking.checks import OpenedTurn
from verifiable.manifest.libraries import Library
from verifiable.manifest.manifest import ModelIdentity, Runtime
from verifiable.request.request import Request
from verifiable.sampling.logits import Entries, Ids
from verifiable.sampling.sampler import SamplingParams

Progress = Callable[[str, int, int], None]
"""Called with a stage (`hashing`, `probing`, `loading`, `tokens`), what is done of it and its total."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What the numerics probe says of the model on this machine under a manifest's settings, and what computes here:
    what llama.cpp says of itself (build, bindings, system), its files and their compiler, and whether these can compute
    on nothing but the processor.
    """

    invariant: bool
    fingerprint: bytes
    build: tuple[str, ...]
    libraries: tuple[Library, ...] = ()
    compiler: str = ""
    processor_only: bool = False


class Reexecutor(Protocol):
    """What an audit needs of a model: `Worker` is one in a process of this machine; another may be far away.

    Every method may raise a VerificationError with code `auditor-crashed`, or an EngineError.
    """

    def identity(self) -> ModelIdentity:
        """Hashes and counts of the model file."""

    def probe(self, runtime: Runtime) -> Probed:
        """What the numerics probe finds here under the manifest's settings."""

    def check(self, runtime: Runtime) -> None:
        """Raise PolicyError where no machine can run the model under the manifest's settings."""

    def load(self, runtime: Runtime, kv_type: str | None = None) -> None:
        """Load the model: what is scored from now on is computed under the manifest's settings, or with another type
        of KV cache.
        """

    def ends(self) -> frozenset[int]:
        """The ids that end a generation. As for the next two, the model's vocabulary suffices."""

    def prompt_ids(self, request: Request, opened: int | None = None) -> list[int]:
        """The ids that the request means to this model, in a session that was opened then (milliseconds since 1970).

        Raises PolicyError where the model refuses it.
        """

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes that each id stands for in a text."""

    def score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, *, as_generated: bool = False
    ) -> list[Entries]:
        """The record's entries of each token, recomputed: the k best of the row that it was drawn from.

        With `as_generated` the tokens after the prompt are evaluated one at a time instead of in large chunks.
        """

    def score_processed(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        k: int,
        params: SamplingParams,
        constraint: bytes,
        *,
        as_generated: bool = False,
        skip: int = 0,
    ) -> tuple[list[Entries], list[bytes]]:
        """As `score`, with the records after the processors, and for each token the mask of its record: a byte for each
        entry, 1 where the draw may take it. `constraint` is the request's, empty without a grammar. `tokens` are the
        answer from its start; of the first `skip` no record is made.
        """

    def masks(
        self, tokens: Sequence[int], ids: Sequence[Ids], params: SamplingParams, constraint: bytes
    ) -> list[bytes]:
        """For each token of an answer from its start the mask of the `ids` named for it: a byte an id, 1 where the draw
        may take it. No logit is computed. Raises VerificationError (`not-replayed`) where the vocabulary is not known.
        """


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
    params = turn.leaf.params
    if not params.processed:
        return worker.score(prompt, tokens, k, as_generated=as_generated), []
    return worker.score_processed(prompt, tokens, k, params, turn.request.constraint, as_generated=as_generated)
