"""Make docs/verify.html, one page without dependencies, from the files beside this one.

    python -m spec.browser.build            # write it
    python -m spec.browser.build --check    # exit status 1 when it is not what would be written

The page's content security policy allows this one script and this one style sheet, by their hashes, and no connection
to anywhere.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
from pathlib import Path

from verifiable import limits
from verifiable.checking.caveats import CAVEATS
from verifiable.checking.verdict import INCONCLUSIVE_CODES

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "verify.html"
SCRIPTS = (
    "bytes",
    "hash",
    "ed25519",
    "cbor",
    "envelope",
    "merkle",
    "objects",
    "manifest",
    "keys",
    "request",
    "exchange",
    "sampling",
    "checks",
    "fraud",
    "verdict",
    "words",
    "vectors",
    "run",
    "show",
    "page",
)
"""In the order in which they need each other."""


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _source(content: str) -> str:
    """The content's hash as a source expression of a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _limits() -> str:
    """The names of `verifiable.limits` and their values, for scripts; what a float would not hold is a BigInt."""
    table = {name: value for name, value in vars(limits).items() if name.isupper()}
    big = {name for name, value in table.items() if isinstance(value, int) and value > limits.JSON_NUMBER}
    lines = [f"  {name}: {json.dumps(value)}{'n' if name in big else ''}," for name, value in table.items()]
    return "\n".join(["// ---- limits, from verifiable/limits.py ----", "const LIMITS = {", *lines, "};", ""])


def _caveats() -> str:
    """What a verdict does not rest on, as the auditor says it, in the page's typography."""
    shown = {name: what.replace("'", "’") for name, what in CAVEATS.items()}
    listed = json.dumps(shown, ensure_ascii=False, indent=2)
    return f"// ---- caveats, from verifiable/checking/caveats.py ----\nconst CAVEATS = {listed};\n"


def _inconclusive() -> str:
    """The codes under which nothing is shown against the provider."""
    listed = json.dumps(sorted(INCONCLUSIVE_CODES), indent=2)
    return f"// ---- codes, from verifiable/checking/verdict.py ----\nconst INCONCLUSIVE_CODES = {listed};\n"


def build() -> str:
    """The page."""
    parts = [_limits(), _caveats(), _inconclusive()]
    parts += [f"// ---- {name}.js ----\n{_read(f'{name}.js')}" for name in SCRIPTS]
    script = '\n"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"
    style = _read("page.css")
    if "</script" in script or "</style" in style:
        raise ValueError("a source file would end its own element")
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _read("page.html")
    for name, content in {"policy": policy, "style": style, "script": script}.items():
        page = page.replace("{{" + name + "}}", content)
    return page


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m spec.browser.build", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    page = build()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    if options.check:
        print(f"{PAGE.name} is stale: run python -m spec.browser.build")
        return 1
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE.name}: {len(page):,} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
