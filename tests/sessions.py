"""Honest sessions for tests that need no model: the real log, sampler and signatures over made-up logits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verifiable.manifest.manifest import RAW_LOGITS, Manifest, ModelFile, ModelIdentity, Runtime
from verifiable.request.request import CHAT, Request, parse_body
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingDefaults, choose
from verifiable.session import records
from verifiable.session.delivery import TextStream
from verifiable.session.evidence import Evidence, Kind, PackedTokens, TurnEvidence
from verifiable.session.log import SessionLog
from verifiable.session.opening import Opening
from verifiable.session.receipt import Receipt
from verifiable.session.records import End, Finish, Source, Token, turn_secret
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.wire.keys import PrivateKey

VOCABULARY = 500
K = 40
TIME = 1_800_000_000_000
PROVIDER = PrivateKey.generate("acme", b"p" * 32)
SESSION = PrivateKey.generate("acme/session", b"s" * 32)
TRUST = [PROVIDER.public]
END_TOKEN = 0

Row = Callable[[Sequence[int]], Entries]
"""The record of the token that follows these ids."""


def made_up(ids: Sequence[int]) -> Entries:
    """A record that depends on all ids before it, as a model's does."""
    seed = hashlib.sha256(np.array(ids, "<u4").tobytes()).digest()
    rng = np.random.default_rng(np.frombuffer(seed, "<u4"))
    chosen = rng.choice(np.arange(1, VOCABULARY), K, replace=False).astype(np.uint32)
    logits = np.sort(rng.normal(10.0, 2.0, K).astype(np.float32))[::-1].copy()
    return Entries(chosen, logits)


def piece(token: int) -> bytes:
    """Every token is a word; the end token is nothing."""
    return b"" if token == END_TOKEN else b" w%d" % token


def identity(**changes: Any) -> ModelIdentity:
    fields: dict[str, Any] = {
        "files": (ModelFile("made-up.gguf", b"f" * 32, 1000),),
        "architecture": "made-up",
        "file_type": 0,
        "parameters": 10,
        "vocabulary": VOCABULARY,
        "tokenizer_digest": b"t" * 32,
        "template_digest": b"c" * 32,
    }
    return ModelIdentity(**{**fields, **changes})


def runtime(**changes: Any) -> Runtime:
    fields: dict[str, Any] = {
        "build": "b1",
        "bindings": "0",
        "system": "none",
        "n_ctx": 256,
        "n_batch": 512,
        "n_ubatch": 512,
        "type_k": "bf16",
        "type_v": "bf16",
        "flash_attn": True,
        "kv_unified": False,
        "repack": False,
        "tiled": False,
        "swa_full": True,
        "n_gpu_layers": 0,
        "fingerprint": b"n" * 32,
        "invariant": True,
    }
    return Runtime(**{**fields, **changes})


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "provider": "acme",
        "valid_from": TIME - 1000,
        "valid_to": TIME + 1_000_000,
        "model": identity(),
        "runtime": runtime(),
        "k": K,
        "value_kind": RAW_LOGITS,
        "defaults": SamplingDefaults(),
        "drafters": ("ngram",),
        "session_keys": (SESSION.public,),
    }
    return Manifest(**{**fields, **changes})


def ask(path: str = CHAT, **body: Any) -> Request:
    """A request with a nonce, unless the body says otherwise."""
    given: dict[str, Any] = {"verifiable": {"nonce": "00112233445566778899"}, **body}
    if path == CHAT:
        given.setdefault("messages", [{"role": "user", "content": "Why is the sky blue?"}])
    return parse_body(path, json.dumps(given).encode())


