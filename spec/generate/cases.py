"""A vector file: an operation, a sentence about it, and cases; written so that one case is one line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from spec.generate.run import Outcome, run

VERSION = "2.0.0"
"""Version of the protocol's text that the vectors belong to."""


class VectorError(Exception):
    """The implementation does not find in a case what the case was made to show."""


@dataclass
class VectorFile:
    """Cases of one operation. `add` runs each at once, so that no case says what nobody has seen."""

    operation: str
    about: str
    cases: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, expected: str = "ok", **inputs: Any) -> Outcome:
        """Add a case that must give `ok`, or else the error named. Returns its outcome."""
        if any(case["name"] == name for case in self.cases):
            raise VectorError(f"{self.operation}: two cases are called {name!r}")
        outcome = run(self.operation, inputs)
        found = "ok" if "ok" in outcome else outcome["error"]
        if found != expected:
            raise VectorError(f"{self.operation}: {name}: expected {expected}, found {outcome}")
        self.cases.append({"name": name, **inputs, "expected": outcome})
        return outcome

    def render(self) -> str:
        lines = [json.dumps(case, ensure_ascii=True, separators=(", ", ": ")) for case in self.cases]
        head = {"spec": VERSION, "operation": self.operation, "about": self.about}
        opening = json.dumps(head, ensure_ascii=True)[:-1]
        return opening + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n"
