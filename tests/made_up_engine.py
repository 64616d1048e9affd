"""The engine's own code over a model that is not one: requests, sessions, records, store and API are real, logits not.

`MadeUpEngine` can be served over HTTP like any engine; `MadeUpRows` is the auditor's copy of its model.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from engine.counters import Counters
from engine.engine import Engine, EngineSettings
from engine.generation import Generation
from engine.ledger import Ledger
from engine.scheduling.sequence import Draft, Sequence as Running
from engine.sessions.evidence import EvidenceReader
from engine.sessions.manifests import Manifests
from engine.sessions.recorder import Recorder
from engine.sessions.sessions import Sessions
from tests.made_up_model import MadeUpModel
from tests.sessions import manifest
from verifiable.errors import EngineError
from verifiable.llama.grammar.grammar import Grammar
from verifiable.llama.settings import RuntimeSettings, settings_of
from verifiable.manifest.manifest import Manifest
from verifiable.request.request import Request
from verifiable.sampling.logits import Entries, Floats, Ids
from verifiable.sampling.processors import Mask
from verifiable.sampling.sampler import SamplingParams
from verifiable.sampling.turn import TurnSampler

END = 0
UNPROCESSED = SamplingParams(1.0, 1, 1.0, 0.0, 1)
_YEAR = 365 * 86_400_000


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """A model whose logits follow from the last ids and from how many there are. Every token is a word."""

    vocabulary: int
    suppressed: frozenset[int] = frozenset()
    eog: frozenset[int] = frozenset((END,))

    def row(self, ids: Sequence[int]) -> Floats:
        seed = hashlib.sha256(np.array([len(ids), *ids[-3:]], "<u4").tobytes()).digest()
        rng = np.random.default_rng(np.frombuffer(seed, "<u4"))
        row: Floats = rng.normal(10.0, 2.0, self.vocabulary).astype(np.float32)
        return row

    def piece(self, token: int) -> bytes:
        return b"" if token == END else b" w%d" % token

    def prompt(self, request: Request) -> list[int]:
        """Ids that a request means: its own, or some that follow from its text."""
        if isinstance(request.prompt, tuple):
            return list(request.prompt)
        text = repr((request.messages, request.prompt, request.tools)).encode()
        drawn = hashlib.shake_256(text).digest(2 * (1 + len(text) % 40))
        return [1 + int.from_bytes(drawn[at : at + 2], "big") % (self.vocabulary - 1) for at in range(0, len(drawn), 2)]


class Thirds:
    """A grammar that bars every third id, from an offset that its text gives."""

    def __init__(self, constraint: bytes) -> None:
        self._offset = len(constraint) % 3

    def allowed(self, ids: Ids) -> Mask:
        mask: Mask = (ids.astype(np.int64) + self._offset) % 3 != 0
        return mask

    def accept(self, token: int) -> None:
        """It is the same everywhere."""


class MadeUpEngine(Engine):
    """An engine in a folder. `changes` are fields of its manifest; it answers each request before `submit` returns."""

    def __init__(self, data: Path, **changes: Any) -> None:
        self.ledger = Ledger(data, "acme")
        self.store = self.ledger.store
        keys = {"session_keys": (self.keys.session.public,), "log": self.keys.log.public}
        stated = manifest(**{"valid_from": 0, "valid_to": _YEAR, **keys, **changes})
        self.settings = EngineSettings(k=stated.k, runtime=_settings(stated))
        self.manifests = Manifests(self.store, self.keys, stated, self._now)
        self.model_name = "m" * 256
        self.words = Words(stated.model.vocabulary, frozenset(stated.model.suppressed))
        self.sessions = Sessions(self.store, self.manifests, self._now)
        self.evidence = EvidenceReader(self.store, stated.model.vocabulary, self.ledger.proof)
        self.scheduler = cast(Any, _AtOnce(self.words, stated.k))
        self.self_audit = cast(Any, SimpleNamespace(checked_turns=0, checked_tokens=0, differences=0))

    def close(self, grace: float = 0.0) -> None:
        self.ledger.close()

    def _prompt(self, request: Request, opened: int | None = None) -> list[int]:
        return self.words.prompt(request)

    def _constraint(self, request: Request) -> Grammar | None:
        return cast(Grammar, Thirds(request.constraint)) if request.constraint else None


def _settings(stated: Manifest) -> RuntimeSettings:
    return dataclasses.replace(settings_of(stated.runtime), n_seq_max=1)


class _AtOnce:
    """In the scheduler's place: runs each generation to its end, with drafts of which the model's best is right."""

    def __init__(self, words: Words, k: int) -> None:
        self.counters = Counters()
        self.ready = True
        self._words, self._k = words, k

    def load(self) -> tuple[int, int]:
        return 0, 0

    def submit(self, generation: Generation, recorder: Recorder) -> None:
        words = self._words
        sampler = TurnSampler(
            generation.params, generation.key, self._k, words.eog, generation.constraint, words.suppressed
        )
        running = Running(generation, recorder, sampler, cast(Any, words), None, self.counters, 0)
        running.begin()
        full = len(generation.prompt) + generation.params.max_tokens
        while not running.ended:
            row = words.row(running.ids)
            guesses = [int(row.argmax())] if len(running.ids) % 3 and len(running.ids) + 1 < full else []
            rows = [row, *(words.row([*running.ids, guess]) for guess in guesses)]
            record = running.look(row)
            running.advance(rows, Draft(guesses, len(guesses)), record, running.draw(record))
            running.hand_out()
        assert len(running.ids) <= full


@dataclasses.dataclass
class MadeUpRows(MadeUpModel):
    """The auditor's copy of a `MadeUpEngine`'s model, for sessions with any processors."""

    words: Words = dataclasses.field(default_factory=lambda: Words(2))
    prompt: Callable[[Request], list[int]] = lambda request: []

    @classmethod
    def of(cls, engine: MadeUpEngine) -> MadeUpRows:
        made = cls(words=engine.words, who=engine.manifest.model, prompt=engine.words.prompt)
        runtime = engine.manifest.runtime
        made.probed = dataclasses.replace(made.probed, fingerprint=runtime.fingerprint)
        return made

    def ends(self) -> frozenset[int]:
        return self.words.eog

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        return [self.words.piece(token) for token in ids]

    def score(
        self, prompt: Sequence[int], tokens: Sequence[int], k: int, *, as_generated: bool = False
    ) -> list[Entries]:
        return self.score_processed(prompt, tokens, k, UNPROCESSED, b"")[0]

    def score_processed(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        k: int,
        params: SamplingParams,
        constraint: bytes,
        *,
        as_generated: bool = False,
        skip: int = 0,
    ) -> tuple[list[Entries], list[bytes]]:
        words = self.words
        grammar = Thirds(constraint) if params.constraint else None
        sampler = TurnSampler(params, b"", k, words.eog, grammar, words.suppressed)
        ids, found, masks = list(prompt), [], []
        for token in tokens:
            row = words.row(ids)
            try:
                entries = sampler.entries(row)
            except EngineError:
                entries = sampler.best(row)
            found.append(entries)
            masks.append(sampler.allowed(entries.ids).astype("u1").tobytes())
            sampler.accept(token)
            ids.append(token)
        return found[skip:], masks[skip:]
