"""Which keys follow from those that the user trusts, and which of them count no more. Rules: spec/keys.md."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import overload

from verifiable.errors import VerifiableError, VerificationError
from verifiable.manifest.statements import REVOCATION, SUCCESSION, Revocation, Role, Succession
from verifiable.wire.cose import peek1
from verifiable.wire.keys import PublicKey


@dataclass(frozen=True, slots=True)
class Revoked:
    """A revocation, and the provider key that signed it."""

    said: Revocation
    signer: PublicKey


@dataclass(frozen=True, slots=True)
class Chain(Sequence[PublicKey]):
    """The provider keys that count: those that the user trusts, and all that succeed them. As a sequence it is `keys`,
    and stands wherever trusted keys do.

    Attributes:
        trusted: the keys that the user trusts; of two with the same bytes the first.
        keys: those, and their successors.
        followed: the successions that lead from key to key, of providers and of logs.
        named: all successions that hold, followed or not.
        revocations: those that count, of session and log keys against what their signer's manifests name.
        ignored: which statements count for nothing, and why, in words.
        statements: all that it was made of, as they were signed.
    """

    trusted: tuple[PublicKey, ...]
    keys: tuple[PublicKey, ...]
    followed: tuple[Succession, ...] = ()
    named: tuple[Succession, ...] = ()
    revocations: tuple[Revoked, ...] = ()
    ignored: tuple[str, ...] = ()
    statements: tuple[bytes, ...] = ()

    @classmethod
    def follow(cls, trust: Iterable[PublicKey], statements: Iterable[bytes] = ()) -> Chain:
        """Follow the successions from each key that the user trusts.

        Nothing raises here: what does not hold is no statement, and whoever needs it meets an `untrusted-key`.
        """
        first: dict[bytes, PublicKey] = {}
        for key in trust:
            first.setdefault(key.kid, key)
        trusted = tuple(first.values())
        statements = tuple(dict.fromkeys(statements))
        successions, revocations, ignored = _read(statements, trusted)
        providers = [said for said in successions if said.role is Role.PROVIDER]
        own = [each for each in revocations if each.said.role is Role.PROVIDER and each.signer.kid == each.said.key.kid]
        links = _links(providers, {each.said.key.kid for each in own}, ignored)
        keys = {key.kid: key for start in trusted for key in _walk(start, links)} | first
        may = _named_by(first, providers)
        counted = []
        for each in revocations:
            by = may if each.said.role is not Role.PROVIDER else may & _named_by([each.said.key.kid], providers)
            if each.signer.kid in by:
                counted.append(each)
            else:
                ignored.append(f"the revocation of {each.said.key.label}: {each.signer.label} may not revoke it")
        logs = _links([said for said in successions if said.role is Role.LOG], set(), ignored)
        followed = (*(said for said in links.values() if said.old.kid in keys), *logs.values())
        return cls(
            trusted, tuple(keys.values()), followed, tuple(successions), tuple(counted), tuple(ignored), statements
        )

    @classmethod
    def of(cls, trust: Iterable[PublicKey]) -> Chain:
        """A chain as it is; or trusted keys of which nothing else is known."""
        return trust if isinstance(trust, Chain) else cls.follow(trust)

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> PublicKey: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PublicKey, ...]: ...
    def __getitem__(self, index: int | slice) -> PublicKey | tuple[PublicKey, ...]:
        return self.keys[index]

    @property
    def advice(self) -> str:
        """What to do where a key is none of the chain; empty where nothing is known."""
        left = f" Left out: {'; '.join(self.ignored[:3])}." if self.ignored else ""
        return f"If the provider changed its key, its keys file leads from yours to it (GET /v1/keys).{left}"

    def after(self, key: PublicKey) -> tuple[PublicKey, ...]:
        """A provider key, and those that succeed it."""
        return _walk(key, self._links(Role.PROVIDER))

    def logs(self, key: PublicKey) -> tuple[PublicKey, ...]:
        """A log's key, and those that succeed it under its name, oldest first: who it is, revoked or not."""
        return _walk(key, {kid: said for kid, said in self._links(Role.LOG).items() if said.old.name == key.name})

    def root_of(self, key: PublicKey) -> PublicKey | None:
        """The key by which the user trusts a provider key, the oldest of several; None where it is none of the chain.

        It stands for the provider: what two keys with one root signed, one provider signed. Keys that lead to one key
        are one provider's.
        """
        if not any(each.kid == key.kid for each in self.keys):
            return None
        links = [said for said in self.followed if said.role is Role.PROVIDER]
        family = {key.kid}
        for _ in links:
            family |= {kid for said in links if family & (ends := {said.old.kid, said.new.kid}) for kid in ends}
        roots = [root for root in self.trusted if root.kid in family]
        return max(roots, key=lambda root: (len(self.after(root)), root.kid))

    def whole(self) -> Chain:
        """The same with all keys that these ever named as successors, followed or not: who can speak against the
        provider, which must not name one more to escape what it signed.
        """
        named = [said for said in self.named if said.role is Role.PROVIDER]
        reached = _named_by([key.kid for key in self.trusted], named)
        keys = {said.new.kid: said.new for said in named if said.new.kid in reached} | {
            key.kid: key for key in self.keys
        }
        logs = [said for said in self.followed if said.role is Role.LOG]
        followed = (*(said for said in named if said.old.kid in reached), *logs)
        return replace(self, keys=tuple(keys.values()), followed=followed)

    def related(self, key: PublicKey) -> tuple[PublicKey, ...]:
        """All keys of the provider that a key is of."""
        root = self.root_of(key)
        return (key,) if root is None else tuple(each for each in self.keys if self.root_of(each) == root)

    def name_of(self, key: PublicKey) -> str:
        """A provider key for people, by the key that the user trusts: "acme+bfbdef38, now acme+91c0a2d7"."""
        root = self.root_of(key)
        return key.label if root is None else root.label if root.kid == key.kid else f"{root.label}, now {key.label}"

    def logs_now(self, key: PublicKey, under: PublicKey) -> tuple[PublicKey, ...]:
        """Which of these may sign a checkpoint today, where the manifest by `under` names the log's key: none that is
        revoked, and none that one named when it was.

        Raises VerificationError (`key-revoked`): none.
        """
        links = self._links(Role.LOG)
        counting, first = [], None
        for each in self.logs(key):
            ended = self.revoked(each, Role.LOG, under)
            if ended is None:
                counting.append(each)
            first = first or ended
            if ended is not None and each.kid in links and ended.time <= links[each.kid].time:
                break
        if not counting:
            found = "" if first is None else first.reason
            raise VerificationError(
                "the log's key was revoked", code="key-revoked", expected="a key that succeeds it", found=found
            )
        return tuple(counting)

    def log_family(self, key: PublicKey) -> tuple[PublicKey, ...]:
        """A log's key with all that it ever named as its successors, or that named it, followed or not: who can speak
        against the log's provider. Of two successors that a provider names, neither lets it escape.
        """
        family = {key.kid: key}
        links = [said for said in self.named if said.role is Role.LOG and said.old.name == key.name]
        for _ in links:
            for said in links:
                if said.old.kid in family or said.new.kid in family:
                    family |= {said.old.kid: said.old, said.new.kid: said.new}
        return tuple(family.values())

    def entitled(self, under: PublicKey) -> set[bytes]:
        """Whose revocations count against a provider key and what its manifests name: its own, and those of all that it
        ever named as successors. Keys' bytes.
        """
        return _named_by([under.kid], [said for said in self.named if said.role is Role.PROVIDER])

    def revoked(self, key: PublicKey, role: Role = Role.PROVIDER, under: PublicKey | None = None) -> Revocation | None:
        """The earliest revocation of a key in a role, None where there is none.

        `under` is the provider key whose manifest names a session's or a log's key: only that key and its successors
        can revoke what it named.
        """
        entitled = None if under is None else self.entitled(under)
        found = [
            each.said
            for each in self.revocations
            if each.said.role is role
            and each.said.key.kid == key.kid
            and (entitled is None or each.signer.kid in entitled)
        ]
        return min(found, key=lambda said: said.time, default=None)

    def _links(self, role: Role) -> dict[bytes, Succession]:
        return {said.old.kid: said for said in self.followed if said.role is role}


