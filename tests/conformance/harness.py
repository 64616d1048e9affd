"""Runs other people's test vectors and keeps count.

The vectors are data of other projects and are not part of this repository: a checkout beside it, or the variable
VERIFIABLE_VECTORS, says where they are. Every suite yields one outcome for each vector. Where we differ from what
a vector says on purpose, the outcome carries the reason; a difference without a reason is a failure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verifiable.errors import VerifiableError

ROOT = Path(__file__).resolve().parents[2]


def locate() -> Path | None:
    """The folder of vectors, or None."""
    named = os.environ.get("VERIFIABLE_VECTORS")
    folder = Path(named) if named else ROOT.parent / "shared" / "vectors"
    return folder if (folder / "README.md").is_file() else None


class Vectors:
    """Reads vector files and remembers which were read, so that none is left out unseen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.used: set[str] = set()

    def names(self, pattern: str) -> list[str]:
        """Files that match a pattern, as paths relative to the folder, in order."""
        found = (path for path in self.folder.glob(pattern) if path.is_file())
        return sorted(path.relative_to(self.folder).as_posix() for path in found)

    def read(self, name: str) -> bytes:
        self.used.add(name)
        return (self.folder / name).read_bytes()

    def json(self, name: str) -> Any:
        return json.loads(self.read(name))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one vector: passed, or an explained exception, or (neither) a failure."""

    vector: str
    passed: bool
    exception: str = ""
    detail: str = ""

    @property
    def failed(self) -> bool:
        return not self.passed and not self.exception


Suite = Callable[[Vectors], Iterator[Outcome]]


def attempt(action: Callable[[], object]) -> VerifiableError | None:
    """Run something that may raise one of our errors; any other error is a failure of the test itself."""
    try:
        action()
    except VerifiableError as error:
        return error
    return None


def judge(
    vector: str, action: Callable[[], object], *, valid: bool, exception: str = "", code: str | None = None
) -> Outcome:
    """Compare acceptance with what the vector says.

    Args:
        vector: its name.
        action: verifies the vector, raising one of our errors when it refuses.
        valid: whether the vector is to be accepted.
        exception: why we differ, when we do. Not used when we agree after all.
        code: the reason code that a refusal must have, where the vector says why.
    """
    error = attempt(action)
    detail = "accepted" if error is None else f"refused: {error}"
    agreed = (error is None) == valid and (code is None or getattr(error, "code", None) == code)
    return Outcome(vector, agreed, "" if agreed else exception, detail)


def check(vector: str, holds: bool, detail: str = "") -> Outcome:
    """A fact that must hold."""
    return Outcome(vector, holds, detail=detail or "does not hold")
