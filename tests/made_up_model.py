"""A model that is not one, for tests of the audit's logic: what `tests.sessions` made up, answered again.

It implements the auditor's `Reexecutor` honestly. Deviations of a provider are made by writing its session with
another row function, prompt or sampler than this model has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.sessions import END_TOKEN, Row, identity, made_up, piece
from verifiable.errors import EngineError, VerificationError
from verifiable.llama.settings import settings_of
from verifiable.manifest.manifest import ModelIdentity, Runtime
from verifiable.request.request import Request
from verifiable.sampling.logits import Entries, Ids
from verifiable.sampling.sampler import SamplingParams
from verifier.model.reexecute import Probed

PROMPT = list(range(1, 8))


@dataclass
class MadeUpModel:
    """`rows` by KV type: what the model computes with such a cache (None: the manifest's own)."""

    prompt: Callable[[Request], list[int]] = lambda request: list(PROMPT)
    rows: dict[str | None, Row] = field(default_factory=lambda: {None: made_up})
    who: ModelIdentity = field(default_factory=identity)
    probed: Probed = field(default_factory=lambda: Probed(True, b"n" * 32, ("b1",)))
    loaded: list[str | None] = field(default_factory=list)
    scored: int = 0

    def identity(self) -> ModelIdentity:
        return self.who

    def probe(self, runtime: Runtime) -> Probed:
        return self.probed

    def check(self, runtime: Runtime) -> None:
        settings_of(runtime)

    def ends(self) -> frozenset[int]:
        return frozenset((END_TOKEN,))

    def load(self, runtime: Runtime, kv_type: str | None = None) -> None:
        if kv_type not in self.rows:
            raise EngineError(f"no cache of type {kv_type}")
        self.loaded.append(kv_type)

    def prompt_ids(self, request: Request, opened: int | None = None) -> list[int]:
        return self.prompt(request)

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        return [piece(token) for token in ids]

    def score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, *, as_generated: bool = False
    ) -> list[Entries]:
        self.scored += len(tokens)
        row = self.rows[self.loaded[-1]]
        ids = [*prompt, *tokens]
        return [row(ids[: len(prompt) + index]) for index in range(len(tokens))]

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
        raise EngineError("this re-execution does not know logit processors", hint="Audit with a local model.")

    def masks(
        self, tokens: Sequence[int], ids: Sequence[Ids], params: SamplingParams, constraint: bytes
    ) -> list[bytes]:
        raise VerificationError("this re-execution does not know a vocabulary", code="not-replayed")


class MadeUpProcess(MadeUpModel):
    """The same in place of `verifier.commands.run.Worker`, the auditor's process that runs llama.cpp."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __enter__(self) -> MadeUpProcess:
        return self

    def __exit__(self, *_: object) -> None: ...
