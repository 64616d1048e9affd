"""This project's own vectors as they lie in `spec/vectors`, for every implementation that is tested against them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spec.make_vectors import VECTORS

FILES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(VECTORS.glob("*.json"))}
"""What is in each file, by its name without the ending."""
TOLERANCE = 1e-8


def same(found: Any, expected: Any) -> bool:
    """Equal JSON values; real numbers may differ by what two machines' logarithms do."""
    if isinstance(found, float) and isinstance(expected, float):
        return abs(found - expected) <= TOLERANCE
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in found)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and bool(found == expected)