@dataclass
class Recording:
    """A provider's session while it is being written, and what can be handed out of it.

    Requests that name no session are made to name this one, unless `alone` (such a session has one turn).
    """

    manifest: Manifest = field(default_factory=manifest)
    session: bytes = b"\x07" * 16
    secret: bytes = b"k" * 32
    capability: bytes = b"c" * 32
    alone: bool = False
    draws: Callable[..., int] = choose
    provider: PrivateKey = PROVIDER
    session_key: PrivateKey = SESSION
    ended: int = TIME + 5000
    requests: list[bytes] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    leaves: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = SessionLog(self.session, self.secret, self.manifest.digest())
        self.leaves.append(self.log.open(TIME))

    def turn(
        self,
        request: Request,
        prompt: Sequence[int],
        row: Row = made_up,
        *,
        pieces: Callable[[int], bytes] = piece,
        ends: frozenset[int] = frozenset((END_TOKEN,)),
        committed_prompt: Sequence[int] | None = None,
        finish: Finish | None = None,
        burst: int = 1,
        text: str | None = None,
        cut: int | None = None,
    ) -> str:
        """Answer a request token by token, as the engine does. `burst` tokens come from each decode step.

        After `cut` tokens it is ended as cancelled, or as `finish` says.
        """
        if request.session is None and not self.alone:
            request = self.placed(request)
        stated = list(prompt if committed_prompt is None else committed_prompt)
        params = request.params(self.manifest.defaults, self.manifest.k, self.manifest.runtime.n_ctx, len(stated))
        facts = request.turn_facts(stated, params, request.turn_nonce(b"provider"))
        key = facts.key()
        self.leaves.append(self.log.begin_turn(facts))
        self.requests.append(request.canonical)
        stream, parts, ids, count = TextStream(request.stops), [], list(prompt), 0
        reached: Finish | None = None
        while reached is None:
            entries = row(ids)
            token = self.draws(entries, params, key, len(stated) + count)
            last = count % burst == burst - 1
            self.log.drafted(int(not last))
            kind = Source.PLAIN if burst == 1 else Source.BONUS if last else Source.DRAFT_ACCEPTED
            self.leaves.append(self.log.token(token, kind, count % burst == 0, entries))
            ids.append(token)
            count += 1
            parts.append(stream.feed(pieces(token)))
            if token in ends or stream.stopped:
                reached = Finish.STOP
            elif count >= params.max_tokens:
                reached = Finish.LENGTH
            elif count == cut:
                reached = Finish.CANCELLED
        if not stream.stopped:
            parts.append(stream.finish())
        said = "".join(parts)
        digest = stream.digest() if text is None else hashlib.sha256(text.encode()).digest()
        self.leaves.append(self.log.end_turn(reached if finish is None else finish, digest))
        self.texts.append(said if text is None else text)
        return self.texts[-1]

    def placed(self, request: Request) -> Request:
        """The request as a client sends it who goes on with this session."""
        body = json.loads(request.canonical)["body"]
        session = self.session.hex() if self.log.turns else "new"
        body["verifiable"] = {**(body.get("verifiable") or {}), "session": session}
        return parse_body(request.path, json.dumps(body).encode())

    def crash(self, request: Request, prompt: Sequence[int], tokens: int) -> None:
        """Begin a turn and stop in it, as a provider that crashes does; nothing may follow."""
        params = request.params(self.manifest.defaults, self.manifest.k, self.manifest.runtime.n_ctx, len(prompt))
        self.leaves.append(self.log.begin_turn(request.turn_facts(prompt, params, request.nonce or b"provider")))
        self.requests.append(request.canonical)
        for count in range(tokens):
            entries = made_up([*prompt, count])
            self.leaves.append(self.log.token(int(entries.ids[0]), Source.PLAIN, True, entries))

    def close(self) -> None:
        self.leaves.append(self.log.close())

    def head(self, **changes: Any) -> bytes:
        from dataclasses import replace

        return replace(self.log.head(self.ended), **changes).sign(self.session_key)

    def receipt(self, turn: int | None = None) -> Receipt:
        opening = Opening.of(self.log.tree, self.log.landmarks)
        number = self.log.turns - 1 if turn is None else turn
        return Receipt(self.head(), self.manifest.sign(self.provider), opening, number, self.capability)

    def evidence(
        self, kind: Kind = Kind.TOKENS, turns: Sequence[int] | None = None, positions: Sequence[int] = ()
    ) -> Evidence:
        """As the engine's evidence reader builds it."""
        leaves = [records.parse(data) for data in self.leaves]
        ends = {leaf.turn: leaf for leaf in leaves if isinstance(leaf, End)}
        shown: dict[int, bytes] = dict(self.log.landmarks)
        if isinstance(leaves[-1], Token):  # it stops in mid-turn
            shown[leaves[-1].seq] = self.leaves[-1]
        parts = []
        for turn in sorted(ends) if turns is None else turns:
            tokens = [leaf for leaf in leaves if isinstance(leaf, Token) and leaf.turn == turn]
            packed = None
            if kind is Kind.TOKENS:
                fresh = [token.row == 0 for token in tokens]
                ids, sources = [token.token for token in tokens], [token.source for token in tokens]
                packed = PackedTokens.pack(ids, sources, fresh, self.manifest.model.vocabulary)
            for token in tokens:
                if kind is Kind.FULL or (kind is Kind.RECORDS and token.position in positions):
                    shown[token.seq] = self.leaves[token.seq]
            parts.append(TurnEvidence(turn, self.requests[turn], turn_secret(self.secret, turn), packed))
        tree = Tree.from_leaves(leaf_hash(leaf) for leaf in self.leaves)
        return Evidence(kind, self.head(), self.manifest.sign(self.provider), Opening.of(tree, shown), tuple(parts))


def recording(turns: int = 1, *, tokens: int = 12, body: Mapping[str, Any] | None = None, **options: Any) -> Recording:
    """A session of some turns of `tokens` tokens each."""
    made = Recording(**options)
    for number in range(turns):
        made.turn(ask(max_tokens=tokens, **(body or {})), range(1, 8 + number))
    return made
