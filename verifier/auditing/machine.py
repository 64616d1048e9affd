"""Whether the auditor's model is the provider's, and whether this machine computes the provider's bits."""

from __future__ import annotations

from dataclasses import fields

from verifiable.errors import PolicyError
from verifiable.manifest.manifest import RAW_LOGITS, AdapterFile, Manifest, ModelIdentity, Runtime
from verifier.model.reexecute import Probed, Reexecutor
from verifier.offline.fault import Fault


def compare_models(committed: ModelIdentity, mine: ModelIdentity) -> Fault | None:
    """Step 20: whether the auditor's files are those that the provider committed to."""
    wanted = [(file.sha256, file.size) for file in committed.files]
    if wanted != [(file.sha256, file.size) for file in mine.files]:
        return Fault(
            "model-differs",
            "your model file is not the one that the provider committed to",
            expected=f"{committed.files[0].name}, sha256 {committed.files[0].sha256.hex()}",
            found=f"{mine.files[0].name}, sha256 {mine.files[0].sha256.hex()}",
            hint="Nothing is proven by this. Fetch the file with the committed hash, or ask why another was named.",
        )
    adapters = [(file.sha256, file.size, file.scale) for file in committed.adapters]
    if adapters != [(file.sha256, file.size, file.scale) for file in mine.adapters]:
        options = " ".join(f"--lora {file.name}:{file.scale!r}" for file in committed.adapters)
        with_these = f"{options}, in that order." if options else "no --lora."
        return Fault(
            "model-differs",
            "your adapters are not those that the provider committed to",
            expected=_adapters(committed.adapters),
            found=_adapters(mine.adapters),
            hint=f"Nothing is proven by this. Audit with {with_these}",
        )
    for name in (field.name for field in fields(ModelIdentity) if field.name not in ("files", "adapters")):
        theirs, here = getattr(committed, name), getattr(mine, name)
        if theirs != here:
            return Fault(
                "identity-differs",
                f"the manifest states another {name.replace('_', ' ')} than the file that it names has",
                expected=here.hex() if isinstance(here, bytes) else str(here),
                found=theirs.hex() if isinstance(theirs, bytes) else str(theirs),
                hint="The manifest contradicts its own model file.",
            )
    return None


def _adapters(files: tuple[AdapterFile, ...]) -> str:
    return ", then ".join(f"{file.name} × {file.scale!r}, sha256 {file.sha256.hex()}" for file in files) or "no adapter"


def compare_numerics(manifest: Manifest, worker: Reexecutor) -> Fault | None:
    """Step 23: whether this machine gives the provider's bits."""
    runtime = manifest.runtime
    if manifest.value_kind != RAW_LOGITS:
        return Fault(
            "not-raw-logits",
            "the provider commits to log-probabilities, which can't be compared bit for bit",
            expected="raw logits",
            found="log-probabilities",
            hint="Such sessions need the statistical audit.",
        )
    try:
        worker.check(runtime)
    except PolicyError as error:
        return Fault(
            "runtime-impossible",
            f"nobody can have run the model under the settings that the manifest states: {error.what}",
            expected=None if error.expected is None else str(error.expected),
            found=None if error.found is None else str(error.found),
            hint="An honest provider's own program refuses them.",
        )
    if not runtime.invariant:
        return Fault(
            "not-invariant",
            "the manifest says that the provider's logits depend on how requests are batched",
            expected="a manifest whose numerics probe found batch invariance",
            found=f"KV {runtime.type_k}/{runtime.type_v}, repack {runtime.repack}, tiled {runtime.tiled}",
            hint="Exact audit is impossible; ask the provider for batch-invariant settings.",
        )
    probed = worker.probe(runtime)
    if not probed.invariant:
        return Fault(
            "not-invariant",
            "on this machine the logits depend on how the work is batched",
            expected="a numerics probe that finds invariance, as the provider's did",
            found=f"build {probed.build[0]}" if probed.build else "another build",
            hint="Audit on a machine with the provider's build of llama.cpp.",
        )
    return None if probed.fingerprint == runtime.fingerprint else _other_bits(runtime, probed)


def _other_bits(runtime: Runtime, probed: Probed) -> Fault:
    if runtime.libraries and runtime.libraries == probed.libraries and probed.processor_only:
        return Fault(
            "fingerprint-unexplained",
            "the provider states other bits than the very files that it names compute here",
            expected=f"{probed.fingerprint.hex()}, as these files compute here",
            found=runtime.fingerprint.hex(),
            hint="Another kind of processor may explain it. Ask the provider for what `verifiable probe --json` says, "
            "and see where the two part: `verifiable probe --compare FILE`.",
        )
    return Fault(
        "fingerprint-differs",
        "this machine computes other bits than the provider's, also for an honest provider",
        expected=f"{runtime.fingerprint.hex()} ({runtime.build})",
        found=f"{probed.fingerprint.hex()} ({probed.build[0] if probed.build else 'unknown build'})",
        hint=f"{_rebuild(runtime, probed)} Or audit statistically.",
    )


def _rebuild(runtime: Runtime, probed: Probed) -> str:
    """What to build to be of the provider's class: what it states otherwise than is so here."""
    build, bindings, system = (*probed.build, "", "", "")[:3]
    wanted = []
    if (runtime.build, runtime.bindings) != (build, bindings):
        wanted.append(f"{runtime.bindings} ({runtime.build})")
    if runtime.system != system:
        wanted.append(f"with {runtime.system[:400]}")
    if runtime.compiler and runtime.compiler != probed.compiler:
        wanted.append(f"compiled by {runtime.compiler}" + (f", not {probed.compiler}" if probed.compiler else ""))
    if wanted:
        return f"To be of its numerics class, build llama.cpp as it does: {'; '.join(wanted)}."
    mine = {each.name: each.sha256 for each in probed.libraries}
    others = [each.name for each in runtime.libraries if mine.get(each.name) != each.sha256]
    if others:
        return f"It states your build and compiler, but other files: {', '.join(others)}. Compiler flags may differ."
    return "It states the same build; audit on the same kind of machine."
