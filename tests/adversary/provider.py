"""Serve a cheating provider over HTTP, as `verifiable serve` does an honest one.

python -m tests.adversary.provider CHEAT --model M.gguf --data DIR
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from engine.commands.serve import run
from engine.commands.serve_options import ServerOptions
from engine.engine import EngineSettings
from engine.scheduling.scheduler import SchedulerSettings
from tests.adversary.cheats import CHEATS
from verifiable.cli import complain_of
from verifiable.commands.progress import Bars
from verifiable.errors import VerifiableError


def main() -> int:
    cheats = {cheat.name: cheat for cheat in CHEATS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cheat", choices=list(cheats))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--draft", default="ngram")
    given = parser.parse_args()
    settings = EngineSettings(scheduler=SchedulerSettings(slots=2), drafter=given.draft, name="cheater")
    try:
        with Bars() as bars:
            engine = cheats[given.cheat].engine(given.model, given.data, settings, bars)
        run(engine, ServerOptions(port=given.port), bars)
    except VerifiableError as error:
        return complain_of(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
