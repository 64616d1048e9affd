"""What a manifest says of the settings that a model runs with; the way back is `verifiable.llama.settings`."""

from __future__ import annotations

from verifiable.llama.probe.probe import ProbeResult
from verifiable.llama.settings import RuntimeSettings
from verifiable.manifest.manifest import ALL_LAYERS, Runtime


def describe(settings: RuntimeSettings, probed: ProbeResult) -> Runtime:
    """What a manifest says of these settings and of what the probe found under them."""
    build, bindings, system = probed.build
    return Runtime(
        build=build,
        bindings=bindings,
        system=system,
        n_ctx=settings.n_ctx,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        type_k=settings.type_k,
        type_v=settings.type_v,
        flash_attn=settings.flash_attn,
        kv_unified=settings.kv_unified,
        repack=settings.repack,
        tiled=settings.tiled,
        swa_full=settings.swa_full,
        pairs=settings.pairs,
        n_gpu_layers=ALL_LAYERS if settings.n_gpu_layers < 0 else settings.n_gpu_layers,
        fingerprint=probed.fingerprint,
        invariant=probed.invariant,
        device=settings.device,
        rope=settings.rope,
    )
