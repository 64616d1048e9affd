"""Results of the numerics probe on disk, so that a server does not measure again what cannot have changed.

One JSON file for each combination of everything that the result depends on. What is read back is checked field by
field; anything unexpected counts as not there, and is written anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import platform
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

from verifiable import files
from verifiable.errors import MalformedError
from verifiable.llama import library
from verifiable.llama.probe.result import Pieces, ProbeResult, ScheduleResult
from verifiable.llama.settings import RuntimeSettings, as_dict
from verifiable.manifest.libraries import Library
from verifiable.manifest.manifest import ModelIdentity

_T = TypeVar("_T")

FORMAT: Final = 3
"""To be raised with every change of what is kept, and of what the probe computes."""
_MAX_SIZE: Final = 1 << 22


def key(identity: ModelIdentity, settings: RuntimeSettings, seed: bytes) -> dict[str, Any]:
    """Everything that a result depends on, as plain values."""
    runtime = as_dict(settings)
    del runtime["n_ctx"], runtime["n_seq_max"]
    return {
        "format": FORMAT,
        "probe": seed.decode("ascii"),
        "files": [[file.sha256.hex(), file.size] for file in identity.files],
        "adapters": [[file.sha256.hex(), file.size, file.scale] for file in identity.adapters],
        "build": _build(library.build_info()),
        # Functions such as expf() come from the C library, which picks them by processor.
        "machine": [platform.machine(), _processor(), *platform.libc_ver()],
        "settings": runtime,
    }


def load(folder: str | PathLike[str], wanted: dict[str, Any]) -> ProbeResult | None:
    """The kept result for *wanted*; None when there is none, or none that can be trusted."""
    try:
        kept = json.loads(files.read(path_of(folder, wanted), _MAX_SIZE))
        return _result(kept["result"]) if kept["key"] == wanted else None
    except (OSError, MalformedError, ValueError, TypeError, KeyError, RecursionError):
        return None


def save(folder: str | PathLike[str], wanted: dict[str, Any], result: ProbeResult) -> None:
    """Keep *result*. A reader sees the old file or the new one, never a part. Failing to write is no error."""
    kept = {
        "key": wanted,
        "result": {
            "invariant": result.invariant,
            "fingerprint": result.fingerprint.hex(),
            "schedules": [_plain(each) for each in result.schedules],
            "build": _build(result.build),
            "seconds": result.seconds,
            "pieces": dataclasses.asdict(result.pieces),
        },
    }
    path = path_of(folder, wanted)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, json.dumps(kept, allow_nan=False, indent=1).encode(), 0o600)


def _build(build: library.BuildInfo) -> list[Any]:
    return [*build.stated, [[each.name, each.sha256.hex()] for each in build.libraries], build.compiler]


def _plain(result: ScheduleResult) -> list[Any]:
    worst = result.worst if math.isfinite(result.worst) else None  # JSON has no infinity
    return [result.name, result.equal, result.first_difference, worst, result.compared, result.traced, result.operation]


def path_of(folder: str | PathLike[str], wanted: dict[str, Any]) -> Path:
    """The file in which the result for *wanted* is kept."""
    canonical = json.dumps(wanted, sort_keys=True, separators=(",", ":")).encode()
    return Path(folder) / f"probe-{hashlib.sha256(canonical).hexdigest()}.json"


def _result(value: Any) -> ProbeResult:
    fingerprint = bytes.fromhex(_is(value["fingerprint"], str))
    schedules = tuple(
        ScheduleResult(
            _is(name, str),
            _is(equal, bool),
            None if first is None else _is(first, int),
            math.inf if worst is None else _is(worst, float),
            _is(compared, int),
            _is(traced, int),
            None if operation is None else _is(operation, str),
        )
        for name, equal, first, worst, compared, traced, operation in _is(value["schedules"], list)
    )
    stated, bindings, system, libraries, compiler = _is(value["build"], list)
    found = tuple(Library(_is(name, str), bytes.fromhex(_is(digest, str))) for name, digest in _is(libraries, list))
    build = library.BuildInfo(_is(stated, str), _is(bindings, str), _is(system, str), found, _is(compiler, str))
    invariant = _is(value["invariant"], bool)
    consistent = all(
        not each.equal or (each.compared > 0 and each.first_difference is None and each.operation is None)
        for each in schedules
    )
    if len(fingerprint) != 32 or not schedules or not consistent or invariant != all(s.equal for s in schedules):
        raise ValueError("not a result")
    pieces = Pieces.from_json(value["pieces"])
    return ProbeResult(invariant, fingerprint, schedules, build, _is(value["seconds"], float), pieces)


def _is(value: Any, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise TypeError("not a result")
    return value


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Processor", "cpu model"):
                return value.strip()
    return platform.processor()


def default_folder() -> Path:
    """Where results are kept unless told otherwise: `$XDG_CACHE_HOME/verifiable`, else `~/.cache/verifiable`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification says to ignore a relative path.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "verifiable"
