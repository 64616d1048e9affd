"""Hostile input to every parser raises only our errors, and whatever is accepted is written back as it was read.

    python -m benchmarks.fuzz --count 10000000      # a long run: inputs in all, spread over the parsers
    python -m benchmarks.fuzz --only cbor --only gguf --seed 7 --keep out/fuzz

Mutations of valid and invalid inputs, in plain Python: bits, bytes, interesting numbers, parts cut, doubled, moved or
taken from another input. With --keep, an input that breaks something is written there; add it to tests/corpus once it
is mended. Exit status 1 when any did.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks._fuzz_targets import TARGETS, Target, by_name, reseal
from benchmarks.measure import Figure, main
from verifiable.errors import VerifiableError

COUNT = 200_000
"""Inputs of a run among the other benchmarks."""
LONGEST = 1 << 16
"""Bytes; longer inputs are cut, so that the time goes into many of them."""
SHOWN = 5
"""Faults of one target that are kept; the first ones say enough."""
BYTES = bytes.fromhex("00011718191a1b1f203b40585b5f60787f80989b9fa0b8bfc0d2f4f6f7f9fafbff")
"""Bytes that mean something in CBOR, text, or both."""
_NUMBERS = (0, 1, 255, 2**15, 2**31, 2**32 - 1)
_WORDS = ("[" * 70, '{"a":' * 70, "null", "1e400", "-0", "\\ud800", "\u00a0", "\n\n", "\u2014 ", "9" * 20, "+")
PIECES = (
    *(number.to_bytes(4, "big") for number in _NUMBERS),
    *(number.to_bytes(4, "little") for number in _NUMBERS),
    *(number.to_bytes(8, "big") for number in _NUMBERS),
    *(number.to_bytes(8, "little") for number in _NUMBERS),
    *(word.encode() for word in _WORDS),
    *map(bytes.fromhex, ("ff" * 8, "7f" + "ff" * 7, "f97e00", "fb7ff8000000000000", "81" * 20, "a100" * 20)),
)
"""Parts that some parser may stumble over."""


@dataclass
class Tally:
    """What came of a target: inputs tried and accepted, seconds, and the first inputs that broke something."""

    name: str
    tried: int = 0
    accepted: int = 0
    seconds: float = 0.0
    broken: int = 0
    faults: list[tuple[bytes, str]] = field(default_factory=list)

    def note(self, data: bytes, what: str) -> None:
        self.broken += 1
        if len(self.faults) < SHOWN:
            self.faults.append((data, what))


def mutate(seeds: Sequence[bytes], chance: Random) -> bytes:
    """One more input: a seed with one to eight things done to it."""
    bits = chance.getrandbits
    data = bytearray(seeds[bits(30) % len(seeds)])
    for _ in range(1 << (bits(2) + bits(1)) // 2):
        kind = bits(4)
        at = bits(30) % (len(data) + 1)
        if kind < 5 and at < len(data):
            data[at] ^= 1 << bits(3)
        elif kind < 8 and at < len(data):
            data[at] = BYTES[bits(8) % len(BYTES)]
        elif kind == 8:
            piece = PIECES[bits(8) % len(PIECES)]
            data[at : at + len(piece)] = piece
        elif kind == 9:
            data[at:at] = PIECES[bits(8) % len(PIECES)]
        elif kind == 10:
            del data[at : at + 1 + bits(bits(3))]
        elif kind == 11:
            data[at:at] = data[at : at + 1 + bits(bits(3))]
        elif kind == 12:
            other = seeds[bits(30) % len(seeds)]
            start = bits(30) % (len(other) + 1)
            data[at : at + bits(5)] = other[start : start + bits(6)]
        elif kind == 13:
            del data[at:]
        elif kind == 14:
            data[at:at] = bytes((bits(8),))
        elif data:
            where, size = bits(30) % len(data), bits(4)
            part = data[where : where + size]
            del data[where : where + size]
            data[at:at] = part
    return bytes(data[:LONGEST])


def fuzz(target: Target, count: int, chance: Random) -> Tally:
    """Try so many inputs on a target: its seeds as they are, then mutations of them and of what was accepted."""
    tally = Tally(target.name)
    seeds = target.inputs()
    if not seeds:
        raise ValueError(f"target {target.name} has nothing to begin from")
    fixed = len(seeds)
    start = time.perf_counter()
    for number in range(count):
        data = seeds[number] if number < fixed else mutate(seeds, chance)
        if target.sealed and number >= fixed:
            data = reseal(data)
        tally.tried += 1
        try:
            written = target.parse(data)
        except VerifiableError:
            continue
        except Exception as error:  # what this looks for
            tally.note(data, f"{type(error).__name__}: {error}"[:200])
            continue
        tally.accepted += 1
        if written is not None and written != data:
            tally.note(data, "accepted, and written back as something else")
        elif len(seeds) < fixed + 500 and number >= fixed:
            seeds.append(data)  # what is accepted leads further in
    tally.seconds = time.perf_counter() - start
    return tally


def run(count: int, seed: int, names: list[str] | None = None, keep: Path | None = None) -> list[Tally]:
    """Fuzz the targets named, all by default, with about `count` inputs in all."""
    targets = list(by_name(names))
    tallies = []
    for target in targets:
        tally = fuzz(target, max(1, count // len(targets)), Random(f"{seed} {target.name}"))
        print(
            f"{tally.name}: {tally.tried:,} inputs, {tally.accepted:,} accepted, {tally.broken} broken", file=sys.stderr
        )
        for number, (data, what) in enumerate(tally.faults):
            print(f"  {what}: {data[:60].hex()}", file=sys.stderr)
            if keep is not None:
                folder = keep / target.name
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{seed}-{number}.bin").write_bytes(data)
        tallies.append(tally)
    return tallies


def figures(tallies: Sequence[Tally]) -> list[Figure]:
    tried, seconds = sum(tally.tried for tally in tallies), sum(tally.seconds for tally in tallies)
    return [
        Figure("hostile inputs", tried, "inputs", note=f"over {len(tallies)} parsers; one process"),
        Figure("of them accepted and written back", sum(tally.accepted for tally in tallies), "inputs"),
        Figure("inputs a second", tried / max(seconds, 1e-9), "inputs/s"),
        Figure("other errors, or other bytes back", sum(tally.broken for tally in tallies), "inputs", at_most=0),
    ]


def command(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--count", type=int, default=COUNT, help=f"inputs in all (default {COUNT:,})")
    options.add_argument("--seed", type=int, default=1, help="another seed, other inputs")
    known = [target.name for target in TARGETS]
    names = f"one of {', '.join(known)}"
    options.add_argument("--only", dest="names", action="append", choices=known, metavar="PARSER", help=names)
    options.add_argument("--keep", type=Path, help="folder for inputs that break something")
    tallies: list[Tally] = []

    def measure(**chosen: Any) -> Sequence[Figure]:
        tallies.extend(run(**chosen))
        return figures(tallies)

    status = main(measure, "fuzz", __doc__, arguments, options)
    return 1 if any(tally.broken for tally in tallies) else status


if __name__ == "__main__":
    sys.exit(command())
