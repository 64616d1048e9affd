"""Options of `verifiable audit`, in the groups in which its help shows them, and those that `verify` has too."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from verifiable.commands.groups import group
from verifiable.errors import MalformedError, PolicyError
from verifier.campaign.beacon import CHAINS, FileBeacon

Trust = Annotated[
    list[str],
    typer.Option(help="The provider's public key: a file, or the key itself. May be given several times."),
]
Keys = Annotated[
    list[Path] | None,
    typer.Option(help="The provider's keys file: it leads from the key that you trust to later ones. May be repeated."),
]
MergeDelay = Annotated[
    str, typer.Option(help="Time within which the provider promises to log a head: 90s, 10m, 24h.", show_default=True)
]
Text = Annotated[Path | None, typer.Option(help="The answer exactly as it was received, in a file.")]
RequestFile = Annotated[
    Path | None, typer.Option(help="The request as you sent it: its JSON body, canonical form, or your exchange file.")
]
Nonce = Annotated[str | None, typer.Option(help="The nonce that you sent (16 to 128 hex digits).")]
Witness = Annotated[list[str] | None, typer.Option(help="The key of a witness whom you trust; may be repeated.")]
Needed = Annotated[
    int | None, typer.Option("--quorum", min=1, help="How many of the witnesses must have cosigned; all by default.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@group("Your copy")
class CopyOptions:
    """What a client kept of its own: of the receipt's turn, or of the last turn that evidence opens."""

    text: Text = None
    request: RequestFile = None
    nonce: Nonce = None

    @property
    def given(self) -> bool:
        return (self.text, self.request, self.nonce) != (None, None, None)


@group("Provider")
class ProviderOptions:
    """How to reach the provider, and what it promised."""

    provider: Annotated[str | None, typer.Option(help="The provider's URL, to audit a receipt.")] = None
    keys: Keys = None
    auditor_key: Annotated[
        str | None,
        typer.Option(
            envvar="VERIFIABLE_AUDITOR_KEY", show_envvar=True, help="The key that the operator issued, or its file."
        ),
    ] = None
    state: Annotated[
        Path | None, typer.Option(help="Folder in which the auditor remembers what a provider has shown it.")
    ] = None
    merge_delay: MergeDelay = "48h"
    witness: Witness = None
    quorum: Needed = None


@group("Draw")
class DrawOptions:
    """Which sessions and turns are audited."""

    sessions: Annotated[int, typer.Option(min=1, help="How many sessions of a URL to draw.")] = 20
    rate: Annotated[float | None, typer.Option(help="Draw this share of the sessions, instead of a number.")] = None
    receipts: Annotated[
        Path | None,
        typer.Option(help="Folder of receipts of clients that you know: as many of their sessions are drawn, too."),
    ] = None
    turns: Annotated[int | None, typer.Option(min=1, help="Most turns of a session to draw; all by default.")] = None
    budget: Annotated[str | None, typer.Option(help="Begin no session after this time: 90s, 10m, 1.5h.")] = None
    seed: Annotated[str | None, typer.Option(help="Repeat the draw of an earlier audit (64 hex digits).")] = None
    beacon: Annotated[
        Path | None, typer.Option(help="Seed from a drand round (its JSON in a file), instead of this machine's own.")
    ] = None
    chain: Annotated[str, typer.Option(help="The beacon's network: quicknet or default.")] = "quicknet"

    def __post_init__(self) -> None:
        if self.rate is not None and not 0.0 < self.rate <= 1.0:
            raise PolicyError("--rate", expected="above 0 and at most 1", found=self.rate)

    def read_beacon(self) -> FileBeacon | None:
        """The beacon's round. Raises MalformedError, PolicyError or OSError (its file)."""
        if self.beacon is None:
            return None
        if self.seed is not None:
            raise PolicyError("--seed and --beacon exclude each other", expected="one of them", found="both")
        if self.chain not in CHAINS:
            raise PolicyError("no such beacon network", expected=", ".join(CHAINS), found=self.chain)
        if find_spec("py_ecc") is None:
            return FileBeacon(self.beacon, CHAINS[self.chain])
        from verifier.campaign.bls import verify_round  # what it imports is an extra of its own

        return FileBeacon(self.beacon, CHAINS[self.chain], verify_round)


@group("This machine")
class MachineOptions:
    """What this machine gives to the audit."""

    threads: Annotated[int, typer.Option(min=1, max=512, help="Threads for the model.")] = 1
    processes: Annotated[
        int,
        typer.Option(min=1, max=512, help="Processes that audit a URL's sessions side by side."),
    ] = 1
    calibration: Annotated[
        Path | None,
        typer.Option(help="What `verifiable calibrate` wrote, for machines whose numerics differ."),
    ] = None


@group("Fleet")
class FleetOptions:
    """Audits over Ray."""

    fleet: Annotated[
        str | None, typer.Option(help="Audit a folder of evidence over Ray: local, or a cluster's ray://HOST:PORT.")
    ] = None
    workers: Annotated[int, typer.Option(min=1, max=10_000, help="Auditors of a fleet at the same time.")] = 2
    results: Annotated[Path, typer.Option(help="Folder for a fleet's results, in Parquet.")] = Path("fleet-results")


@group("Result")
class ResultOptions:
    """What is written, and where."""

    as_json: Json = False
    html: Annotated[Path | None, typer.Option(help="Write a report for people, in one file.")] = None
    sign: Annotated[
        Path | None, typer.Option(help="Sign the result with the key in this file, which is made when missing.")
    ] = None
    signed_report: Annotated[Path, typer.Option(help="Where --sign writes.")] = Path("audit.report")
    save: Annotated[Path | None, typer.Option(help="Keep all evidence in this folder.")] = None


def parse_seed(text: str) -> bytes:
    """A challenge seed as people write it. Raises MalformedError."""
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        seed = b""
    if len(seed) != 32 or seed.hex() != text.lower():
        raise MalformedError("the seed", expected="64 hexadecimal digits", found=text)
    return seed
