"""Between a manifest's runtime and the settings that a model is loaded and run with: both ways, for both sides."""

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


def settings_of(runtime: Runtime, *, n_threads: int = 1, n_seq_max: int = 1) -> RuntimeSettings:
    """The settings under which a manifest's records can be recomputed; threads and sequences are the caller's."""
    return RuntimeSettings(
        n_ctx=runtime.n_ctx,
        n_seq_max=n_seq_max,
        n_batch=runtime.n_batch,
        n_ubatch=runtime.n_ubatch,
        type_k=runtime.type_k,
        type_v=runtime.type_v,
        flash_attn=runtime.flash_attn,
        kv_unified=runtime.kv_unified,
        repack=runtime.repack,
        tiled=runtime.tiled,
        swa_full=runtime.swa_full,
        pairs=runtime.pairs,
        n_threads=n_threads,
        n_gpu_layers=runtime.n_gpu_layers,
        device=runtime.device,
        rope=runtime.rope,
    )
