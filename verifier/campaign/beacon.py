"""Public randomness for a challenge: a beacon round that comes after what was published, so nobody chose it.

drand's JSON is read (drand.love, chained and unchained schemes): a round's randomness is SHA-256 of its signature.
The signature is checked where the extra `beacon` is installed (`bls`). Without it a round is only as true as
where it came from, and the report says so: no weaker than the auditor's own randomness, since it is the auditor who
fetches it, but it convinces no third party until that party checks the round at the beacon.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verifiable import files
from verifiable.checking.caveats import Caveat
from verifiable.errors import MalformedError, VerificationError
from verifiable.wire.text import from_hex

MAX_BYTES = 1 << 16
_TAG = b"verifiable-inference/v2/challenge/beacon\n"


@dataclass(frozen=True, slots=True)
class Chain:
    """A drand network, as its /info states it: its hash and public key (hex), when its round 1 was (seconds since
    1970), and the seconds between rounds.
    """

    hash: str
    genesis: int
    period: int
    key: str

    def time_of(self, number: int) -> int:
        """When round `number` was due, in ms since 1970."""
        return 1000 * (self.genesis + (number - 1) * self.period)


QUICKNET = Chain(
    "52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971",
    1692803367,
    3,
    "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d1064510d1fec758c921cc22b0e"
    "17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a",
)
"""drand's unchained network with a round every 3 seconds."""
DEFAULT = Chain(
    "8990e7a9aaed2ffed73dbd7092123d6f289930540d7651336225dc172e51b2ce",
    1595431050,
    30,
    "868f005eb8e6e4ca0a47c8a77ceaa5309a47978a7c71bc5cce96366b5d7a569937c529eeda66c7293784a9402801af31",
)
"""drand's first public network, chained, with a round every 30 seconds."""
CHAINS = {"quicknet": QUICKNET, "default": DEFAULT}


@dataclass(frozen=True, slots=True)
class Round:
    """A round: number, randomness (32 bytes), signature, and the signature before it on chained networks."""

    number: int
    randomness: bytes
    signature: bytes
    previous: bytes = b""

    def seed(self, chain: Chain, provider: bytes) -> bytes:
        """The challenge's seed: SHA-256(tag, chain hash, round, randomness, provider).

        `provider` is the SHA-256 of what the provider had published when the round came (its list, or its checkpoint).
        """
        number = self.number.to_bytes(8, "big")
        return hashlib.sha256(_TAG + bytes.fromhex(chain.hash) + number + self.randomness + provider).digest()

    @classmethod
    def parse(cls, data: bytes) -> Round:
        """Read drand's JSON strictly: known fields only, lower-case hex, randomness = SHA-256(signature).

        Raises:
            MalformedError: it is not that.
            VerificationError: the randomness is not the signature's (`bad-signature`).
        """
        if len(data) > MAX_BYTES:
            raise MalformedError("beacon round", expected=f"at most {MAX_BYTES} bytes", found=len(data))
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise MalformedError("beacon round", expected="JSON", found=str(error)) from None
        known = {"round", "randomness", "signature", "previous_signature"}
        if not isinstance(value, dict) or not {"round", "signature"} <= set(value) <= known:
            raise MalformedError("beacon round", expected=", ".join(sorted(known)), found=str(value)[:80])
        number = value["round"]
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number < 2**53:
            raise MalformedError("beacon round: round", expected="a whole number from 1", found=str(number)[:80])
        signature = _hex(value, "signature", (48, 96))
        computed = hashlib.sha256(signature).digest()
        stated = _hex(value, "randomness", (32,)) if "randomness" in value else computed
        if stated != computed:
            raise VerificationError(
                "the beacon's randomness is not that of its signature",
                code="bad-signature",
                expected=computed.hex(),
                found=stated.hex(),
            )
        previous = _hex(value, "previous_signature", (48, 96)) if "previous_signature" in value else b""
        return cls(number, computed, signature, previous)


class FileBeacon:
    """A round that the auditor fetched and keeps in a file, e.g. from https://api.drand.sh/CHAIN/public/ROUND.

    `verify` raises VerificationError unless the round's signature is the network's.

    Raises:
        OSError: there is no such file.
        MalformedError, VerificationError: it holds no round, or `verify` refuses its signature.
    """

    def __init__(self, path: Path, chain: Chain, verify: Callable[[Round, Chain], None] | None = None) -> None:
        self.round = Round.parse(files.read(path, MAX_BYTES))
        self.chain = chain
        self.verified = verify is not None
        if verify is not None:
            verify(self.round, chain)

    @property
    def time(self) -> int:
        """When the round was due, in ms since 1970. What a provider signed later, it may have chosen knowing it."""
        return self.chain.time_of(self.round.number)

    def __str__(self) -> str:
        names = [name for name, chain in CHAINS.items() if chain == self.chain]
        when = datetime.datetime.fromtimestamp(self.time / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        checked = "its signature was checked" if self.verified else "its signature was not checked"
        return f"drand {names[0] if names else self.chain.hash}, round {self.round.number} of {when}; {checked}"

    def caveats(self) -> list[Caveat]:
        """What a draw from it does not rest on."""
        return [Caveat("beacon-before"), *([] if self.verified else [Caveat("beacon-not-checked")])]

    def to_json(self) -> dict[str, Any]:
        return {
            "chain": self.chain.hash,
            "round": self.round.number,
            "time": self.time,
            "randomness": self.round.randomness.hex(),
            "signature": self.round.signature.hex(),
            "signature_checked": self.verified,
        }


def _hex(value: dict[str, Any], name: str, lengths: tuple[int, ...]) -> bytes:
    for length in lengths:
        data = from_hex(value[name], length)
        if data is not None:
            return data
    expected = f"{' or '.join(map(str, lengths))} bytes in hex"
    raise MalformedError(f"beacon round: {name}", expected=expected, found=str(value[name])[:80])
