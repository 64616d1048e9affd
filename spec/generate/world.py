"""A provider that does not exist: fixed keys, a manifest, a model made of hashes, and sessions honestly kept.

Everything follows from names by SHA-256, so that the vectors are the same wherever they are made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from verifiable.manifest.manifest import RAW_LOGITS, Manifest, ModelFile, ModelIdentity, Runtime
from verifiable.request.request import CHAT, Request, parse_body
from verifiable.sampling.logits import Entries, Ranked
from verifiable.sampling.processors import Processor, visible
from verifiable.sampling.sampler import SamplingDefaults, SamplingParams, choose
from verifiable.session import records
from verifiable.session.delivery import deliver
from verifiable.session.evidence import Evidence, Kind, PackedTokens, TurnEvidence
from verifiable.session.head import Head
from verifiable.session.opening import Opening
from verifiable.session.receipt import Receipt, reader_capability
from verifiable.session.records import Close, End, Finish, Leaf, Open, Source, Token, Turn
from verifiable.tlog.merkle import Tree, leaf_hash
from verifiable.wire.keys import PrivateKey


def digest(name: str) -> bytes:
    """32 bytes that follow from a name."""
    return hashlib.sha256(b"verifiable-inference test vectors: " + name.encode()).digest()


def private_key(name: str) -> PrivateKey:
    return PrivateKey.generate(name, digest(f"key {name}"))


PROVIDER = private_key("provider.vectors.example")
SESSION_KEY = private_key("session.vectors.example")
OTHER = private_key("somebody.vectors.example")
LOG_KEY = private_key("log.vectors.example")
WITNESSES = [private_key(f"witness{number}.vectors.example") for number in (1, 2)]
K = 8
VOCABULARY = 500
N_CTX = 256
OPENED = 1_800_000_000_000
"""Milliseconds since 1970: 2027-01-15."""
HOUR = 3_600_000

MANIFEST = Manifest(
    provider="vectors.example",
    valid_from=OPENED - 24 * HOUR,
    valid_to=OPENED + 24 * HOUR,
    model=ModelIdentity(
        files=(ModelFile("toy-Q4_0.gguf", digest("model file"), 1_234_567),),
        architecture="llama",
        file_type=2,
        parameters=1_000_000,
        vocabulary=VOCABULARY,
        tokenizer_digest=digest("tokenizer"),
        template_digest=digest("template"),
    ),
    runtime=Runtime(
        build="toy 1",
        bindings="toy-python 1",
        system="AVX2 = 1",
        n_ctx=N_CTX,
        n_batch=64,
        n_ubatch=64,
        type_k="bf16",
        type_v="bf16",
        flash_attn=True,
        kv_unified=False,
        repack=False,
        tiled=False,
        swa_full=True,
        n_gpu_layers=0,
        fingerprint=digest("fingerprint"),
        invariant=True,
    ),
    k=K,
    value_kind=RAW_LOGITS,
    defaults=SamplingDefaults(temperature=0.75, top_k=6, top_p=0.95, min_p=0.02),
    drafters=("ngram",),
    session_keys=(SESSION_KEY.public,),
    log=LOG_KEY.public,
)


def entries(history: int, k: int = K, vocabulary: int = VOCABULARY) -> Entries:
    """What the model that does not exist says after `history`: k ids and logits, all exact in float32."""
    ids: list[int] = []
    logits = []
    value, block = 20.0, 0
    while len(ids) < k:
        raw = digest(f"row {history} {block}")
        block += 1
        for at in range(0, 32, 4):
            token = int.from_bytes(raw[at : at + 2], "big") % vocabulary
            if token not in ids and len(ids) < k:
                ids.append(token)
                logits.append(value)
                value -= (raw[at + 2] + 1) / 256
    return Entries(np.array(ids, "<u4"), np.array(logits, "<f4"))


def piece(token: int) -> bytes:
    """The bytes of a token: a syllable; every seventh token is the first or second half of a character."""
    if token % 7 == 0:
        return b"\xc3" if token % 2 else b"\xa9"
    return ("ka ", "lo", "mi ", "nu", "ra", "si ", "te")[token % 7].encode()


def ask(path: str = CHAT, /, **body: Any) -> Request:
    """A client's request."""
    if path == CHAT:
        body.setdefault("messages", [{"role": "user", "content": "Why is the sky blue?"}])
    return parse_body(path, json.dumps(body).encode())


