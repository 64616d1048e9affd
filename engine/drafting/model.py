"""A draft model: a smaller, or lower quantised, GGUF with the same vocabulary, asked with the target's own noise.

Coupled drafting: the draft is what the target's sampler would draw from the draft model's logits with the noise of
that very position. Where the two models' logits are alike, so are the draws, at any temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike

from engine.drafting import Sample
from verifiable.errors import EngineError, PolicyError
from verifiable.llama.context import Batch, Context
from verifiable.llama.model import Model
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.rope import MODELS_OWN
from verifiable.wire.ids import common_prefix


class DraftModel:
    """The draft model and one context with a sequence for each slot. Raises PolicyError for another vocabulary."""

    def __init__(self, path: str | PathLike[str], target: Model, settings: RuntimeSettings) -> None:
        settings = replace(settings, rope=MODELS_OWN, pairs=False)  # these are the target's
        self._model = Model.load(path, settings.repack, settings.n_gpu_layers, device=settings.device)
        try:
            check_vocabulary(self._model, target)
            self.context = Context(self._model, settings)
        except BaseException:
            self._model.close()
            raise
        self.batch = Batch(self.context.n_batch)

    def close(self) -> None:
        self.context.close()
        self._model.close()


def check_vocabulary(draft: Model, target: Model) -> None:
    """Raise PolicyError unless every token id means the same to both models."""
    if draft.n_vocab != target.n_vocab:
        raise PolicyError(
            "the draft model has another vocabulary",
            expected=f"{target.n_vocab} tokens",
            found=f"{draft.n_vocab} tokens",
            hint="Take a smaller or lower quantised model of the same family.",
        )
    if draft.is_recurrent or draft.is_hybrid:
        raise PolicyError("the draft model's memory can't be cut back", expected="attention", found=draft.description)
    for token in range(target.n_vocab):
        if draft.piece(token) != target.piece(token):
            raise PolicyError(
                "the draft model has another vocabulary",
                expected=f"token {token} to be {target.piece(token)!r}",
                found=f"{draft.piece(token)!r}",
                hint="Take a smaller or lower quantised model of the same family.",
            )
    if draft.eog != target.eog:
        raise PolicyError("the draft model ends answers with other tokens", expected=sorted(target.eog))


class ModelDrafter:
    """Drafts one slot's tokens with the shared draft model, in the sequence of the same number."""

    name = "draft-model"
    free = False

    def __init__(self, model: DraftModel, seq: int) -> None:
        self._shared = model
        self._seq = seq
        self._ids: list[int] = []
        self._held: list[int] = []
        self._sample: Sample = lambda row, position: int(row.argmax())

    def begin(self, ids: Sequence[int], namespace: str | None, sample: Sample) -> None:
        self._ids = list(ids)
        self._sample = sample

    def extend(self, ids: Sequence[int]) -> None:
        self._ids.extend(ids)

    def draft(self, limit: int) -> list[int]:
        if limit < 1:
            return []
        try:
            return self._draft(limit)
        except EngineError:  # no room, or a failed decode: the answer goes on without drafts
            self._shared.context.remove(self._seq, 0)
            self._held = []
            return []

    def _draft(self, limit: int) -> list[int]:
        context, batch = self._shared.context, self._shared.batch
        common = common_prefix(self._held, self._ids[:-1])
        context.remove(self._seq, common)
        self._held = self._held[:common]
        fresh = self._ids[common:]
        drafted: list[int] = []
        while len(drafted) < limit:
            row = -1
            for start in range(0, len(fresh), batch.capacity):
                batch.clear()
                for token in fresh[start : start + batch.capacity]:
                    at = len(self._held)
                    row = batch.add(self._seq, at, token, start + batch.capacity >= len(fresh))
                    self._held.append(token)
                logits = context.decode(batch)
            token = self._sample(logits[row], len(self._held))
            drafted.append(token)
            fresh = [token]
        return drafted

    def close(self) -> None:
        """The shared model is closed by who made it."""
