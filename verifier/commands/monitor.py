"""`verifiable log monitor`: follow a log from outside, with the base install."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from verifiable.checking.verdict import INCONCLUSIVE_CODES, Status
from verifiable.cli import complain_of
from verifiable.errors import PolicyError, VerificationError
from verifiable.wire.key_file import read_public
from verifiable.wire.keys import PublicKey
from verifier.commands import files
from verifier.commands.options import Keys, Needed, Witness
from verifier.monitor.fetch import HttpFetch
from verifier.monitor.monitor import ForkError, Look, Monitor, TwoHeadsError
from verifier.provider.client import Client


def monitor(
    url: Annotated[str, typer.Argument(help="The log's URL, as https://provider.example/log.")],
    trust: Annotated[str, typer.Option(help="The log's verifier key, or a file with it.")],
    state: Annotated[Path, typer.Option(help="Folder that remembers the last checkpoint; made when missing.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 60,
    once: Annotated[bool, typer.Option("--once", help="Look once, and stop.")] = False,
    entries: Annotated[
        bool,
        typer.Option(
            "--entries", help="Read every entry too, and look for heads of one session that contradict each other."
        ),
    ] = False,
    provider: Annotated[
        str | None,
        typer.Option(
            help="The provider's URL, for --entries: it shows which heads continue which. The log's, without /log."
        ),
    ] = None,
    keys: Keys = None,
    witness: Witness = None,
    quorum: Needed = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each look.")] = False,
) -> int:
    """Follow a log, remember its last checkpoint, and alarm when it does not extend what it said before."""
    if provider is None and url.rstrip("/").endswith("/log"):
        provider = url.rstrip("/").removesuffix("/log")
    named = files.read_quorum(witness, quorum)
    fetch, beside = HttpFetch(url), None if provider is None else Client(provider)
    follower = Monitor(
        fetch,
        _key(trust),
        state,
        named.witnesses,
        named.needed,
        entries,
        None if beside is None else beside.manifest,
        None if beside is None else beside.continuation,
        None if beside is None else beside.keys,
        files.read_chain([], keys).statements,
    )
    try:
        while True:
            try:
                look = follower.look()
                _tell(look, as_json)
            except (ForkError, TwoHeadsError) as error:
                if as_json:
                    state_now = "forked" if isinstance(error, ForkError) else error.code
                    facts = {"state": state_now, "what": error.what, "evidence": str(error.evidence)}
                    print(json.dumps(facts), flush=True)
                raise
            except VerificationError as error:
                if once:
                    if error.code in INCONCLUSIVE_CODES:  # nothing is proven against the log: not the status of a fork
                        complain_of(error)
                        return Status.INCONCLUSIVE.exit_code
                    raise
                print(f"warning: {error}", file=sys.stderr, flush=True)  # a log that is away is asked again
            if once:
                return Status.INCONCLUSIVE.exit_code if look.unshown else 0
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
        facts |= {"witnesses": list(look.witnesses), "entries": look.entries, "unshown": look.unshown}
        facts["kinds"] = dict(look.kinds)
        print(json.dumps(facts), flush=True)
        return
    cosigned = f", cosigned by {', '.join(look.witnesses)}" if look.witnesses else ""
    before = old.size if old else 0
    said = {
        "first": f"{new.origin}: {new.size:,} entries, remembered",
        "grown": f"{new.origin}: {new.size:,} entries, consistent with the {before:,} seen before",
        "unchanged": f"{new.origin}: {new.size:,} entries, unchanged",
        "stale": f"{new.origin}: {new.size:,} entries, consistent with the {before:,} seen before, but fewer",
    }
    heads = f"; {look.unshown:,} heads are not shown to continue their sessions' earlier ones" if look.unshown else ""
    read = ", ".join(f"{count:,} of kind {kind}" for kind, count in sorted(look.kinds.items()))
    print(said[state] + cosigned + (f"; read {read}" if read else "") + heads, flush=True)


def _key(text: str) -> PublicKey:
    keys = read_public(text)
    if len(keys) > 1:
        raise PolicyError("the log's key", expected="one key", found=f"{len(keys)} keys in {text}")
    return keys[0]
