"""A provider that audits itself: a share of its finished turns, computed again when nobody asks for anything.

An honest provider's records differ from what the model gives when a memory module, a disk or a build is bad. Better
that it learns so from its own alarm than from an auditor's verdict. The work is done by the scheduler's thread in
small pieces, in a sequence that no request needs; a request that comes in goes first.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from dataclasses import dataclass

from engine.store import Store
from verifiable.errors import EngineError, MalformedError, VerifiableError
from verifiable.llama.context import Batch, Context
from verifiable.llama.grammar.grammar import Grammar, to_gbnf
from verifiable.llama.model import Model
from verifiable.sampling.logits import Floats
from verifiable.sampling.sampler import SamplingParams
from verifiable.sampling.turn import TurnSampler
from verifiable.session import records
from verifiable.session.records import Token

log = logging.getLogger(__name__)

PIECE = 64
"""Rows of one piece of work: what a request has to wait for at most."""
MAX_WAITING = 64
"""Turns that wait to be audited; on a provider that is never idle the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A turn to be computed again: its session, number, prompt ids, parameters as used, sampling key, and
    `Request.constraint`.
    """

    session: bytes
    turn: int
    prompt: tuple[int, ...]
    params: SamplingParams
    key: bytes
    constraint: bytes = b""


class SelfAudit:
    """Implements `IdleWork`. `add` may be called from any thread, the rest from the scheduler's."""

    def __init__(self, share: float, model: Model, store: Store, k: int, draw: random.Random | None = None) -> None:
        self.checked_tokens = 0
        self.checked_turns = 0
        self.differences = 0
        self._share = share
        self._model = model
        self._store = store
        self._k = min(k, model.n_vocab)
        self._random = draw or random.SystemRandom()
        self._waiting: deque[Finished] = deque(maxlen=MAX_WAITING)
        self._current: _Run | None = None

    def add(self, finished: Finished) -> bool:
        """Take a finished, durable turn with the chance of the share."""
        if self._random.random() >= self._share:
            return False
        self._waiting.append(finished)
        return True

    def pending(self) -> bool:
        return bool(self._waiting) or self._current is not None

    def preempt(self) -> None:
        if self._current is not None:
            self._waiting.appendleft(self._current.finished)
            self._current = None

    def run(self, context: Context, seq: int) -> None:
        if self._current is None:
            finished = self._waiting.popleft()
            context.remove(seq, 0)
            try:
                self._current = _Run(finished, self._tokens(finished), self._sampler(finished))
            except MalformedError as error:
                self.differences += 1
                self.checked_turns += 1
                log.error("SELF-AUDIT FAILED: a stored record is damaged: %s", error)
                return
            except VerifiableError as error:
                log.warning("a turn can't be audited: %s", error)
                return
        current = self._current
        try:
            done = current.piece(context, seq)
        except EngineError as error:
            log.error("self-audit: %s", error)
            done = True
        if current.wrong is not None:
            self.differences += 1
            log.error(
                "SELF-AUDIT FAILED: session %s, turn %d, token %d: the stored record or token is not what this machine "
                "computes now. Stop serving and check the machine's memory, the model file and the build.",
                current.finished.session.hex(),
                current.finished.turn,
                current.wrong,
            )
            done = True
        if done:
            self.checked_turns += 1
            self.checked_tokens += current.compared
            self._current = None
            context.remove(seq, 0)

    def _tokens(self, finished: Finished) -> list[Token]:
        leaves = [records.parse(leaf) for leaf in self._store.leaves(finished.session)]
        return [leaf for leaf in leaves if isinstance(leaf, Token) and leaf.turn == finished.turn]

    def _sampler(self, finished: Finished) -> TurnSampler:
        model, params = self._model, finished.params
        constraint = Grammar(model, to_gbnf(finished.constraint)) if finished.constraint else None
        return TurnSampler(params, finished.key, self._k, model.eog, constraint, model.suppressed)


class _Run:
    """One turn being computed again."""

    def __init__(self, finished: Finished, tokens: list[Token], sampler: TurnSampler) -> None:
        self.finished = finished
        self.compared = 0
        self.wrong: int | None = None
        self._tokens = tokens
        self._ids = [*finished.prompt, *(token.token for token in tokens[:-1])]
        self._first = len(finished.prompt) - 1
        self._sampler = sampler
        self._batch = Batch(PIECE)

    def piece(self, context: Context, seq: int) -> bool:
        """Compute the next rows and compare. Returns whether all is done, or a difference was found (`wrong`)."""
        at = context.length(seq)
        end = min(at + min(PIECE, context.n_batch), len(self._ids)) if self._tokens else at
        if at >= end:
            return True
        self._batch.clear()
        rows = [self._batch.add(seq, index, self._ids[index], index >= self._first) for index in range(at, end)]
        logits = context.decode(self._batch)
        for index in range(max(at, self._first), end):
            token, row = self._tokens[index - self._first], logits[rows[index - at]]
            if not self._holds(token, row):
                self.wrong = index - self._first
                return True
            self.compared += 1
        return end == len(self._ids)

    def _holds(self, token: Token, row: Floats) -> bool:
        """Whether a stored record is that of a row, and its token the one that is drawn from it."""
        entries, committed = self._sampler.entries(row), token.entries
        if (entries.id_bytes(), entries.logit_bytes()) != (committed.id_bytes(), committed.logit_bytes()):
            return False
        candidates = self._sampler.candidates(entries)
        self._sampler.accept(token.token)
        return self._sampler.draw(candidates, token.position) == token.token