def _read(
    statements: Iterable[bytes], trusted: Sequence[PublicKey]
) -> tuple[list[Succession], list[Revoked], list[str]]:
    """The statements that are signed as they must be, and what the others lack. A revocation may come first."""
    successions, revocations, ignored = [], [], []
    others = []
    for number, data in enumerate(statements, 1):
        try:
            kind = peek1(data).typ
            if kind == SUCCESSION:
                successions.append(Succession.open(data))
            elif kind == REVOCATION:
                others.append((number, data))
            else:
                ignored.append(f"statement {number}: of the unknown type {kind!a}")
        except VerifiableError as error:
            ignored.append(f"statement {number}: {error.statement}")
    news = [said.new for said in successions if said.role is Role.PROVIDER]
    signers = list({key.kid: key for key in (*news, *trusted)}.values())
    for number, data in others:
        try:
            revocations.append(Revoked(*Revocation.open(data, signers)))
        except VerifiableError as error:
            ignored.append(f"statement {number}: {error.statement}")
    return successions, revocations, ignored


def _links(successions: Sequence[Succession], ended: Collection[bytes], ignored: list[str]) -> dict[bytes, Succession]:
    """The one succession of each old key. One that has ended names no successor, whatever time its thief gives, and one
    with two has none: nobody can tell which of them the thief named.
    """
    links: dict[bytes, Succession] = {}
    two = set()
    for said in sorted(successions, key=lambda said: said.time):
        if said.old.kid in ended:
            ignored.append(f"the succession of {said.old.label} by {said.new.label}: the old key revoked itself")
        elif links.setdefault(said.old.kid, said).new.kid != said.new.kid:
            two.add(said.old.kid)
            first = links[said.old.kid].new.label
            ignored.append(f"{said.old.label} has two successors, {first} and {said.new.label}: neither is followed")
    return {kid: said for kid, said in links.items() if kid not in two}


def _named_by(starts: Iterable[bytes], successions: Iterable[Succession]) -> set[bytes]:
    """Keys, and all that they ever named as successors, followed or not: who may revoke them.

    A thief of a key can name a second successor, so that neither is followed. What the first revoked stays revoked.
    """
    after: dict[bytes, list[bytes]] = {}
    for said in successions:
        after.setdefault(said.old.kid, []).append(said.new.kid)
    named = set(starts)
    waiting = list(named)
    while waiting:
        new = set(after.get(waiting.pop(), ())) - named
        named |= new
        waiting += new
    return named


def _walk(start: PublicKey, links: Mapping[bytes, Succession]) -> tuple[PublicKey, ...]:
    """A key and its successors, each once."""
    keys = {start.kid: start}
    said = links.get(start.kid)
    while said is not None and said.new.kid not in keys:
        keys[said.new.kid] = said.new
        said = links.get(said.new.kid)
    return tuple(keys.values())
