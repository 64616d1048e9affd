"""A provider's chain of keys for people: who follows whom since when, and what counts no more and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verifiable.cli import printable
from verifiable.manifest.chain import Chain
from verifiable.manifest.statements import Role
from verifiable.wire.keys import PublicKey
from verifier.report.show import moment


def lines(chain: Chain) -> list[str]:
    """Each key that the user trusts, and below it what the statements say of it and by it."""
    told = []
    for key in chain.trusted:
        told.append(f"You trust {key.label}")
        told += [f"  {moment(time)}  {what}" for time, what in sorted(_events(chain, key))]
    logs = sorted((said.time, said.old.label, said.new.label) for said in chain.followed if said.role is Role.LOG)
    told += [f"{moment(time)}  log key {old} is followed by {new}" for time, old, new in logs]
    told += [f"left out: {what}" for what in chain.ignored]
    counting = [key.label for key in chain if chain.revoked(key) is None]
    told.append(f"Manifests count by: {', '.join(counting) or 'no key; each was revoked'}")
    return [printable(line) for line in told]


def _events(chain: Chain, root: PublicKey) -> Iterator[tuple[int, str]]:
    """What became of one provider's keys and of what its manifests name; nothing where an older key is trusted."""
    own = {key.kid for key in chain.keys if chain.root_of(key) == root}
    for said in chain.followed:
        if said.role is Role.PROVIDER and said.old.kid in own:
            yield said.time, f"provider key {said.old.label} is followed by {said.new.label}"
    for each in chain.revocations:
        role, key = each.said.role, each.said.key
        if key.kid in own if role is Role.PROVIDER else own and each.signer.kid in chain.entitled(root):
            where = "" if role is Role.PROVIDER else ", where its manifests name it"
            what = f"{role.words} {key.label} is revoked by {each.signer.label}{where}: {each.said.reason}"
            yield each.said.time, what


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
