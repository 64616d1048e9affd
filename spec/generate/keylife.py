"""Vectors of keys files: chains, revocations, and what a receipt is worth by them."""

from __future__ import annotations

from dataclasses import replace

from spec.generate.cases import VectorFile
from spec.generate.receipts import TRUST
from spec.generate.world import (
    HOUR,
    LOG_KEY,
    MANIFEST,
    OPENED,
    OTHER,
    PROVIDER,
    SESSION_KEY,
    WITNESSES,
    Story,
    asked,
    private_key,
)
from verifiable.manifest.statements import REVOCATION, SUCCESSION, SUCCESSOR, KeysFile, Revocation, Role, Succession
from verifiable.session.receipt import Receipt
from verifiable.tlog.checkpoint import Checkpoint, sign_checkpoint
from verifiable.tlog.cosignature import cosign, witness_key
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.tlog.note import Note
from verifiable.tlog.proof import TlogProof
from verifiable.wire import cose, encoding
from verifiable.wire.keys import PrivateKey, PublicKey
from verifiable.wire.sealed import seal
from verifiable.wire.text import write_base64

NEXT, LAST = private_key("next.vectors.example"), private_key("last.vectors.example")
NEXT_LOG = PrivateKey(LOG_KEY.name, private_key("next-log.vectors.example").seed)
RENAMED_LOG = private_key("other-log.vectors.example")
P, S, L = Role.PROVIDER, Role.SESSION, Role.LOG
AT = OPENED + HOUR
SIGNED = OPENED + 60_000
"""When the heads of these stories are signed."""


def keys() -> VectorFile:
    file = VectorFile(
        "keys",
        "input: a keys file in base64. trusted: verifier keys of providers. keys: those that count, each with the key "
        "by which it is trusted and when it was revoked. left_out: how many statements count for nothing. log: a key "
        "of a log; logs: that and those that succeed it. receipt: one in base64, with text and witnesses (all of whom "
        "must have cosigned), and its reason code (null: it holds) and whether a key was revoked later.",
    )
    _Keys(file).all()
    return file


def follows(old: PrivateKey, new: PrivateKey, time: int = AT, role: Role = P) -> bytes:
    return Succession.sign(old, new, role, time)


def revokes(key: PrivateKey, time: int, role: Role, by: PrivateKey = PROVIDER) -> bytes:
    return Revocation(role, key.public, time, "the machine was stolen").sign(by)


