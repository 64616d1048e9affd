"""The substitution matrix: every answer of a provider, put in the place of every other answer of its route.

A world of two providers: honest sessions and cheated ones, of one turn and of several, under two manifests, with the
heads of every turn's end. `cells` puts each question that a verifier asks of it (a client's receipt to be audited, a
lottery, a receipt with evidence to be checked offline) together with each answer that anybody in that world ever gave
on a route that the question takes. `judge` says what is wrong with a verdict: that it verifies a cheated turn, accuses
an honest provider, or verifies less than was asked.

Nothing here is written by hand for one attack: a new kind of answer or of question multiplies with all others.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.made_up_model import PROMPT, MadeUpModel
from tests.sessions import PROVIDER, TRUST, Recording, Row, ask, made_up, manifest
from tests.simulator import KEY, LOG, Log, Provider, other_model, seed, serve
from verifiable.checking.checks import check_receipt
from verifiable.checking.verdict import Status, Verdict
from verifiable.errors import VerifiableError
from verifiable.manifest.manifest import Manifest
from verifiable.request.exchange import NOTHING
from verifiable.request.request import Request
from verifiable.sampling.logits import Entries, Ranked
from verifiable.sampling.sampler import SamplingDefaults, SamplingParams, choose
from verifiable.session.challenge import draw_turns
from verifiable.session.evidence import Evidence, Kind
from verifiable.session.receipt import Receipt
from verifiable.wire.keys import PrivateKey
from verifier.auditing.scope import audited
from verifier.auditing.session import audit
from verifier.campaign.campaign import audit_provider
from verifier.campaign.fetched import Auditor, Fetched, audit_session
from verifier.offline.fault import Fault
from verifier.offline.offline import verify_with_evidence
from verifier.provider.client import Client

VERIFIED = (Status.EXACT, Status.STATISTICAL, Status.RECEIPT)
STRANGER = PrivateKey.generate("other", b"o" * 32)
"""The second provider's key, which no verifier here trusts."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session as it stood at the end of one of its turns. `cheated` are the numbers of its cheated turns, later ones
    too; `ours` says whether it is the provider's that the verifier trusts.
    """

    name: str
    made: Recording
    cheated: frozenset[int]
    ours: bool

    @property
    def session(self) -> bytes:
        return self.made.session

    @property
    def turns(self) -> int:
        return self.made.log.turns

    def receipt(self, turn: int | None = None) -> Receipt:
        made = self.made.receipt(turn)
        return made if self.ours else Receipt(made.head, self._manifest(), made.opening, made.turn, made.capability)

    def evidence(self, kind: Kind, turns: Sequence[int] | None, positions: Sequence[int] = ()) -> Evidence:
        made = self.made.evidence(kind, turns, positions)
        return made if self.ours else Evidence(made.kind, made.head, self._manifest(), made.opening, made.turns)

    def _manifest(self) -> bytes:
        return self.made.manifest.sign(PROVIDER if self.ours else STRANGER)


@dataclass(frozen=True, slots=True)
class Given:
    """An answer that somebody in this world once gave on a route."""

    route: str
    what: str
    body: bytes


def snapshots() -> list[Snapshot]:
    """The world's sessions, each at the end of each of its turns."""
    first, second = manifest(log=LOG.public), manifest(log=LOG.public, k=30, defaults=SamplingDefaults(temperature=0.8))
    strange = manifest(provider="other", log=LOG.public)

    def worst(entries: Ranked, params: SamplingParams, key: bytes, position: int) -> int:
        return int(entries.ids[-1])

    shown: list[Snapshot] = []
    plan: tuple[tuple[str, Manifest, bool, bool, str], ...] = (
        ("three honest turns, open", first, True, False, "hhh"),
        ("an honest turn, then one by another model", first, True, True, "hc"),
        ("an honest turn, then one not drawn", first, True, False, "hd"),
        ("one honest turn", first, True, True, "h"),
        ("one by another model", first, True, True, "c"),
        ("honest, second manifest", second, True, True, "h"),
        ("records of another length, second manifest", second, True, True, "r"),
        ("by another model, second manifest", second, True, True, "c"),
        ("the other provider's, honest", strange, False, True, "h"),
        ("the other provider's, by another model", strange, False, True, "c"),
    )
    for number, (name, stated, ours, closed, turns) in enumerate(plan, 1):
        for count in range(1, len(turns) + 1):
            made = Recording(manifest=stated, session=bytes([number]) * 16, capability=bytes([number]) * 32)
            for turn, kind in enumerate(turns[:count]):
                made.draws = worst if kind == "d" else choose
                made.turn(_request(made, turn, len(turns) > 1), PROMPT, _row(kind, stated.k))
            if closed and count == len(turns):
                made.close()
            cheated = frozenset(turn for turn, kind in enumerate(turns) if kind != "h")
            shown.append(Snapshot(f"{name}, {count} of {len(turns)}", made, cheated, ours))
    return shown


