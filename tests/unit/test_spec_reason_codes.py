"""spec/reason-codes.md lists exactly the codes that verifiable/ and verifier/ can give."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from verifiable.checking.caveats import CAVEATS
from verifiable.checking.verdict import INCONCLUSIVE_CODES
from verifier.report.meaning import MEANINGS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "spec" / "reason-codes.md"
CODE = re.compile(r"[a-z]+(?:-[a-z]+)*")
COMPUTED = {
    "verifiable/tlog/merkle.py": {"bad-inclusion-proof", "bad-consistency-proof"},
    "verifier/provider/published.py": {"log-differs", "log-forked"},
}
"""Codes that a file puts together from parts, or hands on."""
STATUSES = {"failed", "inconclusive", "refused"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in ("verifiable", "verifier"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def takers(trees: list[ast.Module]) -> set[str]:
    """Functions and classes whose first argument is a reason code, by their first parameter's or field's name."""
    found = {"Fault"}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.args.args:
                names = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
                if names[:1] == ["code"]:
                    found.add(node.name)
    return found


def constants(node: ast.expr | None) -> Iterator[str]:
    """Every text that an expression may have as its value: also both arms of a conditional."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from constants(node.body)
        yield from constants(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from constants(value)


def after_status(items: list[ast.expr]) -> Iterator[str]:
    """The code in `Status.FAILED, code, …`, as arguments or as a tuple."""
    for item, following in itertools.pairwise(items):
        if isinstance(item, ast.Attribute) and getattr(item.value, "id", "") == "Status":
            yield from (code for code in constants(following) if CODE.fullmatch(code))


def emitted() -> dict[str, set[str]]:
    """Every code in the sources, and the files in which it stands."""
    trees = dict(sources())
    known = takers(list(trees.values()))
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        codes = set(COMPUTED.get(name, ()))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called in known and node.args:
                    codes.update(constants(node.args[0]))
                for keyword in node.keywords:
                    if keyword.arg == "code":
                        codes.update(constants(keyword.value))
            if isinstance(node, (ast.Call, ast.Tuple)):
                codes.update(after_status(node.args if isinstance(node, ast.Call) else node.elts))
            elif isinstance(node, ast.Assign) and any(getattr(item, "id", "") == "code" for item in node.targets):
                codes.update(constants(node.value))
        for code in codes:
            found.setdefault(code, set()).add(name)
    for code in INCONCLUSIVE_CODES:
        found.setdefault(code, set()).add("verifiable/checking/verdict.py")
    return found


def documented() -> dict[str, str]:
    """Code -> status, from the page: a heading for the code, and its first line `*status*`."""
    text = PAGE.read_text(encoding="utf-8")
    return dict(re.findall(r"^### `([a-z-]+)`\n\n\*([a-z]+)\*", text, re.MULTILINE))


EMITTED = emitted()
DOCUMENTED = documented()


def test_the_sources_were_read() -> None:
    """The search itself works: it finds codes of each way of giving one."""
    assert {"root-differs", "logits-differ", "bad-signature", "malformed", "environment"} <= EMITTED.keys()
    assert "salt-differs" in EMITTED  # by a helper that takes the code first
    assert "too-little-evidence" in EMITTED  # after a status


@pytest.mark.parametrize("code", sorted(EMITTED))
def test_each_code_is_explained(code: str) -> None:
    assert CODE.fullmatch(code)
    assert code in DOCUMENTED, f"{code}, given in {', '.join(sorted(EMITTED[code]))}, is not in spec/reason-codes.md"


@pytest.mark.parametrize("code", sorted(DOCUMENTED))
def test_no_explanation_is_stale(code: str) -> None:
    assert code in EMITTED, f"{code} is in spec/reason-codes.md and nowhere in the code"


@pytest.mark.parametrize("code", sorted(DOCUMENTED))
def test_the_status_is_the_verdicts(code: str) -> None:
    assert DOCUMENTED[code] in STATUSES
    inconclusive = code in INCONCLUSIVE_CODES or code == "environment"
    assert (DOCUMENTED[code] == "inconclusive") == inconclusive


def test_the_words_for_buyers_are_about_these_codes() -> None:
    assert MEANINGS.keys() <= DOCUMENTED.keys()


def test_the_page_lists_every_caveat_as_it_is_said() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## What a verdict does not rest on")[2]
    said = dict(re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", text, re.MULTILINE))
    assert said == {name: f"{what[:1].upper()}{what[1:]}" for name, what in CAVEATS.items()}


def test_every_caveat_is_said_somewhere() -> None:
    """In Python or on the page; and none is said that is not in the list."""
    python = "".join(path.read_text() for name in ("verifiable", "verifier") for path in (ROOT / name).rglob("*.py"))
    page = (ROOT / "spec" / "browser" / "words.js").read_text()
    for name in CAVEATS:
        assert python.count(f'"{name}"') > 1 or f'"{name}"' in page, name
    used = set(re.findall(r'(?:notes\.push\(\[|of\()"([a-z-]+)"', page)) | set(
        re.findall(r'Caveat\(\s*"([a-z-]+)"', python)
    )
    assert used <= CAVEATS.keys()


def test_the_page_is_in_order() -> None:
    """Every heading has a status line, and each code stands once."""
    headings = re.findall(r"^### `([a-z-]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(DOCUMENTED)
