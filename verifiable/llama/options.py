"""Options of the command line that say where and how a model runs, the same for every command that has them."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from verifiable.llama.settings import NO_DEVICE
from verifiable.manifest.rope import SCALINGS, Rope

Lora = Annotated[
    list[str] | None, typer.Option("--lora", help="FILE[:SCALE]: a LoRA adapter on top of the model; may be repeated.")
]
GpuLayers = Annotated[int, typer.Option("--gpu-layers", min=-1, help="Layers on a GPU; -1 for all.")]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help=f"Devices for them by llama.cpp's names, joined by commas; {NO_DEVICE} for no GPU.",
        show_default="all",
    ),
]
_THE_MODELS: Final = "the model's"
FreqBase = Annotated[
    float | None, typer.Option("--rope-freq-base", help="Base of the RoPE frequencies.", show_default=_THE_MODELS)
]
FreqScale = Annotated[
    float | None,
    typer.Option(
        "--rope-freq-scale", help="Factor of RoPE positions; 0.5 doubles the context.", show_default=_THE_MODELS
    ),
]
Scaling = Annotated[
    str | None,
    typer.Option("--rope-scaling", help=f"RoPE scaling: {', '.join(SCALINGS)}.", show_default=_THE_MODELS),
]
YarnOrigCtx = Annotated[
    int | None,
    typer.Option("--yarn-orig-ctx", help="YaRN: context length before scaling, tokens.", show_default=_THE_MODELS),
]
YarnExtFactor = Annotated[
    float | None, typer.Option("--yarn-ext-factor", help="YaRN: extrapolation mix.", show_default=_THE_MODELS)
]
YarnAttnFactor = Annotated[
    float | None, typer.Option("--yarn-attn-factor", help="YaRN: magnitude.", show_default=_THE_MODELS)
]
YarnBetaFast = Annotated[
    float | None,
    typer.Option("--yarn-beta-fast", help="YaRN: fast correction dimension.", show_default=_THE_MODELS),
]
YarnBetaSlow = Annotated[
    float | None,
    typer.Option("--yarn-beta-slow", help="YaRN: slow correction dimension.", show_default=_THE_MODELS),
]


def rope(
    freq_base: float | None,
    freq_scale: float | None,
    scaling: str | None,
    orig_ctx: int | None,
    ext_factor: float | None,
    attn_factor: float | None,
    beta_fast: float | None,
    beta_slow: float | None,
) -> Rope:
    """The settings that were given. Raises PolicyError."""
    given = {
        "freq_base": freq_base,
        "freq_scale": freq_scale,
        "scaling": scaling,
        "yarn_ext_factor": ext_factor,
        "yarn_attn_factor": attn_factor,
        "yarn_beta_fast": beta_fast,
        "yarn_beta_slow": beta_slow,
        "yarn_orig_ctx": orig_ctx,
    }
    return Rope(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
