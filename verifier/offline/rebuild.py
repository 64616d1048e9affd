"""From token ids and recomputed records back to the leaves of a log, and their comparison with a signed root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verifiable.checking.checks import OpenedTurn
from verifiable.errors import VerificationError
from verifiable.sampling.logits import Entries
from verifiable.session import records
from verifiable.session.head import Head
from verifiable.session.opening import Opening
from verifiable.session.records import Source, Token
from verifiable.tlog.merkle import Tree, leaf_hash, node_hash, prefix_path, split


@dataclass(frozen=True, slots=True)
class Claim:
    """The tokens of a turn as the evidence claims them: ids, sources, and (decode step, row in it)."""

    ids: tuple[int, ...]
    sources: tuple[Source, ...]
    steps: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, turn: OpenedTurn) -> Claim:
        """What an opened turn claims; call only where `turn.whole`."""
        if turn.tokens is not None:
            ids, sources, fresh = turn.tokens.unpack()
            return cls(tuple(ids), tuple(sources), tuple(turn.tokens.steps(fresh)))
        shown = turn.records
        return cls(
            tuple(token.token for token in shown),
            tuple(token.source for token in shown),
            tuple((token.step, token.row) for token in shown),
        )


def leaf_hashes(turn: OpenedTurn, claim: Claim, entries: Sequence[Entries]) -> list[bytes]:
    """The hashes of a turn's first token leaves, with these entries as their records."""
    leaf, first = turn.leaf, turn.first
    tokens = (
        Token(
            leaf.session,
            first + index,
            records.salt(turn.secret, first + index),
            leaf.turn,
            leaf.prompt_count + index,
            claim.ids[index],
            claim.sources[index],
            *claim.steps[index],
            entries=entry,
        )
        for index, entry in enumerate(entries)
    )
    return [leaf_hash(token.encode()) for token in tokens]


@dataclass(frozen=True, slots=True)
class Bound:
    """A signed root together with what it says: leaves shown whole, and subtrees (low, high, hash) of hidden ones."""

    opening: Opening
    size: int
    root: bytes
    subtrees: tuple[tuple[int, int, bytes], ...]

    @classmethod
    def of(cls, opening: Opening, head: Head) -> Bound:
        """Call only after the opening was checked against the head."""
        return cls(opening, head.size, head.root, tuple(opening.hidden(head.size)))

    def prefix(self, size: int) -> list[bytes] | None:
        """The hashes from which its root of the first `size` leaves follows (`merkle.prefix_path`), 0 < size < its own.

        None where the opening hides them: it shows all where it shows the leaf before or after that place.
        """
        known = {(low, high): value for low, high, value in self.subtrees}

        def value(low: int, high: int) -> bytes:
            if (low, high) in known:
                return known[low, high]
            if high - low == 1:
                return leaf_hash(self.opening.leaves[low])
            middle = low + split(high - low)
            return node_hash(value(low, middle), value(middle, high))

        try:
            return prefix_path(value, size, self.size)
        except KeyError:  # a leaf within a subtree that is hidden as one
            return None

    def first_difference(self, first: int, hashes: Sequence[bytes]) -> tuple[int, int] | None:
        """The lowest range [low, high) of leaves in which `hashes` (of leaves `first`…) contradict the root.

        None where all agree. Raises VerificationError (`incomplete`) where the root says nothing about some of them.
        """
        end = first + len(hashes)
        covered = 0
        differing: list[tuple[int, int]] = []
        for index, data in self.opening.leaves.items():
            if first <= index < end:
                covered += 1
                if leaf_hash(data) != hashes[index - first]:
                    differing.append((index, index + 1))
        for low, high, value in self.subtrees:
            if first <= low and high <= end:
                covered += high - low
                if Tree.from_leaves(hashes[low - first : high - first]).root() != value:
                    differing.append((low, high))
        if covered != len(hashes):
            raise VerificationError(
                "the signed log does not reach over the whole turn",
                code="incomplete",
                expected=f"leaves {first} to {end - 1}",
                found=f"{covered} of {len(hashes)} covered",
            )
        return min(differing, default=None)


def check_same_history(one: Bound, other: Bound) -> None:
    """Step 18. Raise VerificationError (`two-histories`) where two signed heads of one session contradict each other.

    It compares what both show, as leaves or as hashes of the same leaves; and what one shows and the other hides, which
    is a token there. Call only with openings that show every other leaf. Leaves that one of them hides in a larger
    subtree are compared when they have been recomputed (`Bound.first_difference`).
    """
    if one.size == other.size and one.root != other.root:
        raise _two_histories("the root", one.root.hex(), other.root.hex())
    for index in one.opening.leaves.keys() & other.opening.leaves.keys():
        if one.opening.leaves[index] != other.opening.leaves[index]:
            mine, theirs = (leaf_hash(each.opening.leaves[index]).hex() for each in (one, other))
            raise _two_histories(f"leaf {index}", mine, theirs)
    for hidden, shown in ((one, other), (other, one)):
        places = _landmarks(shown).keys() - hidden.opening.leaves.keys()
        if (at := min(places, default=hidden.size)) < hidden.size:
            raise _two_histories(f"leaf {at}", "a token", "none")
        known = {(low, high): value for low, high, value in shown.subtrees}
        for low, high, value in hidden.subtrees:
            leaves = shown.opening.leaves
            if high - low <= len(leaves) and all(index in leaves for index in range(low, high)):
                known[low, high] = Tree.from_leaves([leaf_hash(leaves[index]) for index in range(low, high)]).root()
            if known.get((low, high), value) != value:
                raise _two_histories(f"leaves {low} to {high - 1}", value.hex(), known[low, high].hex())


def _landmarks(bound: Bound) -> dict[int, bytes]:
    """The leaves shown that are no tokens. They were parsed before: after the array's head comes the kind."""
    return {index: data for index, data in bound.opening.leaves.items() if data[1] != Token.kind}


def _two_histories(where: str, one: str, other: str) -> VerificationError:
    return VerificationError(
        f"the provider signed two histories of one session: {where} differs",
        code="two-histories",
        expected=one,
        found=other,
        hint="Keep both files: together they prove it to anyone who trusts the provider's key.",
    )
