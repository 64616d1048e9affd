"""A provider's chain of keys for people: who follows whom since when, and what counts no more and why."""

from __future__ import annotations

from typing import Any

from verifiable.cli import printable
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import Role
from verifier.report.show import moment


def lines(chain: Chain) -> list[str]:
    """Each key that the user trusts, and below it what the statements say."""
    events = [
        (said.time, f"{said.role.words} {said.old.label} is followed by {said.new.label}") for said in chain.followed
    ]
    events += [
        (
            each.said.time,
            f"{each.said.role.words} {each.said.key.label} is revoked by {each.signer.label}: {each.said.reason}",
        )
        for each in chain.revocations
    ]
    told = [f"You trust {key.label}" for key in chain.trusted]
    told += [f"  {moment(time)}  {what}" for time, what in sorted(events)]
    told += [f"  left out: {what}" for what in chain.ignored]
    counting = [key.label for key in chain if chain.revoked(key) is None]
    told.append(f"Manifests count by: {', '.join(counting) or 'no key; each was revoked'}")
    return [printable(line) for line in told]


def facts(chain: Chain) -> dict[str, Any]:
    """The same as JSON values."""
    return {
        "trusted": [key.vkey() for key in chain.trusted],
        "keys": [
            {"key": key.vkey(), "trusted_by": None if root is None else root.vkey(), "revoked": said and said.time}
            for key in chain
            for root, said in [(chain.root_of(key), chain.revoked(key))]
        ],
        "successions": [
            {"role": _name(said.role), "old": said.old.vkey(), "new": said.new.vkey(), "time": said.time}
            for said in chain.followed
        ],
        "revocations": [
            {
                "role": _name(each.said.role),
                "key": each.said.key.vkey(),
                "time": each.said.time,
                "reason": each.said.reason,
                "signer": each.signer.vkey(),
            }
            for each in chain.revocations
        ],
        "left_out": list(chain.ignored),
    }


def _name(role: Role) -> str:
    return role.name.lower()