def _row(kind: str, k: int) -> Row:
    """What the provider's model computes in a turn of a kind, as records of k entries."""
    row, many = other_model if kind == "c" else made_up, k + 1 if kind == "r" else k

    def cut(ids: Sequence[int]) -> Entries:
        entries = row(ids)
        return Entries(entries.ids[:many], entries.logits[:many])

    return cut


def _request(made: Recording, turn: int, several: bool) -> Request:
    """A client's request for a turn, with a nonce of its own."""
    nonce = hashlib.sha256(made.session + bytes([turn])).hexdigest()[:32]
    place = {} if not several else {"session": made.session.hex() if turn else "new"}
    return ask(max_tokens=5, verifiable={"nonce": nonce, **place})


def answers(shown: Sequence[Snapshot]) -> list[Given]:
    """Every answer of every route of the proof API that somebody in this world was ever given."""
    made: list[Given] = []
    for each in shown:
        numbers: list[Sequence[int] | None] = [None, *[[turn] for turn in range(each.turns)]]
        numbers += [[0, 1]] if each.turns > 2 else []
        for turns, kind in itertools.product(numbers, (Kind.TOKENS, Kind.FULL)):
            what = f"{kind.name.lower()} of {each.name}, turns {turns or 'all'}"
            made.append(Given("evidence", what, each.evidence(kind, turns).encode()))
        for turn in range(each.turns):
            one = each.evidence(Kind.RECORDS, [turn], [len(PROMPT)])
            made.append(Given("evidence", f"a record of turn {turn} of {each.name}", one.encode()))
            made.append(Given("receipt", f"receipt of turn {turn} of {each.name}", each.receipt(turn).encode()))
    for name, some in lists(shown).items():
        made.append(Given("sessions", name, Provider([each.made for each in some]).page({})))
    for name, log in logs(shown).items():
        made.append(Given("checkpoint", name, log.note()))
        made += [Given("proof", f"{name}, entry {at}", log.inclusion(at)) for at in range(len(log.entries))]
    return made


def lists(shown: Sequence[Snapshot]) -> dict[str, list[Snapshot]]:
    """What the two providers ever listed: their sessions as they are at last, and as they were at first."""
    last = {each.session: each for each in shown}
    first = {each.session: each for each in reversed(shown)}
    return {
        "the newest list": [each for each in last.values() if each.ours],
        "an older list": [each for each in first.values() if each.ours],
        "the other provider's list": [each for each in last.values() if not each.ours],
        "an empty list": [],
    }


def logs(shown: Sequence[Snapshot]) -> dict[str, Log]:
    heads = [each.made.head() for each in shown]
    return {"the log": Log(heads), "the log as it was": Log(heads[:3])}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a verdict has to be about. `turns` are those that must have been recomputed, by number; `cheated` those of
    the session that were cheated. `offline` verdicts do not say that a model was run.
    """

    session: bytes
    turns: frozenset[int]
    cheated: frozenset[int]
    offline: bool = False


Judged = tuple[Asked, Verdict]
Cell = tuple[str, Callable[[], list[Judged]]]
"""A question with a substituted answer, in words, and what asking it gives."""


def near(name: str) -> bool:
    """Whether a cell's answer is of the very session asked about: nearest to the right one, so hardest to tell."""
    return any(name.count(each) > 1 for each in re.findall(r"of (\w[^;]*?, \d of \d)", name))


def judge(asked: Asked, verdict: Verdict) -> str | None:
    """What is wrong with a verdict, in this world; None where it may stand."""
    if verdict.status is Status.FAILED:
        return None if asked.cheated else f"accuses an honest provider: {verdict.code}, {verdict.summary}"
    if verdict.status not in VERIFIED:
        return None
    if verdict.session != asked.session.hex():
        return "verifies another session"
    if asked.offline:
        return None
    if asked.turns & asked.cheated:
        return "verifies a cheated turn"
    checked = {turn.number for turn in audited(verdict).turns if turn.result.checked == turn.span.end.completion_count}
    if not asked.turns <= checked:
        return f"verifies less than was asked: turns {sorted(checked)} of {sorted(asked.turns)}"
    if checked & asked.cheated:
        return "counts a cheated turn as checked"
    return None


class Model(MadeUpModel):
    """The model that both providers promise, with records as long as they are asked for."""

    def score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, *, as_generated: bool = False
    ) -> list[Entries]:
        whole = super().score(prompt, tokens, k, as_generated=as_generated)
        return [Entries(entries.ids[:k], entries.logits[:k]) for entries in whole]


