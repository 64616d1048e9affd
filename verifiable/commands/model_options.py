"""Options that say where and how a model runs, the same for every command that has them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from verifiable.commands.groups import group
from verifiable.llama.settings import NO_DEVICE
from verifiable.manifest.rope import SCALINGS, Rope

Lora = Annotated[
    list[str] | None, typer.Option("--lora", help="FILE[:SCALE]: a LoRA adapter on top of the model; may be repeated.")
]


@group("Device")
class DeviceOptions:
    """What computes the layers."""

    gpu_layers: Annotated[int, typer.Option(min=-1, help="Layers on a GPU; -1 for all.")] = 0
    device: Annotated[
        str,
        typer.Option(
            help=f"Devices for them by llama.cpp's names, joined by commas; {NO_DEVICE} for no GPU.",
            show_default="all",
        ),
    ] = ""


def models_own(text: str) -> Any:
    """An option that is left to the model by default."""
    return typer.Option(help=text, show_default="the model's")


@group("RoPE")
class RopeOptions:
    """How positions are turned into angles, where that is not left to the model."""

    rope_freq_base: Annotated[float | None, models_own("Base of the RoPE frequencies.")] = None
    rope_freq_scale: Annotated[float | None, models_own("Factor of RoPE positions; 0.5 doubles the context.")] = None
    rope_scaling: Annotated[str | None, models_own(f"RoPE scaling: {', '.join(SCALINGS)}.")] = None
    yarn_orig_ctx: Annotated[int | None, models_own("YaRN: context length before scaling, tokens.")] = None
    yarn_ext_factor: Annotated[float | None, models_own("YaRN: extrapolation mix.")] = None
    yarn_attn_factor: Annotated[float | None, models_own("YaRN: magnitude.")] = None
    yarn_beta_fast: Annotated[float | None, models_own("YaRN: fast correction dimension.")] = None
    yarn_beta_slow: Annotated[float | None, models_own("YaRN: slow correction dimension.")] = None

    def settings(self) -> Rope:
        """The settings that were given. Raises PolicyError."""
        return Rope(**{name.removeprefix("rope_"): value for name, value in given(self).items()})


def given(options: Any) -> dict[str, Any]:
    """The options of a group that were given."""
    return {name: value for name, value in asdict(options).items() if value is not None}
