"""Vectors of what a client keeps of its own, and of evidence that is to answer for a receipt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spec.generate.cases import VectorFile
from spec.generate.receipts import TRUST
from spec.generate.world import HOUR, MANIFEST, NEW, NONCE, OPENED, OTHER, SESSION_KEY, Story, asked, going_on
from verifiable.request.exchange import Exchange
from verifiable.request.request import COMPLETION
from verifiable.sampling.logits import Entries
from verifiable.sampling.sampler import SamplingParams
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.records import End, Finish, NonceSource, Token, Turn
from verifiable.wire.text import write_base64

MINUTE = 60_000


def exchange() -> VectorFile:
    file = VectorFile(
        "exchange",
        "text: an exchange as a client wrote it (input: the same where it is no UTF-8). trusted: verifier keys of "
        "providers. Its receipt is checked with its text, request and times; the outcome is null where it has none.",
    )
    _Exchanges(file).all()
    return file


class _Exchanges:
    def __init__(self, file: VectorFile) -> None:
        self.file = file
        self.request = asked(max_tokens=20, verifiable=NEW)
        self.story = Story.open("kept").turn(self.request, 4)
        self.longer = self.story.turn(asked(None, seed=7, messages=_say("Go on."), verifiable=going_on("kept")), 3)
        self.kept = self.of(self.story)

    def of(self, story: Story, **fields: Any) -> Exchange:
        """What the client of a story's last turn writes."""
        last = len(story.requests) - 1
        kept = Exchange(story.requests[last], story.texts[last], story.receipt(last), OPENED - 20, OPENED + 3000)
        return replace(kept, **fields)

    def add(self, name: str, expected: str, made: Exchange | bytes) -> None:
        data = made if isinstance(made, bytes) else made.encode()
        try:
            self.file.add(name, expected, text=data.decode(), trusted=TRUST)
        except UnicodeDecodeError:
            self.file.add(name, expected, input=data.hex(), trusted=TRUST)

    def all(self) -> None:
        self.honest()
        self.another()
        self.placed()
        self.followed()
        self.near()
        self.timed()
        self.damaged()

    def honest(self) -> None:
        kept = self.kept
        self.add("all of it", "ok", kept)
        self.add("the request alone", "ok", Exchange(self.request))
        self.add("without the text", "ok", replace(kept, text=None))
        self.add("without times", "ok", replace(kept, sent=None, received=None))
        self.add("the second turn, of a request with a seed", "ok", self.of(self.longer))
        self.add("a request in another order and spelling", "ok", self.spelled(kept))

    def spelled(self, kept: Exchange) -> bytes:
        """The same exchange, as another JSON writer has it."""
        value = json.loads(kept.encode())
        value["body"] = dict(reversed(value["body"].items())) | {"max_tokens": 20.0}
        return json.dumps(dict(reversed(value.items())), ensure_ascii=False, separators=(",", ":")).encode()

    def another(self) -> None:
        for name, request in {
            "another question": asked(max_tokens=20, messages=_say("Why is the sea blue?")),
            "a system prompt less": asked(max_tokens=20, messages=[*_say("Be brief.", "system"), *_say("Why?")]),
            "another nonce": asked(bytes(len(NONCE)), max_tokens=20),
            "no nonce": asked(None, max_tokens=20),
            "another bound": asked(max_tokens=21),
            "a field that changes nothing": asked(max_tokens=20, user="me"),
            "another path": asked(path=COMPLETION, prompt="Why is the sky blue?", max_tokens=20),
            "the request of a later turn": self.longer.requests[1],
        }.items():
            self.add(name, "request-differs", replace(self.kept, request=request))
        self.add("another text", "text-differs", replace(self.kept, text="No."))
        foreign = Story.open("foreign").turn(asked(max_tokens=20, messages=_say("Hello.")), 4)
        self.add(
            "a receipt of another session", "request-differs", replace(self.kept, text=None, receipt=foreign.receipt(0))
        )

    def placed(self) -> None:
        pinned = {"manifest": MANIFEST.digest().hex()}
        for name, code, extra in (
            ("the manifest that it pins", "ok", pinned),
            ("another manifest than it pins", "manifest-differs", {"manifest": "00" * 32}),
            ("another turn than it expects", "session-differs", {"turn": 1}),
            ("another session than it names", "session-differs", going_on("elsewhere")),
        ):
            self.add(name, code, self.of(Story.open("kept").turn(asked(max_tokens=20, verifiable=extra), 4)))

    def followed(self) -> None:
        """What a turn states besides the request has to follow from it, though the request is the client's own."""
        silent = Story.open("silent").turn(asked(None, max_tokens=20), 4)
        seeded = Story.open("seeded").turn(asked(None, seed=7, max_tokens=20), 4)
        shopped = {"nonce_source": NonceSource.CLIENT, "nonce": b"shopped!"}
        self.add("the provider's nonce, where the request has none", "ok", self.of(silent))
        for name, story, code, changes in (
            ("no nonce, and one that is said to be the client's", silent, "nonce-differs", shopped),
            ("a seed, and a nonce that is said to be the client's", seeded, "nonce-differs", shopped),
            ("a seed, and another's bytes", seeded, "nonce-differs", {"nonce": bytes(8)}),
            ("other stop strings than the request's", silent, "parameters-differ", {"stop_digest": bytes(32)}),
            ("another temperature than the request gives", silent, "parameters-differ", {"params": _hot(silent)}),
        ):
            self.add(name, code, self.of(story.edit(1, **changes)))

    def near(self) -> None:
        text = self.story.texts[0]
        for name, other in {"a line break more": f"{text}\n", "a byte order mark": f"\ufeff{text}"}.items():
            self.add(name, "text-differs", replace(self.kept, text=other))

    def timed(self) -> None:
        def at(sent: int | None, received: int | None) -> Exchange:
            return replace(self.kept, text=None, sent=sent, received=received)

        self.add("sent five minutes later, by its clock", "ok", at(OPENED + 5 * MINUTE, OPENED + 6 * MINUTE))
        self.add("sent later still", "time-differs", at(OPENED + 5 * MINUTE + 1, OPENED + 6 * MINUTE))
        self.add("received five minutes earlier", "ok", at(OPENED - HOUR, OPENED - 5 * MINUTE))
        self.add("received earlier still", "time-differs", at(OPENED - HOUR, OPENED - 5 * MINUTE - 1))
        self.add("sent a day before, received a day after", "ok", at(OPENED - 24 * HOUR, OPENED + 24 * HOUR))
        self.add("only sent, and later", "time-differs", at(OPENED + HOUR, None))
        self.add("only received, and earlier", "time-differs", at(None, OPENED - HOUR))
        head = self.longer.head(time=OPENED + 9 * HOUR).sign(SESSION_KEY)
        again = self.of(self.longer, receipt=self.longer.receipt(1, head=head), received=OPENED + 10 * HOUR)
        self.add("the second turn, hours after the session was opened", "ok", replace(again, sent=OPENED + 9 * HOUR))
        after = self.of(self.longer, sent=OPENED + 6 * MINUTE + 1, received=OPENED + 10 * HOUR)
        self.add("the second turn, sent more than five minutes after its head was signed", "time-differs", after)
        early = self.of(self.longer, sent=OPENED - 2 * HOUR, received=OPENED - HOUR)
        self.add("the second turn, before the session was opened", "time-differs", early)
        self.add("the request of the turn before", "other-turn", self.of(self.longer, request=self.longer.requests[0]))
        self.add("the text of the turn before", "other-turn", self.of(self.longer, text=self.longer.texts[0]))
        self.add("received before it was sent", "malformed", at(OPENED, OPENED - 1))

    def damaged(self) -> None:
        whole = json.loads(replace(self.kept, receipt=None).encode())
        self.add("no bytes", "malformed", b"")
        self.add("no JSON", "malformed", b"{")
        self.add("no UTF-8", "malformed", b'{"version": 2, "text": "\xff"}')
        self.add("a list", "malformed", b"[]")
        wrong: dict[str, dict[str, Any]] = {
            "version 1": {"version": 1},
            "version true": {"version": True},
            "version as text": {"version": "2"},
            "an unknown field": {"answer": "?"},
            "an unknown path": {"path": "/v1/embeddings"},
            "no path": {"path": None},
            "no body": {"body": None},
            "a body that is a list": {"body": []},
            "a body that no provider answers": {"body": {**whole["body"], "n": 2}},
            "a text that is a number": {"text": 5},
            "a receipt that is none": {"receipt": "AAAA"},
            "a receipt in standard base64": {"receipt": "+///"},
            "a time that is text": {"sent": "now"},
            "a time with a fraction": {"sent": 0.5},
            "a time before 1970": {"sent": -1},
            "a time in seconds": {"sent": OPENED // 1000},
            "a time past 2^53": {"received": 2**53},
        }
        for name, changes in wrong.items():
            self.add(name, "malformed", json.dumps({**whole, **changes}).encode())
        twice = json.dumps(whole).encode().replace(b'"version": 2,', b'"version": 2, "version": 2,')
        self.add("a field twice", "malformed", twice)
        lone = json.dumps({**whole, "text": "?"}).replace('"?"', '"\\ud800"').encode()
        self.add("a text that is none", "malformed", lone)


def answer() -> VectorFile:
    file = VectorFile(
        "answer",
        "receipt, evidence: the files in base64. trusted: verifier keys of providers. Whether the evidence answers for "
        "the receipt: opens its turn of its session, and tells the same history.",
    )
    story = Story.open("answering")
    on = going_on("answering")
    one = story.turn(asked(verifiable=NEW), 3)
    two = one.turn(asked(None, seed=7, verifiable=on), 4)
    held = two.receipt(1)

    def add(
        name: str, expected: str, made: Evidence, receipt: bytes = held.encode(), trusted: Sequence[str] = TRUST
    ) -> None:
        files = {"receipt": write_base64(receipt), "evidence": write_base64(made.encode())}
        file.add(name, expected, **files, trusted=list(trusted))

    def shown(of: Story, kind: Kind, turns: Sequence[int], records: Sequence[int] = ()) -> Evidence:
        return of.evidence(kind, turns, records)

    add("both turns", "ok", shown(two, Kind.TOKENS, [0, 1]))
    add("the receipt's turn", "ok", shown(two, Kind.TOKENS, [1]))
    add("all records of it", "ok", shown(two, Kind.FULL, [1]))
    add("a later head", "ok", shown(two.turn(asked(verifiable=on), 2), Kind.TOKENS, [1]))
    add("the first turn's receipt, a later head", "ok", shown(two, Kind.TOKENS, [0]), one.receipt(0).encode())
    add("another turn", "no-evidence", shown(two, Kind.TOKENS, [0]))
    add("a record of another turn", "no-evidence", shown(two, Kind.RECORDS, [0], [two.where(Token)]))
    add("no turn", "no-evidence", shown(two, Kind.TOKENS, []))
    add("an older head, before the receipt's turn", "no-evidence", shown(one, Kind.TOKENS, [0]))
    away = Story.open("other").turn(asked(verifiable=NEW), 3).turn(asked(verifiable=going_on("other")), 4)
    add("another session", "no-evidence", shown(away, Kind.TOKENS, [1]))
    other = one.turn(asked(None, seed=8, verifiable=on), 4)
    borrowed = replace(shown(other, Kind.TOKENS, [1]), manifest=MANIFEST.sign(OTHER))
    both = [*TRUST, OTHER.public.vkey()]
    add("the session's id under another provider's key", "no-evidence", borrowed, trusted=both)
    add("another history", "two-histories", shown(other, Kind.TOKENS, [1]))
    # The same landmarks, and another record: each time something else can tell.
    at = two.where(Token, 1) + 2
    record = two.tokens(1)[2]
    lower = record.entries.logits.copy()
    lower[-1] -= 1
    retold = two.swap(at, replace(record, entries=Entries(record.entries.ids, lower)))
    ending = two.edit(two.where(End, 1), text_digest=bytes(32))
    add("another record, beside the one that is shown", "two-histories", shown(retold, Kind.RECORDS, [1], [at - 1]))
    last = asked(verifiable=on)
    add("another record, hidden under a later head", "two-histories", shown(retold.turn(last, 2), Kind.TOKENS, [1]))
    add("another record, shown under a later head", "two-histories", shown(retold.turn(last, 2), Kind.FULL, [1]))
    # Turns of other lengths, so that the leaves that one shows are hidden by the other, and no hash is of both.
    long = story.turn(asked(verifiable=NEW), 7)
    short = story.turn(asked(verifiable=NEW), 2, finish=Finish.CANCELLED).turn(last, 12)
    cut = long.receipt(0).encode()
    add("turns that end elsewhere, under a later head", "two-histories", shown(short, Kind.TOKENS, [0]), cut)
    grown = long.turn(last, 9)
    add(
        "turns that end elsewhere, under an older head",
        "two-histories",
        shown(grown, Kind.TOKENS, [0]),
        short.receipt(0).encode(),
    )
    add("another end, under a later head", "two-histories", shown(ending.turn(last, 2), Kind.TOKENS, [1]))
    return file


def _say(text: str, role: str = "user") -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


def _hot(story: Story) -> SamplingParams:
    """The parameters of a story's first turn, at a temperature that nobody asked for."""
    return replace(next(leaf.params for leaf in story.leaves if isinstance(leaf, Turn)), temperature=50.0)
