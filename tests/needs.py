"""What a test needs and a machine may not have: without it the test is skipped, so that the fast layers run anywhere.

Set ``VERIFIABLE_REQUIRE_MODELS=1`` (as `make test` does) to have a missing model fail the tests that need it, and
``VERIFIABLE_REQUIRE_PROGRAMS=1`` (as `.ci/run` does) for a missing browser or database server.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent


def missing(reason: str, required_by: str = "VERIFIABLE_REQUIRE_MODELS") -> NoReturn:
    """Skip the test that asked, or fail it where the environment says that it must run."""
    if os.environ.get(required_by) == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def missing_program(reason: str) -> NoReturn:
    """The same for system programs that only tests use: a browser, a database server."""
    missing(reason, "VERIFIABLE_REQUIRE_PROGRAMS")
