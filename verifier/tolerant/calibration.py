"""The calibration file: how honest conversations look from here, how known deviations look, and what that is worth.

JSON, so that people can read it. It holds the distances of every position of every conversation, not only what was
made of them: an audit cuts all of them to the length that the provider's answers have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from verifiable import files
from verifiable.errors import MalformedError, PolicyError
from verifiable.manifest.manifest import Manifest, ModelIdentity, Runtime
from verifiable.session.challenge import window_lot
from verifier.tolerant.eprocess import ALPHA, FEWEST, MARGIN
from verifier.tolerant.statistics import Distances, Score, score

VERSION = 2
MAX_BYTES = 256 << 20
LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Positions that conversations are cut to, so that like is compared with like."""
SETTINGS = ("type_k", "type_v", "flash_attn", "kv_unified", "repack", "tiled", "swa_full", "n_gpu_layers")
"""The fields of a manifest's runtime that change arithmetic; a calibration is for one set of them."""
LOTS = b"calibration"
"""Seed of the windows of a calibration's conversations: nobody has an interest in them, so it is no secret."""
DIGITS = 5
"""Significant digits of a distance in the file."""
COLUMNS = ("claim", "replays", "lost", "likely", "variance")
"""What the file says of each position of a conversation, as in `Distances`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The conversations of one class or deviation: a name, a sentence for people, and distances."""

    name: str
    about: str
    conversations: tuple[Distances, ...]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.conversations))

    def scores(self, length: int) -> list[Score]:
        """The scores of the conversations that have `length` positions, each over a window drawn as an audit draws it.

        Each conversation's lot is its own and the same in every class.
        """
        return [
            score(replace(item, lot=window_lot(LOTS, at.to_bytes(16, "big"))).window(length))
            for at, item in enumerate(self.conversations)
            if len(item) >= length
        ]

    def to_json(self) -> dict[str, Any]:
        rows = [dict(zip(COLUMNS, map(_numbers, item.columns), strict=True)) for item in self.conversations]
        return {"name": self.name, "about": self.about, "conversations": rows}

    @classmethod
    def from_json(cls, value: object) -> Sample:
        fields = _fields(value, {"name", "about", "conversations"}, "sample")
        talks = []
        for row in _list(fields["conversations"], "conversations"):
            given = _fields(row, set(COLUMNS), "conversation")
            columns = [_reals(given[name]) for name in COLUMNS]
            if len({len(column) for column in columns}) != 1 or not len(columns[0]):
                raise MalformedError("calibration", expected="as many numbers of each kind", found=len(columns[0]))
            claim, replays, lost, likely, variance = columns
            talks.append(Distances(claim, replays, lost, likely, variance))
        return cls(_text(fields["name"]), _text(fields["about"]), tuple(talks))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a calibration comes from, for whoever is shown a verdict that rests on it.

    Args:
        made: when, in milliseconds since 1970, by the clock of that machine.
        by: who, in their own words; may be empty.
        version: of this software.
        models: the model's file, and the deviations' files, name -> SHA-256 (hex).
        fingerprint: the numerics fingerprint (hex) of the machine under the calibration's settings.
    """

    made: int
    by: str
    version: str
    models: Mapping[str, str]
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "models": dict(self.models)}

    @classmethod
    def from_json(cls, value: object) -> Origin:
        fields = _fields(value, {"made", "by", "version", "models", "fingerprint"}, "origin")
        made = fields["made"]
        if not isinstance(made, int) or isinstance(made, bool) or not 0 <= made < 2**48:
            raise MalformedError("calibration: origin", expected="milliseconds since 1970", found=str(made)[:40])
        models = {_text(name): _text(digest) for name, digest in _map(fields["models"]).items()}
        return cls(made, _text(fields["by"]), _text(fields["version"]), models, _text(fields["fingerprint"]))

    def __str__(self) -> str:
        day = datetime.fromtimestamp(self.made / 1000, UTC)
        who = f" by {self.by}" if self.by else ""
        files = ", ".join(f"{name} {digest[:16]}…" for name, digest in self.models.items())
        machine = f"fingerprint {self.fingerprint[:16]}…"
        return f"made {day:%Y-%m-%d %H:%M} UTC{who} with version {self.version}, {machine}, from {files}"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured, on what.

    Args:
        model: SHA-256 (hex) of each of the model's files, and of its adapters with their scales (`files_of`).
        settings: the arithmetic settings (`SETTINGS`) that providers under this calibration state.
        build: the auditor's llama.cpp, as the numerics probe names it.
        k: entries of a record.
        seed: seed (hex) of the conversations.
        origin: where it comes from, which decides nothing.
        honest: one sample for each class of honest variation.
        deviations: samples of known deviations.
        power: deviation -> length (as text) -> conversations -> probability of detection at `ALPHA`.
    """

    model: tuple[str, ...]
    settings: Mapping[str, Any]
    build: tuple[str, ...]
    k: int
    seed: str
    origin: Origin
    honest: tuple[Sample, ...]
    deviations: tuple[Sample, ...]
    power: Mapping[str, Mapping[str, Sequence[float]]]

    def lengths(self) -> list[int]:
        """The lengths that every honest class has enough conversations of."""
        return [
            length
            for length in LENGTHS
            if all(sum(len(item) >= length for item in sample.conversations) >= FEWEST for sample in self.honest)
        ]

    def classes(self, length: int) -> dict[str, list[Score]]:
        return {sample.name: sample.scores(length) for sample in self.honest}

    def claimed(self) -> dict[str, Any]:
        """The range over which the false-positive rate is claimed, as JSON values."""
        fewest = min(len(sample.conversations) for sample in self.honest)
        return {
            "alpha": ALPHA,
            "classes": [sample.name for sample in self.honest],
            "lengths": self.lengths(),
            "conversations": fewest,
            "margin": MARGIN,
            "without_model": f"rates down to 1/{fewest + 1} a conversation rest on ranks alone",
            "beyond": "further out, on Student's t with 4 degrees of freedom at 1.5 times the measured spread",
        }

    def check_fits(self, identity: ModelIdentity, manifest: Manifest, build: Sequence[str]) -> None:
        """Raise PolicyError unless this is a calibration for that model, those settings and this machine's build."""
        pairs = (
            ("model", list(self.model), list(files_of(identity))),
            ("record's k", self.k, min(manifest.k, manifest.model.vocabulary)),
            ("settings", dict(self.settings), settings_of(manifest.runtime)),
            ("build", list(self.build), list(build)),
        )
        for what, mine, stated in pairs:
            if mine != stated:
                raise PolicyError(
                    f"the calibration is for another {what}",
                    expected=str(mine),
                    found=str(stated),
                    hint="Make one for this: verifiable calibrate --model M.gguf --manifest FILE",
                )

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "model": list(self.model),
            "settings": dict(self.settings),
            "build": list(self.build),
            "k": self.k,
            "seed": self.seed,
            "origin": self.origin.to_json(),
            "claimed": self.claimed(),
            "power": {name: {at: list(curve) for at, curve in table.items()} for name, table in self.power.items()},
            "honest": [sample.to_json() for sample in self.honest],
            "deviations": [sample.to_json() for sample in self.deviations],
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        files.replace(Path(path), json.dumps(self.to_json(), separators=(",", ":")).encode() + b"\n")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Calibration:
        """Read a file strictly. Raises OSError or MalformedError."""
        return cls.parse(files.read(path, MAX_BYTES))

    @classmethod
    def parse(cls, data: bytes) -> Calibration:
        """Read a calibration's bytes strictly. Raises MalformedError."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise MalformedError("calibration", expected="JSON", found=str(error)) from None
        version = _map(value).get("version")
        if version != VERSION or isinstance(version, bool):
            raise MalformedError(
                "calibration version",
                expected=VERSION,
                found=str(version),
                hint="Make a new one: verifiable calibrate. Older ones know nothing of margins.",
            )
        names = {"version", "model", "settings", "build", "k", "seed", "origin"}
        names |= {"claimed", "power", "honest", "deviations"}
        fields = _fields(value, names, "calibration")
        if isinstance(fields["k"], bool) or not isinstance(fields["k"], int) or not 1 <= fields["k"] <= 128:
            raise MalformedError("calibration k", expected="1 to 128", found=str(fields["k"]))
        settings = _map(fields["settings"])
        _fields(settings, set(SETTINGS) | (settings.keys() & {"device", "rope"}), "settings")
        made = cls(
            tuple(map(_text, _list(fields["model"], "model"))),
            settings,
            tuple(map(_text, _list(fields["build"], "build"))),
            fields["k"],
            _text(fields["seed"]),
            Origin.from_json(fields["origin"]),
            tuple(Sample.from_json(item) for item in _list(fields["honest"], "honest")),
            tuple(Sample.from_json(item) for item in _list(fields["deviations"], "deviations")),
            {
                _text(name): {_text(at): _reals(curve).tolist() for at, curve in _map(table).items()}
                for name, table in _map(fields["power"]).items()
            },
        )
        if not made.honest or not made.lengths():
            raise MalformedError(
                "calibration", expected=f"honest classes of {FEWEST} conversations or more", found="fewer"
            )
        return made


def files_of(identity: ModelIdentity) -> tuple[str, ...]:
    """The SHA-256 (hex) of each file, and "SHA-256 × scale" of each adapter."""
    adapters = [f"{file.sha256.hex()} × {file.scale!r}" for file in identity.adapters]
    return (*(file.sha256.hex() for file in identity.files), *adapters)


def settings_of(runtime: Runtime) -> dict[str, Any]:
    """The settings of a manifest that change arithmetic; of device and RoPE what is stated."""
    settings = {name: getattr(runtime, name) for name in SETTINGS}
    stated = {"device": runtime.device, "rope": runtime.rope.stated()}
    return settings | {name: value for name, value in stated.items() if value}


def _numbers(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def _reals(value: object) -> np.ndarray[Any, np.dtype[np.float64]]:
    items = _list(value, "numbers")
    if not all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in items):
        raise MalformedError("calibration", expected="numbers", found="something else")
    values = np.array(items, np.float64)
    if not (np.isfinite(values) & (values >= 0.0)).all():
        raise MalformedError("calibration", expected="finite numbers that are not negative", found="others")
    return values


def _fields(value: object, names: set[str], what: str) -> dict[str, Any]:
    fields = _map(value)
    if set(fields) != names:
        raise MalformedError(f"calibration: {what}", expected=", ".join(sorted(names)), found=", ".join(sorted(fields)))
    return fields


def _map(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedError("calibration", expected="an object", found=type(value).__name__)
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedError(f"calibration: {what}", expected="a list", found=type(value).__name__)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 8192:
        raise MalformedError("calibration", expected="a text", found=type(value).__name__)
    return value
