"""The demonstration's report: a table of the providers, and under it each one's whole audit report, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.adversary.demo import Row

_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Verifiable Inference: demonstration</title>
<style>
:root { color-scheme: light dark; --line: #8885; --good: #1a7f37; --bad: #cf222e }
@media (prefers-color-scheme: dark) { :root { --good: #3fb950; --bad: #ff7b72 } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .4rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top }
.good { color: var(--good); font-weight: 600 } .bad { color: var(--bad); font-weight: 600 }
details { margin: .6rem 0; border: 1px solid var(--line); border-radius: .4rem; padding: .4rem .8rem }
summary { cursor: pointer; font-weight: 600 }
iframe { width: 100%; height: 70vh; border: 0; margin-top: .5rem }
</style>
<h1>One honest provider, and some that cheat</h1>
<p>Each was asked through the OpenAI client and audited with <code>verifiable audit</code>, which ran the committed
answers again with the model file that was promised.</p>
"""


def render(rows: Sequence[Row]) -> str:
    """The page as HTML; every report is embedded, nothing is loaded."""
    lines = ["<table><tr><th>Provider<th>What it does<th>Verdict<th>Where<th>As it must be"]
    for row in rows:
        honest = row.expected == "verified-exact"
        mood = "good" if row.right and honest else "bad"
        mark = "yes" if row.right else f"expected {row.expected}"
        cells = (row.provider, row.does, row.found, row.where, mark)
        name, does, found, where, expected = map(escape, cells)
        lines.append(f'<tr><td>{name}<td>{does}<td class="{mood}">{found}<td>{where}<td>{expected}')
    lines.append("</table>\n<h2>The audit reports</h2>")
    for row in rows:
        inner = escape(row.report.read_text("utf-8"), quote=True)
        title = escape(f"{row.provider}: {row.found}")
        lines.append(f'<details><summary>{title}</summary><iframe title="{title}" srcdoc="{inner}"></iframe></details>')
    return _HEAD + "\n".join(lines) + "\n</html>\n"