class _Keys:
    def __init__(self, file: VectorFile) -> None:
        self.file = file
        self.story = Story.open("keys").turn(asked(), 2)
        self.newer = replace(MANIFEST, session_keys=(LAST.public,))

    def add(
        self, name: str, *statements: bytes, expected: str = "ok", trusted: list[str] = TRUST, **more: object
    ) -> None:
        given = {"input": write_base64(KeysFile(statements).encode()), "trusted": trusted, **more}
        self.file.add(name, expected, **given)

    def all(self) -> None:
        self.chains()
        self.logs()
        self.refused()
        self.receipts()
        self.files()

    def chains(self) -> None:
        one, two = follows(PROVIDER, NEXT), follows(NEXT, LAST, AT + 1)
        self.add("no statement")
        self.add("a chain of three", one, two)
        self.add("in another order, and twice", two, one, two)
        self.add("two trusted keys of one chain", one, two, trusted=[LAST.public.vkey(), *TRUST])
        self.add("a key that is not trusted", one, trusted=[OTHER.public.vkey()])
        self.add("a circle", one, follows(NEXT, PROVIDER))
        self.add("two successors", one, follows(PROVIDER, OTHER, AT - 1), two)
        self.add("one successor, stated twice", one, follows(PROVIDER, NEXT, AT - 1))
        self.add("a successor after the revocation by the key itself", revokes(PROVIDER, AT, P), one)
        self.add("a successor before that, by the key's own word", revokes(PROVIDER, AT + 1, P), one)
        self.add(
            "two successors, of which one revokes the key",
            one,
            follows(PROVIDER, OTHER),
            revokes(PROVIDER, AT, P, NEXT),
        )
        self.add(
            "two successors, of which one revokes what the key named",
            one,
            follows(PROVIDER, OTHER, AT + 9),
            revokes(SESSION_KEY, AT, S, NEXT),
        )
        self.add(
            "a successor of one of two successors revokes the key",
            one,
            two,
            follows(PROVIDER, OTHER),
            revokes(PROVIDER, AT, P, LAST),
        )
        self.add("a successor after a revocation by the successor", one, revokes(PROVIDER, AT, P, NEXT))
        self.add("a revocation by an earlier key", one, revokes(NEXT, AT + 5, P))
        self.add(
            "revocations by a later key, of which the earliest counts",
            one,
            two,
            revokes(NEXT, AT + 5, P, LAST),
            revokes(NEXT, AT + 4, P, LAST),
        )
        self.add("a revocation by a stranger", revokes(PROVIDER, AT, P, OTHER))
        self.add("a revocation in another role", revokes(PROVIDER, AT, S))

    def logs(self) -> None:
        log, vkey = follows(LOG_KEY, NEXT_LOG, role=L), LOG_KEY.public.vkey()
        self.add("a log's key", log, log=vkey)
        self.add("a log's key that was exchanged already", log, log=NEXT_LOG.public.vkey())
        self.add("a log's key in a provider's role", follows(LOG_KEY, NEXT_LOG), log=vkey)
        self.add(
            "a log's key with two successors",
            log,
            follows(LOG_KEY, PrivateKey(LOG_KEY.name, OTHER.seed), role=L),
            log=vkey,
        )
        self.add("a log's key that was revoked before: it is the same log", log, revokes(LOG_KEY, AT, L), log=vkey)
        renamed = PublicKey("other-log.vectors.example", LOG_KEY.public.raw)
        self.add("a log of another name", log, log=renamed.vkey())
        self.add("a log whose new key has another name", self.by(LOG_KEY, RENAMED_LOG, RENAMED_LOG, L), log=vkey)

    def by(self, old: PrivateKey, new: PrivateKey, accepts: PrivateKey, role: int = P, inner: str = SUCCESSOR) -> bytes:
        """A succession that nobody should have made."""
        fields: encoding.Map = {1: 2, 2: int(role), 3: old.public.vkey(), 4: new.public.vkey(), 5: AT}
        return cose.sign1(cose.sign1(encoding.encode(fields), accepts, inner), old, SUCCESSION)

    def refused(self) -> None:
        """What is no statement: none of it counts, and the next one does."""
        good = follows(PROVIDER, NEXT)
        payload = cose.peek1(cose.peek1(good).payload).payload
        revoked: encoding.Map = {1: 2, 2: 0, 3: PROVIDER.public.vkey(), 4: AT, 5: "x"}
        changes: tuple[tuple[str, encoding.Map], ...] = (
            ("without a reason", {5: ""}),
            ("with a reason of 257 bytes", {5: "x" * 257}),
            ("with a reason on two lines", {5: "a\nb"}),
            ("of a later version", {1: 3}),
            ("of no key", {3: "key"}),
        )
        for name, statement in (
            ("somebody's key that did not accept", self.by(PROVIDER, OTHER, PROVIDER)),
            ("a key that accepts by another type", self.by(PROVIDER, OTHER, OTHER, inner=SUCCESSION)),
            ("an old key that did not sign", cose.sign1(cose.peek1(good).payload, OTHER, SUCCESSION)),
            ("an acceptance alone", cose.peek1(good).payload),
            ("one key twice", self.by(PROVIDER, PROVIDER, PROVIDER)),
            ("a session's key that is succeeded", self.by(PROVIDER, OTHER, OTHER, S)),
            ("a role that there is not", self.by(PROVIDER, OTHER, OTHER, 3)),
            ("a signature changed", good[:-1] + bytes([good[-1] ^ 1])),
            ("no envelope", b"statement"),
            ("an envelope of another type", cose.sign1(payload, PROVIDER, "application/x-test")),
            *(
                (f"a revocation {why}", cose.sign1(encoding.encode({**revoked, **changed}), PROVIDER, REVOCATION))
                for why, changed in changes
            ),
        ):
            self.add(name, statement, good)

    def receipt(self, log: tuple[PrivateKey, ...] = (), cosigned: int | None = None) -> Receipt:
        receipt = self.story.receipt()
        if not log:
            return receipt
        tree = Tree.from_leaves([leaf_hash(receipt.head), leaf_hash(b"other")])
        body = Checkpoint(LOG_KEY.name, 2, tree.root())
        lines = [Note.parse(sign_checkpoint(body, key)).signatures[0] for key in log]
        lines += [] if cosigned is None else [cosign(body.text(), key, cosigned) for key in WITNESSES]
        note = Note(body.text(), tuple(lines)).format()
        return replace(receipt, log=TlogProof(0, tuple(tree.inclusion_proof(0)), note).format())

    def receipts(self) -> None:
        made, time = self.receipt(), self.story.head().time
        own, new = write_base64(made.encode()), write_base64(replace(made, manifest=MANIFEST.sign(NEXT)).encode())
        chain = follows(PROVIDER, NEXT)
        self.add("a receipt under the key that succeeds", chain, receipt=new)
        self.add("that receipt without the chain", receipt=new)
        self.add("that receipt with two successors", chain, follows(PROVIDER, OTHER), receipt=new)
        self.add("a receipt of before", chain, receipt=own)
        for who, key, role in (("session", SESSION_KEY, S), ("provider", PROVIDER, P)):
            for when, at in (("before the head", time - 1), ("at the head's time", time), ("after the head", time + 1)):
                self.add(f"the {who}'s key was revoked {when}", revokes(key, at, role), receipt=own)
        self.add(
            "the session's key was revoked by an earlier key than signed the manifest",
            chain,
            revokes(SESSION_KEY, time, S),
            receipt=new,
        )
        self.add("another session key was revoked", revokes(LAST, 0, S), receipt=own)
        self.add("what does not hold is no better for a revocation", revokes(SESSION_KEY, 0, S), receipt=own, text="x")
        named, second = [witness_key(key.public).vkey() for key in WITNESSES], time // 1000 + 9
        for name, at in (("before", (second + 1) * 1000 + 1), ("in the second of", (second + 1) * 1000)):
            logged = write_base64(self.receipt((LOG_KEY,), second).encode())
            self.add(f"cosigned {name} the revocation", revokes(SESSION_KEY, at, S), receipt=logged, witnesses=named)
        for name, signers in (("the new key", (NEXT_LOG,)), ("both keys", (LOG_KEY, NEXT_LOG))):
            logged = write_base64(self.receipt(signers).encode())
            self.add(f"in a log whose checkpoint {name} signed", follows(LOG_KEY, NEXT_LOG, role=L), receipt=logged)
        self.add("in a log whose new key is not known", receipt=write_base64(self.receipt((NEXT_LOG,)).encode()))

    def files(self) -> None:
        statement = follows(PROVIDER, NEXT)

        def add(name: str, expected: str, data: bytes) -> None:
            self.file.add(name, expected, input=write_base64(data), trusted=TRUST)

        good = KeysFile((statement,)).encode()
        add("a damaged file", "malformed", good[:-1] + bytes([good[-1] ^ 1]))
        add("bytes after a file", "malformed", good + b"\0")
        add("a statement that is text", "malformed", seal({1: 2, 2: ["x"]}))
        add("no list", "malformed", seal({1: 2, 2: statement}))
        add("257 statements", "malformed", seal({1: 2, 2: [b""] * 257}))
        add("a statement of 65,536 bytes", "malformed", seal({1: 2, 2: [bytes(65_536)]}))
        add("a file of version 1", "malformed", seal({1: 1, 2: []}))
        add("a file of a later version", "newer-version", seal({1: 3, 2: []}))
