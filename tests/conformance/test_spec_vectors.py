"""Our own vectors: the Python implementation finds in each what it says, and the files are what their script makes."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from spec.generate.run import OPERATIONS, run
from spec.make_vectors import VECTORS, contents
from tests.vector_files import FILES, same

MOST_BYTES = 2_000_000


@pytest.mark.parametrize("name", FILES)
def test_every_case(name: str) -> None:
    file = FILES[name]
    assert file["operation"] == name
    assert file["cases"]
    outcomes = [(case["name"], run(name, case), case["expected"]) for case in file["cases"]]
    wrong = [
        f"{case}: found {found}, expected {expected}" for case, found, expected in outcomes if not same(found, expected)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_operation_has_a_file() -> None:
    assert FILES.keys() == OPERATIONS.keys()


def test_making_them_again_gives_the_same_bytes() -> None:
    stale = [path.name for path, text in contents().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run python -m spec.make_vectors"


def test_there_is_no_file_that_the_script_does_not_make() -> None:
    assert set(VECTORS.glob("*.json")) == {path for path in contents() if path.parent == VECTORS}


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in VECTORS.iterdir()) < MOST_BYTES


def test_a_wrong_expectation_would_be_noticed() -> None:
    """The comparison itself can fail: for another code, another value, another type."""
    assert not same({"error": "malformed"}, {"error": "bad-signature"})
    assert not same({"ok": True}, {"ok": 1})
    assert not same({"ok": [0.5]}, {"ok": [0.5 + 1e-6]})
    assert not same({"ok": {}}, {"error": "malformed"})


RULES = {
    "receipt": "receipt",
    "evidence": "evidence",
    "fraud": "fraud",
    "keys": "keys",
    "manifest": "manifest",
    "head": "head",
    "leaf": "leaf",
    "packed": "packed-tokens",
    "envelope": "envelope",
}
FILES_OF_BASE64 = ("receipt", "evidence", "fraud", "keys")
BEYOND_CDDL = {
    "manifest": {
        "valid-from after valid-to",
        "a session key of small order",
        "a session key without its hash",
        "a model that says nothing more, in a map",
        "a runtime that says nothing more, in a map",
        "suppressed ids of six bytes",
        "a suppressed id twice",
        "suppressed ids in descending order",
        "a suppressed id past the vocabulary",
        "all ids suppressed",
        "a library twice",
        "libraries in descending order",
        "a library's name with a space",
        "a library's name with a newline",
        "a default repeat penalty of 1",
    },
    "head": {"a size not in its shortest form"},
    "leaf": {
        "turn: a repeat penalty of 1",
        "turn: a frequency penalty of 0",
        "turn: a frequency penalty of -0",
        "turn: a bias of 0",
        "turn: biases in descending order",
        "turn: a bias twice",
        "turn: a seed of 16 bytes",
        "token: one id too few",
        "token: ids of 31 bytes",
        "token: logits ascending",
        "token: an infinite logit",
        "token: a logit that is no number",
        "token: an id twice",
        "token: equal logits, higher id first",
        "a sequence number in two bytes",
    },
}
"""Malformed objects of these kinds that have the right shape all the same."""


@pytest.mark.parametrize("name", RULES)
def test_cddl_describes_the_objects(name: str) -> None:
    """By someone else's CDDL validator, every well-formed object matches and the ones of a wrong shape do not."""
    cddl_verifier = pytest.importorskip("cddl_verifier", reason="cddl-verifier is not installed")
    validator = cddl_verifier.Validator(Path(VECTORS.parent, "verifiable.cddl"))
    allowed = set()
    for case in FILES[name]["cases"]:
        data = base64.b64decode(case["input"]) if name in FILES_OF_BASE64 else bytes.fromhex(case["input"])
        result = validator.validate(data, root_type=RULES[name])
        code = case["expected"].get("error")
        if code in ("malformed", "signed-malformed", "newer-version"):
            allowed |= {case["name"]} if result.valid else set()
        elif code != "unsupported-algorithm":
            assert result.valid, f"{case['name']}: {result.diagnostics[0]}"
    if name in BEYOND_CDDL:
        assert allowed == BEYOND_CDDL[name]
