"""Which drafter an engine uses, and by which policy."""

from __future__ import annotations

from pathlib import Path

from engine.drafting import Drafter
from engine.drafting.map import MapDrafter, Maps
from engine.drafting.model import DraftModel, ModelDrafter
from engine.drafting.ngram import NgramDrafter
from engine.drafting.policy import Always, Measured, Policy
from verifiable.errors import PolicyError
from verifiable.llama.model import Model
from verifiable.llama.settings import RuntimeSettings

DRAFTERS = ("auto", "none", "ngram", "map", "model")
"""`auto` drafts where it pays, with the draft model where there is one and by prompt lookup else; `ngram`, `map` and
`model` draft always."""


class Drafting:
    """The choice by name. Raises PolicyError for an unknown one, or a draft model that is missing or not wanted."""

    def __init__(self, name: str, model: Path | None) -> None:
        if name not in DRAFTERS:
            raise PolicyError("unknown drafter", expected=", ".join(DRAFTERS), found=name)
        if (model is None and name == "model") or (model is not None and name not in ("model", "auto")):
            raise PolicyError(
                "a draft model", expected="one with the drafter `model` or `auto`, and only with them", found=name
            )
        self._name = name
        self._path = model
        self._maps = Maps()
        self._model: DraftModel | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The drafters that may be used, for the manifest."""
        if self._path is not None:
            return (ModelDrafter.name,)
        return {"none": (), "map": (MapDrafter.name,)}.get(self._name, (NgramDrafter.name,))

    def load(self, target: Model, settings: RuntimeSettings) -> None:
        """Load the draft model, if there is one."""
        if self._path is not None:
            self._model = DraftModel(self._path, target, settings)

    def make(self, seq: int) -> Drafter | None:
        """The drafter of one slot."""
        if self._model is not None:
            return ModelDrafter(self._model, seq)
        if self._name == "none":
            return None
        return MapDrafter(self._maps) if self._name == "map" else NgramDrafter()

    def policy(self) -> Policy:
        return Measured(free=self._path is None) if self._name == "auto" else Always()

    def close(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None
