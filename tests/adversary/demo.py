"""The demonstration: an honest provider, its clients and its auditor; then providers that cheat, each caught.

    python -m tests.adversary.demo [--out DIR]

Everything is real: `verifiable serve` in a process of its own on loopback, the official OpenAI client, `verifiable
verify` and `verifiable audit` as commands. Exit status 0 when every honest answer verified exactly and every cheat
failed with its reason.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from rich.console import Console
from rich.table import Table

from fixtures import models
from fixtures.quantise import variant
from tests.adversary import demo_page
from tests.adversary.cheats import CHEATS

QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers in Europe.",
    "Repeat five times: red fish, blue fish.",
    "Write a haiku about glass.",
    "What is seven times eight?",
    "Tell me about the moon.",
)
TOKENS = 40
SCRIPTS = Path(sys.executable).parent

Command = list[str | Path]

say = Console(stderr=True, highlight=False, soft_wrap=True).print


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result: what was served, what had to come out, what came out, and its report."""

    provider: str
    does: str
    expected: str
    found: str
    where: str
    report: Path

    @property
    def right(self) -> bool:
        return self.found == self.expected


@contextmanager
def provider(command: Command, folder: Path) -> Iterator[str]:
    """Run a provider; yields its base URL once it listens. Ends it with SIGTERM and waits."""
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
        )
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            if not line.startswith("API "):
                process.wait(timeout=10)
                last = Path(log.name).read_text("utf-8", "replace").strip()
                raise SystemExit(f"the provider did not start:\n{last}")
            yield line.split()[1].removesuffix("/v1")
        finally:
            process.terminate()
            process.wait(timeout=60)


