"""One request on its way through the engine: what it asks for, and the events that come back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from verifiable.errors import EngineError, VerifiableError
from verifiable.request.request import Request
from verifiable.sampling.processors import Constraint
from verifiable.sampling.sampler import SamplingParams
from verifiable.session.records import Finish, Source, TurnFacts

MAX_BACKLOG = 1 << 20
"""Bytes that a reader may be behind before its answer is ended as cancelled."""


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """An emitted token: its bytes, where it came from, and, when asked for, log-probabilities of raw logits.

    `top` lists (id, bytes, log-probability) in descending order; `logprob` is the token's own (-9999.0 below the top
    k).
    """

    id: int
    piece: bytes
    source: Source
    logprob: float | None = None
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepProof:
    """The commitment to one step, durable when it is handed out: the hashes of the tokens' leaves, the first of which
    is leaf `first`, and the signed head of the session's log right after the last of them.
    """

    first: int
    hashes: tuple[bytes, ...]
    head: bytes


@dataclass(frozen=True, slots=True)
class Delta:
    """What one decode step brought: the new text (may be empty), the tokens, and their proof where one was asked for
    (commitments "stream").
    """

    text: str
    tokens: tuple[TokenInfo, ...]
    proof: StepProof | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an answer. `receipt` is encoded and durable, None without commitments."""

    finish: Finish
    prompt_count: int
    completion_count: int
    cached: int
    drafted: int
    accepted: int
    receipt: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer could not be finished; `error` says why."""

    error: VerifiableError


Event = Delta | Done | Failed


class Sink(Protocol):
    """Where events go. `put` is called from the scheduler's and the store's thread and must not block."""

    def put(self, event: Event) -> None: ...

    def backlog(self) -> int:
        """Bytes handed in that the reader has not taken yet."""
        ...


class QueueSink:
    """A sink for readers in a thread: iterate over it."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        self._events.put(event)

    def backlog(self) -> int:
        return 0  # a reader in the same process holds what it has not read

    def __iter__(self) -> Iterator[Event]:
        while True:
            event = self._events.get()
            yield event
            if not isinstance(event, Delta):
                return


@dataclass(slots=True, kw_only=True)
class Generation:
    """A request that was admitted: the facts that the sampler needs, and a flag that any thread may set to cancel it.

    `session` (hexadecimal) and `turn` say where it is committed to; None without commitments. `capability` is the
    session's owner's, None where the session ends with this answer. `namespace` says whose cached prefixes and n-grams
    it may use and add to (see `engine.scheduling.prefix`). `constraint` is the grammar's state at the start of the
    answer. `durable` is called, from any thread, once the finished turn is on disk.
    """

    request: Request
    prompt: list[int]
    params: SamplingParams
    nonce: bytes
    key: bytes
    sink: Sink
    session: str | None = None
    turn: int | None = None
    capability: bytes | None = field(default=None, repr=False)
    namespace: str | None = None
    constraint: Constraint | None = None
    durable: Callable[[], None] | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def turn_facts(self, cached: int) -> TurnFacts:
        """What its turn commits to; `cached` of the prompt's ids were reused."""
        return self.request.turn_facts(self.prompt, self.params, self.nonce, cached)

    def cancel(self) -> None:
        """End this request at the next step; its session is ended and signed with finish reason `cancelled`."""
        self.cancelled.set()


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer, for callers that don't stream. `session` and `capability` are its generation's."""

    text: str
    tokens: tuple[TokenInfo, ...]
    done: Done
    session: str | None = None
    capability: bytes | None = field(default=None, repr=False)

    @property
    def receipt(self) -> bytes | None:
        return self.done.receipt


def collect(sink: QueueSink) -> Answer:
    """Wait for the whole answer. Raises the error that ended it."""
    parts: list[str] = []
    tokens: list[TokenInfo] = []
    for event in sink:
        if isinstance(event, Delta):
            parts.append(event.text)
            tokens.extend(event.tokens)
        elif isinstance(event, Failed):
            raise event.error
        else:
            return Answer("".join(parts), tuple(tokens), event)
    raise EngineError("the answer", expected="an end", found="none")
