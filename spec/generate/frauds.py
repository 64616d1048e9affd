"""Vectors of files that prove fraud by themselves, and of files that prove nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spec.generate.cases import VectorFile
from spec.generate.receipts import TRUST, turn_of
from spec.generate.world import (
    HOUR,
    LOG_KEY,
    MANIFEST,
    OPENED,
    OTHER,
    PROVIDER,
    SESSION_KEY,
    Story,
    asked,
    digest,
)
from verifiable.checking.fraud import Fraud, FraudKind
from verifiable.limits import MERGE_DELAY
from verifiable.sampling.sampler import acceptable
from verifiable.session.head import Head
from verifiable.session.opening import Opening
from verifiable.session.records import Token, Turn
from verifiable.tlog.checkpoint import Checkpoint, sign_checkpoint
from verifiable.tlog.merkle import Tree, leaf_hash, prefix_path
from verifiable.wire import encoding
from verifiable.wire.encoding import Map
from verifiable.wire.keys import PrivateKey
from verifiable.wire.sealed import seal
from verifiable.wire.text import write_base64

SIGNED = MANIFEST.sign(PROVIDER)


def fraud() -> VectorFile:
    file = VectorFile(
        "fraud",
        "input: a fraud file in base64. trusted: verifier keys of providers. delay: merge delay in milliseconds, a day "
        "by default. code: what it proves; nothing-checked where it proves nothing.",
    )
    _Frauds(file).all()
    return file


def missing(lost: bytes, checkpoint: bytes, opening: Opening, manifests: tuple[bytes, ...] = (SIGNED,)) -> Fraud:
    return Fraud(FraudKind.MISSING, manifests, (lost, checkpoint), opening)


class _Frauds:
    def __init__(self, file: VectorFile) -> None:
        self.file = file

    def add(self, name: str, expected: str, made: Fraud | bytes, trusted: list[str] = TRUST, **more: int) -> None:
        data = made if isinstance(made, bytes) else made.encode()
        self.file.add(name, expected, input=write_base64(data), trusted=trusted, **more)

    def all(self) -> None:
        self.two_heads()
        self.two_sizes()
        self.two_checkpoints()
        self.token()
        self.missing()
        self.damaged()

    def head(self, key: PrivateKey = SESSION_KEY, **changed: object) -> bytes:
        honest = Head(digest("session")[:16], 9, digest("root"), MANIFEST.digest(), OPENED)
        return replace(honest, **changed).sign(key)  # type: ignore[arg-type]

    def two_heads(self) -> None:
        one, other, nothing = self.head(), self.head(root=digest("another root")), "nothing-checked"

        def heads(name: str, expected: str, *signed: bytes, manifests: Sequence[bytes] = (SIGNED,)) -> None:
            self.add(f"two heads: {name}", expected, Fraud(FraudKind.TWO_HEADS, tuple(manifests), signed))

        heads("two roots for one size", "ok", one, other)
        later = replace(MANIFEST, valid_to=MANIFEST.valid_to + HOUR).sign(PROVIDER)
        heads("under two manifests", "ok", one, other, manifests=[SIGNED, later])
        heads("the same", nothing, one, one)
        heads("one root at two times", nothing, one, self.head(time=OPENED + 1))
        heads("two sizes", nothing, one, self.head(size=10, root=digest("another root")))
        heads("two sessions", nothing, one, self.head(session=bytes(16), root=digest("another root")))
        stranger = replace(MANIFEST, provider="other.example").sign(PROVIDER)
        heads("one key under two names", "ok", one, other, manifests=[SIGNED, stranger])
        framed = Fraud(FraudKind.TWO_HEADS, (SIGNED, MANIFEST.sign(OTHER)), (one, other))
        both = [*TRUST, OTHER.public.vkey()]
        self.add("two heads: one under another provider's key that borrows the name", nothing, framed, both)
        heads("one signed by somebody", "untrusted-key", one, self.head(OTHER, root=digest("another root")))
        heads("the first signed by somebody", "untrusted-key", self.head(OTHER), other)
        heads("one changed", "bad-signature", one, other[:-1] + bytes([other[-1] ^ 1]))
        self.add("nobody is trusted", "untrusted-key", Fraud(FraudKind.TWO_HEADS, (SIGNED,), (one, other)), [])

    def two_sizes(self) -> None:
        """A client was given `mine`; the log has a longer history that begins alike, or otherwise."""
        begun = Story.open("sizes").turn(asked(), 3)
        mine, other = begun.turn(asked(), 2), begun.turn(asked(), 3).turn(asked(), 4)
        longer, nothing = mine.turn(asked(), 9), "nothing-checked"

        def sizes(name: str, expected: str, one: Story, two: Story, of: Story | None = None) -> None:
            size = min(len(one.leaves), len(two.leaves) - 1)
            tree = (of or two).tree()
            path = tuple(prefix_path(tree.range, size, tree.size))
            signed = tuple(each.head().sign(SESSION_KEY) for each in (one, two))
            made = Fraud(FraudKind.TWO_SIZES, (SIGNED,), signed, Opening({}, path))
            self.add(f"two sizes: {name}", expected, made)

        sizes("another history under the larger head", "ok", mine, other)
        sizes("of a power of two", "ok", Story.open("sizes").turn(asked(max_tokens=20), 5), other)
        sizes("one that continues the other", nothing, mine, longer)
        sizes("that begin alike", nothing, begun, other)
        sizes("with hashes of another tree", nothing, mine, other, longer.cut(len(other.leaves)))
        third = begun.turn(asked(temperature=0.5), 3).turn(asked(), 4)
        sizes("with hashes of a third tree", nothing, mine, other, third)
        sizes("with hashes of a larger tree", "bad-consistency-proof", mine, other, longer.turn(asked(), 90))
        sizes("the larger first", nothing, other, mine)
        sizes("of two sessions", nothing, mine, Story.open("another").turn(asked(), 3).turn(asked(), 9))
        signed = tuple(each.head().sign(SESSION_KEY) for each in (mine, other))
        bare = Fraud(FraudKind.TWO_SIZES, (SIGNED,), signed)
        self.add("two sizes: without hashes", "malformed", bare)
        framed = Fraud(FraudKind.TWO_SIZES, (SIGNED, MANIFEST.sign(OTHER)), signed, Opening({}, (digest("x"),)))
        self.add("two sizes: of two providers", nothing, framed, [*TRUST, OTHER.public.vkey()])
        heads = Fraud(FraudKind.TWO_HEADS, (SIGNED,), signed, Opening({}, (digest("x"),)))
        self.add("two heads: with hashes", "malformed", heads)

    def two_checkpoints(self) -> None:
        def note(size: int = 9, root: str = "root", key: PrivateKey = LOG_KEY) -> bytes:
            return sign_checkpoint(Checkpoint(key.name, size, digest(root)), key)

        def notes(name: str, expected: str, *signed: bytes, manifest: bytes = SIGNED) -> None:
            self.add(f"two checkpoints: {name}", expected, Fraud(FraudKind.TWO_CHECKPOINTS, (manifest,), signed))

        notes("two roots for one size", "ok", note(), note(root="another root"))
        notes("the same", "nothing-checked", note(), note())
        notes("two sizes", "nothing-checked", note(), note(size=10, root="another root"))
        notes("one of another log", "untrusted-key", note(), note(key=OTHER))
        unlogged = replace(MANIFEST, log=None).sign(PROVIDER)
        notes("no log named", "untrusted-key", note(), note(root="another root"), manifest=unlogged)
        notes("no checkpoint", "malformed", note(), b"\xff")

    def token(self) -> None:
        honest = Story.open("fraud").turn(asked(temperature=1.5), 4)
        first = honest.where(Token)
        token = honest.tokens()[2]
        other = next(int(item) for item in token.entries.ids if item != token.token)
        liar = honest.edit(first + 2, token=other)

        def shows(name: str, expected: str, story: Story, *seqs: int, head: bytes | None = None) -> None:
            leaves = {seq: story.leaves[seq].encode() for seq in seqs}
            signed = story.head().sign(SESSION_KEY) if head is None else head
            stated = story.manifest.sign(PROVIDER)
            made = Fraud(FraudKind.TOKEN, (stated,), (signed,), Opening.of(story.tree(), leaves))
            self.add(f"a token: {name}", expected, made)

        turn = liar.where(Turn)
        shows("that does not follow from its record", "ok", liar, turn, first + 2)
        shows("that does", "nothing-checked", liar, turn, first + 1)
        shows("of an honest turn", "nothing-checked", honest, turn, first + 2)
        shows("under another root", "root-differs", liar, turn, first + 2, head=honest.head().sign(SESSION_KEY))
        shows("under a head that somebody signed", "untrusted-key", liar, turn, first + 2, head=liar.head().sign(OTHER))
        other_head = liar.head(manifest_digest=digest("another manifest")).sign(SESSION_KEY)
        shows("under another manifest", "other-manifest", liar, turn, first + 2, head=other_head)
        elsewhere = liar.head(session=bytes(16)).sign(SESSION_KEY)
        shows("of another session", "nothing-checked", liar, turn, first + 2, head=elsewhere)
        shows("without its turn", "malformed", liar, first + 1, first + 2)
        shows("and one more", "malformed", liar, turn, first + 1, first + 2)
        shows("alone", "malformed", liar, first + 2)
        turns = liar.edit(first + 2, turn=1)
        shows("of another turn", "malformed", turns, turn, first + 2)
        # A record may hold ids that the manifest suppresses; no draw sees them.
        model = replace(MANIFEST.model, suppressed=tuple(range(0, 12, 2)))
        barred = Story.open("barred", replace(MANIFEST, model=model)).turn(asked(temperature=1.5), 12, words=12)
        params, key = turn_of(barred).params, turn_of(barred).key()
        unlike = next(
            item for item in barred.tokens() if item.token not in acceptable(item.entries, params, key, item.position)
        )
        shows("of an honest turn, with suppressed ids in its record", "nothing-checked", barred, turn, unlike.seq)
        lied = barred.edit(unlike.seq, token=next(iter(acceptable(unlike.entries, params, key, unlike.position))))
        shows("that is suppressed", "ok", lied, turn, unlike.seq)
        # Under a penalty an honest token need not be what its record alone would give.
        penalised = Story.open("penalised").turn(asked(temperature=1.5, repeat_penalty=100), 12, words=9)
        params, key = turn_of(penalised).params, turn_of(penalised).key()
        apart = next(
            item.seq
            for item in penalised.tokens()
            if item.token not in acceptable(item.entries, params, key, item.position)
        )
        shows("of an honest turn with a penalty", "nothing-checked", penalised, turn, apart)

    def missing(self) -> None:
        lost = self.head()
        heads = [self.head(session=digest(f"other {number}")[:16], time=OPENED + number) for number in range(3)]
        late = self.head(session=digest("late")[:16], time=OPENED + MERGE_DELAY)

        def logs(name: str, expected: str, entries: Sequence[bytes], claimed: int = 0, **more: int) -> None:
            tree = Tree.from_leaves(map(leaf_hash, entries))
            signed = sign_checkpoint(Checkpoint(LOG_KEY.name, tree.size + claimed, tree.root()), LOG_KEY)
            opening = Opening.of(tree, dict(enumerate(entries)))
            self.add(f"a missing head: {name}", expected, missing(lost, signed, opening), TRUST, **more)

        logs("a day later still", "ok", [*heads, late])
        logs("within the delay", "nothing-checked", heads)
        logs("past a shorter delay", "ok", heads, delay=2)
        early = self.head(session=digest("late")[:16], time=OPENED + MERGE_DELAY - 1)
        logs("a millisecond too early", "nothing-checked", [*heads, early])
        logs("that is there", "nothing-checked", [heads[0], lost, late])
        logs("of which a later one is there", "nothing-checked", [self.head(size=10), late])
        logs("of which only an earlier one is there", "ok", [self.head(size=8), late])
        foreign = self.head(OTHER, session=digest("late")[:16], time=OPENED + 2 * MERGE_DELAY)
        logs("where only somebody's head is late", "nothing-checked", [*heads, foreign])
        logs("under another size", "root-differs", [*heads, late], claimed=1)
        logs("among entries that are no heads", "ok", [b"entry", b"", lost[:-1], late])
        logs("among nothing but entries that are no heads", "nothing-checked", [b"entry", lost[:-1]])
        logs("in an empty log", "malformed", [])
        tree = Tree.from_leaves(map(leaf_hash, [*heads, late]))
        signed = sign_checkpoint(Checkpoint(LOG_KEY.name, tree.size, tree.root()), LOG_KEY)
        whole = Opening.of(tree, dict(enumerate([*heads, late])))
        self.add("a missing head: an interim one", "nothing-checked", missing(self.head(interim=True), signed, whole))
        other = self.head(manifest_digest=digest("another manifest"))
        self.add("a missing head: of a manifest that names no log", "nothing-checked", missing(other, signed, whole))
        passed = self.head(session=digest("late")[:16], time=OPENED + MERGE_DELAY, interim=True)
        logs("where only an interim head is late", "nothing-checked", [*heads, passed])
        framed = missing(self.head(OTHER), signed, whole)
        self.add("a missing head: that somebody signed", "untrusted-key", framed)
        self.windows(lost)

    def windows(self, lost: bytes) -> None:
        """A head that is missing from a log of which a part is shown."""
        order, nothing = MERGE_DELAY, "nothing-checked"
        later = replace(MANIFEST, valid_to=MANIFEST.valid_to + HOUR, session_keys=(OTHER.public,))
        under = {"manifest_digest": later.digest()}

        def at(time: int, key: PrivateKey = SESSION_KEY, **changes: object) -> bytes:
            return self.head(key, session=digest(f"at {time}")[:16], time=OPENED + time, **changes)

        def shows(name: str, expected: str, entries: Sequence[bytes], *shown: int, delay: int = MERGE_DELAY) -> None:
            tree = Tree.from_leaves(map(leaf_hash, entries))
            signed = sign_checkpoint(Checkpoint(LOG_KEY.name, tree.size, tree.root()), LOG_KEY)
            opening = Opening.of(tree, {index: entries[index] for index in shown})
            made = missing(lost, signed, opening, (SIGNED, later.sign(PROVIDER)))
            self.add(f"a missing head: {name}", expected, made, TRUST, delay=delay)

        log = [at(-order - 1), at(-order), b"entry", at(9), at(order), at(order + 1)]
        shows("by the part of the log where it would stand", "ok", log, 1, 2, 3, 4)
        shows("by a larger part", "ok", log, 0, 1, 2, 3, 4, 5)
        shows("by a part from which an entry is left out", nothing, log, 1, 3, 4)
        shows("by a part that begins too late", nothing, [at(-order), at(1 - order), at(9), at(order)], 1, 2, 3)
        shows("by a part that begins with no head", nothing, log, 2, 3, 4)
        shows("by a part that ends too early", nothing, [at(9), at(order - 1), at(order)], 0, 1)
        shows("by a part that ends with no head", nothing, [at(9), at(order), b"entry", at(order)], 0, 1, 2)
        shows(
            "by a part that ends within a longer delay", nothing, [*log, at(order + 9)], 0, 1, 2, 3, 4, delay=order + 1
        )
        mixed_up = [at(-order), at(order + 5), at(order), at(order + 9)]
        shows("by a part whose last entry alone is within a longer delay", nothing, mixed_up, 0, 1, 2, delay=order + 1)
        shows("that came late, and stands after the delay", nothing, [at(MERGE_DELAY), lost, at(order)], 0, 1, 2)
        far = [at(-order, OTHER, **under), at(9), at(order, OTHER, **under), at(order)]
        shows("by heads under a later manifest", "ok", [b"", *far], 1, 2, 3)
        shows("by heads that another key signed", nothing, [b"", at(-order, SESSION_KEY, **under), *far[1:]], 1, 2, 3)
        tree = Tree.from_leaves(map(leaf_hash, log))
        signed = sign_checkpoint(Checkpoint(LOG_KEY.name, tree.size, tree.root()), LOG_KEY)
        opening = Opening.of(tree, dict(enumerate(log)))
        mixed = missing(lost, signed, opening, (SIGNED, later.sign(OTHER)))
        self.add("a missing head: with another's manifest", nothing, mixed, [*TRUST, OTHER.public.vkey()])
        damaged = missing(lost, signed, Opening({**opening.leaves, 2: b"other"}, opening.proof))
        self.add("a missing head: with an entry changed", "root-differs", damaged)

    def damaged(self) -> None:
        good = Fraud(FraudKind.TWO_HEADS, (SIGNED,), (self.head(), self.head(root=digest("another root"))))
        fields = encoding.map_(encoding.decode(good.encode()), range(1, 8), "fraud")
        body = {key: value for key, value in fields.items() if key != 7}
        self.add("no bytes", "malformed", b"")
        self.add("the checksum changed", "malformed", good.encode()[:-1] + b"\0")
        changed: tuple[tuple[str, Map], ...] = (
            ("version 1", {1: 1}),
            ("kind 0", {2: 0}),
            ("kind 5", {2: 5}),
            ("no manifest", {3: []}),
            ("three manifests", {3: [SIGNED] * 3}),
            ("two manifests for two checkpoints", {2: 2, 3: [SIGNED] * 2}),
            ("one head", {4: [self.head()]}),
            ("two heads for a token", {2: 3}),
            ("an opening beside two heads", {6: [bytes(32)]}),
            ("a leaf beside two heads", {5: [[0, b"entry"]]}),
            ("an entry as text", {2: 4, 5: [[0, "entry"]]}),
            ("a missing head without entries", {2: 4}),
            ("four manifests of a missing head", {2: 4, 3: [SIGNED] * 4, 5: [[0, b"entry"]]}),
        )
        for name, changes in changed:
            self.add(name, "malformed", seal(body | changes))
        self.add("version 3", "newer-version", seal(body | {1: 3}))
