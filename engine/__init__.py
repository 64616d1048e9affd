"""The provider: serves a model and commits to every token that it emits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.engine import Engine as Engine, EngineSettings as EngineSettings

__all__ = ["Engine", "EngineSettings"]


def __getattr__(name: str) -> Any:
    # Imported on first use: the command line looks into this package before it knows whether the extras are there.
    if name in __all__:
        from engine import engine

        return getattr(engine, name)
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
