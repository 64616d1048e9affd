"""Vectors of evidence of every kind, and of the replay of the records that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np

from spec.generate import processing
from spec.generate.cases import VectorFile
from spec.generate.receipts import TRUST, turn_of
from spec.generate.world import (
    MANIFEST,
    N_CTX,
    NEW,
    NONCE,
    OTHER,
    SESSION_KEY,
    VOCABULARY,
    Story,
    asked,
    digest,
    going_on,
    pack,
    tokens_digest,
)
from verifiable.request.request import COMPLETION
from verifiable.sampling.logits import Entries, Ranked
from verifiable.sampling.sampler import SamplingParams, choose, sampling_key
from verifiable.session import records
from verifiable.session.evidence import Evidence, Kind, PackedTokens
from verifiable.session.records import Close, End, Finish, NonceSource, Source, Token, Turn
from verifiable.wire import encoding
from verifiable.wire.sealed import seal
from verifiable.wire.text import write_base64

DRAFTS = (Source.PLAIN, Source.DRAFT_ACCEPTED, Source.DRAFT_ACCEPTED, Source.BONUS, Source.DRAFT_CORRECTED)


def evidence() -> VectorFile:
    file = VectorFile(
        "evidence",
        "input: an evidence file in base64. trusted: verifier keys of providers. All checks that need no model, then "
        "the replay of the records shown. opened: the turns opened, with how many of their records were replayed.",
    )
    _Evidence(file).all()
    processing.add(file)
    return file


class _Evidence:
    def __init__(self, file: VectorFile) -> None:
        self.file = file
        self.one = Story.open("evidence").turn(asked(max_tokens=20), 5).close()
        self.drafted = Story.open("drafted").turn(asked(temperature=1.5, stop=["qq"]), 6, sources=DRAFTS)
        two = Story.open("two turns").turn(asked(verifiable=NEW), 3)
        self.two = two.turn(asked(None, seed=7, verifiable=going_on("two turns")), 2)

    def add(self, name: str, expected: str, made: Evidence | bytes, trusted: list[str] = TRUST) -> None:
        data = made if isinstance(made, bytes) else made.encode()
        self.file.add(name, expected, input=write_base64(data), trusted=trusted)

    def all(self) -> None:
        self.honest()
        self.damaged()
        self.foreign()
        self.misused()
        self.marked()
        self.recorded()
        self.drawn()

    def honest(self) -> None:
        one, drafted, two = self.one, self.drafted, self.two
        token = one.where(Token)
        self.add("tokens of a turn", "ok", one.evidence())
        self.add("one record", "ok", one.evidence(Kind.RECORDS, shown=[token + 2]))
        self.add("three records", "ok", one.evidence(Kind.RECORDS, shown=[token, token + 1, token + 4]))
        self.add("no records", "ok", one.evidence(Kind.RECORDS))
        self.add("all records", "ok", one.evidence(Kind.FULL))
        self.add("tokens with drafts", "ok", drafted.evidence())
        self.add("all records, with drafts", "ok", drafted.evidence(Kind.FULL))
        self.add("two turns", "ok", two.evidence(turns=[0, 1]))
        self.add("the second turn only", "ok", two.evidence(turns=[1]))
        self.add("all records of two turns", "ok", two.evidence(Kind.FULL, turns=[0, 1]))
        self.add("records of the second turn", "ok", two.evidence(Kind.RECORDS, [1], [two.where(Token, 1)]))
        self.add("no turns", "ok", two.evidence(turns=[]))
        for name, request in {
            "greedy": asked(temperature=0),
            "a seed, no nonce": asked(None, seed=-3),
            "neither seed nor nonce: the provider's": asked(None),
            "a session to go on with": asked(verifiable={"session": "new"}),
            "a completion of token ids": asked(path=COMPLETION, prompt=[1, 2, 3]),
            "all entries of the record": asked(top_k=0, top_p=1, min_p=0),
        }.items():
            story = Story.open(name).turn(request, 3)
            self.add(f"all records: {name}", "ok", story.evidence(Kind.FULL))
        self.placed()
        empty = Story.open("no tokens").turn(asked(), 0, finish=Finish.CANCELLED)
        self.add("a turn of no tokens", "ok", empty.evidence())
        self.add("all records of a turn of no tokens", "ok", empty.evidence(Kind.FULL))

    def placed(self) -> None:
        """The place of a turn, and the manifest that it is answered under."""

        def story(first: dict[str, Any], second: dict[str, Any] | None = None) -> Story:
            made = Story.open("placed").turn(asked(verifiable=first), 2)
            return made if second is None else made.turn(asked(verifiable=second), 2)

        here, away = going_on("placed"), going_on("elsewhere")
        good = story(NEW, here)
        self.add("the session that the request names", "ok", good.evidence(turns=[0, 1]))
        self.add("a turn alone, open still", "ok", story({}).evidence())
        self.add("a turn alone, said to be turn 0", "ok", story({"turn": 0}).close().evidence())
        self.add("turns of the numbers expected", "ok", story(NEW | {"turn": 0}, here | {"turn": 1}).evidence())
        for name, bad, turn in (
            ("alone, and another after it", story({}, here), 0),
            ("alone, after another", story(NEW, {}), 1),
            ("of a new session, after another", story(NEW, NEW), 1),
            ("of a session to go on with, as the first", story(here), 0),
            ("of another session", story(NEW, away), 1),
            ("alone, said to be turn 1", story({"turn": 1}), 0),
            ("of a new session, said to be turn 1", story(NEW | {"turn": 1}), 0),
            ("said to be turn 2", story(NEW, here | {"turn": 2}), 1),
        ):
            self.add(f"a turn {name}", "session-differs", bad.evidence(turns=[turn]))
        pinned = {"manifest": MANIFEST.digest().hex()}
        self.add("the manifest that the client pinned", "ok", story(pinned).evidence())
        other = replace(MANIFEST, defaults=replace(MANIFEST.defaults, temperature=0.5))
        switched = Story.open("placed", other).turn(asked(verifiable=pinned), 2)
        self.add("another manifest than the client pinned", "manifest-differs", switched.evidence())

    def damaged(self) -> None:
        good = self.one.evidence()
        data = good.encode()
        fields = encoding.decode(data)
        body = {key: value for key, value in encoding.map_(fields, range(1, 9), "evidence").items() if key != 8}
        turns = [encoding.array(item, 4, "turn") for item in encoding.array(body[7], None, "turns")]

        def resealed(name: str, changes: Mapping[int, Any]) -> None:
            self.add(name, "malformed", seal(body | dict(changes)))

        self.add("no bytes", "malformed", b"")
        self.add("cut short", "malformed", data[:-1])
        self.add("a token changed, the checksum not", "malformed", _flip(data, good_at(data, good)))
        self.add("a receipt", "malformed", self.one.receipt().encode())
        resealed("version 1", {1: 1})
        self.add("version 3", "newer-version", seal(body | {1: 3}))
        self.add("version 3, with a key more", "newer-version", seal(body | {1: 3, 99: 0}))
        resealed("kind 3", {2: 3})
        resealed("turns twice", {7: [*turns, *turns]})
        resealed("a turn of three fields", {7: [turns[0][:3]]})
        resealed("a request as text", {7: [[0, good.turns[0].request.decode(), *turns[0][2:]]]})
        resealed("a secret of 31 bytes", {7: [[*turns[0][:2], bytes(31), turns[0][3]]]})
        resealed("packed tokens of width 0", {7: [[*turns[0][:3], [0, 0, b"", b""]]]})
        two = self.two.evidence(turns=[0, 1])
        self.add("turns in another order", "malformed", replace(two, turns=two.turns[::-1]))
        request = good.turns[0].request
        for name, other in (
            ("request not canonical", request.replace(b":", b": ", 1)),
            ("request not JSON", b"{"),
            ("request with an unknown parameter", request.replace(b'"max_tokens":20', b'"max_tokenz":20')),
        ):
            self.add(name, "evidence-differs", replace(good, turns=(self.one.opened(0, True, request=other),)))
            committed = self.one.edit(self.one.where(Turn), request_digest=sha256(other).digest())
            opened = (committed.opened(0, True, request=other),)
            self.add(f"committed: {name}", "signed-malformed", replace(committed.evidence(), turns=opened))
        self.add("packed tokens in evidence of all records", "malformed", replace(good, kind=Kind.FULL))
        self.add(
            "packed tokens beside a record",
            "malformed",
            replace(good, opening=self.one.opening([self.one.where(Token)])),
        )
        self.add("no packed tokens", "malformed", replace(good, turns=(self.one.opened(0, False),)))
        extra = self.two.opening([token.seq for token in self.two.tokens(1)])
        self.add(
            "records of a turn that is not opened",
            "malformed",
            replace(self.two.evidence(Kind.RECORDS, turns=[0]), opening=extra),
        )

    def foreign(self) -> None:
        """What belongs elsewhere."""
        one, two = self.one, self.two
        good = one.evidence()
        self.add("nobody is trusted", "untrusted-key", good, [])
        self.add("another provider is trusted", "untrusted-key", good, [OTHER.public.vkey()])
        self.add("head changed", "bad-signature", replace(good, head=_flip(good.head, -70)))
        self.add("the leaves of another session", "root-differs", replace(good, opening=two.opening()))
        self.add("the head of another session", "root-differs", replace(good, head=two.head().sign(SESSION_KEY)))
        self.add("a turn that the log lacks", "incomplete", replace(good, turns=(one.opened(0, True, turn=1),)))
        broken = replace(one.cut(4), requests=one.requests)
        self.add("cut in mid-turn", "incomplete", broken.evidence())
        crashed = replace(broken.evidence(), opening=broken.opening([3]), turns=())
        self.add("stopped in mid-turn, its last leaf shown", "interrupted", crashed)
        shown = replace(broken.evidence(), opening=broken.opening([2]), turns=())
        self.add("stopped in mid-turn, another leaf shown", "incomplete", shown)
        stray = broken.edit(3, turn=1)
        shown = replace(stray.evidence(), opening=stray.opening([3]), turns=())
        self.add("stopped in mid-turn, its last leaf of another turn", "incomplete", shown)
        for whose, secret in (("turn", one.secret(1)), ("session", two.secret(0))):
            opened = (one.opened(0, True, secret=secret),)
            self.add(f"the secret of another {whose}", "salt-differs", replace(good, turns=opened))
        for part, kind in (("a record", Token), ("the turn's leaf", Turn), ("its end", End)):
            salted = one.edit(one.where(kind), salt=bytes(16))
            self.add(f"the salt of {part} changed", "salt-differs", salted.evidence(Kind.FULL))
        self.add(
            "the request of another turn",
            "evidence-differs",
            replace(good, turns=(one.opened(0, True, request=asked(max_tokens=19).canonical),)),
        )
        self.add(
            "the turn of another session",
            "evidence-differs",
            replace(good, turns=(one.opened(0, True, request=two.requests[0].canonical),)),
        )
        token = one.where(Token)
        moved = one.swap(token, replace(one.leaves[token], session=two.session))
        self.add("a record of another session", "sequence-broken", moved.evidence(Kind.FULL))
        moved = one.swap(token, replace(one.leaves[token + 1], seq=token + 1))
        self.add("a record in the place of another", "sequence-broken", moved.evidence(Kind.FULL))
        alone = moved.evidence(Kind.RECORDS, shown=[token])
        self.add("a record in the place of another, shown alone", "sequence-broken", alone)

    def misused(self) -> None:
        """Parameters, nonces and counts that are not what was asked for."""
        one = self.one
        params = turn_of(one).params
        at = one.where(Turn)
        changes: dict[str, dict[str, Any]] = {
            "another temperature": {"temperature": params.temperature * 2},
            "another top_k": {"top_k": 5},
            "another top_p": {"top_p": 1.0},
            "another min_p": {"min_p": 0.0},
            "another max_tokens": {"max_tokens": 21},
        }
        for name, changed in changes.items():
            story = one.edit(at, params=replace(params, **changed))
            self.add(f"{name} than was asked for", "parameters-differ", story.evidence())
        stops = one.edit(at, stop_digest=records.stop_digest(("x",)))
        self.add("other stop strings", "parameters-differ", stops.evidence())
        self.add(
            "a prompt as long as the context",
            "counts-differ",
            one.edit(at, prompt_count=N_CTX).edit(one.where(End), prompt_count=N_CTX).evidence(),
        )
        none = one.edit(at, prompt_count=0).edit(one.where(End), prompt_count=0)
        self.add("no prompt", "counts-differ", none.evidence())
        self.add("another nonce", "nonce-differs", one.edit(at, nonce=NONCE[:-1] + b"\0").evidence())
        self.add(
            "the client's nonce said to be the provider's",
            "nonce-differs",
            one.edit(at, nonce_source=NonceSource.PROVIDER).evidence(),
        )
        seeded = Story.open("seeded").turn(asked(None, seed=1), 2)
        self.add(
            "a nonce of the provider's beside a seed",
            "nonce-differs",
            seeded.edit(seeded.where(Turn), nonce=b"shopped!").evidence(),
        )
        self.add(
            "the provider's nonce where the request has a seed",
            "nonce-differs",
            seeded.edit(seeded.where(Turn), nonce=b"shopped for", nonce_source=NonceSource.PROVIDER).evidence(),
        )

    def marked(self) -> None:
        """Packed tokens that contradict the turn's end."""
        one, drafted = self.one, self.drafted

        def packed(name: str, expected: str, story: Story, tokens: PackedTokens) -> None:
            opened = (replace(story.opened(0, False), tokens=tokens),)
            self.add(name, expected, replace(story.evidence(), turns=opened))

        tokens = one.tokens()
        packed("a token less", "evidence-differs", one, pack(tokens[:-1]))
        packed("a token more", "evidence-differs", one, pack([*tokens, tokens[0]]))
        packed("a token changed", "evidence-differs", one, pack([*tokens[:-1], replace(tokens[-1], token=1)]))
        packed(
            "a source changed", "evidence-differs", one, pack([*tokens[:4], replace(tokens[4], source=Source.BONUS)])
        )
        packed("a step changed", "evidence-differs", one, pack([tokens[0], replace(tokens[1], row=1), *tokens[2:]]))
        packed(
            "an id past the vocabulary",
            "evidence-differs",
            one,
            pack([*tokens[:4], replace(tokens[4], token=VOCABULARY)]),
        )
        packed(
            "ids of another width than the vocabulary needs",
            "malformed",
            one,
            PackedTokens.pack([token.token for token in tokens], [token.source for token in tokens], [True] * 5, 2**24),
        )
        # From here on the provider committed to the marks.
        for name, expected, sources, fresh in (
            ("the first token not the first of its step", "sequence-broken", [0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1]),
            ("a row after what was no accepted draft", "sequence-broken", [0, 1, 1, 3, 2, 0], [1, 0, 1, 1, 1, 1]),
            ("fewer accepted drafts than the end says", "counts-differ", [0, 1, 3, 3, 2, 0], [1, 1, 0, 1, 1, 1]),
            ("more accepted drafts than the end says", "counts-differ", [1, 1, 1, 3, 2, 0], [1, 0, 0, 0, 1, 1]),
        ):
            ids = [token.token for token in drafted.tokens()]
            marks = [Source(source) for source in sources], [bool(item) for item in fresh]
            end = drafted.where(End)
            story = drafted.edit(end, tokens_digest=records.tokens_digest(ids, *marks))
            packed(f"committed: {name}", expected, story, PackedTokens.pack(ids, *marks, VOCABULARY))

    def recorded(self) -> None:
        """Records that contradict themselves, the turn or the manifest."""
        one = self.one
        first, end = one.where(Token), one.where(End)
        token = one.tokens()[1]

        def add(name: str, expected: str, changed: Token, digest_too: bool = True) -> None:
            story = one.swap(first + 1, changed)
            if digest_too:
                story = story.edit(end, tokens_digest=tokens_digest(story.tokens()))
            self.add(name, expected, story.evidence(Kind.FULL))

        add("an entry too few", "record-invalid", replace(token, entries=_head(token.entries, 7)))
        add(
            "an id past the vocabulary among the entries",
            "record-invalid",
            replace(
                token, entries=Entries(np.array([*token.entries.ids[:-1], VOCABULARY], "<u4"), token.entries.logits)
            ),
        )
        add("a token past the vocabulary", "record-invalid", replace(token, token=VOCABULARY))
        add("another position", "record-invalid", replace(token, position=token.position + 1))
        add("another turn", "record-invalid", replace(token, turn=1))
        add("a step left out", "sequence-broken", replace(token, step=2))
        add("a row after a plain token", "sequence-broken", replace(token, step=0, row=1))
        uncounted = replace(token, source=Source.DRAFT_ACCEPTED)
        add("an accepted draft that the end does not count", "counts-differ", uncounted)
        unbound = replace(token, token=next(int(item) for item in token.entries.ids if item != token.token))
        add("a token that the end does not bind", "record-invalid", unbound, digest_too=False)
        shown = [leaf.seq for leaf in one.tokens()[:-1]]
        self.add("a record missing", "incomplete", replace(one.evidence(Kind.FULL), opening=one.opening(shown)))
        self.add(
            "the first record missing",
            "incomplete",
            replace(one.evidence(Kind.FULL), opening=one.opening([leaf.seq for leaf in one.tokens()[1:]])),
        )
        closed = one
        for later in one.tokens()[2:]:
            closed = closed.swap(later.seq, replace(later, step=later.step - 1))
        gap = [first, *(leaf.seq for leaf in one.tokens()[2:])]
        self.add(
            "a record missing, and steps that go on as if none were",
            "incomplete",
            replace(closed.evidence(Kind.FULL), opening=closed.opening(gap)),
        )
        close = one.swap(len(one.leaves) - 1, replace(one.leaves[first], seq=len(one.leaves) - 1))
        self.add("a record after the end, hidden", "incomplete", close.evidence(Kind.TOKENS))
        last = close.opening([len(one.leaves) - 1])
        self.add("a record after the end", "sequence-broken", replace(close.evidence(Kind.TOKENS), opening=last))
        if not isinstance(one.leaves[-1], Close):
            raise TypeError(one.leaves[-1])

    def drawn(self) -> None:
        """Tokens that do not follow from their records."""
        one = self.one
        first, end = one.where(Token), one.where(End)

        def redrawn(story: Story, at: list[int]) -> Story:
            """The story with the next best entry for some tokens, and all digests right."""
            for index in at:
                token = story.tokens()[index]
                other = next(int(item) for item in token.entries.ids if item != token.token)
                story = story.edit(first + index, token=other)
            return story.edit(end, tokens_digest=tokens_digest(story.tokens()))

        changed = redrawn(one, [2])
        self.add("a token changed after sampling", "token-not-sampled", changed.evidence(Kind.FULL))
        self.add("shown alone", "token-not-sampled", changed.evidence(Kind.RECORDS, shown=[first + 2]))
        self.add("not among the records shown", "ok", changed.evidence(Kind.RECORDS, shown=[first + 1]))
        self.add("not decided by packed tokens", "ok", changed.evidence())
        self.add("all tokens changed", "text-not-sampled", redrawn(one, [0, 1, 2, 3, 4]).evidence(Kind.FULL))
        self.add(
            "two of all changed tokens shown",
            "token-not-sampled",
            redrawn(one, [0, 1, 2, 3, 4]).evidence(Kind.RECORDS, shown=[first, first + 1]),
        )

        def hotter(entries: Ranked, params: SamplingParams, key: bytes, position: int) -> int:
            return choose(entries, replace(params, temperature=3.0), key, position)

        hot = Story.open("hot").turn(asked(temperature=0.3, min_p=0, top_p=1), 12, sampler=hotter)
        self.add("drawn at temperature 3 where 0.3 was asked for", "temperature-differs", hot.evidence(Kind.FULL))
        greedy = Story.open("hot greedy").turn(asked(temperature=0, min_p=0, top_p=1), 12, sampler=hotter)
        self.add("drawn at temperature 3 where greedy was asked for", "temperature-differs", greedy.evidence(Kind.FULL))

        def cold(entries: Ranked, params: SamplingParams, key: bytes, position: int) -> int:
            return int(entries.ids[0])

        frozen = Story.open("frozen").turn(asked(temperature=3, min_p=0, top_p=1), 12, sampler=cold)
        self.add("greedy where temperature 3 was asked for", "temperature-differs", frozen.evidence(Kind.FULL))

        for token in frozen.tokens():  # and where the logits are so near that no temperature over 0 would do
            flat = Entries(token.entries.ids, np.linspace(1.0, 0.99, 8).astype("<f4"))
            frozen = frozen.swap(token.seq, replace(token, entries=flat))
        self.add("greedy over logits that hardly differ", "temperature-differs", frozen.evidence(Kind.FULL))

        def stranger(entries: Ranked, params: SamplingParams, key: bytes, position: int) -> int:
            return choose(entries, params, sampling_key(NonceSource.PROVIDER, b"shopped for", digest("x")), position)

        forged = Story.open("forged").turn(asked(temperature=3, min_p=0, top_p=1), 12, sampler=stranger)
        self.add("drawn with another key", "text-not-sampled", forged.evidence(Kind.FULL))


def good_at(data: bytes, made: Evidence) -> int:
    """Where the packed token ids of the first turn begin."""
    tokens = made.turns[0].tokens
    if tokens is None:
        raise TypeError(made.turns[0])
    return data.index(tokens.ids)


def _head(entries: Entries, count: int) -> Entries:
    return Entries(entries.ids[:count], entries.logits[:count])


def _flip(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
