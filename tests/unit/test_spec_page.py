"""The browser's verifier is one page, made from its sources, that can reach nothing outside itself."""

from __future__ import annotations

import re

from spec.browser.build import HERE, PAGE, SCRIPTS, build
from verifier.report.meaning import MEANINGS

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_its_sources_make() -> None:
    assert build() == TEXT, "run python -m spec.browser.build"


def test_every_source_is_in_it() -> None:
    assert {path.stem for path in HERE.glob("*.js")} == set(SCRIPTS)


def test_it_refers_to_nothing_outside() -> None:
    head, _, rest = TEXT.partition("<script>")
    markup = head + rest.rpartition("</script>")[2]
    assert not re.findall(r"(?:src|href|action|poster|data)\s*=", markup)
    assert not re.findall(r"https?://|url\(|@import", TEXT)


def test_its_policy_allows_this_script_and_style_only() -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', TEXT)
    assert policy is not None
    directives = dict(part.strip().split(" ", 1) for part in policy[1].split(";"))
    assert directives["default-src"] == "'none'"
    assert directives.keys() == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
    for name in ("script-src", "style-src"):
        assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", directives[name])
    assert directives["base-uri"] == directives["form-action"] == "'none'"
    # A policy by hash forbids these, so they would not work.
    assert not re.findall(r"\son[a-z]+=|\sstyle=|javascript:", TEXT.partition("<script>")[0])


def test_a_code_means_the_same_as_in_the_auditors_reports() -> None:
    source = (HERE / "words.js").read_text(encoding="utf-8").partition("const MEANING = {")[2].partition("\n};")[0]
    shown = dict(
        re.findall(r'^  "?([a-z-]+)"?:\s+"(.*?)",$', source.replace('" +\n    "', ""), re.MULTILINE | re.DOTALL)
    )
    same = (shown.keys() & MEANINGS.keys()) - {"nothing-checked"}  # which the page says of fraud files
    assert len(same) > 20
    for code in same:
        assert shown[code].replace("’", "'").startswith(MEANINGS[code].means), code
