"""What a calibration comes to, for people and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from verifier.tolerant.calibration import Calibration, Sample
from verifier.tolerant.eprocess import ALPHA, needed

WANTED = 0.999
"""Probability of detection for which the number of conversations is stated."""


def facts(made: Calibration, out: Path) -> dict[str, Any]:
    """The calibration without its raw distances."""
    length = made.lengths()[-1]
    return {
        "file": str(out),
        "alpha": ALPHA,
        "length": length,
        "origin": made.origin.to_json(),
        "claimed": made.claimed(),
        "honest": {sample.name: _spread(sample, length) for sample in made.honest},
        "deviations": {
            sample.name: {**_spread(sample, length), "needed": detection(made, sample.name, WANTED)}
            for sample in made.deviations
        },
    }


def detection(made: Calibration, name: str, wanted: float) -> list[dict[str, int]]:
    """For each length at which it is caught: how many conversations and tokens reach that probability."""
    counts = {int(length): needed(np.array(curve), wanted) for length, curve in made.power.get(name, {}).items()}
    return [
        {"length": length, "conversations": count, "tokens": count * length}
        for length, count in counts.items()
        if count is not None
    ]


def lines(made: Calibration, out: Path) -> list[str]:
    """For the terminal."""
    length = made.lengths()[-1]
    fewest = min(len(sample.conversations) for sample in made.honest)
    shown = [f"Calibration  {out}: {fewest} conversations a class, compared over their first {length} tokens or fewer"]
    shown.append(f"Origin       {made.origin}")
    shown.append(
        "Log ratio of the claim's distance to the auditor's own rounding (0: one more rounding), and the margin by"
    )
    shown.append("which drawn tokens lose under the auditor's logits, beyond what is likely, in standard deviations")
    for kind, samples in (("honest", made.honest), ("deviation", made.deviations)):
        for sample in samples:
            spread = _spread(sample, length)
            row = f"  {kind:<9} {sample.name:<14} mean {spread['mean']:+.3f}, spread {spread['spread']:.3f}"
            row += f"; margin {spread['margin']:+.2f}"
            if kind == "deviation":
                caught = min(detection(made, sample.name, WANTED), key=lambda item: item["tokens"], default=None)
                row += (
                    f"; caught with probability {WANTED} by {caught['tokens']} tokens ({caught['conversations']} "
                    f"conversations of {caught['length']})"
                    if caught
                    else f"; can't be told within {64 * length} tokens: audits will say so"
                )
            shown.append(row)
    shown.append(f"False-positive rate of an audit: {ALPHA:g} for providers of the honest classes above.")
    shown.append(f"Up to 1/{fewest + 1} a conversation that rests on ranks alone; beyond, on a heavy-tailed model.")
    return shown


def _spread(sample: Sample, length: int) -> dict[str, float]:
    scores = sample.scores(length)
    values = np.array([item.mean for item in scores] or [0.0])
    return {
        "conversations": len(sample.conversations),
        "mean": round(float(values.mean()), 4),
        "spread": round(float(values.std()), 4),
        "highest": round(float(values.max()), 4),
        "margin": round(float(np.mean([item.margin for item in scores] or [0.0])), 4),
    }
