"""Vectors of receipts: one honest provider, and what each kind of damage or lie looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spec.generate.cases import VectorFile
from spec.generate.primitives import L
from spec.generate.world import (
    HOUR,
    LOG_KEY,
    MANIFEST,
    NEW,
    OPENED,
    OTHER,
    PROVIDER,
    SESSION_KEY,
    WITNESSES,
    Story,
    asked,
    digest,
    going_on,
    private_key,
)
from verifiable import limits
from verifiable.manifest.manifest import TYPE as MANIFEST_TYPE
from verifiable.session.head import TYPE as HEAD_TYPE
from verifiable.session.opening import Opening
from verifiable.session.receipt import Receipt
from verifiable.session.records import End, Finish, Source, Token, Turn
from verifiable.tlog import merkle
from verifiable.tlog.checkpoint import Checkpoint, sign_checkpoint
from verifiable.tlog.cosignature import cosign, witness_key
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.tlog.note import Note
from verifiable.tlog.proof import TlogProof
from verifiable.wire import cose, encoding
from verifiable.wire.encoding import Map
from verifiable.wire.sealed import seal
from verifiable.wire.text import write_base64

TRUST = [PROVIDER.public.vkey()]


def receipt() -> VectorFile:
    file = VectorFile(
        "receipt",
        "input: a receipt in base64. trusted: verifier keys of providers. text: what the client says the answer was, "
        "where it is given. witnesses, quorum: of whom so many, or all, must have cosigned the checkpoint.",
    )
    _Receipts(file).all()
    return file


class _Receipts:
    def __init__(self, file: VectorFile) -> None:
        self.file = file
        self.one = Story.open("one").turn(asked(max_tokens=20), 5).close()
        self.two = Story.open("two").turn(asked(verifiable=NEW), 2)
        self.two = self.two.turn(asked(None, seed=7, verifiable=going_on("two")), 3, sources=[Source.DRAFT_ACCEPTED])

    def add(
        self, name: str, expected: str, made: Receipt | bytes, text: str | None = None, trusted: list[str] = TRUST
    ) -> None:
        data = made if isinstance(made, bytes) else made.encode()
        more = {} if text is None else {"text": text}
        self.file.add(name, expected, input=write_base64(data), trusted=trusted, **more)

    def all(self) -> None:
        self.honest()
        self.damaged()
        self.forged()
        self.other_manifest()
        self.other_tree()
        self.out_of_order()
        self.miscounted()
        self.logged()

    def honest(self) -> None:
        one, two = self.one, self.two
        self.add("one turn, closed", "ok", one.receipt())
        self.add("with its text", "ok", one.receipt(), one.texts[0])
        self.add("without capability, for handing on", "ok", one.receipt().without_capability(), one.texts[0])
        self.add("two turns, open", "ok", two.receipt(1), two.texts[1])
        self.add("of the first turn, under a later head", "ok", two.receipt(0), two.texts[0])
        self.add("among several trusted keys", "ok", one.receipt(), None, [OTHER.public.vkey(), *TRUST])
        older = cose.assemble(
            {1: cose.EDDSA, 4: PROVIDER.public.kid, 16: MANIFEST_TYPE}, {}, MANIFEST.payload(), PROVIDER
        )
        self.add("manifest signed with the older algorithm number", "ok", one.receipt(manifest=older))
        empty = Story.open("empty").turn(asked(), 0, finish=Finish.CANCELLED).close()
        self.add("cancelled before the first token", "ok", empty.receipt(), "")
        full = Story.open("full").turn(asked(max_tokens=3), 3, finish=Finish.LENGTH)
        self.add("cut by length", "ok", full.receipt())
        self.add("another text", "text-differs", one.receipt(), one.texts[0] + " ")
        self.add("the text of another turn", "other-turn", two.receipt(0), two.texts[1])

    def damaged(self) -> None:
        good = self.one.receipt().encode()
        fields = encoding.decode(good)
        body = {key: value for key, value in encoding.map_(fields, range(1, 10), "receipt").items() if key != 9}

        def resealed(name: str, changes: Mapping[int, Any], without: int | None = None) -> None:
            fields: Map = {key: value for key, value in (body | dict(changes)).items() if key != without}
            self.add(name, "malformed", seal(fields))

        self.add("no bytes", "malformed", b"")
        self.add("cut short", "malformed", good[:-1])
        self.add("a byte after the end", "malformed", good + b"\0")
        self.add("a byte changed, the checksum not", "malformed", good[:700] + bytes([good[700] ^ 1]) + good[701:])
        self.add("the checksum changed", "malformed", good[:-1] + bytes([good[-1] ^ 1]))
        self.add("an evidence file", "malformed", self.one.evidence().encode())
        resealed("version 1", {1: 1})
        self.add("version 3", "newer-version", seal(body | {1: 3}))
        self.add("version 3, with a key more", "newer-version", seal(body | {1: 3, 99: 0}))
        resealed("the capability's key left out", {}, without=7)
        for name, wrong in {"no bytes": b"", "31 bytes": bytes(31), "33 bytes": bytes(33), "text": "0" * 32}.items():
            resealed(f"a capability of {name}", {7: wrong})
        resealed("a capability that is 0", {7: 0})
        resealed("the turn as text", {6: "0"})
        resealed("the head as an array", {2: []})
        resealed("leaves as a map", {4: {}})
        leaves = [encoding.array(leaf, 2, "leaf") for leaf in encoding.array(body[4], None, "leaves")]
        resealed("leaves in another order", {4: leaves[::-1]})
        resealed("a leaf twice", {4: [leaves[0], *leaves]})
        resealed("a leaf without its index", {4: [leaf[1] for leaf in leaves]})
        longest = limits.LEAF_BYTES
        resealed(f"a leaf of {longest + 1} bytes", {4: [*leaves, [99, bytes(longest + 1)]]})

        resealed("a hash of 31 bytes", {5: [bytes(31)]})
        resealed("a log proof as text", {8: "c2sp.org/tlog-proof@v1"})
        token = self.one.where(Token)
        self.add("a token leaf shown", "malformed", self.one.receipt(opening=self.one.opening([token])))
        self.add("head is no COSE_Sign1", "malformed", self.one.receipt(head=b"\x00"))
        self.add("manifest is no COSE_Sign1", "malformed", self.one.receipt(manifest=b""))
        junk = cose.sign1(b"\xff", SESSION_KEY, HEAD_TYPE)
        self.add("head's payload is no head", "signed-malformed", self.one.receipt(head=junk))
        junk = cose.sign1(b"\xa0", PROVIDER, MANIFEST_TYPE)
        self.add("manifest's payload is no manifest", "signed-malformed", self.one.receipt(manifest=junk))
        story = self.one
        opened = {**story.landmarks(), 0: encoding.encode([0, story.session, 0])}
        self.rebuilt("a leaf of three fields, signed", "signed-malformed", opened)

    def rebuilt(self, name: str, expected: str, landmarks: Mapping[int, bytes]) -> None:
        """A receipt over the leaves of `one` with these in their places, signed as if nothing had happened."""
        leaves = {seq: leaf.encode() for seq, leaf in enumerate(self.one.leaves)} | dict(landmarks)
        tree = Tree.from_leaves(leaf_hash(leaves[seq]) for seq in sorted(leaves))
        head = self.one.head(size=tree.size, root=tree.root()).sign(SESSION_KEY)
        self.add(name, expected, self.one.receipt(head=head, opening=Opening.of(tree, landmarks)))

    def forged(self) -> None:
        one = self.one
        good = one.receipt()
        self.add("nobody is trusted", "untrusted-key", good, None, [])
        self.add("another provider is trusted", "untrusted-key", good, None, [OTHER.public.vkey()])
        trusted = [SESSION_KEY.public.vkey()]
        self.add("the session key is trusted, the provider is not", "untrusted-key", good, None, trusted)
        self.add("manifest signed by another", "untrusted-key", one.receipt(manifest=MANIFEST.sign(OTHER)))
        signed = one.head().sign(OTHER)
        self.add("head signed by a key that the manifest does not name", "untrusted-key", one.receipt(head=signed))
        self.add("head signed by the provider's key", "untrusted-key", one.receipt(head=one.head().sign(PROVIDER)))
        for what, signed in (("manifest", good.manifest), ("head", good.head)):
            s = (int.from_bytes(signed[-32:], "little") + L).to_bytes(32, "little")
            for how, bad in (
                ("signature changed", _flip(signed, -1)),
                ("payload changed", _flip(signed, -80)),
                ("S plus L", signed[:-32] + s),
            ):
                self.add(f"{what}'s {how}", "bad-signature", one.receipt(0, **{what: bad}))
        wrong = cose.sign1(MANIFEST.payload(), PROVIDER, HEAD_TYPE)
        self.add("manifest of the type of a head", "wrong-type", one.receipt(manifest=wrong))
        wrong = cose.sign1(one.head().payload(), SESSION_KEY, MANIFEST_TYPE)
        self.add("head of the type of a manifest", "wrong-type", one.receipt(head=wrong))
        for what, payload, key, typ in (
            ("manifest", MANIFEST.payload(), PROVIDER, MANIFEST_TYPE),
            ("head", one.head().payload(), SESSION_KEY, HEAD_TYPE),
        ):
            odd = cose.assemble({1: -7, 4: key.public.kid, 16: typ}, {}, payload, key)
            self.add(f"{what} with algorithm ES256", "unsupported-algorithm", one.receipt(0, **{what: odd}))

    def other_manifest(self) -> None:
        one = self.one
        later = replace(MANIFEST, valid_to=MANIFEST.valid_to + 1)
        self.add("head under another manifest", "other-manifest", one.receipt(manifest=later.sign(PROVIDER)))
        opened = replace(one, manifest=later)
        self.add("session opened under another manifest", "manifest-differs", opened.receipt())
        opened = Story.open("one", later).turn(asked(max_tokens=20), 5).close()
        head = opened.head(manifest_digest=MANIFEST.digest()).sign(SESSION_KEY)
        self.add("only the head under another manifest", "other-manifest", opened.receipt(head=head))
        early = Story.open("early", time=MANIFEST.valid_from - 1).turn(asked(), 1)
        self.add("opened before the manifest was valid", "manifest-expired", early.receipt())
        first = Story.open("first", time=MANIFEST.valid_from).turn(asked(), 1)
        self.add("opened in the first millisecond", "ok", first.receipt())
        late = one.head(time=MANIFEST.valid_to + 1).sign(SESSION_KEY)
        self.add("head after the manifest's end", "manifest-expired", one.receipt(head=late))
        last = one.head(time=MANIFEST.valid_to).sign(SESSION_KEY)
        self.add("head in the last millisecond", "ok", one.receipt(head=last))
        back = one.head(time=OPENED - HOUR).sign(SESSION_KEY)
        chunk = one.head(interim=True).sign(SESSION_KEY)
        self.add("head of the middle of a turn", "incomplete", one.receipt(head=chunk))
        self.add("head older than the session", "time-reversed", one.receipt(head=back))

    def other_tree(self) -> None:
        one, bad = self.one, "root-differs"
        opening = one.opening()
        landmarks = one.landmarks()
        turn, end, close = sorted(landmarks)[1:]

        def add(name: str, **fields: Any) -> None:
            self.add(name, bad, one.receipt(opening=replace(opening, **fields)))

        add("a leaf changed", leaves={**landmarks, end: one.edit(end, text_digest=bytes(32)).leaves[end].encode()})
        add("two leaves exchanged", leaves={**landmarks, turn: landmarks[end], end: landmarks[turn]})
        add("a hash changed", proof=(_flip(opening.proof[0], 0), *opening.proof[1:]))
        add("a hash too few", proof=opening.proof[:-1])
        add("a hash too many", proof=(*opening.proof, opening.proof[0]))
        add("hashes in reverse", proof=opening.proof[::-1])
        add("no leaves", leaves={}, proof=(one.tree().root(),))
        add("an index outside", leaves={**landmarks, len(one.leaves): landmarks[close]})
        moved = {0: landmarks[0], turn + 1: landmarks[turn], end: landmarks[end], close: landmarks[close]}
        add("a leaf moved to the next index", leaves=moved)
        self.add("another root signed", bad, one.receipt(head=one.head(root=digest("root")).sign(SESSION_KEY)))
        self.add("a smaller size signed", bad, one.receipt(head=one.head(size=close).sign(SESSION_KEY)))
        self.add("a larger size signed", bad, one.receipt(head=one.head(size=close + 2).sign(SESSION_KEY)))
        self.add("size 0 signed", bad, one.receipt(head=one.head(size=0, root=merkle.EMPTY_ROOT).sign(SESSION_KEY)))
        self.add("the leaves of another session", bad, one.receipt(opening=self.two.opening()))
        self.add("the head of another session", bad, one.receipt(head=self.two.head().sign(SESSION_KEY)))
        self.add("an older head of the same session", bad, one.receipt(head=one.cut(close).head().sign(SESSION_KEY)))

    def out_of_order(self) -> None:
        one, two, bad = self.one, self.two, "sequence-broken"
        end, close = one.where(End), len(one.leaves) - 1

        def add(name: str, story: Story, expected: str = bad) -> None:
            self.add(name, expected, story.receipt())

        add("a leaf of another session", one.swap(end, replace(one.leaves[end], session=two.session)))
        add("a leaf with another number", one.edit(end, seq=end + 1))
        head = one.head(session=two.session).sign(SESSION_KEY)
        self.add("another session in the head", bad, one.receipt(head=head))
        add("no open leaf", one.swap(0, replace(one.leaves[close], seq=0)))
        add("a second open leaf", one.swap(close, replace(one.leaves[0], seq=close)))
        add("an end without a turn", one.swap(1, replace(one.leaves[end], seq=1)))
        add("two turn leaves side by side", one.swap(2, replace(one.leaves[1], seq=2)))
        add("two turn leaves", one.swap(end, replace(one.leaves[1], seq=end)), "incomplete")
        add("a turn after the close", one.turn(asked(), 1))
        add("closed in mid-turn", one.swap(end, replace(one.leaves[close], seq=end)), "incomplete")
        second = (two.where(Turn, 1), two.where(End, 1))
        hidden = {seq: data for seq, data in two.landmarks().items() if seq not in second}
        self.add("a turn not shown", "incomplete", two.receipt(opening=Opening.of(two.tree(), hidden)))
        uncounted = two.edit(second[0], turn=0).edit(second[1], turn=0)
        first = (two.where(Turn), two.where(End))
        hidden = {seq: data for seq, data in uncounted.landmarks().items() if seq not in first}
        opening = Opening.of(uncounted.tree(), hidden)
        self.add("a turn not shown, nor counted", "incomplete", uncounted.receipt(opening=opening))
        hidden = {seq: data for seq, data in one.landmarks().items() if seq != 0}
        self.add("the open leaf not shown", "incomplete", one.receipt(opening=Opening.of(one.tree(), hidden)))
        hidden = {seq: data for seq, data in one.landmarks().items() if seq != close}
        self.add("the close leaf not shown", "incomplete", one.receipt(opening=Opening.of(one.tree(), hidden)))
        hidden = {seq: data for seq, data in two.landmarks().items() if seq != two.where(End, 0)}
        self.add("an end not shown", "incomplete", two.receipt(opening=Opening.of(two.tree(), hidden)))
        self.add("cut in mid-turn", "incomplete", one.cut(end).receipt())
        self.add("cut after the turn leaf", "interrupted", one.cut(2).receipt())
        self.add("a turn that the log lacks", "incomplete", one.receipt(1))
        self.add("no turns at all", "incomplete", Story.open("none").receipt())

    def miscounted(self) -> None:
        one, bad = self.one, "counts-differ"
        turn, end, close = one.where(Turn), one.where(End), len(one.leaves) - 1

        def add(name: str, story: Story) -> None:
            self.add(name, bad, story.receipt())

        add("one completion token too many billed", one.edit(end, completion_count=6))
        add("one completion token too few", one.edit(end, completion_count=4))
        add("more prompt tokens billed than evaluated", one.edit(end, prompt_count=13))
        add("numbered as turn 1", one.edit(turn, turn=1))
        add("more tokens than allowed", one.edit(turn, params=replace(turn_of(one).params, max_tokens=4)))
        add("cut by length before the length", one.edit(end, finish=Finish.LENGTH))
        for finish in (Finish.CANCELLED, Finish.ERROR):
            whole = Story.open(f"whole and {finish.name}").turn(asked(max_tokens=3), 3, finish=finish)
            add(f"as many tokens as allowed, said to be {finish.name.lower()}", whole)
        add("more drafts accepted than made", one.edit(end, drafted=1, accepted=2))
        add("more drafts accepted than tokens", one.edit(end, drafted=9, accepted=6))
        add("as many cached as prompt tokens", one.edit(turn, cached=12))
        add("closed with two turns", one.edit(close, turns=2))
        self.add("an end of turn 1", "incomplete", one.edit(end, turn=1).receipt())

    def logged(self) -> None:
        one = self.one
        head = one.head().sign(SESSION_KEY)
        others = [digest(f"entry {number}") for number in range(6)]
        tree = Tree.from_leaves(map(leaf_hash, [*others[:4], head, *others[4:]]))

        def proof(index: int = 4, key: Any = LOG_KEY, origin: str = LOG_KEY.name) -> bytes:
            body = Checkpoint(origin, tree.size, tree.root())
            return TlogProof(index, tuple(tree.inclusion_proof(index)), sign_checkpoint(body, key)).format()

        self.add("in the provider's log", "ok", one.receipt(log=proof()))
        self.add("in the log at another index", "bad-inclusion-proof", one.receipt(log=proof(3)))
        other = one.receipt(head=one.head(time=OPENED + 1).sign(SESSION_KEY), log=proof())
        self.add("another head than the one in the log", "bad-inclusion-proof", other)
        stranger = private_key("other.example")
        self.add("in somebody's log", "untrusted-key", one.receipt(log=proof(key=stranger, origin="other.example")))
        self.add("checkpoint changed", "bad-signature", one.receipt(log=proof().replace(b"\n7\n", b"\n8\n")))
        self.add("log proof damaged", "malformed", one.receipt(log=proof()[:-1]))
        self.witnessed(proof())
        none = replace(MANIFEST, log=None)
        story = Story.open("unlogged", none).turn(asked(), 1)
        self.add("in a log that the manifest does not name", "untrusted-key", story.receipt(log=proof()))

    def witnessed(self, proof: bytes) -> None:
        one, keys = self.one, [witness_key(key.public).vkey() for key in WITNESSES]
        parsed = TlogProof.parse(proof)
        lines = [cosign(Note.parse(parsed.checkpoint).text, key, OPENED // 1000) for key in WITNESSES]

        def add(name: str, expected: str, count: int | None, named: list[str], quorum: int | None = None) -> None:
            seen = Note.parse(parsed.checkpoint).add(*lines[: count or 0]).format()
            made = one.receipt(log=None if count is None else replace(parsed, checkpoint=seen).format())
            more = {} if quorum is None else {"quorum": quorum}
            given = {"input": write_base64(made.encode()), "trusted": TRUST, "witnesses": named, **more}
            self.file.add(name, expected, **given)

        add("in the log, cosigned by every witness that is trusted", "ok", 2, keys)
        add("cosigned by one of two, of which one is enough", "ok", 1, keys, 1)
        add("cosigned by one of two", "too-few-witnesses", 1, keys)
        add("cosigned by nobody", "too-few-witnesses", 0, keys, 1)
        add("no log proof that anybody could have cosigned", "too-few-witnesses", None, keys, 1)


def turn_of(story: Story) -> Turn:
    found = story.leaves[story.where(Turn)]
    if not isinstance(found, Turn):
        raise TypeError(found)
    return found


def _flip(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