class World:
    """What both providers ever showed, and a server that shows it. `cells` has every substitution."""

    def __init__(self, folder: Path) -> None:
        self.shown = snapshots()
        self.given = answers(self.shown)
        self._log = logs(self.shown)["the log"]
        self._folder = folder

    def cells(self) -> Iterator[Cell]:
        evidence = [given for given in self.given if given.route == "evidence"]
        for each in self.shown:
            if not each.ours:
                continue
            for turn, given, first in itertools.product(range(each.turns), evidence, (False, True)):
                how = "first" if first else "each"
                name = f"audit the receipt of turn {turn} of {each.name}; {how} evidence is {given.what}"
                yield name, partial(self._receipt, each, turn, {"evidence": given.body}, first)
            for turn, given in itertools.product(range(each.turns), evidence):
                held = f"the receipt of turn {turn} of {each.name}"
                yield f"audit a file of {given.what} with {held}", partial(self._file, each, turn, given.body)
                yield f"verify {held} with {given.what}", partial(self._offline, each, turn, given.body)
            for route in ("checkpoint", "proof"):
                for given in (given for given in self.given if given.route == route):
                    name = f"audit the receipt of {each.name}; {route} is {given.what}"
                    yield name, partial(self._receipt, each, each.turns - 1, {route: given.body}, False)
        newest = lists(self.shown)["the newest list"]
        for given in self.given:
            if given.route == "sessions":
                yield f"lottery over {given.what}", partial(self._lottery, {"sessions": given.body}, None)
        for each, given in itertools.product(newest, evidence):
            name = f"lottery; the evidence of {each.name} is {given.what}"
            yield name, partial(self._lottery, {"evidence": given.body}, each)
        receipts = [given for given in self.given if given.route == "receipt"]
        for each, given in itertools.product(newest, receipts):
            name = f"lottery over turns; the receipt of {each.name} is {given.what}"
            yield name, partial(self._lottery, {"receipt": given.body}, each, turns=1)

    def _auditor(self) -> Auditor:
        return Auditor(Model(), TRUST, self._folder)

    @contextmanager
    def _served(self, bodies: Mapping[str, bytes], only: Snapshot | None = None, first: bool = False) -> Iterator[str]:
        """The trusted provider's address, with the bodies given in place of its own, by route: for one session alone,
        or only the first time.
        """
        provider = Provider([each.made for each in lists(self.shown)["the newest list"]], self._log)
        provider.earlier = {(each.session.hex(), each.made.log.size): each.made for each in self.shown if each.ours}
        left = set(bodies)

        def change(path: str, body: bytes) -> bytes:
            route = _route(path)
            if route not in left or (only is not None and only.session.hex() not in path):
                return body
            left.difference_update({route} if first else ())
            return bodies[route]

        provider.change = change
        with serve(provider) as url:
            yield url

    def _receipt(self, each: Snapshot, turn: int, bodies: Mapping[str, bytes], first: bool) -> list[Judged]:
        wanted = Fetched(
            each.session,
            receipt=check_receipt(each.receipt(turn), TRUST),
            size=each.made.log.size,
            asked=NOTHING.with_text(each.made.texts[turn]),
        )
        with self._served(bodies, first=first) as url, Client(url, capability=each.made.capability) as client:
            return [(_asked(each, [turn]), audit_session(self._auditor(), client, wanted))]

    def _file(self, each: Snapshot, turn: int, evidence: bytes) -> list[Judged]:
        verdict = audit(evidence, Model(), TRUST, receipt=each.receipt(turn), text=each.made.texts[turn])
        return [(_asked(each, [turn]), verdict)]

    def _offline(self, each: Snapshot, turn: int, evidence: bytes) -> list[Judged]:
        mine = NOTHING.with_text(each.made.texts[turn])
        verdict = verify_with_evidence(each.receipt(turn), Evidence.parse(evidence), TRUST, mine)
        return [(_asked(each, [turn], offline=True), verdict)]

    def _lottery(self, bodies: Mapping[str, bytes], only: Snapshot | None, turns: int | None = None) -> list[Judged]:
        auditor = self._auditor()
        with self._served(bodies, only) as url, Client(url, auditor_key=KEY) as client:
            try:
                verdicts, _ = audit_provider(auditor, client, 100, seed, turns)
            except VerifiableError as error:
                return [(Asked(b"", frozenset(), frozenset()), Fault.of(error).verdict())]
        judged = []
        for verdict in verdicts:
            some = [each for each in self.shown if each.session.hex() == verdict.session]
            page = bodies.get("sessions")
            listed = ([each for each in some if page is None or _lists(each, page)] or some)[-1]  # else from the log
            drawn = range(listed.turns) if turns is None else draw_turns(seed(), listed.session, listed.turns, turns)
            judged.append((_asked(listed, drawn), verdict))
        return judged


def _asked(each: Snapshot, turns: Iterable[int], offline: bool = False) -> Asked:
    cheated = each.cheated if each.ours else frozenset(range(each.turns))
    return Asked(each.session, frozenset(turns), cheated, offline)


def _lists(each: Snapshot, page: bytes) -> bool:
    entry = {"id": each.session.hex(), "size": each.made.log.size}
    return any(entry.items() <= listed.items() for listed in json.loads(page)["sessions"])


def _route(path: str) -> str:
    """The route of a path: what its last part says."""
    return path.rsplit("/", 1)[-1]
