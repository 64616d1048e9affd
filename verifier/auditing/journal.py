"""The checks of one audit, in the order in which they were made; the first that fails ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verifiable.checking.verdict import Check, Step
from verifiable.errors import VerifiableError
from verifier.auditing.turn import TurnResult
from verifier.offline.fault import Fault


class CheckFailed(Exception):
    """A check that does not hold. `results` is what had come of the turns by then."""

    def __init__(self, fault: Fault, *results: TurnResult) -> None:
        super().__init__(fault.what)
        self.fault = fault
        self.results = results


class Journal:
    """What becomes a verdict's `checks`."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    @contextmanager
    def step(self, name: Step) -> Iterator[Callable[[str], None]]:
        """Make a check. The body calls what it is given with a sentence where the check passed.

        Raises:
            CheckFailed: the body raised it, or an error of ours; it is written down as the check that failed.
        """
        try:
            yield lambda detail: self.checks.append(Check(name, True, detail))
        except CheckFailed as failed:
            self.note(name, failed.fault)
            raise
        except VerifiableError as error:
            fault = Fault.of(error)
            self.note(name, fault)
            raise CheckFailed(fault) from error

    def note(self, name: Step, fault: Fault) -> None:
        """Write down a check that does not hold, or that can't be made here."""
        self.checks.append(Check(name, False if fault.proven else None, fault.what))
