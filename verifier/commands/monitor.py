"""`verifiable log monitor`: follow a log from outside, with the base install."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from verifiable import limits
from verifiable.errors import PolicyError, VerificationError
from verifiable.tlog.cosignature import CosignerKey
from verifiable.wire.key_file import read_public
from verifiable.wire.keys import PublicKey
from verifier.monitor.fetch import HttpFetch
from verifier.monitor.monitor import ForkError, Look, Monitor, TwoHeadsError


def monitor(
    url: Annotated[str, typer.Argument(help="The log's URL, as https://provider.example/log.")],
    trust: Annotated[str, typer.Option(help="The log's verifier key, or a file with it.")],
    state: Annotated[Path, typer.Option(help="Folder that remembers the last checkpoint; made when missing.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 60,
    once: Annotated[bool, typer.Option("--once", help="Look once, and stop.")] = False,
    entries: Annotated[
        bool, typer.Option("--entries", help="Read every entry too, and look for two heads of one session and size.")
    ] = False,
    witness: Annotated[list[str] | None, typer.Option(help="A trusted witness's key; may be repeated.")] = None,
    quorum: Annotated[int, typer.Option(min=0, help="How many of them must have cosigned.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each look.")] = False,
) -> int:
    """Follow a log, remember its last checkpoint, and alarm when it does not extend what it said before."""
    fetch = HttpFetch(url)
    beside = HttpFetch(url.rstrip("/").removesuffix("/log")) if url.rstrip("/").endswith("/log") else None
    keys = [CosignerKey.parse(text) for text in witness or ()]
    if quorum > len(keys):
        raise PolicyError("--quorum", expected=f"at most {len(keys)}, the number of --witness", found=quorum)
    manifest = None if beside is None else lambda: beside("v1/manifest", limits.SIGNED_BYTES)
    follower = Monitor(fetch, _key(trust), state, keys, quorum, entries, manifest)
    try:
        while True:
            try:
                _tell(follower.look(), as_json)
            except (ForkError, TwoHeadsError) as error:
                if as_json:
                    state_now = "forked" if isinstance(error, ForkError) else error.code
                    facts = {"state": state_now, "what": error.what, "evidence": str(error.evidence)}
                    print(json.dumps(facts), flush=True)
                raise
            except VerificationError as error:
                if once:
                    raise
                print(f"warning: {error}", file=sys.stderr, flush=True)  # a log that is away is asked again
            if once:
                return 0
            time.sleep(every)
    finally:
        fetch.close()
        if beside is not None:
            beside.close()


def _tell(look: Look, as_json: bool) -> None:
    old, new = look.old, look.new
    state = "stale" if look.stale else "first" if old is None else "grown" if new.size > old.size else "unchanged"
    if as_json:
        facts = {"state": state, "size": new.size, "root": new.root.hex(), "old": None if old is None else old.size}
        print(json.dumps({**facts, "witnesses": list(look.witnesses), "entries": look.entries}), flush=True)
        return
    cosigned = f", cosigned by {', '.join(look.witnesses)}" if look.witnesses else ""
    before = old.size if old else 0
    said = {
        "first": f"{new.origin}: {new.size:,} entries, remembered",
        "grown": f"{new.origin}: {new.size:,} entries, consistent with the {before:,} seen before",
        "unchanged": f"{new.origin}: {new.size:,} entries, unchanged",
        "stale": f"{new.origin}: {new.size:,} entries, consistent with the {before:,} seen before, but fewer",
    }
    print(said[state] + cosigned, flush=True)


def _key(text: str) -> PublicKey:
    keys = read_public(text)
    if len(keys) > 1:
        raise PolicyError("the log's key", expected="one key", found=f"{len(keys)} keys in {text}")
    return keys[0]