NONCE = digest("nonce")[:16]


def asked(nonce: bytes | None = NONCE, /, path: str = CHAT, **body: Any) -> Request:
    """A request with a nonce of the client's, unless None is given."""
    extra = dict(body.pop("verifiable", {}))
    if nonce is not None:
        extra["nonce"] = nonce.hex()
    return ask(path, **body, **({"verifiable": extra} if extra else {}))


def going_on(session: str) -> dict[str, str]:
    """What a request says in `verifiable` to go on with the session of a story of that name."""
    return {"session": digest(f"session {session}")[:16].hex()}


NEW = {"session": "new"}

Sampler = Callable[[Ranked, SamplingParams, bytes, int], int]


@dataclass(frozen=True)
class Story:
    """One session as a list of leaves, with what its provider knows beside. Every change gives a new story.

    `sources` and `finish` may be set turn by turn in `turn`; nothing here checks that a story is honest.
    """

    name: str
    leaves: tuple[Leaf, ...]
    requests: tuple[Request, ...] = ()
    texts: tuple[str, ...] = ()
    manifest: Manifest = MANIFEST

    @classmethod
    def open(cls, name: str, manifest: Manifest = MANIFEST, time: int = OPENED) -> Story:
        session, secret = digest(f"session {name}")[:16], digest(f"secret {name}")
        return cls(name, (Open(session, 0, records.salt(secret, 0), manifest.digest(), time),), manifest=manifest)

    @property
    def session(self) -> bytes:
        return self.leaves[0].session

    def secret(self, turn: int) -> bytes:
        return records.turn_secret(digest(f"secret {self.name}"), turn)

    def turn(
        self,
        request: Request,
        tokens: int,
        *,
        prompt_count: int = 12,
        sources: Sequence[Source] = (),
        finish: Finish = Finish.STOP,
        sampler: Sampler = choose,
        cached: int = 0,
        words: int = VOCABULARY,
    ) -> Story:
        """The story with one more turn of so many tokens.

        `sources` names those that are not PLAIN, from the first. The model uses `words` different tokens: with few,
        they recur. Processors that need no vocabulary are at work; a grammar is taken to allow everything.
        """
        number, seq = len(self.requests), len(self.leaves)
        manifest, secret = self.manifest, self.secret(len(self.requests))
        params = request.params(manifest.defaults, manifest.k, manifest.runtime.n_ctx, prompt_count)
        nonce = request.turn_nonce(digest("a provider's nonce")[:16])
        prompt = [at % VOCABULARY for at in range(prompt_count)]
        facts = request.turn_facts(prompt, params, nonce, cached)
        first = Turn(self.session, seq, records.salt(secret, seq), number, *facts)
        key = facts.key()
        suppressed = manifest.model.suppressed
        known = replace(params, constraint=b"", ignore_eos=False)
        processor = Processor(known, manifest.k, suppressed=suppressed)
        leaves: list[Leaf] = [first]
        step = row = -1
        fresh = True
        for index in range(tokens):
            source = sources[index] if index < len(sources) else Source.PLAIN
            step, row = (step + 1, 0) if fresh else (step, row + 1)
            fresh = source is not Source.DRAFT_ACCEPTED
            seq += 1
            position = prompt_count + index
            found = entries(number * 1000 + position, vocabulary=words)
            seen = processor.candidates(found) if params.processed else visible(found, suppressed)
            drawn = sampler(seen, params, key, position)
            processor.accept(drawn)
            leaves.append(
                Token(
                    self.session,
                    seq,
                    records.salt(secret, seq),
                    turn=number,
                    position=position,
                    token=drawn,
                    source=source,
                    step=step,
                    row=row,
                    entries=found,
                )
            )
        made = [leaf for leaf in leaves if isinstance(leaf, Token)]
        text = deliver([piece(token.token) for token in made], request.stops)[0]
        accepted = sum(token.source is Source.DRAFT_ACCEPTED for token in made)
        seq += 1
        leaves.append(
            End(
                self.session,
                seq,
                records.salt(secret, seq),
                turn=number,
                finish=finish,
                prompt_count=prompt_count,
                completion_count=tokens,
                text_digest=hashlib.sha256(text.encode()).digest(),
                tokens_digest=tokens_digest(made),
                drafted=2 * accepted,
                accepted=accepted,
            )
        )
        return replace(
            self,
            leaves=(*self.leaves, *leaves),
            requests=(*self.requests, request),
            texts=(*self.texts, text),
        )

    def close(self) -> Story:
        seq = len(self.leaves)
        leaf = Close(self.session, seq, records.salt(digest(f"secret {self.name}"), seq), len(self.requests))
        return replace(self, leaves=(*self.leaves, leaf))

    def edit(self, at: int, /, **fields: Any) -> Story:
        """The story with some fields of one leaf changed: what a dishonest provider would sign."""
        changed = replace(self.leaves[at], **fields)
        return replace(self, leaves=(*self.leaves[:at], changed, *self.leaves[at + 1 :]))

    def swap(self, seq: int, leaf: Leaf) -> Story:
        """The story with another leaf in one place."""
        return replace(self, leaves=(*self.leaves[:seq], leaf, *self.leaves[seq + 1 :]))

    def cut(self, size: int) -> Story:
        """The first leaves of the story."""
        return replace(self, leaves=self.leaves[:size])

    def where(self, kind: type[Leaf], turn: int = 0) -> int:
        """Sequence number of the turn leaf, first token or end leaf of a turn."""
        found = (leaf for leaf in self.leaves if isinstance(leaf, kind))
        return next(leaf.seq for leaf in found if getattr(leaf, "turn", turn) == turn)

    def tokens(self, turn: int = 0) -> list[Token]:
        """The token leaves that stand after a turn's leaf, whatever they say of themselves."""
        begins = [at for at, leaf in enumerate(self.leaves) if isinstance(leaf, Turn)]
        until = begins[turn + 1] if turn + 1 < len(begins) else len(self.leaves)
        return [leaf for leaf in self.leaves[begins[turn] : until] if isinstance(leaf, Token)]

    # What the provider hands out.

    def tree(self) -> Tree:
        return Tree.from_leaves(leaf_hash(leaf.encode()) for leaf in self.leaves)

    def head(self, **fields: Any) -> Head:
        tree = self.tree()
        honest = Head(self.session, tree.size, tree.root(), self.manifest.digest(), OPENED + 60_000)
        return replace(honest, **fields)

    def landmarks(self) -> dict[int, bytes]:
        return {seq: leaf.encode() for seq, leaf in enumerate(self.leaves) if not isinstance(leaf, Token)}

    def opening(self, extra: Iterable[int] = ()) -> Opening:
        """All leaves but tokens, and those named."""
        shown = self.landmarks() | {seq: self.leaves[seq].encode() for seq in extra}
        return Opening.of(self.tree(), shown)

    def receipt(self, turn: int = 0, /, **fields: Any) -> Receipt:
        honest = Receipt(
            self.head().sign(SESSION_KEY),
            self.manifest.sign(PROVIDER),
            self.opening(),
            turn,
            reader_capability(digest(f"capability {self.name}")),
        )
        return replace(honest, **fields)

    def opened(self, number: int, packed: bool, /, **fields: Any) -> TurnEvidence:
        tokens = pack(self.tokens(number)) if packed else None
        honest = TurnEvidence(number, self.requests[number].canonical, self.secret(number), tokens)
        return replace(honest, **fields)

    def evidence(self, kind: Kind = Kind.TOKENS, turns: Iterable[int] = (0,), shown: Iterable[int] = ()) -> Evidence:
        """Evidence of a kind; `shown` are sequence numbers of token leaves, for kind RECORDS."""
        numbers = tuple(turns)
        extra = set(shown)
        if kind is Kind.FULL:
            tokens = {id(token) for number in numbers for token in self.tokens(number)}
            extra |= {at for at, leaf in enumerate(self.leaves) if id(leaf) in tokens}
        return Evidence(
            kind,
            self.head().sign(SESSION_KEY),
            self.manifest.sign(PROVIDER),
            self.opening(extra),
            tuple(self.opened(number, kind is Kind.TOKENS) for number in numbers),
        )


def pack(tokens: Sequence[Token]) -> PackedTokens:
    return PackedTokens.pack(
        [token.token for token in tokens],
        [token.source for token in tokens],
        [token.row == 0 for token in tokens],
        VOCABULARY,
    )


def tokens_digest(tokens: Sequence[Token]) -> bytes:
    ids, sources = [token.token for token in tokens], [token.source for token in tokens]
    return records.tokens_digest(ids, sources, [token.row == 0 for token in tokens])
