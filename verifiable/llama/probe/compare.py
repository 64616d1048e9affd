"""Where two machines part: the pieces of one probe against those of another, made of the same model and settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Final

from verifiable import files
from verifiable.errors import EngineError, MalformedError, PolicyError
from verifiable.llama.library import BuildInfo
from verifiable.llama.probe.result import Pieces, ProbeResult
from verifiable.llama.settings import RuntimeSettings, as_dict
from verifiable.manifest.libraries import Library
from verifiable.manifest.manifest import ModelIdentity

_MAX_SIZE: Final = 1 << 24
_NO_BIT: Final = ("n_ctx", "n_seq_max", "n_threads")
"""Settings that change no bit of a probe."""


@dataclass(frozen=True, slots=True)
class OtherProbe:
    """What `verifiable probe --json` said on another machine."""

    model: list[Any]
    settings: dict[str, Any]
    fingerprint: bytes
    build: BuildInfo
    pieces: Pieces

    @classmethod
    def load(cls, path: str | PathLike[str]) -> OtherProbe:
        """Raises MalformedError, or EngineError where it can't be read."""
        try:
            data = files.read(path, _MAX_SIZE)
        except OSError as error:
            raise EngineError(f"cannot read {fspath(path)}", found=error.strerror) from error
        try:
            facts = json.loads(data)
            libraries = tuple(
                Library(str(name), bytes.fromhex(value)) for name, value in facts["build"]["libraries"].items()
            )
            build, bindings, system, compiler = (
                str(facts["build"][name]) for name in ("build", "bindings", "system", "compiler")
            )
            return cls(
                [facts["files"], facts["adapters"]],
                dict(facts["settings"]),
                bytes.fromhex(facts["fingerprint"]),
                BuildInfo(build, bindings, system, libraries, compiler),
                Pieces.from_json(facts["pieces"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise MalformedError(
                "the other machine's probe",
                expected="what `verifiable probe --json` of this version writes",
                found=type(error).__name__,
                hint="Make it again there: verifiable probe --model FILE --json > other.json",
            ) from error


@dataclass(frozen=True, slots=True)
class Comparison:
    """`position`: the lowest whose logits differ, of how many that do. `operation`: the first result that differs, its
    place among `operations`, and how many do. None where none does. `stated`: what differs between the builds, by name:
    what is said there, and here.
    """

    position: int | None
    positions: tuple[int, int]
    operation: str | None
    place: int | None
    differing: int
    operations: int
    stated: dict[str, tuple[str, str]]

    @property
    def same(self) -> bool:
        """Whether every bit that was compared is the same."""
        return self.position is None and self.operation is None


def compare(identity: ModelIdentity, settings: RuntimeSettings, here: ProbeResult, there: OtherProbe) -> Comparison:
    """Raises PolicyError: the other probe is of another model or of other settings."""
    _must_be_same("another model", model_json(identity), there.model)
    mine, stated = dict(as_dict(settings)), there.settings
    names = [name for name in {**mine, **stated} if name not in _NO_BIT and mine.get(name) != stated.get(name)]
    _must_be_same("other settings", *({name: each.get(name) for name in names} for each in (mine, stated)))
    ours, theirs = dict(here.pieces.logits), dict(there.pieces.logits)
    positions = sorted(ours.keys() | theirs.keys())
    apart = [position for position in positions if ours.get(position) != theirs.get(position)]
    one, other = here.pieces.operations, there.pieces.operations
    count = max(len(one), len(other))
    differing = [at for at in range(count) if one[at : at + 1] != other[at : at + 1]]
    first = differing[0] if differing else None
    return Comparison(
        apart[0] if apart else None,
        (len(apart), len(positions)),
        None if first is None else _named(one, other, first),
        first,
        len(differing),
        count,
        _stated(here.build, there.build),
    )


def model_json(identity: ModelIdentity) -> list[Any]:
    """The files and the adapters as `verifiable probe --json` says them."""
    return [
        [{"name": file.name, "sha256": file.sha256.hex(), "size": file.size} for file in identity.files],
        [
            {"name": file.name, "sha256": file.sha256.hex(), "size": file.size, "scale": file.scale}
            for file in identity.adapters
        ],
    ]


def _must_be_same(what: str, here: Any, there: Any) -> None:
    def unnamed(value: Any) -> Any:  # what a file is called changes no bit
        match value:
            case dict():
                return {key: unnamed(item) for key, item in value.items() if key != "name"}
            case list():
                return [unnamed(item) for item in value]
        return value

    if unnamed(here) != unnamed(there):
        raise PolicyError(
            f"the other machine's probe is of {what}",
            expected=json.dumps(here),
            found=json.dumps(there),
            hint="Only probes of one model under the same settings can be compared: pass the options used there.",
        )


def _named(one: tuple[tuple[str, str], ...], other: tuple[tuple[str, str], ...], at: int) -> str:
    names = [pieces[at][0] if at < len(pieces) else "nothing" for pieces in (one, other)]
    return names[0] if names[0] == names[1] else f"{names[0]} here, {names[1]} there"


def _stated(here: BuildInfo, there: BuildInfo) -> dict[str, tuple[str, str]]:
    """What builds say, and their files by the first digits of their hashes, where it differs: there and here. Of the
    system's features those that only one has.
    """
    said = [dict(zip(("build", "bindings", "system"), build.stated, strict=True)) for build in (there, here)]
    for facts, build in zip(said, (there, here), strict=True):
        facts["compiler"] = build.compiler
        facts |= {each.name: each.sha256.hex()[:16] for each in build.libraries}
    names = dict.fromkeys([*said[0], *said[1]])
    pairs = {name: (said[0].get(name, ""), said[1].get(name, "")) for name in names}
    features = [each["system"].removeprefix("CPU : ").split(" | ") for each in said]
    theirs, mine = (
        " | ".join(feature for feature in one if feature not in other) for one, other in (features, features[::-1])
    )
    pairs["system"] = (theirs, mine)
    return {name: (theirs, mine) for name, (theirs, mine) in pairs.items() if theirs != mine}
