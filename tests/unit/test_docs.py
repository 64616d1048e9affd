"""Pages link to what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "spec").rglob("*.md")])
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings get, by the rule of the common renderers."""
    headings = re.findall(r"^#+ +(.+?) *$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


CLAIMS = re.compile(
    r"the client asked|than you asked for|(?:the client|you) sent no\b|the client's nonce was|prompt you sent"
    r"|(?:temperature|parameters|settings) than was asked|are what was asked"
)
"""Sentences that would say that a request was the client's: only the client's own copy shows that."""
ALLOWED = {"MUST NOT say that the answer is one to what the client asked"}


def test_no_sentence_claims_what_a_client_asked() -> None:
    pages = [page for page in PAGES if page.name != "benchmarks.md"]
    code = [
        path
        for name in ("verifier/report", "verifier/auditing", "verifier/offline")
        for path in (ROOT / name).glob("*.py")
    ]
    code += [*(ROOT / "verifiable" / "checking").glob("*.py"), *(ROOT / "spec" / "browser").glob("*.[jh]*")]
    found = []
    for path in (*pages, *code):
        text = " ".join(path.read_text(encoding="utf-8").split())
        for allowed in ALLOWED:
            text = text.replace(allowed, "")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in CLAIMS.finditer(text)]
    assert not found


def test_the_readme_can_be_read_outside_the_repository() -> None:
    """It is shipped with the package: links are absolute, and files are named as they lie in the source."""
    text = FENCED.sub("", (ROOT / "README.md").read_text())
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)\s]+)\)", text))
    assert all((ROOT / name).exists() for name in re.findall(r"`((?:docs|spec)/[^`]+)`", text))


def test_the_map_shows_every_room() -> None:
    text = (ROOT / "docs" / "development.md").read_text()
    for package in ("verifiable", "verifiable/llama", "engine", "verifier"):
        rows = text.partition(f"### `{package}/`\n")[2].partition("\n#")[0]
        shown = {name.rstrip("/") for name in re.findall(r"`([\w/]+)`", rows)}
        rooms = {
            path.stem for path in (ROOT / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
        }
        assert rooms - shown - {"__init__", "__main__"} == set(), package