def ask(url: str, question: str, number: int, stream: bool) -> tuple[str, bytes]:
    """Ask through the OpenAI client; returns the text and the receipt."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)
    body: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": TOKENS,
        "temperature": 0.8 if number % 2 == 0 else 0.0,
        # A client draws its nonce at random. Here it is fixed, so that the demonstration is the same each time.
        "extra_body": {"verifiable": {"nonce": hashlib.sha256(question.encode()).hexdigest()[:32]}},
    }
    if stream:
        text, extra = "", None
        for chunk in client.chat.completions.create(**body, stream=True):
            text += chunk.choices[0].delta.content or ""
            extra = (chunk.model_extra or {}).get("verifiable") or extra
    else:
        answer = client.chat.completions.create(**body)
        text, extra = answer.choices[0].message.content or "", (answer.model_extra or {})["verifiable"]
    if extra is None:
        raise SystemExit("an answer came without a receipt")
    receipt = extra["receipt"]
    return text, base64.urlsafe_b64decode(receipt + "=" * (-len(receipt) % 4))


def run(command: Command) -> tuple[int, str]:
    """Run a command of ours; returns its exit status and standard output."""
    done = subprocess.run(
        [*map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=600
    )
    return done.returncode, done.stdout


def audit(target: str | Path, model: Path, data: Path, report: Path, *more: str | Path) -> dict[str, Any]:
    """`verifiable audit`; returns the outcome as JSON."""
    command: Command = [
        SCRIPTS / "verifiable",
        "audit",
        target,
        "--model",
        model,
        "--trust",
        data / "keys" / "provider.pub",
    ]
    status, text = run([*command, "--json", "--html", report, "--save", report.with_suffix(""), *more])
    if not text:
        raise SystemExit(f"the audit ended with exit status {status} and said nothing")
    outcome: dict[str, Any] = json.loads(text)
    return outcome


def honest(model: Path, out: Path) -> Row:
    """Serve, ask several at once (half of them streaming), verify the receipts, audit every session."""
    data = out / "honest"
    command: Command = [
        SCRIPTS / "verifiable",
        "serve",
        "--model",
        model,
        "--data",
        data,
        "--port",
        "0",
        "--draft",
        "ngram",
    ]
    with provider([*command, "--name", "acme"], data) as url:
        say(f"[bold]An honest provider[/bold] listens at {url}. Asking {len(QUESTIONS)} questions at once.")
        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            numbers = range(len(QUESTIONS))
            answers = list(
                pool.map(ask, [url] * len(numbers), QUESTIONS, numbers, [number % 3 != 0 for number in numbers])
            )
        for number, (text, receipt) in enumerate(answers):
            say(f"  {QUESTIONS[number]}  →  {' '.join(text.split())[:70]}…")
            (out / f"answer-{number}.receipt").write_bytes(receipt)
            (out / f"answer-{number}.txt").write_text(text, "utf-8")
        files: Command = [
            out / "answer-0.receipt",
            "--text",
            out / "answer-0.txt",
            "--trust",
            data / "keys" / "provider.pub",
        ]
        status, shown = run([SCRIPTS / "verifiable", "verify", *files])
        say(
            f"\n$ verifiable verify answer-0.receipt --text answer-0.txt --trust provider.pub  (exit {status})\n{shown}"
        )
        report = out / "honest.html"
        key = data / "keys" / "auditor.key"
        outcome = audit(url, model, data, report, "--auditor-key", key, "--sessions", str(len(QUESTIONS)))
    checked, total = outcome["tokens_checked"], outcome["tokens_total"]
    found = outcome["status"] if checked == total and outcome["verified"] == len(QUESTIONS) else "not all verified"
    if status != 0:
        found = f"verify said {status}"
    return Row(
        "honest",
        "continuous batching, n-gram speculation",
        "verified-exact",
        found,
        f"{checked} of {total} tokens",
        report,
    )


def cheating(name: str, does: str, code: str, model: Path, out: Path) -> Row:
    """Serve with a cheat, ask one question, audit its receipt."""
    data = out / name
    command: Command = [sys.executable, "-m", "tests.adversary.provider", name, "--model", model, "--data", data]
    with provider(command, data) as url:
        _, receipt = ask(url, QUESTIONS[0], 0, stream=True)
        file = out / f"{name}.receipt"
        file.write_bytes(receipt)
        report = out / f"{name}.html"
        outcome = audit(file, model, data, report, "--provider", url)
    verdict = outcome["verdicts"][0]
    place = [f"{part} {verdict[part]}" for part in ("turn", "token", "position") if part in verdict]
    return Row(name, does, code, verdict.get("code", verdict["status"]), ", ".join(place), report)


def show(rows: Sequence[Row], seconds: float) -> None:
    table = Table(
        "provider", "what it does", "verdict", "where", "", title="What the auditor found", title_justify="left"
    )
    for row in rows:
        mark = "[green]yes[/green]" if row.right else f"[bold red]expected {row.expected}[/bold red]"
        table.add_row(row.provider, row.does, row.found, row.where, mark)
    console = Console() if sys.stdout.isatty() else Console(width=130)
    console.print(table)
    console.print(f"{seconds:.0f} seconds")


def main() -> int:
    parser = argparse.ArgumentParser(description="an honest provider, and providers that cheat")
    parser.add_argument("--out", type=Path, default=Path("out") / "demo")
    out: Path = parser.parse_args().out
    started = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    model = models.ensure("smollm2")
    for file_type in ("Q4_0", "Q8_0", "Q2_K"):
        variant(file_type)
    say("The first start measures the model's numerics, once (some 10 seconds on an idle machine).")
    rows = [honest(model, out)]
    for cheat in CHEATS:
        say(f"[bold]A provider that {cheat.does}[/bold]")
        rows.append(cheating(cheat.name, cheat.does, cheat.code, model, out))
        say(f"  audited: {rows[-1].found}, {rows[-1].where}")
    page = out / "report.html"
    page.write_text(demo_page.render(rows), "utf-8")
    show(rows, time.monotonic() - started)
    print(f"Report: {page}")
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
